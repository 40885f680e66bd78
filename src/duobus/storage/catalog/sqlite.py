"""The catalog in one SQLite file; what it holds and means is in ``interface.py``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import apsw
import msgspec

from duobus.errors import StoreFailed, StoreTooNew
from duobus.file_sync import SQLITE_SETTINGS
from duobus.model.descriptions import SUBSCRIPTION, AccessRule
from duobus.storage.catalog.interface import Catalog, exists_already, unknown_entity
from duobus.storage.catalog.sqlite_connection import CatalogConnection
from duobus.storage.catalog_identity import CatalogMark
from duobus.storage.catalog_records import (
    ENTITY,
    Record,
    entity_record,
    key_of,
    move_record,
    namespace_record,
    store_record,
    topic_key,
)
from duobus.storage.catalog_rows import (
    DELETING,
    INTENT,
    LIVE,
    CatalogContents,
    EntityRow,
    MoveRow,
    NamespaceRow,
    SlotRow,
    StoreRow,
    checked,
    row_sum,
    summed,
)
from duobus.storage.sqlite.log_watch import read_mark

#: Highest format this version reads and writes; a newer one is refused (I65). 2: stores that were given up, which a
#: version that does not know of them would take for new ones.
FORMAT_VERSION = 2
#: Name of ``CatalogContents.fragment_gap`` in the table meta.
FRAGMENT_GAP: Final = "fragment_gap"
#: Names of two more numbers there: see ``CatalogContents``. A version that does not know them leaves them as they are.
IDENTITY: Final = "identity"
_REVISION: Final = "revision"
#: The format of a catalog in which no store was ever given up.
_FORMAT_VERSION_FIRST = 1

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

#: Made with the first move. A version that does not know of moves leaves the other store's copy alone, and so may work
#: with such a catalog: a fragment is where its slot says.
_MOVES = """
CREATE TABLE IF NOT EXISTS moves (
    entity_id INTEGER NOT NULL, fragment_no INTEGER NOT NULL, from_store INTEGER NOT NULL, to_store INTEGER NOT NULL,
    sum INTEGER NOT NULL, PRIMARY KEY (entity_id, fragment_no)) WITHOUT ROWID
"""

#: Made when a server first runs. A version that does not know of it leaves behind what is not too late.
_SEEN = """
CREATE TABLE IF NOT EXISTS seen (store_id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, sum INTEGER NOT NULL)
"""

_LOST_STORES = """
CREATE TABLE IF NOT EXISTS lost_stores (store_id INTEGER PRIMARY KEY, path TEXT NOT NULL, sum INTEGER NOT NULL)
"""


def _guarded(
    method: Callable[Concatenate[SqliteCatalog, _Params], _Result],
) -> Callable[Concatenate[SqliteCatalog, _Params], _Result]:
    """Turn what the driver and the file system raise into StoreFailed, and never use that connection again."""

    def guarded(self: SqliteCatalog, /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        try:
            result = method(self, *args, **kwargs)
        except (apsw.Error, OSError) as error:
            self.close()
            raise StoreFailed(f"The catalog {self.path.name} failed: {error}") from error
        self._settle()
        return result

    guarded.__doc__ = method.__doc__
    return guarded


class SqliteCatalog(Catalog):
    """The catalog in one SQLite file of mode 0600, in write-ahead mode, synced at every commit.

    Every row carries a checksum over all of it, verified at ``read``. The file is held by one
    process: a second one gets StoreFailed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: CatalogConnection | None = None
        self._has_existed = False
        self.mark = CatalogMark()
        #: Revision and highest id of the transaction under way.
        self._pending = (0, 0)
        #: What it has changed, and whether stores should not wait with that.
        self._touched: list[Record | int] = []
        self._is_urgent = False

    @_guarded
    def identify(self, drawn: int) -> int:
        """Return the identity, which goes into the file before any store is told; see Catalog."""
        connection = self._open()
        with connection:
            connection.execute("INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)", (IDENTITY, drawn))
            identity = self._number(IDENTITY)
        self.mark.identity = identity
        return identity

    def _number(self, name: str) -> int:
        row = self._open().execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return 0 if row is None else int(row[0])

    def _changes(self, *touched: Record | int, last_id: int = 0, is_urgent: bool = False) -> None:
        """Raise the revision, within the transaction that changes something.

        ``touched``: ids of entities, and records of other rows; ``is_urgent``: no commit of a store goes with it.
        """
        if self.mark.copies is not None:
            self._touched += touched
            self._is_urgent = self._is_urgent or is_urgent
        row = self._open().execute(
            "INSERT INTO meta (name, value) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
            " RETURNING value",
            (_REVISION,),
        )
        self._pending = (int(row.get), max(last_id, self._pending[1]))

    def _settle(self) -> None:
        """Say what is durable, when it is."""
        if self._connection is None or self._connection.in_transaction:
            return
        self.mark.raise_to(*self._pending)
        touched, self._touched = self._touched, []
        urgent, self._is_urgent = self._is_urgent, False
        copies = self.mark.copies
        if copies is None:
            return
        try:
            for one in dict.fromkeys(touched):
                copies.note(one if isinstance(one, Record) else self._record(one), is_urgent=urgent)
        except (apsw.Error, OSError):
            # The change is durable, and nobody is to hear otherwise. Stores are compared anew.
            self.close()
            copies.forget()

    def _record(self, entity_id: int) -> Record:
        """The record of an entity as it is now."""
        rows = self._open().execute
        key = key_of(ENTITY, entity_id)
        row = rows(
            "SELECT namespace, kind, path, description, state, partition_count FROM entities WHERE entity_id = ?",
            (entity_id,),
        ).fetchone()
        if row is None:
            return Record(key, None)
        namespace, kind, path, text, state, count = row
        slots = self._slots(entity_id)
        entity = EntityRow(entity_id, namespace, kind, path, text.encode(), state, count, slots)
        if kind == SUBSCRIPTION:
            topic = rows("SELECT entity_id FROM entities WHERE namespace = ? AND key = ?", topic_key(entity)).fetchone()
            slots = () if topic is None else self._slots(topic[0])
        return Record(key, entity_record(entity), frozenset(slot.store_id for slot in slots))

    def _slots(self, entity_id: int) -> tuple[SlotRow, ...]:
        found = self._open().execute(
            "SELECT slot, fragment_no, store_id FROM slots WHERE entity_id = ? ORDER BY slot", (entity_id,)
        )
        return tuple(SlotRow(*row) for row in found)

    @_guarded
    def read(self) -> CatalogContents:
        """Return the whole content; see Catalog."""
        rows = self._open().execute
        namespaces = tuple(
            NamespaceRow(name, msgspec.json.decode(rules, type=tuple[AccessRule, ...]))
            for name, rules in checked("namespaces", rows("SELECT name, rules, sum FROM namespaces ORDER BY name"))
        )
        slots: dict[int, list[SlotRow]] = {}
        found = rows("SELECT entity_id, slot, fragment_no, store_id, sum FROM slots ORDER BY entity_id, slot")
        for entity_id, slot, fragment_no, store_id in checked("slots", found):
            slots.setdefault(entity_id, []).append(SlotRow(slot, fragment_no, store_id))
        found = rows(
            "SELECT entity_id, namespace, kind, path, description, state, partition_count, sum"
            " FROM entities ORDER BY entity_id"
        )
        entities = tuple(
            EntityRow(entity_id, namespace, kind, path, text.encode(), state, count, tuple(slots.get(entity_id, ())))
            for entity_id, namespace, kind, path, text, state, count in checked("entities", found)
        )
        for entity in entities:
            if [row.slot for row in entity.slots] != list(range(entity.partition_count)):
                raise StoreFailed(f"The catalog lacks slots of entity {entity.entity_id}; restore it from a backup.")
        stores = tuple(
            StoreRow(store_id, path)
            for store_id, path in checked("stores", rows("SELECT store_id, path, sum FROM stores ORDER BY store_id"))
        )
        (gap,) = rows("SELECT coalesce(max(value), 0) FROM meta WHERE name = ?", (FRAGMENT_GAP,)).fetchone() or (0,)
        found = rows("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'entities'")
        contents = CatalogContents(
            namespaces,
            entities,
            stores,
            tuple(self._lost_stores()),
            gap,
            tuple(self._moves()),
            self._number(IDENTITY),
            self._number(_REVISION),
            max(int(found.get), max((row.entity_id for row in entities), default=0)),
            tuple(self._seen()),
        )
        self.mark.see(contents)
        return contents

    def _seen(self) -> Iterator[tuple[int, int]]:
        connection = self._open()
        if connection.table_exists(None, "seen"):
            for row in checked("seen", connection.execute("SELECT store_id, generation, sum FROM seen ORDER BY 1")):
                yield row[0], row[1]

    @_guarded
    def note_generations(self, generations: Mapping[int, int]) -> None:
        """Record how far stores have come, which is no change of what exists; see Catalog."""
        connection = self._open()
        with connection:
            connection.execute(_SEEN)
            connection.executemany(
                "INSERT OR REPLACE INTO seen (store_id, generation, sum) VALUES (?, ?, ?)",
                [summed(*row) for row in generations.items()],
            )

    def _moves(self) -> Iterator[MoveRow]:
        connection = self._open()
        if connection.table_exists(None, "moves"):
            found = connection.execute(
                "SELECT entity_id, fragment_no, from_store, to_store, sum FROM moves ORDER BY 1, 2"
            )
            for row in checked("moves", found):
                yield MoveRow(*row)

    def _lost_stores(self) -> Iterator[StoreRow]:
        connection = self._open()
        if connection.table_exists(None, "lost_stores"):
            found = connection.execute("SELECT store_id, path, sum FROM lost_stores ORDER BY store_id")
            for store_id, path in checked("lost_stores", found):
                yield StoreRow(store_id, path)

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
                raise exists_already(path) from None
            entity_id = connection.last_insert_rowid()
            connection.execute(
                "UPDATE entities SET sum = ? WHERE entity_id = ?", (row_sum((entity_id, *values)), entity_id)
            )
            connection.executemany(
                "INSERT INTO slots (entity_id, slot, fragment_no, store_id, sum) VALUES (?, ?, ?, ?, ?)",
                [summed(entity_id, row.slot, row.fragment_no, row.store_id) for row in slots],
            )
            self._changes(entity_id, last_id=entity_id)
        return entity_id

    @contextmanager
    def together(self) -> Iterator[None]:
        """Take the calls of one thread together; see Catalog. Transactions within are savepoints."""
        try:
            with self._open():
                yield
        except (apsw.Error, OSError) as error:
            self.close()
            raise StoreFailed(f"The catalog {self.path.name} failed: {error}") from error
        except BaseException:
            # Undone, so there is nothing to be told.
            self._forget_changes()
            raise
        self._settle()

    @_guarded
    def mark_live(self, entity_id: int) -> None:
        """Make an entity live; see Catalog."""
        self._change(entity_id, state=LIVE)

    @_guarded
    def begin_delete(self, entity_id: int) -> None:
        """Begin a deletion; see Catalog."""
        self._change(entity_id, state=DELETING)

    @_guarded
    def withdraw(self, entity_id: int, path: str) -> None:
        """Begin the deletion of what could not be created; see Catalog."""
        self._change(entity_id, state=DELETING, path=path)

    @_guarded
    def finish_delete(self, entity_id: int) -> None:
        """Forget an entity; see Catalog."""
        connection = self._open()
        with connection:
            connection.execute("DELETE FROM slots WHERE entity_id = ?", (entity_id,))
            connection.execute("DELETE FROM entities WHERE entity_id = ?", (entity_id,))
            self._changes(entity_id)

    @_guarded
    def update_description(self, entity_id: int, description: bytes) -> None:
        """Replace a description; see Catalog."""
        self._change(entity_id, description=description.decode())

    @_guarded
    def add_store(self, store_id: int, path: str) -> None:
        """Register a store; see Catalog."""
        connection = self._open()
        with connection:
            connection.execute(
                "INSERT OR REPLACE INTO stores (store_id, path, sum) VALUES (?, ?, ?)", summed(store_id, path)
            )
            self._changes(store_record(StoreRow(store_id, path)), is_urgent=True)

    @_guarded
    def replace_store(self, lost_id: int, store: StoreRow, slots: Sequence[tuple[int, SlotRow]]) -> None:
        """Give a store up; see Catalog."""
        connection = self._open()
        with connection:
            ((path,),) = connection.execute("SELECT path FROM stores WHERE store_id = ?", (lost_id,)).fetchall()
            connection.execute(_LOST_STORES)
            connection.execute("UPDATE meta SET value = ? WHERE name = 'format_version'", (FORMAT_VERSION,))
            connection.execute("INSERT INTO lost_stores (store_id, path, sum) VALUES (?, ?, ?)", summed(lost_id, path))
            connection.execute("DELETE FROM stores WHERE store_id = ?", (lost_id,))
            connection.execute(
                "INSERT INTO stores (store_id, path, sum) VALUES (?, ?, ?)", summed(store.store_id, store.path)
            )
            connection.executemany(
                "INSERT OR REPLACE INTO slots (entity_id, slot, fragment_no, store_id, sum) VALUES (?, ?, ?, ?, ?)",
                [summed(entity_id, row.slot, row.fragment_no, row.store_id) for entity_id, row in slots],
            )
            self._changes()

    @_guarded
    def begin_move(self, move: MoveRow) -> None:
        """Record a move; see Catalog."""
        connection = self._open()
        with connection:
            connection.execute(_MOVES)
            connection.execute(
                "INSERT OR REPLACE INTO moves (entity_id, fragment_no, from_store, to_store, sum)"
                " VALUES (?, ?, ?, ?, ?)",
                summed(move.entity_id, move.fragment_no, move.from_store, move.to_store),
            )
            # The fragment is made next, and nothing of it matters before.
            self._changes(move_record(move))

    @_guarded
    def switch_move(self, move: MoveRow) -> None:
        """Say where a fragment is now; see Catalog."""
        connection = self._open()
        with connection:
            found = connection.execute(
                "SELECT slot FROM slots WHERE entity_id = ? AND fragment_no = ?", (move.entity_id, move.fragment_no)
            ).fetchone()
            if found is None:
                raise unknown_entity(move.entity_id)
            connection.execute(
                "INSERT OR REPLACE INTO slots (entity_id, slot, fragment_no, store_id, sum) VALUES (?, ?, ?, ?, ?)",
                summed(move.entity_id, found[0], move.fragment_no, move.to_store),
            )
            self._changes(move.entity_id, is_urgent=True)

    @_guarded
    def end_move(self, move: MoveRow) -> None:
        """Forget a move; see Catalog."""
        connection = self._open()
        if connection.table_exists(None, "moves"):
            with connection:
                connection.execute(
                    "DELETE FROM moves WHERE entity_id = ? AND fragment_no = ?", (move.entity_id, move.fragment_no)
                )
                self._changes(Record(move_record(move).key, None))

    @_guarded
    def put_namespace(self, namespace: NamespaceRow) -> None:
        """Add or replace a namespace; see Catalog."""
        rules = msgspec.json.encode(namespace.rules).decode()
        connection = self._open()
        with connection:
            connection.execute(
                "INSERT OR REPLACE INTO namespaces (name, rules, sum) VALUES (?, ?, ?)", summed(namespace.name, rules)
            )
            self._changes(namespace_record(namespace), is_urgent=True)

    @_guarded
    def serialized(self) -> bytes:
        """Return the catalog as the bytes of a file, for a backup: a megabyte for a thousand entities."""
        return bytes(self._open().serialize("main"))

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        connection, self._connection = self._connection, None
        self._forget_changes()
        if connection is not None:
            # Without force the driver raises when a statement is still open, and close never raises.
            connection.close(force=True)

    def _forget_changes(self) -> None:
        self._pending = (0, 0)
        self._touched = []
        self._is_urgent = False

    def rebuild(self, contents: CatalogContents) -> None:
        """Make an empty catalog what was found in its stores, in one transaction.

        Raises:
            StoreFailed: The file cannot be written, or holds something.
        """
        self._rebuild(contents)

    @_guarded
    def _rebuild(self, contents: CatalogContents) -> None:
        db = self._open()
        if db.execute("SELECT 1 FROM entities UNION ALL SELECT 1 FROM stores LIMIT 1").fetchone() is not None:
            raise StoreFailed(f"The catalog {self.path.name} is not empty.")
        with db:
            if contents.lost:
                db.execute(_LOST_STORES)
                db.execute("UPDATE meta SET value = ? WHERE name = 'format_version'", (FORMAT_VERSION,))
            db.execute(_MOVES)
            for table, rows in _tables(contents):
                for row in rows:
                    db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * (len(row) + 1))})", summed(*row))
            for entity in contents.entities:
                values = (entity.namespace, entity.kind, entity.path)
                rest = (entity.description.decode(), entity.state, entity.partition_count)
                db.execute(
                    "INSERT INTO entities VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        entity.entity_id,
                        *values,
                        entity.path.lower(),
                        *rest,
                        row_sum((entity.entity_id, *values, *rest)),
                    ),
                )
            db.execute("DELETE FROM sqlite_sequence WHERE name = 'entities'")
            db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('entities', ?)", (contents.last_id,))
            numbers = {FRAGMENT_GAP: contents.fragment_gap, IDENTITY: contents.identity, _REVISION: contents.revision}
            for name, value in numbers.items():
                db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))

    def _open(self) -> CatalogConnection:
        if self._connection is not None:
            if not self._connection.has_lost_log or self._connection.in_transaction:
                return self._connection
            self.close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Beside a file without a page SQLite deletes the log, and with it whatever is in it alone.
        log = Path(f"{self.path}-wal")
        is_empty = not self.path.exists() or not self.path.stat().st_size
        # A log is empty once its changes are home; the mark beside the file says that there were some.
        is_known = read_mark(os.path.realpath(self.path)) is not None
        if is_empty and (self._has_existed or is_known or (log.exists() and log.stat().st_size)):
            raise FileNotFoundError("its file is missing or empty; put it back, it is never created anew by itself")
        # Made before the driver sees it, so that it is never readable by others, not for a moment; SQLite gives
        # its companion files the same mode.
        if is_empty:
            self.path.touch(mode=0o600)
        connection = CatalogConnection(self.path)
        try:
            # Exclusive first: write-ahead mode then needs no shared memory and a second process is refused.
            connection.pragma("locking_mode", "exclusive")
            connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", "full")
            for setting in SQLITE_SETTINGS:
                connection.execute(f"PRAGMA {setting}")
            connection.demand_own()
            _prepare(connection)
            connection.settle()
        except BaseException:
            connection.close(force=True)
            raise
        self._connection = connection
        self._has_existed = True
        return connection

    def _change(
        self, entity_id: int, *, state: str | None = None, description: str | None = None, path: str | None = None
    ) -> None:
        connection = self._open()
        with connection:
            row = connection.execute(
                "SELECT namespace, kind, path, description, state, partition_count FROM entities WHERE entity_id = ?",
                (entity_id,),
            ).fetchone()
            if row is None:
                raise unknown_entity(entity_id)
            namespace, kind, old_path, old_description, old_state, count = row
            values = (
                namespace,
                kind,
                path or old_path,
                description or old_description,
                state or old_state,
                count,
            )
            connection.execute(
                "UPDATE entities SET path = ?, key = ?, description = ?, state = ?, sum = ? WHERE entity_id = ?",
                (values[2], values[2].lower(), values[3], values[4], row_sum((entity_id, *values)), entity_id),
            )
            # A new state is told with the fragments that come or go for it.
            self._changes(entity_id, is_urgent=description is not None)


def _tables(contents: CatalogContents) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """The rows of every table but that of the entities, without their checksums."""
    rules = [(row.name, msgspec.json.encode(row.rules).decode()) for row in contents.namespaces]
    yield "namespaces", rules
    yield "stores", [(row.store_id, row.path) for row in contents.stores]
    if contents.lost:
        yield "lost_stores", [(row.store_id, row.path) for row in contents.lost]
    yield "moves", [(row.entity_id, row.fragment_no, row.from_store, row.to_store) for row in contents.moves]
    yield (
        "slots",
        [
            (entity.entity_id, slot.slot, slot.fragment_no, slot.store_id)
            for entity in contents.entities
            for slot in entity.slots
        ],
    )


def _prepare(connection: apsw.Connection) -> None:
    with connection:
        if connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchone() is None:
            connection.execute(_SCHEMA)
            connection.execute("INSERT INTO meta (name, value) VALUES ('format_version', ?)", (_FORMAT_VERSION_FIRST,))
        version = connection.execute("SELECT value FROM meta WHERE name = 'format_version'").fetchone()
    if version is None:
        raise StoreFailed("The catalog holds no format version; it is no catalog of duobus, or it is damaged.")
    if version[0] > FORMAT_VERSION:
        raise StoreTooNew(
            f"The catalog has format {version[0]} and this version of duobus reads up to {FORMAT_VERSION}. "
            "Use the version that wrote it, or a newer one."
        )
