"""duobus: a durable message broker that speaks Azure Service Bus."""
