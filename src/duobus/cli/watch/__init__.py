"""Watching a server and its machine: ``duobus top`` and ``duobus doctor``."""
