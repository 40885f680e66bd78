"""Broker time over a clock that a test moves: what a test has waited for is over."""

from __future__ import annotations

from duobus.clock import BrokerTime
from duobus.testing.broker import MovableClock


def test_broker_time_moves_by_all_that_a_test_moves_it_however_wall_and_monotonic_clock_are_rounded() -> None:
    clock = MovableClock()
    time = BrokerTime(clock)
    for _ in range(2_000):
        before = time.now_ms()
        clock.moved_ms += 30_000
        assert time.now_ms() >= before + 30_000


class _PausedClock(MovableClock):
    """A clock whose process waits for a processor between its monotonic and its wall clock, once."""

    def __init__(self) -> None:
        super().__init__()
        self.true_ms = 1_000_000
        self.pause_ms = 0
        self.jump_ms = 0

    def now_ms(self) -> int:
        return self.true_ms + self.moved_ms + self.jump_ms

    def monotonic_ms(self) -> int:
        now_ms = self.true_ms + self.moved_ms
        self.true_ms += self.pause_ms
        self.pause_ms = 0
        return now_ms


def test_broker_time_follows_no_wall_clock_that_was_read_late() -> None:
    clock = _PausedClock()
    time = BrokerTime(clock)
    clock.moved_ms += 30_000
    clock.pause_ms = 50
    before = time.now_ms()
    assert before == 1_030_000
    clock.moved_ms += 30_000
    assert time.now_ms() == before + 30_050


def test_broker_time_follows_a_wall_clock_that_is_further_ahead_than_it_was_read_late() -> None:
    clock = _PausedClock()
    time = BrokerTime(clock)
    clock.moved_ms += 30_000
    clock.pause_ms = 50
    clock.jump_ms = 60
    assert time.now_ms() == 1_030_060
