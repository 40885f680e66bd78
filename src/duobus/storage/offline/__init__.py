"""Repairs of stores and catalog while no server runs."""
