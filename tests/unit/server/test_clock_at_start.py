"""A wall clock that is ahead at a start is not believed, and a broker time that is ahead can be set back (I58, I15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from duobus.clock import AHEAD_MAX_MS, AHEAD_UNCOUNTED_MAX_MS, SLEW_DIVISOR, BrokerTime, Clock, Witness
from duobus.server.clock_record import NAME, ClockRecord, read_record
from simulation.world.clock import WALL_START_MS, SimulatedClock
from simulation.world.loop import SimulationLoop

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class HandClock(Clock):
    """Clocks that a test sets."""

    def __init__(self) -> None:
        self.wall_ms, self.mono_ms, self.boot_ms = WALL_START_MS, 50, 1_000_000
        self.boot_name = "one"

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms

    def boot(self) -> tuple[str, int] | None:
        return (self.boot_name, self.boot_ms) if self.boot_name else None

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.mono_ms += ms
        self.boot_ms += ms


def started(clock: Clock, witness: Witness | None, recorded_ms: int, *, is_accepted: bool = False) -> BrokerTime:
    time = BrokerTime(clock, witness=witness, is_accepted=is_accepted)
    time.begin(recorded_ms)
    return time


def test_a_server_that_was_off_for_an_hour_goes_on_an_hour_later() -> None:
    clock = HandClock()
    witness = started(clock, None, 0).witness()
    clock.pass_ms(HOUR_MS)
    time = started(clock, witness, WALL_START_MS)
    assert time.now_ms() == WALL_START_MS + HOUR_MS
    assert not time.is_doubted


@pytest.mark.parametrize("ahead_ms", [AHEAD_MAX_MS + 1, 2 * HOUR_MS, 400 * DAY_MS])
def test_a_clock_that_ran_ahead_of_what_the_machine_counted_is_not_believed(ahead_ms: int) -> None:
    clock = HandClock()
    witness = started(clock, None, 0).witness()
    clock.pass_ms(HOUR_MS)
    clock.wall_ms += ahead_ms
    time = started(clock, witness, WALL_START_MS)
    assert time.is_doubted
    assert time.now_ms() == WALL_START_MS + HOUR_MS
    clock.pass_ms(DAY_MS)
    # Nor is it slewed to.
    assert time.now_ms() == WALL_START_MS + HOUR_MS + DAY_MS
    assert time.ahead_ms == ahead_ms


def test_a_clock_a_little_ahead_is_believed() -> None:
    clock = HandClock()
    witness = started(clock, None, 0).witness()
    clock.wall_ms += AHEAD_MAX_MS
    assert started(clock, witness, WALL_START_MS).now_ms() == WALL_START_MS + AHEAD_MAX_MS


@pytest.mark.parametrize(("days", "is_doubted"), [(14, False), (60, False), (61, True), (400, True)])
@pytest.mark.parametrize("boot", ["another", ""])
def test_after_a_start_of_the_machine_a_holiday_is_believed_and_a_year_is_not(
    days: int, boot: str, *, is_doubted: bool
) -> None:
    clock = HandClock()
    witness = started(clock, None, 0).witness()
    clock.boot_name, clock.boot_ms = boot, 500
    clock.wall_ms += days * DAY_MS
    time = started(clock, witness, WALL_START_MS - DAY_MS)
    assert time.is_doubted == is_doubted
    assert time.now_ms() == WALL_START_MS + (0 if is_doubted else days * DAY_MS)


def test_what_stores_recorded_bounds_a_clock_without_any_witness() -> None:
    clock = HandClock()
    assert not started(clock, None, WALL_START_MS - AHEAD_UNCOUNTED_MAX_MS).is_doubted
    assert started(clock, None, WALL_START_MS - AHEAD_UNCOUNTED_MAX_MS - 1).is_doubted
    # A first start has nothing that could expire.
    assert not started(clock, None, 0).is_doubted


def test_a_clock_that_is_said_to_be_right_is_believed() -> None:
    clock = HandClock()
    witness = started(clock, None, 0).witness()
    clock.wall_ms += 400 * DAY_MS
    time = started(clock, witness, WALL_START_MS, is_accepted=True)
    assert time.now_ms() == WALL_START_MS + 400 * DAY_MS


def test_a_clock_that_was_set_right_is_believed_without_a_start() -> None:
    clock = HandClock()
    witness = started(clock, None, 0).witness()
    clock.wall_ms += 2 * HOUR_MS
    time = started(clock, witness, WALL_START_MS)
    clock.wall_ms -= 2 * HOUR_MS - SLEW_DIVISOR
    clock.pass_ms(1000)
    time.now_ms()
    assert not time.is_doubted
    clock.pass_ms(DAY_MS)
    assert time.now_ms() == clock.wall_ms


def test_time_never_runs_behind_what_a_store_recorded() -> None:
    # I58: enqueued times and ends of locks would go back with it.
    clock = HandClock()
    time = started(clock, None, WALL_START_MS + HOUR_MS)
    assert time.now_ms() == WALL_START_MS + HOUR_MS
    time.raise_to(WALL_START_MS + 2 * HOUR_MS)
    assert time.now_ms() == WALL_START_MS + 2 * HOUR_MS
    time.raise_to(WALL_START_MS)
    assert time.now_ms() == WALL_START_MS + 2 * HOUR_MS


def test_time_that_passed_unasked_is_not_added_to_what_another_server_recorded_a_moment_ago() -> None:
    clock = HandClock()
    time = started(clock, None, 0)
    time.now_ms()
    clock.pass_ms(10_000)
    time.raise_to(clock.wall_ms)
    assert time.now_ms() == clock.wall_ms


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    loop = SimulationLoop()
    time = BrokerTime(SimulatedClock(loop))
    record = ClockRecord(tmp_path, time)
    # Before any store has said what it recorded, this is the machine's clock.
    record.write()
    assert read_record(tmp_path) is None
    time.begin(0)
    record.write()
    assert read_record(tmp_path) == Witness("simulated", 0, WALL_START_MS)
    loop.advance(10)
    record.write()
    assert read_record(tmp_path) == Witness("simulated", 10_000, WALL_START_MS + 10_000)
    loop.close()


@pytest.mark.parametrize(
    "text", [b"", b"garbage", b"[]", b"{}", b'{"boot":"","boot_ms":-1,"broker_ms":5}', b"\xff" * 900]
)
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / NAME).write_bytes(text)
    assert read_record(tmp_path) is None
    assert read_record(tmp_path / "missing") is None


def test_a_start_without_any_store_believes_no_clock_before_the_first_is_there() -> None:
    clock = HandClock()
    clock.wall_ms += 400 * DAY_MS
    time = BrokerTime(clock)
    time.raise_to(WALL_START_MS)
    assert time.is_doubted
    assert time.now_ms() == WALL_START_MS


def test_time_does_not_go_back_behind_what_was_written_down() -> None:
    # The store that recorded it is away, and the clock is behind.
    clock = HandClock()
    witness = Witness("another", 5, WALL_START_MS + HOUR_MS)
    assert started(clock, witness, 0).now_ms() == WALL_START_MS + HOUR_MS
