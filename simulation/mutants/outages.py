"""Planted bugs of what the loss of a store costs others; see ``queues``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from duobus.broker.entities.placement import Placement, slot_of
from duobus.broker.fragment_handle import FragmentHandle
from duobus.errors import EntityDisabled, StoreUnavailable


class _Final(StoreUnavailable):
    """Travels as that error does, and reads as if nothing could be done."""

    condition = EntityDisabled.condition
    transient = False


@contextmanager
def outage_refuses_keyless() -> Iterator[None]:
    """A keyless message whose turn is that of a fragment that is away is refused, though others are there."""
    original = Placement.keyless

    def keyless(self: Placement, size: int = 0) -> FragmentHandle:
        if not self.current.online:
            self.commit_started(self.current)
            raise StoreUnavailable("The messaging store is not available.")
        return original(self, size)

    with mock.patch.object(Placement, "keyless", keyless):
        yield


@contextmanager
def outage_contagious() -> Iterator[None]:
    """A store that fails takes every key of its entities with it, and not only those of its own fragments."""
    original = Placement.keyed

    def keyed(self: Placement, key: bytes) -> FragmentHandle:
        if not all(handle.online for handle in self.fragments):
            raise StoreUnavailable("A messaging store of this entity is not available.")
        return original(self, key)

    with mock.patch.object(Placement, "keyed", keyed):
        yield


@contextmanager
def keyed_sent_elsewhere() -> Iterator[None]:
    """A key whose fragment is away goes to the next one that is there."""
    original = Placement.keyed

    def keyed(self: Placement, key: bytes) -> FragmentHandle:
        first = slot_of(key, len(self.fragments))
        for step in range(len(self.fragments)):
            handle = self.fragments[(first + step) % len(self.fragments)]
            if handle.online:
                return handle
        return original(self, key)

    with mock.patch.object(Placement, "keyed", keyed):
        yield


@contextmanager
def keyed_refused_for_good() -> Iterator[None]:
    """A key whose fragment is away is refused with an error that tells the client not to try again."""
    original = Placement.keyed

    def keyed(self: Placement, key: bytes) -> FragmentHandle:
        try:
            return original(self, key)
        except StoreUnavailable as error:
            raise _Final(str(error)) from error

    with mock.patch.object(Placement, "keyed", keyed):
        yield


OUTAGE_BUGS: dict[str, Callable[[], Any]] = {
    "outage-refuses-keyless": outage_refuses_keyless,
    "outage-spreads": outage_contagious,
    "keyed-sent-elsewhere": keyed_sent_elsewhere,
    "keyed-refused-for-good": keyed_refused_for_good,
}
