"""Messaging stores in PostgreSQL."""
