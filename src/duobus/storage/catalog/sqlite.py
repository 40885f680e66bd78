"""The catalog in one SQLite file; what it holds and means is in ``interface.py``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import apsw
import msgspec

from duobus.errors import StoreFailed, StoreTooNew
from duobus.file_sync import SQLITE_SETTINGS
from duobus.model.descriptions import SUBSCRIPTION
from duobus.model.relay.description import RELAY
from duobus.storage.catalog.sql import FRAGMENT_GAP, IDENTITY, LOST_STORES, MOVES, REVISION, SEEN, SqlCatalog, guarded
from duobus.storage.catalog.sqlite_connection import CatalogConnection
from duobus.storage.catalog_identity import CatalogMark
from duobus.storage.catalog_records import (
    ENTITY,
    Record,
    entity_record,
    key_of,
    topic_key,
)
from duobus.storage.catalog_rows import (
    CatalogContents,
    EntityRow,
    SlotRow,
    row_sum,
    summed,
)
from duobus.storage.sqlite.log_watch import read_mark

#: Highest format this version reads and writes; a newer one is refused (I65). 2: stores that were given up, which a
#: version that does not know of them would take for new ones.
FORMAT_VERSION = 2
#: The format of a catalog in which no store was ever given up.
_FORMAT_VERSION_FIRST = 1

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

#: Tables that are made when they are needed first.
#:
#: moves: a version that does not know of moves leaves the other store's copy alone, and so may work with such a
#: catalog: a fragment is where its slot says. seen: made when a server first runs; a version that does not know of that
#: table leaves behind what is not too late.
_LATE: Final = {
    MOVES: """
CREATE TABLE IF NOT EXISTS moves (
    entity_id INTEGER NOT NULL, fragment_no INTEGER NOT NULL, from_store INTEGER NOT NULL, to_store INTEGER NOT NULL,
    sum INTEGER NOT NULL, PRIMARY KEY (entity_id, fragment_no)) WITHOUT ROWID
""",
    SEEN: """
CREATE TABLE IF NOT EXISTS seen (store_id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, sum INTEGER NOT NULL)
""",
    LOST_STORES: """
CREATE TABLE IF NOT EXISTS lost_stores (store_id INTEGER PRIMARY KEY, path TEXT NOT NULL, sum INTEGER NOT NULL)
""",
}


class SqliteCatalog(SqlCatalog):
    """The catalog in one SQLite file of mode 0600, in write-ahead mode, synced at every commit.

    The file is held by one process: a second one gets StoreFailed.
    """

    _last_id = "SELECT max(seq) FROM sqlite_sequence WHERE name = 'entities'"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.title = f"The catalog {path.name}"
        self._connection: CatalogConnection | None = None
        self._has_existed = False
        self.mark = CatalogMark()
        #: Revision and highest id of the transaction under way.
        self._pending = (0, 0)
        #: What it has changed, and whether stores should not wait with that.
        self._touched: list[Record | int] = []
        self._is_urgent = False

    def faults(self) -> tuple[type[Exception], ...]:
        """See SqlCatalog."""
        return apsw.Error, OSError

    def _run(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._open().execute(statement, cast("Any", values)).fetchall()

    def _run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        self._open().executemany(statement, cast("Any", rows))

    def _transaction(self) -> CatalogConnection:
        return self._open()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._open() as connection:
            yield
            row = connection.execute(
                "INSERT INTO meta (name, value) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
                " RETURNING value",
                (REVISION,),
            )
            self._pending = (int(row.get), self._pending[1])

    def _read_all(self, statements: Sequence[str]) -> list[list[tuple[Any, ...]]]:
        # Nobody else writes.
        return [self._run(statement) for statement in statements]

    def _has(self, table: str) -> bool:
        return self._open().table_exists(None, table)

    def _make(self, table: str) -> None:
        self._run(_LATE[table])
        if table == LOST_STORES:
            self._run("UPDATE meta SET value = ? WHERE name = 'format_version'", (FORMAT_VERSION,))

    def _touch(self, *touched: Record | int, last_id: int = 0, is_urgent: bool = False) -> None:
        if self.mark.copies is not None:
            self._touched += touched
            self._is_urgent = self._is_urgent or is_urgent
        self._pending = (self._pending[0], max(last_id, self._pending[1]))

    def settle(self) -> None:
        """Say what is durable, when it is; see SqlCatalog."""
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
        key = key_of(ENTITY, entity_id)
        found = self._run(
            "SELECT namespace, kind, path, description, state, partition_count FROM entities WHERE entity_id = ?",
            (entity_id,),
        )
        if not found:
            return Record(key, None)
        ((namespace, kind, path, text, state, count),) = found
        slots = self._slots(entity_id)
        entity = EntityRow(entity_id, namespace, kind, path, text.encode(), state, count, slots)
        if kind == RELAY:
            return Record(key, entity_record(entity))
        if kind == SUBSCRIPTION:
            topic = self._run("SELECT entity_id FROM entities WHERE namespace = ? AND key = ?", topic_key(entity))
            slots = self._slots(topic[0][0]) if topic else ()
        return Record(key, entity_record(entity), frozenset(slot.store_id for slot in slots))

    def _slots(self, entity_id: int) -> tuple[SlotRow, ...]:
        found = self._run(
            "SELECT slot, fragment_no, store_id FROM slots WHERE entity_id = ? ORDER BY slot", (entity_id,)
        )
        return tuple(SlotRow(*row) for row in found)

    @guarded
    def note_generations(self, generations: Mapping[int, int]) -> None:
        """Record how far stores have come, which is no change of what exists; see Catalog."""
        with self._transaction():
            self._make(SEEN)
            self._run_many(
                "INSERT OR REPLACE INTO seen (store_id, generation, sum) VALUES (?, ?, ?)",
                [summed(*row) for row in generations.items()],
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Take the calls of one thread together; see Catalog. Transactions within are savepoints."""
        try:
            with self._open():
                yield
        except (apsw.Error, OSError) as error:
            self.close()
            raise self.failed(error) from error
        except BaseException:
            # Undone, so there is nothing to be told.
            self._forget_changes()
            raise
        self.settle()

    @guarded
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

    @guarded
    def _rebuild(self, contents: CatalogContents) -> None:
        db = self._open()
        if db.execute("SELECT 1 FROM entities UNION ALL SELECT 1 FROM stores LIMIT 1").fetchone() is not None:
            raise StoreFailed(f"The catalog {self.path.name} is not empty.")
        with db:
            if contents.lost:
                self._make(LOST_STORES)
            self._make(MOVES)
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
            numbers = {FRAGMENT_GAP: contents.fragment_gap, IDENTITY: contents.identity, REVISION: contents.revision}
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
