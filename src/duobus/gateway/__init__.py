"""Servers of the wire protocols."""
