"""Where entities are, when several servers share a catalog: path to store. Pure; read from the catalog as a whole.

Behind a shared catalog an entity lies whole in one store, so that it has one owner (decision 0024); what is sharded
consists of several such (decisions 0029 and 0069).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zlib import crc32

from duobus.cluster.shards import ShardedEntityMap, find_sharded_entities, topic_of
from duobus.model.descriptions import SUBSCRIPTION
from duobus.storage.catalog_rows import DELETING, CatalogContents, EntityRow

#: What is said of who has an entity, or a store, beside the address of another server.
HERE: Final = "here"
MOVING: Final = "moving"
UNKNOWN: Final = "unknown"


class Directory:
    """Paths and stores, as the catalog had them when it was read last.

    Attributes:
        contents: What it held.
        sharded: Namespace and lower-case path to each sharded queue, topic and subscription.
    """

    __slots__ = ("_all", "_by_id", "_rows", "contents", "sharded")

    def __init__(self, contents: CatalogContents) -> None:
        self.contents = contents
        self._all = {(row.namespace.lower(), row.path.lower()): row for row in contents.entities}
        self._rows = {
            (row.namespace.lower(), row.path.lower()): row
            for row in contents.entities
            if row.slots and row.state != DELETING
        }
        self.sharded: dict[tuple[str, str], ShardedEntityMap] = find_sharded_entities(contents.entities)
        self._by_id = {row.entity_id: (row.slots[0].store_id, row.namespace) for row in contents.entities if row.slots}

    def store_of_id(self, entity_id: int) -> int | None:
        """The store of the entity that the catalog knows by a number, also while it is being deleted."""
        found = self._by_id.get(entity_id)
        return None if found is None else found[0]

    def namespace_of_id(self, entity_id: int) -> str:
        """Its namespace; it is there."""
        return self._by_id[entity_id][1]

    def store_of(self, namespace: str, key: str) -> int | None:
        """The store of an entity, by its lower-case path; None when there is no such entity."""
        row = self._rows.get((namespace.lower(), key))
        return None if row is None else row.slots[0].store_id

    def row_of(self, namespace: str, key: str) -> EntityRow | None:
        """The row of an entity, by its lower-case path; None when there is no such entity."""
        return self._rows.get((namespace.lower(), key))

    def entry(self, namespace: str, key: str) -> EntityRow | None:
        """What the catalog has under a lower-case path, of whatever kind and in whatever state."""
        return self._all.get((namespace.lower(), key))

    def store_for_new(self, namespace: str, key: str) -> int | None:
        """Where an entity belongs that is created under this path; every server says the same. None: no stores yet."""
        stores = sorted(row.store_id for row in self.contents.stores)
        return stores[crc32(f"{namespace.lower()}/{key}".encode()) % len(stores)] if stores else None

    def entities_of(self, store_id: int) -> list[EntityRow]:
        """What lives in a store, in whatever state: queues and topics, and the subscriptions of these topics."""
        own = [row for row in self.contents.entities if row.slots and row.slots[0].store_id == store_id]
        places = {(row.namespace.lower(), row.path.lower()) for row in own}
        return own + [row for row in _subscriptions(self.contents.entities) if _topic_of(row) in places]


def _subscriptions(rows: Iterable[EntityRow]) -> Iterable[EntityRow]:
    return (row for row in rows if row.kind == SUBSCRIPTION)


def subscriptions_of(topic: EntityRow, rows: Iterable[EntityRow]) -> list[EntityRow]:
    """The subscriptions of a topic, in whatever state."""
    place = topic.namespace.lower(), topic.path.lower()
    return [row for row in _subscriptions(rows) if _topic_of(row) == place]


def _topic_of(row: EntityRow) -> tuple[str, str]:
    return row.namespace.lower(), topic_of(row.path)
