"""Shards: how partitioned entities lie in the stores of a shared catalog. Pure (decisions 0029 and 0069).

The fragments that a sharded queue or topic has in one store are a *shard*: in the catalog an entity of its own,
``q/~share/2``, which lies whole in its store and is run by the store's owner like any other. The queue or topic itself
is an entry of another kind, which has no fragments; its one slot names the store whose owner may create and undo it.
Fragment numbers are those of the whole, so that lock tokens and sequence numbers name the shard. The slots of the whole
are those of its shards one after the other: each has neighbours, so that the hash by which it places a key among its
own fragments says something new.

A subscription of a sharded topic is an entry of a third kind, which says what there is to be: every shard of the topic
has a subscription of that name, with these properties and rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from duobus.broker.entities.placement import slot_of
from duobus.broker.entities.topic import as_queue, as_received, subscription_path
from duobus.model.address import sharded_entity_of
from duobus.model.descriptions import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    from_json,
)
from duobus.storage.catalog_rows import DELETING, LIVE, EntityRow, SlotRow

#: Kinds of a queue and of a topic that consist of shards, and of the subscriptions of such a topic. A version that does
#: not know a kind leaves it alone.
SHARDED: Final = "spread"
SHARDED_TOPIC: Final = "spread-topic"
SHARDED_SUBSCRIPTION: Final = "spread-subscription"
#: Those that have shards of their own, and what each shard is.
SHARD_KINDS: Final = {SHARDED: QUEUE, SHARDED_TOPIC: TOPIC}


def assign_shards(fragments: int, stores: Sequence[int], offset: int = 0) -> list[tuple[SlotRow, ...]]:
    """The slots of each shard, over as many stores as there are fragments for; the first is ``stores[offset]``."""
    count = min(fragments, len(stores))
    shares: list[tuple[SlotRow, ...]] = []
    for index in range(count):
        first, end = index * fragments // count, (index + 1) * fragments // count
        store_id = stores[(offset + index) % len(stores)]
        shares.append(tuple(SlotRow(slot - first, slot, store_id) for slot in range(first, end)))
    return shares


class ShardedEntityMap:
    """A sharded queue or topic, or a subscription of such a topic.

    Attributes:
        row: Its entry in the catalog.
        kind: QUEUE, TOPIC or SUBSCRIPTION.
        topic: The topic, of a subscription.
        shares: The entries of its shards, in order of their slots; those that are being deleted left out. Of a
            subscription, what it is in each shard of its topic.
    """

    __slots__ = ("_about", "_by_number", "_by_slot", "kind", "row", "shares", "topic")

    def __init__(
        self, row: EntityRow, shares: Iterable[EntityRow], kind: str = QUEUE, topic: ShardedEntityMap | None = None
    ) -> None:
        self.row = row
        self.kind = kind
        self.topic = topic
        self._about: QueueDescription | None = None
        self.shares = sorted(shares, key=_first_fragment)
        self._by_slot = [i for i, share in enumerate(self.shares) for _ in share.slots]
        self._by_number = {slot.fragment_no: i for i, share in enumerate(self.shares) for slot in share.slots}

    @property
    def about(self) -> QueueDescription:
        """What it is to those who send to it or receive from it."""
        if self._about is None:
            self._about = self._read()
        return self._about

    def _read(self) -> QueueDescription:
        if self.kind == QUEUE:
            return from_json(self.row.description, QueueDescription)
        if self.topic is None:
            return as_queue(from_json(self.row.description, TopicDescription))
        topic = from_json(self.topic.row.description, TopicDescription)
        return as_received(topic, from_json(self.row.description, SubscriptionDescription))

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

    def is_beside(self, other: ShardedEntityMap) -> bool:
        """Whether both are the same entity, or subscriptions of one topic."""
        return (self.topic or self).row.entity_id == (other.topic or other).row.entity_id

    def subscription(self, row: EntityRow) -> ShardedEntityMap:
        """A subscription of this topic."""
        name = row.path.rpartition("/")[2]
        parts = (msgspec.structs.replace(one, path=subscription_path(one.path, name)) for one in self.shares)
        return ShardedEntityMap(row, parts, SUBSCRIPTION, self)


def _first_fragment(share: EntityRow) -> int:
    return share.slots[0].fragment_no


def topic_of(path: str) -> str:
    """The lower-case path of the topic of a subscription's path."""
    return path.rsplit("/", 2)[0].lower()


def find_sharded_entities(rows: Iterable[EntityRow]) -> dict[tuple[str, str], ShardedEntityMap]:
    """Namespace and lower-case path to each sharded queue, topic and subscription that may be used."""
    parents: dict[tuple[str, str], EntityRow] = {}
    shares: dict[tuple[str, str, str], list[EntityRow]] = {}
    subscriptions: list[EntityRow] = []
    for row in rows:
        if row.kind in SHARD_KINDS and row.state == LIVE:
            parents[row.namespace.lower(), row.path.lower()] = row
        elif row.kind == SHARDED_SUBSCRIPTION and row.state == LIVE:
            subscriptions.append(row)
        elif row.kind in (QUEUE, TOPIC) and row.slots and row.state != DELETING:
            whole = sharded_entity_of(row.path.lower())
            if whole is not None:
                shares.setdefault((row.namespace.lower(), whole, row.kind), []).append(row)
    found: dict[tuple[str, str], ShardedEntityMap] = {}
    for (namespace, path), row in parents.items():
        kind = SHARD_KINDS[row.kind]
        entity = ShardedEntityMap(row, shares.get((namespace, path, kind), ()), kind)
        if entity.is_whole:
            found[namespace, path] = entity
    for row in subscriptions:
        topic = found.get((row.namespace.lower(), topic_of(row.path)))
        if topic is not None:
            found[row.namespace.lower(), row.path.lower()] = topic.subscription(row)
    return found
