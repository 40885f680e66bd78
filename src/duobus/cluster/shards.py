"""Shards: how a partitioned queue is spread over the stores of a shared catalog. Pure (decision 0029).

The fragments that a sharded queue has in one store are a *shard*: in the catalog an entity of its own, ``q/~share/2``,
which lies whole in its store and is run by the store's owner like any other queue. The queue itself is an entry of the
kind SHARDED, which has no fragments; its one slot names the store whose owner may create and undo it. Fragment numbers
are those of the whole queue, so that lock tokens and sequence numbers name the shard. The slots of the queue are those
of its shards one after the other: each has neighbours, so that the hash by which it places a key among its own
fragments says something new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from duobus.broker.entities.placement import slot_of
from duobus.model.address import sharded_queue_of
from duobus.model.descriptions import QUEUE, QueueDescription, from_json
from duobus.storage.catalog_rows import DELETING, LIVE, EntityRow, SlotRow

#: Kind of a queue that consists of shards.
SHARDED: Final = "spread"


def assign_shards(fragments: int, stores: Sequence[int], offset: int = 0) -> list[tuple[SlotRow, ...]]:
    """The slots of each shard, over as many stores as there are fragments for; the first is ``stores[offset]``."""
    count = min(fragments, len(stores))
    shares: list[tuple[SlotRow, ...]] = []
    for index in range(count):
        first, end = index * fragments // count, (index + 1) * fragments // count
        store_id = stores[(offset + index) % len(stores)]
        shares.append(tuple(SlotRow(slot - first, slot, store_id) for slot in range(first, end)))
    return shares


class ShardedQueueMap:
    """A sharded queue.

    Attributes:
        row: Its entry in the catalog.
        shares: The entries of its shards, in order of their slots; those that are being deleted left out.
    """

    __slots__ = ("_about", "_by_number", "_by_slot", "row", "shares")

    def __init__(self, row: EntityRow, shares: Iterable[EntityRow]) -> None:
        self.row = row
        self._about: QueueDescription | None = None
        self.shares = sorted(shares, key=lambda share: int(share.path.rpartition("/")[2]))
        self._by_slot = [i for i, share in enumerate(self.shares) for _ in share.slots]
        self._by_number = {slot.fragment_no: i for i, share in enumerate(self.shares) for slot in share.slots}

    @property
    def about(self) -> QueueDescription:
        """The properties of the queue."""
        if self._about is None:
            self._about = from_json(self.row.description, QueueDescription)
        return self._about

    @property
    def is_whole(self) -> bool:
        """Whether every shard is there: nothing may be placed by a key before."""
        return bool(self.shares) and self.shares[-1].path.endswith(f"/{len(self.shares)}")

    @property
    def slots(self) -> int:
        """How many slots, and so fragments, there are."""
        return len(self._by_slot)

    def at_slot(self, slot: int) -> int:
        """The shard that has a slot."""
        return self._by_slot[slot]

    def of_key(self, key: bytes) -> int:
        """The shard in which messages with this key belong."""
        return self._by_slot[slot_of(key, len(self._by_slot))]

    def slots_of(self, index: int) -> tuple[int, int, int]:
        """The first and the last slot of a shard, and how many the queue has."""
        first = self._by_slot.index(index)
        return first, first + self._by_slot.count(index) - 1, len(self._by_slot)

    def of_number(self, fragment_no: int) -> int | None:
        """The shard that has this fragment, or None."""
        return self._by_number.get(fragment_no)

    def store_of(self, index: int) -> int:
        """The store of a shard."""
        return self.shares[index].slots[0].store_id


def find_sharded_queues(rows: Iterable[EntityRow]) -> dict[tuple[str, str], ShardedQueueMap]:
    """Namespace and lower-case path to each sharded queue and may be used."""
    parents: dict[tuple[str, str], EntityRow] = {}
    shares: dict[tuple[str, str], list[EntityRow]] = {}
    for row in rows:
        if row.kind == SHARDED and row.state == LIVE:
            parents[row.namespace.lower(), row.path.lower()] = row
        elif row.kind == QUEUE and row.slots and row.state != DELETING:
            whole = sharded_queue_of(row.path.lower())
            if whole is not None:
                shares.setdefault((row.namespace.lower(), whole), []).append(row)
    found = {place: ShardedQueueMap(row, shares.get(place, ())) for place, row in parents.items()}
    return {place: sharded_queue for place, sharded_queue in found.items() if sharded_queue.is_whole}
