"""Which fragment a message goes to: by its key, or for keyless messages in turn (decision 0004)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from zlib import crc32

from duobus.broker.fair_queue import is_full
from duobus.broker.fragment_handle import FragmentHandle
from duobus.errors import ArgumentInvalid, ServiceBusError, StoreUnavailable
from duobus.model.batches import SendBatch

#: Keys of late whose slots are known: most messages have a key that others have, too.
_SLOTS_MAX = 4096
_KEYLESS = -1


def slot_of(key: bytes, slots: int) -> int:
    """The slot of a key: equal across processes, restarts and versions, for ever (I25).

    Args:
        key: A type letter and the canonical bytes: ``s`` and UTF-8 for a session id or partition key.
        slots: Number of slots, chosen when the entity was created.
    """
    return crc32(key) % slots


def string_key(text: str) -> bytes:
    """The placement key of a session id or partition key."""
    return b"s" + text.encode()


def order_of_turns(fragments: Sequence[FragmentHandle]) -> list[int]:
    """The slots of an entity in the order in which turns go to them, each once.

    Those of one store follow each other, so that what arrives during a commit joins the next one of the same store, as
    it would were there no other: stores that share a disk gain nothing from commits beside each other, and make them
    smaller. Stores on different disks take turns, so that all disks work.
    """
    disks: dict[object, dict[object, list[int]]] = {}
    for slot, handle in enumerate(fragments):
        disks.setdefault(handle.store.disk, {}).setdefault(handle.store, []).append(slot)
    lines = [chain.from_iterable(stores.values()) for stores in disks.values()]
    return [slot for turn in zip_longest(*lines) for slot in turn if slot is not None]


class Placement:
    """Placement of one entity; keyless messages belong to its one *current* fragment.

    The current fragment advances when that fragment's commit starts, so that what one turn brings stays
    together in one commit. A round of turns visits every fragment once, those of a store in a row.
    """

    __slots__ = ("_at", "_order", "_slots", "fragments")

    def __init__(self, fragments: Sequence[FragmentHandle]) -> None:
        """``fragments``: slot to fragment, in order of slot."""
        self.fragments = fragments
        for slot, handle in enumerate(fragments):
            handle.slot, handle.slots = slot, len(fragments)
        self._order = order_of_turns(fragments)
        self._at = 0
        self._slots: dict[bytes | None, int] = {}

    @property
    def current(self) -> FragmentHandle:
        """Where keyless messages go at present, were its store there."""
        return self.fragments[self._order[self._at]]

    def commit_started(self, handle: FragmentHandle) -> None:
        """Advance, if keyless messages were going to this fragment until now; for entities of several fragments."""
        if self.current is not handle:
            return
        self._at += 1
        if self._at == len(self._order):
            # Fragments may have moved to other stores meanwhile. Within a round that would give some a second turn.
            self._order = order_of_turns(self.fragments)
            self._at = 0

    def keyless(self, size: int = 0) -> FragmentHandle:
        """The current fragment, or the next that can take ``size`` bytes.

        Passed over is one whose store is away or late (PE4), that has too much to do (PE17), or that has no room.

        Raises:
            StoreUnavailable: No store of this entity is there.
        """
        fragments, order = self.fragments, self._order
        there: FragmentHandle | None = None
        for step in range(len(order)):
            at = (self._at + step) % len(order)
            handle = fragments[order[at]]
            if handle.fragment is None:
                continue
            if not handle.store.is_late and not is_full(handle) and handle.fragment.has_room(size):
                self._at = at
                return handle
            there = there or handle
        if there is not None:
            # Whether it still is full or late when its commit starts, only the fragment can say.
            return there
        raise StoreUnavailable("No messaging store of this entity is available. Try again in a few seconds.")

    def keyed(self, key: bytes) -> FragmentHandle:
        """The one fragment of a key.

        Raises:
            StoreUnavailable: Its store is away; never rerouted, since order and duplicates depend on it (I28).
        """
        return self._at_slot(slot_of(key, len(self.fragments)))

    def _at_slot(self, slot: int) -> FragmentHandle:
        handle = self.fragments[slot]
        if not handle.online:
            raise StoreUnavailable(
                f"The messaging store of fragment {handle.number}, where messages with this key belong, is not "
                "available. Try again in a few seconds, or send without a key.",
                (slot, slot, handle.slots) if handle.slots > 1 else None,
            )
        return handle

    def split(
        self, batch: SendBatch
    ) -> tuple[list[tuple[FragmentHandle, list[int] | None, bool]], list[tuple[list[int] | None, ServiceBusError]]]:
        """Split a batch into (fragment, indices or None for all, keyless) and (indices or None, why refused)."""
        keys = batch.keys
        if keys is None:
            first = self.fragments[0]
            if len(self.fragments) == 1 and first.fragment is not None:
                # There is no choice; whether it is full or late when its commit starts, the fragment says itself.
                return [(first, None, True)], []
            try:
                return [(self.keyless(batch.bytes_total), None, True)], []
            except StoreUnavailable as error:
                return [], [(None, error)]
        if batch.atomic or batch.n == 1:
            return self._split_whole(keys, batch.bytes_total)
        return self._split_singly(keys, batch.bytes_total)

    def _split_whole(
        self, keys: list[bytes | None], size: int
    ) -> tuple[list[tuple[FragmentHandle, list[int] | None, bool]], list[tuple[list[int] | None, ServiceBusError]]]:
        """A batch transfer is stored as a whole, so it must belong to one fragment (I40); its first key speaks."""
        key = keys[0]
        wanted = {None if k is None else slot_of(k, len(self.fragments)) for k in keys}
        if len(wanted) > 1:
            return [], [
                (
                    None,
                    ArgumentInvalid(
                        "The messages of this batch have partition keys or session ids that belong to different "
                        "fragments of a partitioned entity. Send them singly, or one batch for each key."
                    ),
                )
            ]
        try:
            handle = self.keyless(size) if key is None else self.keyed(key)
        except StoreUnavailable as error:
            return [], [(None, error)]
        return [(handle, None, key is None)], []

    def _split_singly(
        self, keys: list[bytes | None], size: int
    ) -> tuple[list[tuple[FragmentHandle, list[int] | None, bool]], list[tuple[list[int] | None, ServiceBusError]]]:
        by_slot: dict[int, list[int]] = {}
        found = list(map(self._slots.get, keys))
        for index, slot in enumerate(found):
            if slot is None:
                slot = self._slot_of(keys[index])
            try:
                by_slot[slot].append(index)
            except KeyError:
                by_slot[slot] = [index]
        runs: list[tuple[FragmentHandle, list[int] | None, bool]] = []
        refused: list[tuple[list[int] | None, ServiceBusError]] = []
        for slot, indices in by_slot.items():
            try:
                handle = self.keyless(size) if slot == _KEYLESS else self._at_slot(slot)
            except StoreUnavailable as error:
                refused.append((indices, error))
            else:
                runs.append((handle, indices, slot == _KEYLESS))
        return runs, refused

    def _slot_of(self, key: bytes | None) -> int:
        """The slot of a key that is not among those of late, and _KEYLESS of none."""
        if key is None:
            return _KEYLESS
        if len(self._slots) >= _SLOTS_MAX:
            self._slots.clear()
        slot = self._slots[key] = slot_of(key, len(self.fragments))
        return slot
