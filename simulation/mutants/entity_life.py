"""Bugs planted in the life of entities, to see that its simulation catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from duobus.broker import Queue, ScaleUnit
from duobus.broker import fragment_host as residents
from duobus.fragment import send, settlement
from duobus.storage.catalog.memory import MemoryCatalog
from simulation.world.stores import CrashingStore


@contextmanager
def status_ignored_on_live_links() -> Iterator[None]:
    """A new status holds for new links, and those that are there go on."""
    original = ScaleUnit.notify

    def notify(self: ScaleUnit, queue: Queue) -> None:
        if queue.is_deleted:
            original(self, queue)

    with mock.patch.object(ScaleUnit, "notify", notify):
        yield


@contextmanager
def deletion_not_told() -> Iterator[None]:
    """The links to a queue that is deleted stay."""
    original = ScaleUnit.notify

    def notify(self: ScaleUnit, queue: Queue) -> None:
        if not queue.is_deleted:
            original(self, queue)

    with mock.patch.object(ScaleUnit, "notify", notify):
        yield


@contextmanager
def quota_not_counted_back() -> Iterator[None]:
    """What is completed counts in the size of its entity for ever."""
    original = settlement._uncount_all

    def uncount_all(source: Any, messages: Any) -> int:
        before = source.bytes
        size = original(source, messages)
        source.bytes = before
        return size

    with mock.patch.object(settlement, "_uncount_all", uncount_all):
        yield


@contextmanager
def quota_ignored() -> Iterator[None]:
    """An entity takes more than its size allows."""
    with mock.patch.object(send, "check_room", return_value=None):
        yield


@contextmanager
def namesake_inherits() -> Iterator[None]:
    """A queue that is made anew gets the number of the deleted one, whose rows were left in the store."""
    original = MemoryCatalog.begin_create
    numbers: dict[str, int] = {}

    def begin_create(self: MemoryCatalog, namespace: str, kind: str, path: str, *rest: Any) -> int:
        highest = self._last_entity_id
        self._last_entity_id = numbers.get(path, highest + 1) - 1
        number = numbers[path] = original(self, namespace, kind, path, *rest)
        self._last_entity_id = max(highest, number)
        return number

    with (
        mock.patch.object(MemoryCatalog, "begin_create", begin_create),
        mock.patch.object(CrashingStore, "drop_fragment", return_value=False),
        mock.patch.object(CrashingStore, "drop_entity", return_value=None),
        # Whoever creates a queue over messages refuses, and would never come to its end here.
        mock.patch.object(residents, "demand_untouched"),
    ):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "status-ignored-on-live-links": status_ignored_on_live_links,
    "deletion-not-told": deletion_not_told,
    "quota-not-counted-back": quota_not_counted_back,
    "quota-ignored": quota_ignored,
    "namesake-inherits": namesake_inherits,
}
