"""The catalog in one SQLite file; what it holds and means is in catalog.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import apsw
import msgspec

from duobus.errors import StoreFailed, StoreTooNew
from duobus.model.description import AccessRule
from duobus.stores.catalog import (
    DELETING,
    INTENT,
    LIVE,
    Catalog,
    CatalogContents,
    EntityRow,
    MoveRow,
    NamespaceRow,
    SlotRow,
    StoreRow,
    exists_already,
    unknown_entity,
)
from duobus.stores.catalog_rows import checked, row_sum, summed

#: Highest format this version reads and writes; a newer one is refused (I65). 2: stores that were given up, which a
#: version that does not know of them would take for new ones.
FORMAT_VERSION = 2
#: Name of ``CatalogContents.fragment_gap`` in the table meta.
FRAGMENT_GAP: Final = "fragment_gap"
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

_LOST_STORES = """
CREATE TABLE IF NOT EXISTS lost_stores (store_id INTEGER PRIMARY KEY, path TEXT NOT NULL, sum INTEGER NOT NULL)
"""


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
        self._has_existed = False

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
        return CatalogContents(namespaces, entities, stores, tuple(self._lost_stores()), gap, tuple(self._moves()))

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
            "INSERT OR REPLACE INTO stores (store_id, path, sum) VALUES (?, ?, ?)", summed(store_id, path)
        )

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

    @_guarded
    def end_move(self, move: MoveRow) -> None:
        """Forget a move; see Catalog."""
        connection = self._open()
        if connection.table_exists(None, "moves"):
            connection.execute(
                "DELETE FROM moves WHERE entity_id = ? AND fragment_no = ?", (move.entity_id, move.fragment_no)
            )

    @_guarded
    def put_namespace(self, namespace: NamespaceRow) -> None:
        """Add or replace a namespace; see Catalog."""
        rules = msgspec.json.encode(namespace.rules).decode()
        self._open().execute(
            "INSERT OR REPLACE INTO namespaces (name, rules, sum) VALUES (?, ?, ?)", summed(namespace.name, rules)
        )

    @_guarded
    def serialized(self) -> bytes:
        """Return the catalog as the bytes of a file, for a backup: a megabyte for a thousand entities."""
        return bytes(self._open().serialize("main"))

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
        # Beside a file without a page SQLite deletes the log, and with it whatever is in it alone.
        log = Path(f"{self.path}-wal")
        is_empty = not self.path.exists() or not self.path.stat().st_size
        if is_empty and (self._has_existed or (log.exists() and log.stat().st_size)):
            raise FileNotFoundError("its file is missing or empty; put it back, it is never created anew by itself")
        # Made before the driver sees it, so that it is never readable by others, not for a moment; SQLite gives
        # its companion files the same mode.
        if is_empty:
            self.path.touch(mode=0o600)
        connection = apsw.Connection(str(self.path), apsw.SQLITE_OPEN_READWRITE)
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
        self._has_existed = True
        return connection

    def _change(self, entity_id: int, *, state: str | None = None, description: str | None = None) -> None:
        connection = self._open()
        with connection:
            row = connection.execute(
                "SELECT namespace, kind, path, description, state, partition_count FROM entities WHERE entity_id = ?",
                (entity_id,),
            ).fetchone()
            if row is None:
                raise unknown_entity(entity_id)
            namespace, kind, path, old_description, old_state, count = row
            values = (namespace, kind, path, description or old_description, state or old_state, count)
            connection.execute(
                "UPDATE entities SET description = ?, state = ?, sum = ? WHERE entity_id = ?",
                (values[3], values[4], row_sum((entity_id, *values)), entity_id),
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
