"""What the catalog in PostgreSQL promises beyond the contract: it is shared, tells of changes, and keeps the leases."""

from __future__ import annotations

import msgspec
import psycopg
import pytest

from duobus.errors import ConfigurationError, EntityAlreadyExists, StoreFailed, StoreTooNew
from duobus.storage.catalog.leases import Exchange, LeaseEntry, NodeEntry, Table
from duobus.storage.catalog.postgres import PostgresCatalog, connect
from duobus.storage.catalog.postgres_leases import PostgresLeases
from duobus.storage.catalog_rows import SlotRow
from duobus.storage.postgres.address import SERVER_SIDE, PostgresAddress, catalog_place
from duobus.storage.postgres.setup import open_session

LEASE_MS = 60_000


def _alter(place: PostgresAddress, statement: str) -> None:
    conninfo, beside = place.conninfo()
    with psycopg.connect(conninfo, autocommit=True, **beside) as connection:
        connection.execute(f"SET search_path = {place.schema}".encode())
        connection.execute(statement.encode())


def _told(
    name: str,
    *,
    renew: dict[int, int] | None = None,
    claim: dict[int, int] | None = None,
    give_back: dict[int, int] | None = None,
) -> Exchange:
    me = NodeEntry(name, f"{name}:5672", f"{name}:5300", is_leaving=False)
    return Exchange(me, LEASE_MS, renew or {}, claim or {}, give_back or {})


@pytest.fixture
def shared(postgres_url: str) -> PostgresAddress:
    """A catalog with two stores."""
    place = catalog_place(postgres_url)
    catalog = PostgresCatalog(place)
    for store_id in (1, 2):
        catalog.add_store(store_id, f"store-{store_id}")
    catalog.close()
    return place


def _lease(table: Table, store_id: int) -> LeaseEntry:
    """A lease without its times, which are the database's."""
    found = next(lease for lease in table.leases if lease.store_id == store_id)
    return msgspec.structs.replace(found, since_ms=0, left_ms=0)


def test_servers_that_share_it_see_what_each_other_changes(postgres_url: str) -> None:
    one, other = (PostgresCatalog(catalog_place(postgres_url)) for _ in range(2))
    assert other.read().entities == ()
    one.begin_create("n", "queue", "Orders", b"{}", (SlotRow(0, 0, 1),))
    assert [row.path for row in other.read().entities] == ["Orders"]
    with pytest.raises(EntityAlreadyExists):
        other.begin_create("n", "topic", "orders", b"{}", ())
    one.close()
    other.close()


def test_every_change_raises_the_revision_and_is_announced(shared: PostgresAddress) -> None:
    leases, catalog = PostgresLeases(shared, "a"), PostgresCatalog(shared)
    before = leases.exchange(_told("a")).revision
    assert not leases.wait(0.01)
    catalog.add_store(3, "store-3")
    assert leases.wait(60)
    after = leases.exchange(_told("a"))
    assert after.revision > before
    assert [lease.store_id for lease in after.leases] == [1, 2, 3]
    leases.close()
    catalog.close()


def test_a_lease_is_given_once_and_only_to_who_has_seen_its_last_term(shared: PostgresAddress) -> None:
    leases = PostgresLeases(shared, "a")
    table = leases.exchange(_told("a", claim={1: 0}))
    assert _lease(table, 1) == LeaseEntry(1, "a", 1, is_over=False)
    assert _lease(table, 2) == LeaseEntry(2, None, 0, is_over=True)
    table = leases.exchange(_told("b", claim={1: 0, 2: 0}))
    assert (_lease(table, 1).node_id, _lease(table, 2).node_id) == ("a", "b")
    assert [node.node_id for node in table.nodes] == ["a", "b"]
    # Also not while its holder is alive and the term is right.
    assert _lease(leases.exchange(_told("b", claim={1: 1})), 1).node_id == "a"
    leases.close()


def test_a_lease_that_was_given_back_is_free_at_once_and_others_are_told(shared: PostgresAddress) -> None:
    leases, other = PostgresLeases(shared, "a"), PostgresLeases(shared, "a")
    leases.exchange(_told("a", claim={1: 0}))
    other.exchange(_told("b"))
    assert _lease(leases.exchange(_told("a", give_back={1: 1})), 1).is_over
    assert other.wait(60)
    assert _lease(other.exchange(_told("b", claim={1: 1})), 1) == LeaseEntry(1, "b", 2, is_over=False)
    # Who had it before cannot prolong it, nor give it back.
    assert _lease(leases.exchange(_told("a", renew={1: 1}, give_back={1: 1})), 1).node_id == "b"
    leases.close()
    other.close()


def test_a_lease_ends_by_the_clock_of_the_database(shared: PostgresAddress) -> None:
    leases = PostgresLeases(shared, "a")
    leases.exchange(_told("a", claim={1: 0}))
    _alter(shared, "UPDATE leases SET ends_at = clock_timestamp() - interval '1 millisecond' WHERE store_id = 1")
    _alter(shared, "UPDATE nodes SET ends_at = clock_timestamp() - interval '1 millisecond'")
    table = leases.exchange(_told("b"))
    assert _lease(table, 1) == LeaseEntry(1, "a", 1, is_over=True)
    assert [node.node_id for node in table.nodes] == ["b"]
    assert _lease(leases.exchange(_told("b", claim={1: 1})), 1).node_id == "b"
    leases.close()


def test_a_server_that_stops_is_forgotten_at_once(shared: PostgresAddress) -> None:
    leases = PostgresLeases(shared, "a")
    leases.exchange(_told("a"))
    leases.forget("a")
    assert [node.node_id for node in leases.exchange(_told("b")).nodes] == ["b"]
    leases.close()


def test_a_shared_catalog_of_a_newer_version_is_refused_untouched(shared: PostgresAddress) -> None:
    _alter(shared, "UPDATE meta SET value = 99 WHERE name = 'format_version'")
    catalog = PostgresCatalog(shared)
    with pytest.raises(StoreTooNew, match="newer"):
        catalog.read()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entities SET description = '{\"b\":1}'",
        "UPDATE slots SET store_id = 5",
        "DELETE FROM slots",
        "UPDATE stores SET path = 'elsewhere'",
    ],
)
def test_an_altered_row_is_noticed_when_the_shared_catalog_is_read(shared: PostgresAddress, change: str) -> None:
    catalog = PostgresCatalog(shared)
    catalog.begin_create("n", "queue", "q", b"{}", (SlotRow(0, 0, 1),))
    _alter(shared, change)
    with pytest.raises(StoreFailed, match="backup"):
        catalog.read()
    catalog.close()


def test_a_catalog_that_cannot_be_reached_fails_clearly_and_without_a_password() -> None:
    url = "postgresql://somebody:canary-secret@127.0.0.1:1/none"
    place = catalog_place(url)
    for call in (PostgresCatalog(place).read, lambda: PostgresLeases(place, "a").exchange(_told("a"))):
        with pytest.raises(StoreFailed) as caught:
            call()
        assert "canary" not in str(caught.value)


def test_an_address_that_cannot_be_read_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        catalog_place("postgresql:/somebody:canary-secret@h/x")
    assert "canary" not in str(caught.value)


def test_the_database_does_not_believe_in_silent_sessions_for_long(postgres_url: str) -> None:
    place = catalog_place(postgres_url)
    session, link = connect(place, "test"), open_session(place, 1, is_aside=True)
    try:
        for setting in SERVER_SIDE:
            name, _, value = setting.partition(" = ")
            query = f"SELECT setting FROM pg_settings WHERE name = '{name}'"
            assert session.execute(query.encode()).fetchone() == (value,)
            assert link.rows(query) == [(value,)]
    finally:
        session.close()
        link.close()
