"""Rows of the catalog: namespaces, entities, where each fragment lives, and the stores."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from duobus.errors import StoreFailed
from duobus.model.descriptions import QUEUE, TOPIC, AccessRule, QueueDescription, TopicDescription, from_json
from duobus.model.relay.description import RELAY, HybridConnectionDescription

#: Name of the rule that every namespace has (Azure: shared access signatures).
DEFAULT_RULE_NAME = "RootManageSharedAccessKey"

#: States of an entity: recorded but not finished, usable, being deleted.
INTENT = "intent"

LIVE = "live"

DELETING = "deleting"


class NamespaceRow(msgspec.Struct, frozen=True):
    """A namespace as the catalog keeps it: its name, lower case, and its access rules with their keys."""

    name: str
    rules: tuple[AccessRule, ...]


class SlotRow(msgspec.Struct, frozen=True):
    """Where one slot of an entity is: slot 0 and up, fragment number (16 bit, never reused), store."""

    slot: int
    fragment_no: int
    store_id: int


class EntityRow(msgspec.Struct, frozen=True):
    """One top-level entity.

    Attributes:
        entity_id: Given by the catalog, never reused.
        namespace: Name of its namespace.
        kind: ``queue``, ``topic``, ``subscription`` or ``relay``; a version that does not know a kind leaves it alone.
        path: Name in the spelling of its creator; unique without regard to case.
        description: JSON of its description; opaque here.
        state: INTENT, LIVE or DELETING.
        partition_count: Number of slots.
        slots: Ascending by slot.
    """

    entity_id: int
    namespace: str
    kind: str
    path: str
    description: bytes
    state: str
    partition_count: int
    slots: tuple[SlotRow, ...]


def rules_of_entity(row: EntityRow) -> tuple[AccessRule, ...]:
    """The access rules of a queue, topic or relay; of anything else none."""
    if row.kind == QUEUE:
        return from_json(row.description, QueueDescription).authorization_rules
    if row.kind == RELAY:
        return from_json(row.description, HybridConnectionDescription).authorization_rules
    return from_json(row.description, TopicDescription).authorization_rules if row.kind == TOPIC else ()


class StoreRow(msgspec.Struct, frozen=True):
    """One messaging store: its id, 0 and up, never reused, and its path relative to the data folder."""

    store_id: int
    path: str


def store_path(store_id: int) -> str:
    """Return the path of an SQLite store in the data folder."""
    return f"stores/store-{store_id}.db"


class MoveRow(msgspec.Struct, frozen=True):
    """A fragment that is being moved to another store.

    Its slot always says where the fragment is: as long as that names ``from_store``, what ``to_store`` has of it is
    to be deleted should the move end; from then on, what ``from_store`` has.
    """

    entity_id: int
    fragment_no: int
    from_store: int
    to_store: int

    def reversed(self) -> MoveRow:
        """The same, the other way round."""
        return MoveRow(self.entity_id, self.fragment_no, self.to_store, self.from_store)


class CatalogContents(msgspec.Struct, frozen=True):
    """Everything that ``read`` found.

    Attributes:
        lost: Stores that were given up, whose numbers are never used again.
        fragment_gap: Numbers that the next new fragment of an entity leaves out: they may have been given out after the
            backup was made from which all this was restored (I7).
        moves: Those that were begun and are not ended.
        identity: Drawn when the catalog was made; 0: it has none yet.
        revision: Raised with every change.
        last_id: The highest entity id that was ever given out.
        generations: (store id, generation) that the catalog has seen of stores in files.
    """

    namespaces: tuple[NamespaceRow, ...]
    entities: tuple[EntityRow, ...]
    stores: tuple[StoreRow, ...]
    lost: tuple[StoreRow, ...] = ()
    fragment_gap: int = 0
    moves: tuple[MoveRow, ...] = ()
    identity: int = 0
    revision: int = 0
    last_id: int = 0
    generations: tuple[tuple[int, int], ...] = ()


# Rows of a catalog in a database: each carries a checksum over all of it, verified when it is read.


def row_sum(values: Iterable[object]) -> int:
    """Checksum of a row in a database: over all of its other values, in order."""
    return zlib.crc32(json.dumps(list(values), separators=(",", ":")).encode())


def summed(*values: object) -> tuple[object, ...]:
    """A row with its checksum behind it."""
    return (*values, row_sum(values))


def checked(table: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The rows that were written with their checksums, without them; StoreFailed at the first that is altered."""
    for *values, found in rows:
        if row_sum(values) != found:
            raise StoreFailed(
                f"The checksum of a row in the catalog's table {table} is wrong; restore it from a backup."
            )
        yield tuple(values)
