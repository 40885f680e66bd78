"""Which stores a server has: what the catalog knows meets what the command line gives."""

from __future__ import annotations

import random
import sys

import pytest

from duobus.clock import Entropy
from duobus.errors import ConfigurationError
from duobus.server.store_plan import PlannedStore, plan_stores, postgres_store
from duobus.storage.catalog_rows import CatalogContents, StoreRow
from duobus.storage.postgres.address import PostgresAddress, parse

ONE, TWO = "postgresql://me@one/bus", "postgresql://me@two/bus"


class Drawn(Entropy):
    """The same names in every run."""

    def __init__(self) -> None:
        self._random = random.Random(7)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)


def places(*addresses: str) -> list[PostgresAddress]:
    return [parse(address) for address in addresses]


def plan(rows: list[StoreRow], files: int, *addresses: str, lost: tuple[StoreRow, ...] = ()) -> list[PlannedStore]:
    return plan_stores(CatalogContents((), (), tuple(rows), lost), files, places(*addresses), Drawn())


def rows_of(planned: list[PlannedStore]) -> list[StoreRow]:
    return [StoreRow(store.store_id, store.path) for store in planned]


def test_new_stores_are_numbered_files_first_and_each_in_postgresql_has_a_schema_of_its_own() -> None:
    planned = plan([], 1, ONE, ONE)
    assert [store.store_id for store in planned] == [1, 2, 3]
    assert planned[0].path == "stores/store-1.db"
    schemas = [store.place.schema for store in planned if store.place is not None]
    assert len(set(schemas)) == 2
    assert all(
        schema is not None and schema.startswith(f"duobus_{number}_")
        for number, schema in zip((2, 3), schemas, strict=True)
    )
    assert all(store.is_new for store in planned)


def test_the_next_start_finds_the_same_stores_again() -> None:
    first = plan([], 2, ONE, TWO)
    again = plan(rows_of(first), 2, TWO, ONE)
    assert rows_of(again) == rows_of(first)
    assert not any(store.is_new or store.is_moved for store in again)


def test_a_password_is_used_and_not_recorded() -> None:
    (store,) = plan(rows_of(plan([], 0, ONE)), 0, "postgresql://me:secret@one/bus")
    assert store.place is not None
    assert store.place.conninfo()[1]["password"] == "secret"
    assert "secret" not in store.path
    assert not store.is_moved


def test_a_store_whose_server_has_another_address_now_keeps_its_schema() -> None:
    first = plan([], 0, ONE, TWO)
    moved = plan(rows_of(first), 0, "postgresql://me@standby/bus", TWO)
    assert [store.is_moved for store in moved] == [True, False]
    assert moved[0].path == first[0].path.replace("one", "standby")


def test_addresses_beyond_those_known_are_new_stores() -> None:
    first = plan([], 0, ONE)
    more = plan(rows_of(first), 0, ONE, ONE, TWO)
    assert [store.is_new for store in more] == [False, True, True]


def test_a_schema_that_is_named_is_used_and_found_again() -> None:
    named = f"{ONE}?schema=mine"
    first = plan([], 0, named, ONE)
    assert first[0].place is not None
    assert first[0].place.schema == "mine"
    again = plan(rows_of(first), 0, ONE, named)
    assert rows_of(again) == rows_of(first)


def test_a_store_that_is_left_out_is_named_with_its_address() -> None:
    first = plan([], 1, ONE)
    with pytest.raises(ConfigurationError, match=r"Messaging store 2 is at postgresql://me@one/bus\?schema=duobus_2_"):
        plan(rows_of(first), 1)
    with pytest.raises(ConfigurationError, match="--stores 0 is fewer than the 1 messaging stores"):
        plan(rows_of(first), 0, ONE)


def test_the_number_of_a_lost_store_is_not_used_again() -> None:
    (store,) = plan([], 0, ONE, lost=(StoreRow(6, "stores/store-6.db"),))
    assert store.store_id == 7


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    (planned,) = plan([], 0, ONE)
    assert planned.place is not None
    monkeypatch.delitem(sys.modules, "duobus.storage.postgres.store", raising=False)
    monkeypatch.delitem(sys.modules, "duobus.storage.postgres.session", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'duobus\[postgres\]'"):
        postgres_store(planned, planned.place)
