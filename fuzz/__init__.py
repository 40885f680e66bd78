"""Fuzzing of everything that takes bytes from a network; see ``run.py``."""
