"""What stores keep of their catalog, so that it can be made again from them (``duobus store adopt``).

A record is a row of the catalog under a key, in JSON. Those of an entity are in the stores that have its fragments, all
others, and those of relays, in every store. They are written with commits that a store makes anyway
(``catalog_identity.py``): a fragment is never there without the record of its entity. What changes without that
(properties, rules, keys) is written soon after, in a commit of its own. Each record has the revision of the catalog at
which it was written: of two that differ, the later one holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec

from duobus.model.descriptions import SUBSCRIPTION, AccessRule
from duobus.model.relay.description import RELAY
from duobus.storage.catalog_rows import CatalogContents, EntityRow, MoveRow, NamespaceRow, SlotRow, StoreRow

#: Kinds of records, the first part of their keys.
NAMESPACE: Final = "namespace"
ENTITY: Final = "entity"
STORE: Final = "store"
LOST: Final = "lost"
MOVE: Final = "move"
GAP: Final = "gap"


class EntityRecord(msgspec.Struct, frozen=True, array_like=True):
    """An entity: namespace, kind, path, description, state, and (slot, fragment number, store id) of each slot."""

    namespace: str
    kind: str
    path: str
    description: str
    state: str
    slots: tuple[tuple[int, int, int], ...]


class Kept(msgspec.Struct, frozen=True):
    """A record as a store has it: the catalog's revision at its writing, and its text."""

    revision: int
    text: bytes


def key_of(kind: str, *names: object) -> str:
    """The key of a record."""
    return ":".join(map(str, (kind, *names)))


def entity_record(row: EntityRow) -> bytes:
    """The text of an entity's record."""
    slots = tuple((slot.slot, slot.fragment_no, slot.store_id) for slot in row.slots)
    record = EntityRecord(row.namespace, row.kind, row.path, row.description.decode(), row.state, slots)
    return msgspec.json.encode(record)


def entity_of(entity_id: int, text: bytes) -> EntityRow:
    """The entity that a record tells of."""
    record = msgspec.json.decode(text, type=EntityRecord)
    slots = tuple(SlotRow(*slot) for slot in record.slots)
    return EntityRow(
        entity_id,
        record.namespace,
        record.kind,
        record.path,
        record.description.encode(),
        record.state,
        len(slots),
        slots,
    )


def topic_key(row: EntityRow) -> tuple[str, str]:
    """Where the topic of a subscription is."""
    return row.namespace.lower(), row.path.rsplit("/", 2)[0].lower()


class Record(msgspec.Struct, frozen=True):
    """What a change has made of a record: its text, None: it is gone; and its stores, None: all of them."""

    key: str
    text: bytes | None
    stores: frozenset[int] | None = None


def namespace_record(row: NamespaceRow) -> Record:
    """Of a namespace, with its rules and their keys: a catalog with other keys would shut all clients out."""
    return Record(key_of(NAMESPACE, row.name), msgspec.json.encode(row.rules))


def store_record(row: StoreRow, kind: str = STORE) -> Record:
    """Of a store, or of one that was given up (LOST)."""
    return Record(key_of(kind, row.store_id), msgspec.json.encode(row.path))


def move_record(row: MoveRow) -> Record:
    """Of a move, for both of its stores."""
    text = msgspec.json.encode((row.from_store, row.to_store))
    return Record(key_of(MOVE, row.entity_id, row.fragment_no), text, frozenset({row.from_store, row.to_store}))


def records_of(contents: CatalogContents) -> Iterable[Record]:
    """Every record of a catalog."""
    yield from map(namespace_record, contents.namespaces)
    yield from map(store_record, contents.stores)
    for row in contents.lost:
        yield store_record(row, LOST)
    yield from map(move_record, contents.moves)
    if contents.fragment_gap:
        yield Record(key_of(GAP), msgspec.json.encode(contents.fragment_gap))
    homes = {
        (row.namespace.lower(), row.path.lower()): frozenset(slot.store_id for slot in row.slots)
        for row in contents.entities
    }
    for entity in contents.entities:
        own = homes[entity.namespace.lower(), entity.path.lower()]
        stores = homes.get(topic_key(entity)) if entity.kind == SUBSCRIPTION else own
        if entity.kind == RELAY:
            # It has nothing in any store, so each of them keeps its record.
            stores = None
        yield Record(key_of(ENTITY, entity.entity_id), entity_record(entity), stores)


def differences(store_id: int, records: Iterable[Record], kept: Mapping[str, Kept]) -> dict[str, bytes | None]:
    """What a store has to write, or (None) to delete, so that it has what it should have of its catalog."""
    wanted = {
        record.key: record.text
        for record in records
        if record.text is not None and (record.stores is None or store_id in record.stores)
    }
    changes: dict[str, bytes | None] = {
        key: text for key, text in wanted.items() if key not in kept or kept[key].text != text
    }
    return changes | dict.fromkeys(kept.keys() - wanted.keys())


class CopyKeeper:
    """What each store has not yet written of the catalog.

    The loop notes changes when they are durable; the thread of a store takes what is noted for it into a commit.
    """

    __slots__ = ("_lock", "_pending", "hurry")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, dict[str, bytes | None]] = {}
        #: Called in the loop when stores should not wait for their next commit of that kind.
        self.hurry: Callable[[], None] = _wait

    def begin(self, store_id: int, changes: Mapping[str, bytes | None]) -> None:
        """A store was opened; these are the differences that were found."""
        with self._lock:
            self._pending[store_id] = dict(changes)

    def knows(self, store_id: int) -> bool:
        """Whether it is known what a store has."""
        return store_id in self._pending

    def forget(self) -> None:
        """What stores have is not known any more, because a change was missed: it is to be found out again."""
        with self._lock:
            self._pending.clear()
        self.hurry()

    def note(self, record: Record, *, is_urgent: bool) -> None:
        """A change is durable in the catalog."""
        with self._lock:
            for store_id, pending in self._pending.items():
                if record.stores is None or store_id in record.stores or record.text is None:
                    pending[record.key] = record.text
        if is_urgent:
            self.hurry()

    def is_owing(self, store_id: int) -> bool:
        """Whether a store has something to write."""
        return bool(self._pending.get(store_id))

    def take(self, store_id: int) -> dict[str, bytes | None]:
        """Take what a store is to write now."""
        if not self._pending.get(store_id):
            return {}
        with self._lock:
            taken = self._pending.get(store_id, {})
            if taken:
                self._pending[store_id] = {}
        return taken

    def put_back(self, store_id: int, taken: Mapping[str, bytes | None]) -> None:
        """Whether it was written is not known: it is to be written again, unless it has changed since."""
        with self._lock:
            if taken and store_id in self._pending:
                self._pending[store_id] = {**taken, **self._pending[store_id]}


@contextmanager
def handed_over(copies: CopyKeeper | None, store_id: int) -> Iterator[Mapping[str, bytes | None]]:
    """Lend what a store is to write now of its catalog's rows; what fails is to be written again."""
    taken = {} if copies is None else copies.take(store_id)
    try:
        yield taken
    except BaseException:
        if copies is not None:
            copies.put_back(store_id, taken)
        raise


def _wait() -> None:
    """Nobody hurries."""


def rules_of(text: bytes) -> tuple[AccessRule, ...]:
    """The access rules of a namespace's record."""
    return msgspec.json.decode(text, type=tuple[AccessRule, ...])
