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
