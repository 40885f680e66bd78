"""When the batch of one receiver ends: a fake receiver in virtual time."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from duobus.spark.claims.receiver import GAP_S, GROWTH, RECEIVE_MAX, STREAM_MIN, TRICKLE_MS, Filled, Limits, fill
from kits.hand_time import HandTime

LOCK_MS = 60_000


class Slow:
    """A receiver that returns so many messages at each call, after so long; then nothing more."""

    def __init__(self, *pages: int, takes_ms: int = 200, lock_ms: int | None = LOCK_MS) -> None:
        self.clock = HandTime()
        self.pages = list(pages)
        self.takes_ms, self.lock_ms = takes_ms, lock_ms
        self.waits: list[float] = []
        self.number = 0

    def receive_messages(self, max_message_count: int, max_wait_time: float) -> list[Any]:
        self.waits.append(max_wait_time)
        count = min(self.pages.pop(0) if self.pages else 0, max_message_count)
        self.clock.ms += self.takes_ms if count else int(max_wait_time * 1000)
        return [self._message() for _ in range(count)]

    def _message(self) -> Any:
        self.number += 1
        until = None if self.lock_ms is None else datetime.fromtimestamp((self.clock.ms + self.lock_ms) / 1000, UTC)
        kind = SimpleNamespace(value="data")
        return SimpleNamespace(
            sequence_number=self.number,
            delivery_count=0,
            lock_token=self.number,
            locked_until_utc=until,
            enqueued_time_utc=None,
            body_type=kind,
            body=[b"x" * 100],
        )

    def filled(self, limits: Limits, is_hurried: bool = False) -> Filled:
        return fill(self, limits, self.clock, lambda: is_hurried)


def test_a_receive_that_is_short_does_not_end_the_batch() -> None:
    """The SDK returns 0.2 s after its first message; on a busy machine 83 of 120 had come by then."""
    receiver = Slow(83, 37)
    filled = receiver.filled(Limits(120))
    assert [handle.number for handle in filled.handles] == list(range(1, 121))
    assert receiver.waits == [30.0, GAP_S]


def test_a_batch_ends_when_nothing_more_comes() -> None:
    receiver = Slow(83)
    filled = receiver.filled(Limits(120))
    assert len(filled.handles) == 83
    assert filled.has_credit
    assert receiver.waits == [30.0, GAP_S]


def test_nothing_at_all_ends_it_after_the_wait() -> None:
    receiver = Slow()
    assert receiver.filled(Limits(120, wait_s=2.0)) == Filled([], has_credit=True)
    assert receiver.waits == [2.0]


def test_what_trickles_is_handed_over_and_not_collected() -> None:
    receiver = Slow(*[3] * 100)
    filled = receiver.filled(Limits(1_000))
    # One receive takes 200 ms, the first one ends before the time counts.
    assert len(filled.handles) == 3 * (TRICKLE_MS // 200 + 1)


def test_a_stream_goes_on_until_the_limit() -> None:
    receiver = Slow(*[STREAM_MIN] * 100)
    filled = receiver.filled(Limits(1_000))
    assert len(filled.handles) == 1_000


def test_a_stream_ends_while_the_first_lock_still_has_two_thirds() -> None:
    receiver = Slow(*[STREAM_MIN] * 1_000, lock_ms=15_000)
    filled = receiver.filled(Limits(1_000_000))
    assert receiver.clock.ms - 1_000_000 <= 200 + 15_000 // 3 + 200
    assert len(filled.handles) > 20 * STREAM_MIN


def test_full_receives_end_by_the_first_lock_too() -> None:
    receiver = Slow(*[RECEIVE_MAX] * 100, takes_ms=1_000, lock_ms=15_000)
    filled = receiver.filled(Limits(1_000_000))
    assert len(filled.handles) == 6 * RECEIVE_MAX
    assert not filled.has_credit


def test_a_session_is_left_as_soon_as_it_is_short() -> None:
    receiver = Slow(30, 30, lock_ms=None)
    assert len(receiver.filled(Limits(100)).handles) == 30


def test_a_minimum_is_waited_for_unless_somebody_else_has_messages() -> None:
    limits = Limits(100, min_messages=50, delay_s=10.0)
    patient = Slow(1, 0, 60)
    assert len(patient.filled(limits).handles) == 1
    assert patient.waits == [30.0, 9.8]
    assert len(Slow(1, 0, 60).filled(limits, is_hurried=True).handles) == 1


def test_bytes_end_a_batch_and_say_how_many_are_asked_for() -> None:
    receiver = Slow(*[1_000] * 5)
    filled = receiver.filled(Limits(1_000, max_bytes=5_000))
    assert len(filled.handles) == 50
    assert not filled.has_credit


class Sized(Slow):
    """A receiver of messages of these sizes, one after the other."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*[len(sizes)] * 100, takes_ms=1)
        self.sizes = list(sizes)
        self.asked: list[int] = []

    def receive_messages(self, max_message_count: int, max_wait_time: float) -> list[Any]:
        self.asked.append(max_message_count)
        found = super().receive_messages(min(max_message_count, len(self.sizes)), max_wait_time)
        for message in found:
            message.body = [b"x" * self.sizes.pop(0)]
        return found


def test_the_first_receive_does_not_pass_the_bytes_of_a_batch_many_times_over() -> None:
    """It asked for 32 messages: of 1 MB each, five times a limit of 6 MB."""
    receiver = Sized(*[1_000] * 64)
    filled = receiver.filled(Limits(1_000, max_bytes=6_000))
    assert receiver.asked == [1, 5]
    assert len(filled.handles) == 6


def test_what_is_asked_for_grows_step_by_step_since_small_messages_may_be_followed_by_large_ones() -> None:
    receiver = Sized(*[1] * 9, *[10_000] * 1_000)
    filled = receiver.filled(Limits(10_000, max_bytes=10_000))
    assert receiver.asked[:3] == [1, GROWTH, 9 * GROWTH]
    assert len(filled.handles) == 9 + 9 * GROWTH


def test_one_message_that_is_larger_than_a_batch_may_be_is_a_batch() -> None:
    filled = Sized(50_000, 1).filled(Limits(1_000, max_bytes=6_000))
    assert [handle.size for handle in filled.handles] == [50_000]
