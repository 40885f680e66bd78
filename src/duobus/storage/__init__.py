"""Messaging stores: how message brokers keep what they decided; one interface, several keepers."""
