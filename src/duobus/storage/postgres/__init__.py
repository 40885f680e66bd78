"""Postgres."""
