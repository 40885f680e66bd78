"""Transactions of a client over AMQP."""
