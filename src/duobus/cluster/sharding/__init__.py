"""Sharded queues: one queue over the stores of several servers."""
