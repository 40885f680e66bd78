"""A store says which catalog it belongs to, and is refused by any other; in files and in PostgreSQL alike."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from duobus.errors import StoreFailed, StoreForeign
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.catalog.postgres import PostgresCatalog
from duobus.storage.catalog_identity import NOBODYS, Belonging, CatalogMark, demand_own, highest_of
from duobus.storage.catalog_records import CopyKeeper, Kept
from duobus.storage.catalog_rows import SlotRow
from duobus.storage.interface import FragmentRow, MessagingStore, SourceRow, StoreContents
from duobus.storage.journal.store import JournalStore
from duobus.storage.postgres.address import catalog_place, parse
from duobus.storage.postgres.store import PostgresStore
from duobus.storage.sqlite.store import SqliteStore

_NUMBERS = itertools.count(1)
Maker = Callable[[], MessagingStore]


@pytest.fixture(params=["sqlite", "journal", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    """Makes the same store again and again."""
    if request.param == "sqlite":
        yield lambda: SqliteStore(str(tmp_path / "store-1.db"), 1)
        return
    if request.param == "journal":
        yield lambda: JournalStore(str(tmp_path / "store-1.db"), 1)
        return
    place = parse(request.getfixturevalue("postgres_url")).in_schema(f"store_{next(_NUMBERS)}_of_a_catalog")
    with closing(PostgresStore(place, 1)) as store:
        store.open()
    yield lambda: PostgresStore(place, 1, must_exist=True, take_over=True)


def mark(identity: int = 7, revision: int = 5, last_id: int = 3) -> CatalogMark:
    made = CatalogMark()
    made.identity = identity
    made.raise_to(revision, last_id)
    return made


def opened(make: Maker, told: CatalogMark | None = None) -> StoreContents:
    with closing(make()) as store:
        store.mark = told
        return store.open()


def test_a_store_keeps_what_it_was_told_with_its_own_commits(make: Maker) -> None:
    assert opened(make).belonging == NOBODYS
    catalog = mark()
    with closing(make()) as store:
        store.mark = catalog
        store.open()
        store.begin_generation(())
    assert opened(make).belonging == Belonging(7, 5, 3)
    with closing(make()) as store:
        store.mark = catalog
        store.open()
        store.begin_generation(())
        catalog.raise_to(6, 4)
        store.add_fragment(4, 0, [0])
        catalog.raise_to(8)
        store.drop_fragment(4, 0, 10)
        catalog.raise_to(9)
    # Opening alone changes nothing.
    assert opened(make, mark(8, 99, 99)).belonging == Belonging(7, 8, 4)


def test_a_store_that_nobody_tells_keeps_nothing(make: Maker) -> None:
    with closing(make()) as store:
        store.mark = CatalogMark()
        store.open()
        store.begin_generation(())
    assert opened(make).belonging == NOBODYS


def test_a_store_is_refused_by_an_older_catalog_and_by_another_one() -> None:
    def contents(own: Belonging, entity_id: int = 0, source_no: int = 0) -> StoreContents:
        fragments = [FragmentRow(1, entity_id, 0, 1)] if entity_id else []
        sources = [SourceRow(1, 1, source_no)] if source_no else []
        return StoreContents(1, 1, 1, fragments, sources, [], None, own)

    demand_own(mark(), contents(NOBODYS), "it")
    demand_own(mark(), contents(Belonging(7, 5, 3), 3, 3), "it")
    demand_own(mark(), contents(Belonging(7, 4, 2)), "it")
    # Whoever has no identity asks for none.
    demand_own(CatalogMark(), contents(Belonging(8, 9, 9), 9), "it")
    for own, entity_id, source_no, words in (
        (Belonging(8, 1, 1), 0, 0, "it belongs to another catalog"),
        (Belonging(7, 6, 3), 0, 0, "told of revision 6 of the catalog, and the catalog is at revision 5"),
        (Belonging(7, 5, 4), 0, 0, "the highest that the catalog has given out is 3"),
        (NOBODYS, 4, 0, "holds an entity with the number 4"),
        # The number of a subscription is that of its source.
        (NOBODYS, 1, 5, "holds an entity with the number 5"),
    ):
        with pytest.raises(StoreForeign, match=words):
            demand_own(mark(), contents(own, entity_id, source_no), "it")
    assert highest_of(contents(Belonging(7, 5, 9), 3, 4)) == 9


def test_a_damaged_row_is_noticed(tmp_path: Path) -> None:
    def make() -> SqliteStore:
        return SqliteStore(str(tmp_path / "store-1.db"), 1)

    with closing(make()) as store:
        store.mark = mark()
        store.open()
        store.begin_generation(())
    with closing(apsw.Connection(str(tmp_path / "store-1.db"))) as db:
        db.execute("UPDATE belonging SET identity = 8")
    with pytest.raises(StoreFailed, match="the row that names the catalog is damaged"):
        opened(make)


@pytest.fixture(params=["memory", "postgres"])
def catalogs(request: pytest.FixtureRequest) -> tuple[PostgresCatalog | MemoryCatalog, ...]:
    """The same catalog twice, as two servers have it."""
    if request.param == "memory":
        one = MemoryCatalog()
        return one, one
    place = catalog_place(request.getfixturevalue("postgres_url"))
    return PostgresCatalog(place), PostgresCatalog(place)


def test_servers_that_share_a_catalog_agree_on_its_identity_and_follow_its_revision(
    catalogs: tuple[PostgresCatalog | MemoryCatalog, ...],
) -> None:
    one, other = catalogs
    assert one.identify(77) == 77 == other.identify(78)
    entity_id = one.begin_create("n", "queue", "q", b"{}", (SlotRow(0, 0, 1),))
    one.mark_live(entity_id)
    found = other.read()
    assert (found.identity, found.revision, found.last_id) == (77, one.mark.revision, entity_id)
    assert (other.mark.revision, other.mark.last_id) == (one.mark.revision, one.mark.last_id)
    one.begin_delete(entity_id)
    one.finish_delete(entity_id)
    # What was given out is never forgotten.
    assert other.read().last_id == entity_id
    assert other.mark.revision == one.mark.revision > found.revision
    one.close()
    other.close()


def test_a_store_writes_what_its_catalog_has_for_it_and_deletes_what_is_no_more(tmp_path: Path) -> None:
    path = tmp_path / "store-1.db"
    catalog = mark()
    catalog.copies = CopyKeeper()
    catalog.copies.begin(1, {"a": b"one", "b": b"two"})
    with closing(SqliteStore(str(path), 1)) as store:
        store.mark = catalog
        store.open()
        assert store.records() == {}
        store.keep_records()
        assert store.records() == {"a": Kept(5, b"one"), "b": Kept(5, b"two")}
        assert not catalog.copies.is_owing(1)
        catalog.raise_to(6)
        catalog.copies.begin(1, {"a": None, "b": b"new"})
        store.keep_records()
    with closing(SqliteStore(str(path), 1)) as store:
        store.open()
        assert store.records() == {"b": Kept(6, b"new")}
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE records SET revision = 7")
    with closing(SqliteStore(str(path), 1)) as store:
        store.open()
        with pytest.raises(StoreFailed, match="a record of the catalog is damaged"):
            store.records()
