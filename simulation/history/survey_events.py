"""What was seen of a queue at rest: an event of ``events.py`` that only the end of a run has."""

from __future__ import annotations

from simulation.history import events as h
from simulation.history.events import Event


class Shown:
    """A message as a peek shows it."""

    __slots__ = ("deliveries", "expires_ms", "seq", "size", "state", "subqueue", "uid")

    def __init__(
        self, subqueue: str, seq: int, uid: str, state: int, deliveries: int, size: int, expires_ms: int | None
    ) -> None:
        self.subqueue = subqueue
        self.seq = seq
        self.uid = uid
        self.state = state
        self.deliveries = deliveries
        self.size = size
        self.expires_ms = expires_ms

    def __repr__(self) -> str:
        return f"{self.uid}={self.seq}({self.subqueue} {self.state} x{self.deliveries})"


class Surveyed(Event):
    """A queue was looked through from end to end, twice, while nobody used it.

    Attributes:
        entity: The queue.
        limit: Messages asked for per page, the first time.
        pages: What the pages of the first time showed, the sub-queues one after the other.
        again: What the second time showed, in one page per sub-queue.
        numbers: What the broker counts: active, dead, transfer dead, deferred and scheduled messages.
        size: Bytes that it counts.
        broker_ms: When it was over.
    """

    __slots__ = ("again", "broker_ms", "entity", "limit", "numbers", "pages", "size")

    def __init__(
        self,
        entity: str,
        limit: int,
        pages: tuple[tuple[Shown, ...], ...],
        again: tuple[Shown, ...],
        numbers: tuple[int, ...],
        size: int,
        broker_ms: int,
    ) -> None:
        self.entity = entity
        self.limit = limit
        self.pages = pages
        self.again = again
        self.numbers = numbers
        self.size = size
        self.broker_ms = broker_ms

    @property
    def rows(self) -> list[Shown]:
        """What the first time showed."""
        return [row for page in self.pages for row in page]


# Addresses of the sub-queues that histories name.

_SUFFIXES = {h.MAIN: "", h.DEAD_LETTER: "/$DeadLetterQueue", h.TRANSFER_DEAD_LETTER: "/$Transfer/$DeadLetterQueue"}


def path_of(entity: str, subqueue: str) -> str:
    """The address of a sub-queue of an entity."""
    return entity + _SUFFIXES[subqueue]
