"""What happened to entities and their numbers: events of history.py that only some runs have."""

from __future__ import annotations

from simulation.history.events import Event


class NumberTold(Event):
    """A client was told the sequence number of a message before that was stored; it may never be (I7)."""

    __slots__ = ("entity", "seq", "uid")

    def __init__(self, entity: str, seq: int, uid: str) -> None:
        self.entity = entity
        self.seq = seq
        self.uid = uid
