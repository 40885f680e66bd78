"""Not more than so many messages a second."""

from __future__ import annotations

from collections.abc import Callable

from duobus.clock import Clock


class Pace:
    """Holds up who has sent too much too soon.

    Args:
        rate: Messages a second.
        clock: Time.
        pause: Waits so many seconds.
    """

    __slots__ = ("_clock", "_due_ms", "_pause", "_rate")

    def __init__(self, rate: int, clock: Clock, pause: Callable[[float], None]) -> None:
        self._rate = rate
        self._clock = clock
        self._pause = pause
        self._due_ms: float | None = None

    def sent(self, count: int) -> None:
        """Return when more may be sent after ``count`` messages; what was not used before is not made up for."""
        now_ms = self._clock.monotonic_ms()
        due_ms = max(now_ms, now_ms if self._due_ms is None else self._due_ms) + count * 1000 / self._rate
        self._due_ms = due_ms
        if due_ms > now_ms:
            self._pause((due_ms - now_ms) / 1000)
