"""Messaging stores in SQLite files."""
