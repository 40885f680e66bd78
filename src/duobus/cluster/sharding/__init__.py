"""Sharding."""
