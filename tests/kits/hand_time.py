"""A clock that a test sets by hand."""

from __future__ import annotations

from duobus.clock import Clock


class HandTime(Clock):
    """Stands still until somebody changes ``ms``."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    def advance(self, ms: int) -> None:
        self.ms += ms
