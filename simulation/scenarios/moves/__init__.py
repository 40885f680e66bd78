"""Moves between the stores of different servers."""
