"""Forwarding messages from one entity to another."""
