"""Bugs planted in the deletion of idle queues, to see that its simulation catches them (see ``queues``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from duobus.broker import Queue
from duobus.broker.entities import idle_tracking as idle
from duobus.broker.entities.queue import LastUse
from simulation.world.stores import CrashingStore


@contextmanager
def peek_is_no_use() -> Iterator[None]:
    """Sends and receivers count as uses, and looking does not."""
    original = Queue.peek

    async def peek(self: Queue, *asked: Any) -> Any:
        before_ms = None if self.idle is None else self.idle.last_ms
        found = await original(self, *asked)
        if self.idle is not None and before_ms is not None:
            self.idle.last_ms = before_ms
        return found

    with mock.patch.object(Queue, "peek", peek):
        yield


@contextmanager
def receivers_not_seen() -> Iterator[None]:
    """Only what is called counts: a receiver that is open and gets nothing does not."""
    original = idle._is_in_use

    def is_in_use(queue: Queue) -> bool:
        kept = [(scheduler, scheduler.receivers) for scheduler in queue.schedulers.values()]
        for scheduler, receivers in kept:
            scheduler.receivers = type(receivers)()
        try:
            return original(queue)
        finally:
            for scheduler, receivers in kept:
                scheduler.receivers = receivers

    with mock.patch.object(idle, "_is_in_use", is_in_use):
        yield


@contextmanager
def idle_since_it_was_made() -> Iterator[None]:
    """A queue's time is counted from its beginning."""
    with mock.patch.object(LastUse, "note"):
        yield


@contextmanager
def rows_left_behind() -> Iterator[None]:
    """An idle queue goes from the catalog, and its messages stay."""
    with (
        mock.patch.object(CrashingStore, "drop_fragment", return_value=False),
        mock.patch.object(CrashingStore, "drop_entity", return_value=None),
    ):
        yield


@contextmanager
def never_looked_again() -> Iterator[None]:
    """A queue that was in use when its time was up is not looked at any more."""
    original = idle.IdleDeletion.check

    def check(self: idle.IdleDeletion) -> None:
        original(self)
        self.stop()

    with mock.patch.object(idle.IdleDeletion, "check", check):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "peek-is-no-use": peek_is_no_use,
    "receivers-not-seen": receivers_not_seen,
    "idle-since-it-was-made": idle_since_it_was_made,
    "rows-left-behind": rows_left_behind,
    "never-looked-again": never_looked_again,
}
