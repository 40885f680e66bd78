"""Copies of a server's stores and catalog, and how they are put back."""
