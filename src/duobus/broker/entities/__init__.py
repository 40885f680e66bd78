"""Queues, topics and subscriptions: creating, placing, using and deleting them."""
