"""Cluster forwarding: servers forward messages to entities that other servers own."""
