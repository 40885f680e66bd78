"""SqlCatalog: the statements of the catalogs that are in a database, each of them once.

A statement is written so that SQLite and PostgreSQL both understand it, with ``?`` for values. What the two do
differently (transactions, tables that are made late, what a change tells others) are the methods that begin with an
underscore and have no body here. The schemas are in ``sqlite.py`` and ``postgres.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from duobus.errors import StoreFailed
from duobus.model.descriptions import AccessRule
from duobus.model.relay.description import RELAY
from duobus.storage.catalog.interface import (
    Catalog,
    RulesChange,
    exists_already,
    given_up,
    is_gone,
    unknown_entity,
    unknown_namespace,
)
from duobus.storage.catalog_records import Record, move_record, namespace_record, store_record
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

#: Names of numbers in the table meta; see ``CatalogContents``. A version that does not know them leaves them alone.
FRAGMENT_GAP: Final = "fragment_gap"
IDENTITY: Final = "identity"
REVISION: Final = "revision"

#: Tables that hold stores and have the same columns.
STORES: Final = "stores"
LOST_STORES: Final = "lost_stores"
MOVES: Final = "moves"
SEEN: Final = "seen"
#: What is read of each table, beside the checksums of its rows.
_READ: Final = {
    "namespaces": "name, rules",
    "slots": "entity_id, slot, fragment_no, store_id",
    "entities": "entity_id, namespace, kind, path, description, state, partition_count",
    STORES: "store_id, path",
    LOST_STORES: "store_id, path",
    MOVES: "entity_id, fragment_no, from_store, to_store",
    SEEN: "store_id, generation",
}

_PUT_SLOT: Final = (
    "INSERT INTO slots (entity_id, slot, fragment_no, store_id, sum) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (entity_id, slot) DO UPDATE SET fragment_no = excluded.fragment_no, store_id = excluded.store_id,"
    " sum = excluded.sum"
)

_Self = TypeVar("_Self", bound="SqlCatalog")
_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def guarded(
    method: Callable[Concatenate[_Self, _Params], _Result],
) -> Callable[Concatenate[_Self, _Params], _Result]:
    """Turn what the driver and the file system raise into StoreFailed, and never use that connection again."""

    def call(self: _Self, /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        try:
            result = method(self, *args, **kwargs)
        except self.faults() as error:
            self.close()
            raise self.failed(error) from error
        self.settle()
        return result

    call.__doc__ = method.__doc__
    return call


class SqlCatalog(Catalog):
    """The catalog in tables. Every row carries a checksum over all of it, verified at ``read``.

    Attributes:
        title: How errors name it.
    """

    title: str
    #: Tells the highest entity id that was given out, so far as the database knows, or null.
    _last_id: ClassVar[str]

    # -- what SQLite and PostgreSQL do each in its own way --------------------------------------------------------

    @abstractmethod
    def faults(self) -> tuple[type[Exception], ...]:
        """What the driver and the file system raise."""

    @abstractmethod
    def _run(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""

    @abstractmethod
    def _run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement with each of several rows of values."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[object]:
        """Commit all that is run within, or nothing when something raises."""

    @abstractmethod
    def _changing(self) -> AbstractContextManager[object]:
        """The same for what changes the content, which raises the revision: one change comes after the other."""

    @abstractmethod
    def _read_all(self, statements: Sequence[str]) -> list[list[tuple[Any, ...]]]:
        """The rows of each of these statements, all as they were in one moment."""

    @abstractmethod
    def _has(self, table: str) -> bool:
        """Whether a table is there: some are made when they are needed first, or never."""

    @abstractmethod
    def _make(self, table: str) -> None:
        """Make one of these tables if it is not there."""

    @abstractmethod
    def _touch(self, *touched: Record | int, last_id: int = 0, is_urgent: bool = False) -> None:
        """Hear at the end of a change what it has touched.

        Args:
            touched: Ids of entities, and records of other rows.
            last_id: A new id.
            is_urgent: Whether stores should not wait with that, as no commit of theirs goes with it.
        """

    def _store_added(self, store_id: int) -> None:
        """Hear within a change that there is a store."""

    def _store_removed(self, store_id: int) -> None:
        """Hear within a change that there is a store no longer."""

    def settle(self) -> None:
        """Hear that a call has come to its end."""

    def failed(self, error: Exception) -> StoreFailed:
        """The error for one of ``faults``."""
        return StoreFailed(f"{self.title} failed: {str(error).strip()}")

    # -- reading --------------------------------------------------------------------------------------------------

    @guarded
    def identify(self, drawn: int) -> int:
        """Return the identity, which is durable before any store is told; see Catalog."""
        with self._transaction():
            self._run("INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", (IDENTITY, drawn))
            ((identity,),) = self._run("SELECT value FROM meta WHERE name = ?", (IDENTITY,))
        self.mark.identity = int(identity)
        return self.mark.identity

    @guarded
    def read(self) -> CatalogContents:
        """Return the whole content; see Catalog."""
        tables = {table: columns for table, columns in _READ.items() if self._has(table)}
        *found, ((last_id,),), meta = self._read_all(
            [
                *(f"SELECT {columns}, sum FROM {table} ORDER BY 1, 2" for table, columns in tables.items()),
                self._last_id,
                "SELECT name, value FROM meta",
            ]
        )
        rows = {table: checked(table, those) for table, those in zip(tables, found, strict=True)}
        contents = _contents(rows, {name: int(value) for name, value in meta}, int(last_id or 0))
        self.mark.see(contents)
        return contents

    # -- entities -------------------------------------------------------------------------------------------------

    @guarded
    def begin_create(
        self,
        namespace: str,
        kind: str,
        path: str,
        description: bytes,
        slots: Sequence[SlotRow],
        needed_id: int | None = None,
    ) -> int:
        """Record the intent; see Catalog."""
        values = (namespace, kind, path, description.decode(), INTENT, len(slots))
        with self._changing():
            if needed_id is not None:
                needed = self._run("SELECT state FROM entities WHERE entity_id = ?", (needed_id,))
                if not needed or needed[0][0] == DELETING:
                    raise is_gone(path)
            found = self._run(
                "INSERT INTO entities (namespace, kind, path, description, state, partition_count, key, sum)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT (namespace, key) DO NOTHING RETURNING entity_id",
                (*values, path.lower()),
            )
            if not found:
                raise exists_already(path)
            entity_id = int(found[0][0])
            self._run("UPDATE entities SET sum = ? WHERE entity_id = ?", (row_sum((entity_id, *values)), entity_id))
            self._run_many(
                "INSERT INTO slots (entity_id, slot, fragment_no, store_id, sum) VALUES (?, ?, ?, ?, ?)",
                [summed(entity_id, row.slot, row.fragment_no, row.store_id) for row in slots],
            )
            self._touch(entity_id, last_id=entity_id)
        return entity_id

    @guarded
    def mark_live(self, entity_id: int) -> None:
        """Make an entity live; see Catalog."""
        self._change(entity_id, state=LIVE, is_wanted=lambda _description, state: state != DELETING)

    @guarded
    def begin_delete(self, entity_id: int) -> None:
        """Begin a deletion; see Catalog."""
        self._change(entity_id, state=DELETING)

    @guarded
    def begin_delete_while(self, entity_id: int, description: bytes, live_ids: Sequence[int]) -> bool:
        """Begin a deletion, if it may be; see Catalog."""
        return self._change(
            entity_id,
            state=DELETING,
            is_wanted=lambda found, state: (
                (found, state) == (description.decode(), LIVE)
                and all(
                    self._run("SELECT state FROM entities WHERE entity_id = ?", (one,)) == [(LIVE,)] for one in live_ids
                )
            ),
        )

    @guarded
    def withdraw(self, entity_id: int, path: str) -> None:
        """Begin the deletion of what could not be created; see Catalog."""
        self._change(entity_id, state=DELETING, path=path)

    @guarded
    def update_description(self, entity_id: int, description: bytes, instead_of: bytes | None = None) -> bool:
        """Replace a description; see Catalog."""
        kept = None if instead_of is None else instead_of.decode()
        return self._change(
            entity_id,
            description=description.decode(),
            is_wanted=lambda found, state: kept is None or (found == kept and state != DELETING),
        )

    def _change(
        self,
        entity_id: int,
        *,
        state: str | None = None,
        description: str | None = None,
        path: str | None = None,
        is_wanted: Callable[[str, str], bool] = lambda _description, _state: True,
    ) -> bool:
        """Change an entity, unless its description and state are not those with which it is wanted."""
        with self._changing():
            found = self._run(
                "SELECT namespace, kind, path, description, state, partition_count FROM entities WHERE entity_id = ?",
                (entity_id,),
            )
            if not found:
                raise unknown_entity(entity_id)
            ((namespace, kind, old_path, old_description, old_state, count),) = found
            if not is_wanted(old_description, old_state):
                return False
            new = (path or old_path, description or old_description, state or old_state)
            check = row_sum((entity_id, namespace, kind, *new, count))
            self._run(
                "UPDATE entities SET path = ?, description = ?, state = ?, key = ?, sum = ? WHERE entity_id = ?",
                (*new, new[0].lower(), check, entity_id),
            )
            # A new state is told with the fragments that come or go for it; a relay has none.
            self._touch(entity_id, is_urgent=description is not None or kind == RELAY)
        return True

    @guarded
    def finish_delete(self, entity_id: int) -> None:
        """Forget an entity; see Catalog."""
        with self._changing():
            self._run("DELETE FROM slots WHERE entity_id = ?", (entity_id,))
            self._run("DELETE FROM entities WHERE entity_id = ?", (entity_id,))
            self._touch(entity_id)

    # -- namespaces, stores, moves --------------------------------------------------------------------------------

    @guarded
    def put_namespace(self, namespace: NamespaceRow) -> None:
        """Add or replace a namespace; see Catalog."""
        with self._changing():
            self._put_namespace(namespace)

    @guarded
    def change_rules(self, namespace: str, change: RulesChange) -> tuple[AccessRule, ...]:
        """Change access rules; see Catalog."""
        with self._changing():
            found = self._run("SELECT name, rules, sum FROM namespaces WHERE name = ?", (namespace,))
            if not found:
                raise unknown_namespace(namespace)
            ((name, text),) = checked("namespaces", found)
            rules = change(msgspec.json.decode(text, type=tuple[AccessRule, ...]))
            self._put_namespace(NamespaceRow(name, rules))
        return rules

    def _put_namespace(self, namespace: NamespaceRow) -> None:
        self._run(
            "INSERT INTO namespaces (name, rules, sum) VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET rules = excluded.rules, sum = excluded.sum",
            summed(namespace.name, msgspec.json.encode(namespace.rules).decode()),
        )
        self._touch(namespace_record(namespace), is_urgent=True)

    @guarded
    def add_store(self, store_id: int, path: str) -> None:
        """Register a store; see Catalog."""
        with self._changing():
            self._run(
                "INSERT INTO stores (store_id, path, sum) VALUES (?, ?, ?)"
                " ON CONFLICT (store_id) DO UPDATE SET path = excluded.path, sum = excluded.sum",
                summed(store_id, path),
            )
            self._store_added(store_id)
            self._touch(store_record(StoreRow(store_id, path)), is_urgent=True)

    @guarded
    def replace_store(self, lost_id: int, store: StoreRow, slots: Sequence[tuple[int, SlotRow]]) -> None:
        """Give a store up; see Catalog."""
        with self._changing():
            found = self._run("DELETE FROM stores WHERE store_id = ? RETURNING path", (lost_id,))
            if not found:
                raise StoreFailed(f"The catalog holds no store {lost_id}.")
            self._make(LOST_STORES)
            self._run("INSERT INTO lost_stores (store_id, path, sum) VALUES (?, ?, ?)", summed(lost_id, found[0][0]))
            self._store_removed(lost_id)
            self._run("INSERT INTO stores (store_id, path, sum) VALUES (?, ?, ?)", summed(store.store_id, store.path))
            self._store_added(store.store_id)
            moved = [summed(entity_id, row.slot, row.fragment_no, row.store_id) for entity_id, row in slots]
            self._run_many(_PUT_SLOT, moved)
            self._touch()

    @guarded
    def begin_move(self, move: MoveRow) -> None:
        """Record a move; see Catalog."""
        with self._changing():
            self._make(MOVES)
            self._run(
                "INSERT INTO moves (entity_id, fragment_no, from_store, to_store, sum) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (entity_id, fragment_no) DO UPDATE"
                " SET from_store = excluded.from_store, to_store = excluded.to_store, sum = excluded.sum",
                summed(move.entity_id, move.fragment_no, move.from_store, move.to_store),
            )
            # The fragment is made next, and nothing of it matters before.
            self._touch(move_record(move))

    @guarded
    def switch_move(self, move: MoveRow) -> None:
        """Say where a fragment is now; see Catalog."""
        fragment = (move.entity_id, move.fragment_no)
        with self._changing():
            found = self._run("SELECT slot FROM slots WHERE entity_id = ? AND fragment_no = ?", fragment)
            if not found:
                raise unknown_entity(move.entity_id)
            self._run(_PUT_SLOT, summed(move.entity_id, found[0][0], move.fragment_no, move.to_store))
            self._touch(move.entity_id, is_urgent=True)

    @guarded
    def switch_moves(self, moves: Sequence[MoveRow]) -> None:
        """Say where several fragments are now; see Catalog."""
        with self._changing():
            for move in moves:
                if not self._has_move(move):
                    raise given_up()
                fragment = (move.entity_id, move.fragment_no)
                found = self._run("SELECT slot FROM slots WHERE entity_id = ? AND fragment_no = ?", fragment)
                if not found:
                    raise unknown_entity(move.entity_id)
                self._run(_PUT_SLOT, summed(move.entity_id, found[0][0], move.fragment_no, move.to_store))
            self._touch(*{move.entity_id for move in moves}, is_urgent=True)

    @guarded
    def give_up_move(self, move: MoveRow) -> None:
        """Say that a fragment stays where it is; see Catalog."""
        back = move.reversed()
        with self._changing():
            if self._has_move(move):
                self._run(
                    "UPDATE moves SET from_store = ?, to_store = ?, sum = ? WHERE entity_id = ? AND fragment_no = ?",
                    (
                        back.from_store,
                        back.to_store,
                        row_sum((back.entity_id, back.fragment_no, back.from_store, back.to_store)),
                        move.entity_id,
                        move.fragment_no,
                    ),
                )
                self._touch(move_record(back))

    def _has_move(self, move: MoveRow) -> bool:
        """Whether a move is recorded as it is given, within a change."""
        wanted = (move.entity_id, move.fragment_no, move.from_store, move.to_store)
        return self._has(MOVES) and bool(
            self._run(
                "SELECT 1 FROM moves WHERE entity_id = ? AND fragment_no = ? AND from_store = ? AND to_store = ?",
                wanted,
            )
        )

    @guarded
    def end_move(self, move: MoveRow) -> None:
        """Forget a move; see Catalog."""
        if self._has(MOVES):
            with self._changing():
                if self._has_move(move):
                    self._run(
                        "DELETE FROM moves WHERE entity_id = ? AND fragment_no = ?", (move.entity_id, move.fragment_no)
                    )
                    self._touch(Record(move_record(move).key, None))


def _contents(
    rows: Mapping[str, Iterator[tuple[Any, ...]]], numbers: Mapping[str, int], last_id: int
) -> CatalogContents:
    """The content that stands in rows by table; tables that are not there yet are missing.

    Raises:
        StoreFailed: A row is altered or missing.
    """
    namespaces = [
        NamespaceRow(name, msgspec.json.decode(rules, type=tuple[AccessRule, ...]))
        for name, rules in rows["namespaces"]
    ]
    slots: dict[int, list[SlotRow]] = {}
    for entity_id, *slot in rows["slots"]:
        slots.setdefault(entity_id, []).append(SlotRow(*slot))
    entities = tuple(
        EntityRow(entity_id, namespace, kind, path, text.encode(), state, count, tuple(slots.get(entity_id, ())))
        for entity_id, namespace, kind, path, text, state, count in rows["entities"]
    )
    for entity in entities:
        if [row.slot for row in entity.slots] != list(range(entity.partition_count)):
            raise StoreFailed(f"The catalog lacks slots of entity {entity.entity_id}; restore it from a backup.")
    stores, lost = (tuple(StoreRow(*row) for row in rows.get(table, ())) for table in (STORES, LOST_STORES))
    return CatalogContents(
        # By code point, whatever the collation of a database.
        tuple(sorted(namespaces, key=lambda row: row.name)),
        entities,
        stores,
        lost,
        numbers.get(FRAGMENT_GAP, 0),
        tuple(MoveRow(*row) for row in rows.get(MOVES, ())),
        numbers.get(IDENTITY, 0),
        numbers.get(REVISION, 0),
        max(last_id, max((row.entity_id for row in entities), default=0)),
        tuple((row[0], row[1]) for row in rows.get(SEEN, ())),
    )
