"""The AMQP server."""
