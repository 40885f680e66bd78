"""Locks that are renewed by a thread of their own, with a clock that the test moves (TL8, TL13)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusConnectionError

from duobus.clock import Clock
from duobus.ha import lock_keeper
from duobus.ha.events import LockLost
from duobus.ha.lock_keeper import LockKeeper

LOCK_MS = 60_000
LIMIT_S = 60.0


class Moved(Clock):
    now = 1_000_000

    def now_ms(self) -> int:
        return self.now


class Message:
    """A received message, as far as its lock goes."""

    message_id = "m"

    def __init__(self, clock: Moved) -> None:
        self.until_ms = clock.now + LOCK_MS

    @property
    def locked_until_utc(self) -> datetime:
        return datetime.fromtimestamp(self.until_ms / 1000, UTC)


class Receiver:
    """Renews, or raises what it is told to; says each time that it was asked."""

    def __init__(self, clock: Moved) -> None:
        self.clock = clock
        self.error: Exception | None = None
        self.asked: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.closed = threading.Event()
        self.made = 0

    def __call__(self) -> Any:
        self.made += 1
        return self

    def renew_message_lock(self, message: Message, timeout: float) -> None:
        error = self.error
        if error is None:
            message.until_ms = self.clock.now + LOCK_MS
        self.asked.put((self.clock.now, threading.current_thread().name))
        if error is not None:
            raise error

    def close(self) -> None:
        self.closed.set()


@contextmanager
def kept(**options: Any) -> Iterator[tuple[LockKeeper, Moved, Receiver, queue.SimpleQueue[Any]]]:
    clock = Moved()
    receiver = Receiver(clock)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with LockKeeper(receiver, clock=clock, on_event=events.put) as keeper:
        yield keeper, clock, receiver, events


def move(keeper: LockKeeper, clock: Moved, ms: int) -> None:
    """Let time pass, and the keeper notice."""
    with keeper._change:
        clock.now += ms
        keeper._change.notify()


def test_a_lock_is_renewed_by_another_thread_when_half_of_it_is_over() -> None:
    with kept() as (keeper, clock, receiver, _), keeper.keep(Message(clock)) as hold:  # type: ignore[arg-type]
        start = clock.now
        for number in (1, 2, 3):
            move(keeper, clock, LOCK_MS // 2)
            assert receiver.asked.get(timeout=LIMIT_S) == (start + number * LOCK_MS // 2, "duobus lock keeper")
        assert not hold.is_lost
    assert receiver.closed.is_set()


def test_a_lost_lock_is_told_and_renewed_no_more() -> None:
    with kept() as (keeper, clock, receiver, events), keeper.keep(Message(clock)) as hold:  # type: ignore[arg-type]
        receiver.error = MessageLockLostError(message="gone")
        move(keeper, clock, LOCK_MS // 2)
        assert hold.wait_lost(LIMIT_S)
        assert events.get(timeout=LIMIT_S) == LockLost("", "m", "gone")
        assert hold.error == "gone"
        assert keeper._holds == set()


def test_a_renewal_that_fails_is_tried_again_with_a_new_link_while_the_lock_lasts() -> None:
    with kept() as (keeper, clock, receiver, _), keeper.keep(Message(clock)) as hold:  # type: ignore[arg-type]
        receiver.error = ServiceBusConnectionError()
        move(keeper, clock, LOCK_MS // 2)
        receiver.asked.get(timeout=LIMIT_S)
        assert receiver.closed.wait(LIMIT_S)
        receiver.error = None
        move(keeper, clock, lock_keeper.RETRY_MS)
        receiver.asked.get(timeout=LIMIT_S)
        assert receiver.made == 2
        assert not hold.is_lost


def test_a_lock_that_ran_out_while_renewals_failed_is_lost() -> None:
    with kept() as (keeper, clock, receiver, _), keeper.keep(Message(clock)) as hold:  # type: ignore[arg-type]
        receiver.error = ServiceBusConnectionError()
        move(keeper, clock, LOCK_MS)
        assert hold.wait_lost(LIMIT_S)


def test_work_that_hangs_gives_its_message_back_in_the_end() -> None:
    with kept() as (keeper, clock, receiver, _):
        other = keeper.keep(Message(clock))  # type: ignore[arg-type]
        hold = keeper.keep(Message(clock), longest_s=29)  # type: ignore[arg-type]
        move(keeper, clock, LOCK_MS // 2)
        receiver.asked.get(timeout=LIMIT_S)
        move(keeper, clock, LOCK_MS // 2)
        receiver.asked.get(timeout=LIMIT_S)
        assert keeper._holds == {other}
        assert not hold.is_lost


def test_a_message_that_was_settled_while_it_was_renewed_is_no_loss() -> None:
    with kept() as (keeper, clock, receiver, events):
        hold = keeper.keep(Message(clock))  # type: ignore[arg-type]
        receiver.error = MessageLockLostError()
        with keeper._change:
            clock.now += LOCK_MS // 2
            keeper._holds.discard(hold)
        keeper._lose(hold, MessageLockLostError())
        assert not hold.is_lost
        assert events.empty()


def test_the_number_of_locks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_keeper, "HOLDS_MAX", 1)
    with kept() as (keeper, clock, _, _):
        hold = keeper.keep(Message(clock))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="1 locks are kept"):
            keeper.keep(Message(clock))  # type: ignore[arg-type]
        hold.release()
        keeper.keep(Message(clock))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closed"):
        keeper.keep(Message(clock))  # type: ignore[arg-type]
