"""Addresses of the sub-queues that histories name."""

from __future__ import annotations

from simulation.history import events as h

_SUFFIXES = {h.MAIN: "", h.DEAD_LETTER: "/$DeadLetterQueue", h.TRANSFER_DEAD_LETTER: "/$Transfer/$DeadLetterQueue"}


def path_of(entity: str, subqueue: str) -> str:
    """The address of a sub-queue of an entity."""
    return entity + _SUFFIXES[subqueue]
