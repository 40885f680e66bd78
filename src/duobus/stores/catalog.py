"""Catalog: what exists - namespaces with their access rules, entities, where each fragment lives, and the stores.

Small and outside all messaging stores; read whole at start, written by management operations only. While it is
lost, data goes on and management answers server-busy (design 3.3). Calls block: the owner keeps them off the loop.
Creating an entity: ``begin_create`` records the intent with its placement, the rows are made in the stores, and
``mark_live`` finishes; an intent or a deletion found at start is resumed or undone (I31).
"""

from __future__ import annotations

import base64
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw
import msgspec

from duobus.clock import Entropy
from duobus.errors import EntityAlreadyExists, StoreFailed, StoreTooNew
from duobus.model.description import ALL_RIGHTS, AccessRule

#: Highest format this version reads and writes; a newer one is refused (I65).
FORMAT_VERSION = 1

#: Name of the rule that every namespace has (HTTP contract B.2.4).
DEFAULT_RULE_NAME = "RootManageSharedAccessKey"

#: States of an entity: recorded but not finished, usable, being deleted.
INTENT = "intent"
LIVE = "live"
DELETING = "deleting"

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE namespaces (name TEXT PRIMARY KEY, rules TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE entities (
    entity_id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL, kind TEXT NOT NULL, path TEXT NOT NULL, key TEXT NOT NULL,
    description TEXT NOT NULL, state TEXT NOT NULL, partition_count INTEGER NOT NULL, sum INTEGER NOT NULL,
    UNIQUE (namespace, key));
CREATE TABLE slots (
    entity_id INTEGER NOT NULL, slot INTEGER NOT NULL, fragment_no INTEGER NOT NULL, store_id INTEGER NOT NULL,
    sum INTEGER NOT NULL, PRIMARY KEY (entity_id, slot), UNIQUE (entity_id, fragment_no)) WITHOUT ROWID;
CREATE TABLE stores (store_id INTEGER PRIMARY KEY, path TEXT NOT NULL, sum INTEGER NOT NULL);
"""


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
        kind: ``queue`` or ``topic``.
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


class StoreRow(msgspec.Struct, frozen=True):
    """One messaging store: its id, 0 and up, never reused, and its path relative to the data folder."""

    store_id: int
    path: str


class CatalogContents(msgspec.Struct, frozen=True):
    """Everything that ``read`` found."""

    namespaces: tuple[NamespaceRow, ...]
    entities: tuple[EntityRow, ...]
    stores: tuple[StoreRow, ...]


class Catalog(ABC):
    """What exists. Every method blocks and is durable on return; one thread at a time calls.

    Every method may raise StoreFailed: the catalog cannot be reached or refused the change, and whether the change
    is on disk is not known. The object stays usable: a later call opens it again.
    """

    @abstractmethod
    def read(self) -> CatalogContents:
        """Return the whole content, creating an empty catalog where there is none.

        Raises:
            StoreTooNew: A newer version wrote it; nothing was touched.
            StoreFailed: It cannot be opened, another process has it, or a row's checksum does not hold.
        """

    @abstractmethod
    def begin_create(self, namespace: str, kind: str, path: str, description: bytes, slots: Sequence[SlotRow]) -> int:
        """Record the intent to create an entity with its placement and return its new id.

        Raises:
            EntityAlreadyExists: An entity of either kind has the path, in whatever spelling or state.
        """

    @abstractmethod
    def mark_live(self, entity_id: int) -> None:
        """Say that the rows of an entity are in all its stores. Harmless when it is live already."""

    @abstractmethod
    def begin_delete(self, entity_id: int) -> None:
        """Say that an entity is gone for clients while its rows are being removed from the stores."""

    @abstractmethod
    def finish_delete(self, entity_id: int) -> None:
        """Forget an entity whose rows are gone from all stores; one that is forgotten already is no error."""

    @abstractmethod
    def update_description(self, entity_id: int, description: bytes) -> None:
        """Replace the description of an entity."""

    @abstractmethod
    def add_store(self, store_id: int, path: str) -> None:
        """Register a store; one that is registered with the same path is no error."""

    @abstractmethod
    def put_namespace(self, namespace: NamespaceRow) -> None:
        """Add a namespace or replace its access rules."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; never raises; closing twice is allowed."""


def new_namespace(name: str, entropy: Entropy) -> NamespaceRow:
    """Return a namespace with the default rule under two fresh keys (base64 of 32 random bytes each)."""
    primary, secondary = (base64.b64encode(entropy.token(32)).decode() for _ in range(2))
    rule = AccessRule(name=DEFAULT_RULE_NAME, primary_key=primary, secondary_key=secondary, rights=int(ALL_RIGHTS))
    return NamespaceRow(name.lower(), (rule,))


class MemoryCatalog(Catalog):
    """The reference behaviour in dictionaries: for tests, simulation and ``--ephemeral``."""

    def __init__(self) -> None:
        self._namespaces: dict[str, NamespaceRow] = {}
        self._entities: dict[int, EntityRow] = {}
        self._stores: dict[int, StoreRow] = {}
        self._last_entity_id = 0

    def read(self) -> CatalogContents:
        """Return the whole content."""
        return CatalogContents(
            tuple(self._namespaces[name] for name in sorted(self._namespaces)),
            tuple(self._entities.values()),
            tuple(self._stores[store_id] for store_id in sorted(self._stores)),
        )

    def begin_create(self, namespace: str, kind: str, path: str, description: bytes, slots: Sequence[SlotRow]) -> int:
        """Record the intent; see Catalog."""
        place = (namespace, path.lower())
        if any((entity.namespace, entity.path.lower()) == place for entity in self._entities.values()):
            raise _exists(path)
        self._last_entity_id += 1
        self._entities[self._last_entity_id] = EntityRow(
            self._last_entity_id,
            namespace,
            kind,
            path,
            description,
            INTENT,
            len(slots),
            tuple(sorted(slots, key=lambda row: row.slot)),
        )
        return self._last_entity_id

    def mark_live(self, entity_id: int) -> None:
        """Make an entity live; see Catalog."""
        self._change(entity_id, state=LIVE)

    def begin_delete(self, entity_id: int) -> None:
        """Begin a deletion; see Catalog."""
        self._change(entity_id, state=DELETING)

    def finish_delete(self, entity_id: int) -> None:
        """Forget an entity; see Catalog."""
        self._entities.pop(entity_id, None)

    def update_description(self, entity_id: int, description: bytes) -> None:
        """Replace a description; see Catalog."""
        self._change(entity_id, description=description)

    def add_store(self, store_id: int, path: str) -> None:
        """Register a store; see Catalog."""
        self._stores[store_id] = StoreRow(store_id, path)

    def put_namespace(self, namespace: NamespaceRow) -> None:
        """Add or replace a namespace; see Catalog."""
        self._namespaces[namespace.name] = namespace

    def close(self) -> None:
        """Do nothing: the content lives as long as the object."""

    def _change(self, entity_id: int, **changes: object) -> None:
        if entity_id not in self._entities:
            raise _unknown(entity_id)
        self._entities[entity_id] = msgspec.structs.replace(self._entities[entity_id], **changes)


def _guarded(
    method: Callable[Concatenate[SqliteCatalog, _Params], _Result],
) -> Callable[Concatenate[SqliteCatalog, _Params], _Result]:
    """Turn what the driver and the file system raise into StoreFailed, and never use that connection again."""

    def guarded(self: SqliteCatalog, /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        try:
            return method(self, *args, **kwargs)
        except (apsw.Error, OSError) as error:
            self.close()
            raise StoreFailed(f"The catalog {self.path.name} failed: {error}") from error

    guarded.__doc__ = method.__doc__
    return guarded


class SqliteCatalog(Catalog):
    """The catalog in one SQLite file of mode 0600, in write-ahead mode, synced at every commit.

    Every row carries a checksum over all of it, verified at ``read`` (design, decision 5). The file is held by one
    process: a second one gets StoreFailed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: apsw.Connection | None = None

    @_guarded
    def read(self) -> CatalogContents:
        """Return the whole content; see Catalog."""
        rows = self._open().execute
        namespaces = tuple(
            NamespaceRow(name, msgspec.json.decode(rules, type=tuple[AccessRule, ...]))
            for name, rules in _checked("namespaces", rows("SELECT name, rules, sum FROM namespaces ORDER BY name"))
        )
        slots: dict[int, list[SlotRow]] = {}
        found = rows("SELECT entity_id, slot, fragment_no, store_id, sum FROM slots ORDER BY entity_id, slot")
        for entity_id, slot, fragment_no, store_id in _checked("slots", found):
            slots.setdefault(entity_id, []).append(SlotRow(slot, fragment_no, store_id))
        found = rows(
            "SELECT entity_id, namespace, kind, path, description, state, partition_count, sum"
            " FROM entities ORDER BY entity_id"
        )
        entities = tuple(
            EntityRow(entity_id, namespace, kind, path, text.encode(), state, count, tuple(slots.get(entity_id, ())))
            for entity_id, namespace, kind, path, text, state, count in _checked("entities", found)
        )
        for entity in entities:
            if [row.slot for row in entity.slots] != list(range(entity.partition_count)):
                raise StoreFailed(f"The catalog lacks slots of entity {entity.entity_id}; restore it from a backup.")
        stores = tuple(
            StoreRow(store_id, path)
            for store_id, path in _checked("stores", rows("SELECT store_id, path, sum FROM stores ORDER BY store_id"))
        )
        return CatalogContents(namespaces, entities, stores)

    @_guarded
    def begin_create(self, namespace: str, kind: str, path: str, description: bytes, slots: Sequence[SlotRow]) -> int:
        """Record the intent; see Catalog."""
        connection = self._open()
        values = (namespace, kind, path, description.decode(), INTENT, len(slots))
        with connection:
            try:
                connection.execute(
                    "INSERT INTO entities (namespace, kind, path, description, state, partition_count, key, sum)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                    (*values, path.lower()),
                )
            except apsw.ConstraintError:
                raise _exists(path) from None
            entity_id = connection.last_insert_rowid()
            connection.execute(
                "UPDATE entities SET sum = ? WHERE entity_id = ?", (_sum((entity_id, *values)), entity_id)
            )
            connection.executemany(
                "INSERT INTO slots (entity_id, slot, fragment_no, store_id, sum) VALUES (?, ?, ?, ?, ?)",
                [_summed(entity_id, row.slot, row.fragment_no, row.store_id) for row in slots],
            )
        return entity_id

    @_guarded
    def mark_live(self, entity_id: int) -> None:
        """Make an entity live; see Catalog."""
        self._change(entity_id, state=LIVE)

    @_guarded
    def begin_delete(self, entity_id: int) -> None:
        """Begin a deletion; see Catalog."""
        self._change(entity_id, state=DELETING)

    @_guarded
    def finish_delete(self, entity_id: int) -> None:
        """Forget an entity; see Catalog."""
        connection = self._open()
        with connection:
            connection.execute("DELETE FROM slots WHERE entity_id = ?", (entity_id,))
            connection.execute("DELETE FROM entities WHERE entity_id = ?", (entity_id,))

    @_guarded
    def update_description(self, entity_id: int, description: bytes) -> None:
        """Replace a description; see Catalog."""
        self._change(entity_id, description=description.decode())

    @_guarded
    def add_store(self, store_id: int, path: str) -> None:
        """Register a store; see Catalog."""
        self._open().execute(
            "INSERT OR REPLACE INTO stores (store_id, path, sum) VALUES (?, ?, ?)", _summed(store_id, path)
        )

    @_guarded
    def put_namespace(self, namespace: NamespaceRow) -> None:
        """Add or replace a namespace; see Catalog."""
        rules = msgspec.json.encode(namespace.rules).decode()
        self._open().execute(
            "INSERT OR REPLACE INTO namespaces (name, rules, sum) VALUES (?, ?, ?)", _summed(namespace.name, rules)
        )

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # Without force the driver raises when a statement is still open, and close never raises.
            connection.close(force=True)

    def _open(self) -> apsw.Connection:
        if self._connection is not None:
            return self._connection
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made before the driver sees it, so that it is never readable by others, not for a moment; SQLite gives
        # its companion files the same mode.
        self.path.touch(mode=0o600)
        connection = apsw.Connection(str(self.path))
        try:
            # Exclusive first: write-ahead mode then needs no shared memory and a second process is refused.
            connection.pragma("locking_mode", "exclusive")
            connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", "full")
            _prepare(connection)
        except BaseException:
            connection.close(force=True)
            raise
        self._connection = connection
        return connection

    def _change(self, entity_id: int, *, state: str | None = None, description: str | None = None) -> None:
        connection = self._open()
        with connection:
            row = connection.execute(
                "SELECT namespace, kind, path, description, state, partition_count FROM entities WHERE entity_id = ?",
                (entity_id,),
            ).fetchone()
            if row is None:
                raise _unknown(entity_id)
            namespace, kind, path, old_description, old_state, count = row
            values = (namespace, kind, path, description or old_description, state or old_state, count)
            connection.execute(
                "UPDATE entities SET description = ?, state = ?, sum = ? WHERE entity_id = ?",
                (values[3], values[4], _sum((entity_id, *values)), entity_id),
            )


def _prepare(connection: apsw.Connection) -> None:
    with connection:
        if connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchone() is None:
            connection.execute(_SCHEMA)
            connection.execute("INSERT INTO meta (name, value) VALUES ('format_version', ?)", (FORMAT_VERSION,))
        version = connection.execute("SELECT value FROM meta WHERE name = 'format_version'").fetchone()
    if version is None:
        raise StoreFailed("The catalog holds no format version; it is no catalog of duobus, or it is damaged.")
    if version[0] > FORMAT_VERSION:
        raise StoreTooNew(
            f"The catalog has format {version[0]} and this version of duobus reads up to {FORMAT_VERSION}. "
            "Use the version that wrote it, or a newer one."
        )


def _sum(values: Iterable[object]) -> int:
    return zlib.crc32(json.dumps(list(values), separators=(",", ":")).encode())


def _summed(*values: object) -> tuple[object, ...]:
    return (*values, _sum(values))


def _checked(table: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    for *values, found in rows:
        if _sum(values) != found:
            raise StoreFailed(
                f"The checksum of a row in the catalog's table {table} is wrong; restore it from a backup."
            )
        yield tuple(values)


def _exists(path: str) -> EntityAlreadyExists:
    return EntityAlreadyExists(f"The entity '{path}' exists already. Choose another name, or use what exists.")


def _unknown(entity_id: int) -> StoreFailed:
    return StoreFailed(f"The catalog holds no entity {entity_id}.")
