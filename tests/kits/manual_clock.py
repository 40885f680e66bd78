"""A clock that stands still until a test moves it."""

from __future__ import annotations

from duobus.clock import Clock


class ManualClock(Clock):
    def __init__(self) -> None:
        self.elapsed_ms = 0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.elapsed_ms

    def monotonic_ms(self) -> int:
        return 5_000 + self.elapsed_ms

    def advance(self, ms: int) -> None:
        self.elapsed_ms += ms
