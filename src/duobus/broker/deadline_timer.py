"""DeadlineTimer: one timer for all fragments of a message broker, set to the earliest of their deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import heappop, heappush

from duobus.errors import StoreUnavailable
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import NEVER

TIMER_MAX_S = 3600.0


class DeadlineTimer:
    """Knows which fragment wants to be looked at when.

    The heap's entries may be outdated: a fragment's own deadline decides.

    Attributes:
        earliest_ms: The earliest time for which anything is noted; 0 while that is unknown, so that somebody looks.
    """

    __slots__ = ("_due", "_loop", "_now_ms", "_number", "_ring", "_timer", "earliest_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int], ring: Callable[[], None]) -> None:
        """``ring`` is called, on the loop, when something may be due."""
        self._loop = loop
        self._now_ms = now_ms
        self._ring = ring
        self._due: list[tuple[int, int, Fragment]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.earliest_ms = NEVER
        # Stands between equal deadlines, so that fragments are never compared.
        self._number = 0

    def note(self, fragment: Fragment) -> None:
        """Note when a fragment wants to be looked at, if that is earlier than what is noted already."""
        deadline = fragment.deadline
        if deadline < fragment.armed:
            fragment.armed = deadline
            self._number += 1
            heappush(self._due, (deadline, self._number, fragment))
            self._set()

    def due(self, now_ms: int) -> Iterator[Fragment]:
        """Yield the fragments whose deadline has come; each must be noted again afterwards."""
        due = self._due
        while due and due[0][0] <= now_ms:
            deadline, _, fragment = heappop(due)
            if fragment.armed == deadline:
                fragment.armed = NEVER
                yield fragment
        self._set()

    def time_moved(self) -> None:
        """Set the timer anew: broker time has jumped ahead of the loop's (only tests do that)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.earliest_ms = NEVER
        self._set()

    def clear(self) -> None:
        """Forget everything."""
        self._due = []
        self._set()

    def _set(self) -> None:
        deadline = self._due[0][0] if self._due else NEVER
        if deadline == self.earliest_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.earliest_ms = deadline
        if deadline < NEVER:
            # Broker time may be slewed against the loop's, so a timer is a hint: whoever is rung looks again. The
            # bound keeps a far deadline from overflowing the loop's arithmetic.
            delay_s = min(max(0, deadline - self._now_ms()) / 1000, TIMER_MAX_S)
            self._timer = self._loop.call_later(delay_s, self._rang)

    def _rang(self) -> None:
        self._timer = None
        self.earliest_ms = 0
        # Where the time of a store has ended, nothing is due any more (LeasedTime).
        with suppress(StoreUnavailable):
            self._ring()
            self._set()
