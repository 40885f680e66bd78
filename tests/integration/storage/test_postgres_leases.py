"""The end of a server's sessions, and leases that go to the stores' own database, in PostgreSQL (decision 0067)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from duobus.errors import ConfigurationError, StoreTooNew
from duobus.storage.catalog import postgres
from duobus.storage.catalog.leases import Exchange, NodeDetails, NodeEntry, Table
from duobus.storage.catalog.postgres import PostgresCatalog
from duobus.storage.catalog.postgres_leases import PostgresLeases, session_lock
from duobus.storage.offline.maintenance import shared_times
from duobus.storage.postgres.address import PostgresAddress, catalog_place

LEASE_MS = 60_000


@pytest.fixture
def shared(postgres_url: str) -> PostgresAddress:
    """A catalog with two stores."""
    place = catalog_place(postgres_url)
    with closing(PostgresCatalog(place)) as catalog:
        for store_id in (1, 2):
            catalog.add_store(store_id, f"store-{store_id}")
    return place


@pytest.fixture
def one(shared: PostgresAddress) -> Iterator[PostgresLeases]:
    """What server "a" asks, which has store 1."""
    with closing(PostgresLeases(shared, "a")) as leases:
        assert _holders(leases.exchange(_told("a", claim={1: 0}))) == {1: "a", 2: None}
        yield leases


@pytest.fixture
def other(shared: PostgresAddress) -> Iterator[PostgresLeases]:
    """What server "b" asks."""
    with closing(PostgresLeases(shared, "b")) as leases:
        yield leases


def _told(name: str, *, keeps_own: bool = True, port: int = 5672, **more: object) -> Exchange:
    me = NodeEntry(name, f"{name}:{port}", f"{name}:5300", False, NodeDetails("1", keeps_own=keeps_own))
    asked: dict[str, object] = {"renew": {}, "claim": {}, "give_back": {}, **more}
    return Exchange(me, LEASE_MS, **asked)  # type: ignore[arg-type]


def _holders(table: Table) -> dict[int, str | None]:
    return {lease.store_id: None if lease.is_over else lease.node_id for lease in table.leases}


def _run(place: PostgresAddress, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement in the catalog's schema; its rows, if it gives any."""
    conninfo, beside = place.conninfo()
    with psycopg.connect(conninfo, autocommit=True, **beside) as connection:
        connection.execute(f"SET search_path = {place.schema}".encode())
        cursor = connection.execute(statement.encode())
        return [] if cursor.description is None else cursor.fetchall()


def test_a_server_that_is_reported_gone_keeps_its_leases_while_its_session_lasts(
    one: PostgresLeases, other: PostgresLeases
) -> None:
    table = other.exchange(_told("b", gone=("a",), claim={1: 1}))
    assert _holders(table) == {1: "a", 2: None}
    assert [node.node_id for node in table.nodes] == ["a", "b"]
    assert not one._connection.closed  # type: ignore[union-attr]


def test_a_server_that_is_reported_gone_loses_its_leases_with_its_session(
    one: PostgresLeases, other: PostgresLeases
) -> None:
    other.exchange(_told("b"))
    one.close()
    # Nobody says that it takes no connections: it may have lost its session alone.
    assert _holders(other.exchange(_told("b")))[1] == "a"
    for _ in range(100):
        table = other.exchange(_told("b", gone=("a",)))
        if _holders(table)[1] is None:
            break
    assert _holders(table) == {1: None, 2: None}
    assert [node.node_id for node in table.nodes] == ["b"]
    assert _holders(other.exchange(_told("b", claim={1: 1})))[1] == "b"


def test_a_session_of_one_of_its_stores_is_enough(
    one: PostgresLeases, other: PostgresLeases, postgres_url: str
) -> None:
    conninfo, beside = catalog_place(postgres_url).conninfo()
    with psycopg.connect(conninfo, autocommit=True, **beside) as store:  # type: ignore[arg-type]
        store.execute(session_lock("a").encode())
        one.close()
        for _ in range(20):
            assert _holders(other.exchange(_told("b", gone=("a",))))[1] == "a"


def test_who_has_its_address_by_now_has_outlived_it(one: PostgresLeases, shared: PostgresAddress) -> None:
    one.close()
    with closing(PostgresLeases(shared, "a2")) as successor:
        me = NodeEntry("a2", "a:5672", "a:5300", False, NodeDetails("1", keeps_own=True))
        for _ in range(100):
            table = successor.exchange(Exchange(me, LEASE_MS, {}, {}, {}))
            if _holders(table)[1] is None:
                break
        assert [node.node_id for node in table.nodes] == ["a2"]


@pytest.mark.parametrize(
    "what",
    ["UPDATE sessions SET started = started - interval '1 hour'", "DELETE FROM sessions"],
    ids=("restart", "crash"),
)
def test_nobody_is_missed_after_postgresql_itself_was_started_again(
    one: PostgresLeases, other: PostgresLeases, shared: PostgresAddress, what: str
) -> None:
    one.close()
    _run(shared, what)
    for _ in range(20):
        assert _holders(other.exchange(_told("b", gone=("a",))))[1] == "a"


def test_a_lease_is_handed_over_by_its_holder_and_earlier_versions_are_refused_from_then_on(
    one: PostgresLeases, shared: PostgresAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = one.exchange(_told("a", renew={1: 1}, hand_over={1: 1, 2: 0}))
    # Store 2 is not its own to give.
    assert _holders(table) == {2: None}
    monkeypatch.setattr(postgres, "FORMAT_VERSION", 1)
    with closing(PostgresCatalog(shared)) as earlier, pytest.raises(StoreTooNew, match="format 2"):
        earlier.read()


def test_no_lease_is_handed_over_beside_a_server_of_an_earlier_version(
    one: PostgresLeases, other: PostgresLeases
) -> None:
    other.exchange(_told("b", keeps_own=False))
    assert _holders(one.exchange(_told("a", renew={1: 1}, hand_over={1: 1})))[1] == "a"


def test_the_database_of_stores_takes_what_was_handed_over_and_makes_what_was_lost(postgres_url: str) -> None:
    place = catalog_place(postgres_url).in_schema("duobus_leases_1f")
    with (
        closing(PostgresLeases(place, "a", of_stores=True)) as one,
        closing(PostgresLeases(place, "b", of_stores=True)) as other,
    ):
        assert _holders(one.exchange(_told("a"))) == {}
        table = one.exchange(_told("a", adopt={3: 4}, create={4: 7}))
        assert [(lease.store_id, lease.node_id, lease.term) for lease in table.leases] == [(3, "a", 5), (4, None, 7)]
        # Who comes later changes nothing by either.
        table = other.exchange(_told("b", adopt={3: 9, 4: 9}, create={3: 9, 4: 9}))
        assert [(lease.store_id, lease.node_id, lease.term) for lease in table.leases] == [(3, "a", 5), (4, None, 7)]
        assert _holders(other.exchange(_told("b", claim={4: 7}))) == {3: "a", 4: "b"}


def test_tables_of_leases_do_not_grow_with_the_beats(one: PostgresLeases, shared: PostgresAddress) -> None:
    conninfo, beside = shared.conninfo()

    def pages() -> int:
        tables = "'nodes', 'leases', 'sessions', 'node_details', 'lease_starts', 'store_times'"
        with psycopg.connect(conninfo, autocommit=True, **beside) as connection:  # type: ignore[arg-type]
            found = connection.execute(
                "SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::bigint / 8192 FROM pg_class c JOIN pg_namespace n"
                f" ON n.oid = c.relnamespace WHERE n.nspname = '{shared.schema}' AND c.relname IN ({tables})".encode()
            ).fetchone()
        return 0 if found is None else int(found[0])

    for _ in range(200):
        one.exchange(_told("a", renew={1: 1}))
    before = pages()
    for number in range(600):
        # Each time far enough from what is noted that it is noted anew.
        one.exchange(_told("a", renew={1: 1}, broker_ms=number * 1_000_000))
    # What each beat changes stays on its page: old rows are pruned there.
    assert pages() <= before + 2


def _noted(place: PostgresAddress) -> list[tuple[int, int]]:
    """Stores and the time at each, as the table keeps them."""
    found = _run(place, "SELECT store_id, broker_ms FROM store_times ORDER BY store_id")
    return [(int(store_id), int(broker_ms)) for store_id, broker_ms in found]


def test_who_claims_a_store_is_told_the_time_of_its_former_holder_and_what_passed_since(
    one: PostgresLeases, other: PostgresLeases, shared: PostgresAddress
) -> None:
    assert one.exchange(_told("a", renew={1: 1}, broker_ms=1_000_000)).times == {}
    one.exchange(_told("a", give_back={1: 1}, broker_ms=1_000_100))
    _run(shared, "UPDATE store_times SET noted = noted - interval '40 s'")
    # Its own time, which is behind, is not noted before it has heard of the other's.
    (told,) = other.exchange(_told("b", claim={1: 1, 2: 0}, broker_ms=7)).times.items()
    assert told[0] == 1
    assert 1_040_000 <= told[1] <= 1_100_000
    assert _noted(shared) == [(1, 1_000_000)]


def test_the_time_of_a_holder_is_written_only_when_the_clock_of_the_database_goes_another_way(
    one: PostgresLeases, shared: PostgresAddress
) -> None:
    # Noted in the future, so that what passes between two statements does not count.
    tomorrow = "clock_timestamp() + interval '1 day'"
    _run(shared, f"INSERT INTO store_times VALUES (1, 1000000, {tomorrow})")
    # What is told late is earlier than time can be: no clock that is followed slowly makes it so.
    for told_ms, noted_ms in ((1_000_400, 1_000_000), (1_000_600, 1_000_600), (999_000, 1_000_600)):
        one.exchange(_told("a", renew={1: 1}, broker_ms=told_ms))
        assert _noted(shared) == [(1, noted_ms)]
        _run(shared, f"UPDATE store_times SET noted = {tomorrow}")
    _run(shared, "UPDATE store_times SET broker_ms = 900000, noted = clock_timestamp() - interval '61 s'")
    one.exchange(_told("a", renew={1: 1}, broker_ms=961_000))
    assert _noted(shared) == [(1, 961_000)]


def test_the_time_of_a_store_that_nobody_had_for_long_goes_on_for_five_minutes(
    one: PostgresLeases, other: PostgresLeases, shared: PostgresAddress
) -> None:
    one.exchange(_told("a", renew={1: 1}, broker_ms=1_000_000))
    one.exchange(_told("a", give_back={1: 1}))
    _run(shared, "UPDATE store_times SET noted = noted - interval '3 days'")
    assert other.exchange(_told("b", claim={1: 1})).times == {1: 1_300_000}
    other.exchange(_told("b", give_back={1: 2}))
    # The clock of the database was set back.
    _run(shared, "UPDATE store_times SET noted = noted + interval '6 days'")
    assert one.exchange(_told("a", claim={1: 2})).times == {1: 1_000_000}


def test_a_server_that_has_lost_a_store_says_nothing_of_its_time(
    one: PostgresLeases, other: PostgresLeases, shared: PostgresAddress
) -> None:
    one.exchange(_told("a", renew={1: 1}, broker_ms=1_000_000))
    one.exchange(_told("a", give_back={1: 1}))
    other.exchange(_told("b", claim={1: 1}))
    one.exchange(_told("a", renew={1: 1}, broker_ms=5_000_000))
    # Neither does a holder that names another term.
    other.exchange(_told("b", renew={1: 1}, broker_ms=6_000_000))
    assert _noted(shared) == [(1, 1_000_000)]


def test_a_catalog_of_an_earlier_version_gets_the_table_of_times_and_keeps_its_leases(
    one: PostgresLeases, shared: PostgresAddress
) -> None:
    one.close()
    _run(shared, "DROP FUNCTION exchange_times; DROP FUNCTION store_time; DROP TABLE store_times")
    table = one.exchange(_told("a", renew={1: 1}, broker_ms=1_000_000))
    assert _holders(table) == {1: "a", 2: None}
    assert _noted(shared) == [(1, 1_000_000)]


def test_a_command_that_sets_time_back_makes_no_catalog_where_there_is_none(postgres_url: str) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="There is no catalog of joined servers"):
            shared_times(postgres_url, 1_000_000)
