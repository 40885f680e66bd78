"""Commits of the PostgreSQL store that are one call, beside those that are statements; and states nobody asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from duobus.errors import StoreStale
from duobus.storage.interface import CommitBatch, IdBlock, Put, SourceRow, Tombstone
from duobus.storage.postgres import commit_call as postgres_call
from duobus.storage.postgres import schema as postgres_schema
from duobus.storage.postgres import setup as postgres_opening
from duobus.storage.postgres.reader import States
from duobus.storage.postgres.session import PostgresSession
from duobus.storage.postgres.store import PostgresStore
from duobus.testing.postgres_server import PostgresServer
from kits.postgres import place_of
from kits.store_builders import Broker, payloads_of

LARGE = 100_000


@pytest.fixture
def make(postgres: PostgresServer) -> Iterator[Callable[..., PostgresStore]]:
    """Makes stores, each in a schema of its own unless one is named."""
    made: list[PostgresStore] = []

    def make(schema: str | None = None, **options: bool) -> PostgresStore:
        made.append(PostgresStore(place_of(postgres, schema), 1, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


def rows(postgres: PostgresServer, store: PostgresStore) -> list[Any]:
    """All that a store has, whatever wrote it."""
    schema = store.place.partition("schema=")[2].partition("&")[0]
    with psycopg.connect(postgres.url(), autocommit=True, options=f"-c search_path={schema}") as session:
        return [
            session.execute(f"SELECT * FROM {table} ORDER BY 1".encode()).fetchall()
            for table in ("messages", "sources", "fragments", "meta")
        ]


def batch_with(**columns: Any) -> CommitBatch:
    batch = CommitBatch(1, 1000)
    for name, value in columns.items():
        setattr(batch, name, value)
    return batch


def some_traffic(broker: Broker) -> None:
    """Ordinary messages of several sources that come and go, singly and in ranges."""
    one, two = broker.add()[0], broker.add(2)[0]
    batch = broker.batch()
    broker.put(batch, one, [b"", b"a", bytes(range(256))] * 30)
    broker.put(batch, two, [b"\\x00 {,} NULL \"'" * 50])
    broker.commit(batch)
    batch = broker.batch()
    broker.put(batch, two, [b"later"] * 3)
    batch.removed = [(one.source_key, 2, 80), (one.source_key, 90, 90), (two.source_key, 1, 1), (9, 1, 5)]
    broker.commit(batch)
    # Many sources and fragments at once, too.
    more = [broker.add(number)[0] for number in range(3, 10)]
    batch = broker.batch()
    for source in more:
        broker.put(batch, source, [b"m"])
    broker.commit(batch)
    broker.remove(*((source.source_key, 1, 1) for source in more))


def test_a_call_leaves_the_rows_that_statements_leave(
    make: Callable[..., PostgresStore], postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, written = make(), make()
    some_traffic(Broker(called))
    monkeypatch.setattr(postgres_call, "is_plain", lambda *_: False)
    some_traffic(Broker(written))
    found = rows(postgres, called)
    assert found == rows(postgres, written)
    assert len(found[0]) == called.usage().rows == written.usage().rows == 10 + 3
    assert called.verify() == []


def test_a_call_is_refused_when_one_epoch_of_many_has_been_raised(
    make: Callable[..., PostgresStore], postgres: PostgresServer
) -> None:
    store = make("raised")
    broker = Broker(store)
    sources = [broker.add(number)[0] for number in range(1, 6)]
    postgres.execute("UPDATE raised.fragments SET epoch = epoch + 1 WHERE fragment_key = 4")
    with pytest.raises(StoreStale):
        broker.send(sources[0], [b"x"])
    assert rows(postgres, store)[0] == []


def test_a_plain_commit_is_one_call(make: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(make())
    (source,) = broker.add()
    monkeypatch.delattr(PostgresSession, "run")
    broker.send(source, [b"x"] * 50)
    broker.remove((source.source_key, 1, 49))
    assert payloads_of(broker.store.load(source.source_key, 1, 9)) == [b"x"]


@pytest.mark.parametrize(
    "columns",
    [
        {"changes": [(1, 1, 2, 0, None)]},
        {"puts": [Put(1, 1, 0, [b"x"], {0: (2, 0, None)})]},
        {"puts": [Put(7, 1, 0, [b"a copy"], origins=[1])]},
        {"removed": [(7, 1, 1)]},
        {"tombstones": [Tombstone(2, 1, 1, 1, 1, 1)]},
        {"forgotten": [(2, 1)]},
        {"histories": [IdBlock(1, 1, 0, b"id")]},
        {"outdated": [(1, 5)]},
        {"puts": [Put(1, 1, 0, [bytes(LARGE)] * (postgres_call.CALL_BYTES_MAX // LARGE + 1))]},
    ],
)
def test_what_is_rare_or_large_is_no_plain_commit(columns: dict[str, Any]) -> None:
    assert not postgres_call.is_plain(batch_with(**columns), {7: 1})


def test_what_comes_goes_and_advances_is_a_plain_commit() -> None:
    batch = batch_with(puts=[Put(1, 1, 0, [b"x"])], removed=[(1, 1, 1)], sources=[(1, 2, 0, b"")], epochs=[(1, 1)])
    assert postgres_call.is_plain(batch, {7: 1})


def test_the_call_has_a_value_for_each_parameter() -> None:
    old = postgres_call.PostgresMeta(1)
    batch = batch_with(puts=[Put(1, 1, 0, [b"x"])], sources=[(1, 2, 0, b"")])
    found = postgres_call.values(batch, {1: SourceRow(1, 1, 0)}, old, old.advanced(last_commit_no=1))
    assert len(found) == postgres_call.STATEMENT.count(b"$") == postgres_call.PARAMETERS


def test_a_store_of_before_the_call_is_brought_forward(
    make: Callable[..., PostgresStore], postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(postgres_schema, "MIGRATIONS", postgres_schema.MIGRATIONS[:1])
        patched.setattr(postgres_schema, "FORMAT_VERSION", 1)
        patched.setattr(postgres_call, "is_plain", lambda *_: False)
        patched.setattr(postgres_opening.PostgresSession, "prepare", lambda *_: None)
        older = Broker(make("of_before"))
        (source,) = older.add()
        older.send(source, [b"old"])
        older.store.close()
    newer = Broker(make("of_before", must_exist=True))
    newer.send(newer.sources[1], [b"new"])
    assert payloads_of(newer.store.load(1, 1, 9)) == [b"old", b"new"]


def test_states_that_no_row_has_are_not_asked_for(
    make: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    broker = Broker(store)
    one, two = broker.add()[0], broker.add(2)[0]
    broker.send(one, [b"a", b"b", b"c"], all_metadata={1: (5, 0, b"s")})
    broker.change((one.source_key, 3, 7, 1, None))
    assert [payloads_of(store.scan(one.source_key, state, 1, 9)) for state in (5, 7)] == [[b"b"], [b"c"]]
    broker.reopen()
    assert [payloads_of(store.scan(one.source_key, state, 1, 9)) for state in (5, 7)] == [[b"b"], [b"c"]]
    monkeypatch.delattr(PostgresSession, "rows")
    assert [store.scan(key, state, 1, 9) for key, state in ((one.source_key, 3), (two.source_key, 5))] == [[], []]


def test_states_grow_with_what_is_written() -> None:
    states = States([(1, 5)])
    states.note(
        [Put(2, 1, 0, [b"x", b"y"], {0: (3, 0, None), 1: (0, 4, None)})], [(3, 1, 6, 0, None), (3, 2, 0, 1, None)]
    )
    known = {(key, state) for key in range(4) for state in range(9) if states.may_have(key, state)}
    # Source 2 has rows now, of whatever state.
    assert known == {(1, 5), (2, 0), (2, 3), (3, 6)} == states.among(range(9))
    states.forget([1, 3])
    assert [states.may_have(*each) for each in sorted(known)] == [False, True, True, False]


def test_a_source_without_rows_is_not_read_after_a_reopening_either(
    make: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery looks at every source: over a network that would be a round trip each."""
    store = make()
    broker = Broker(store)
    one, two = broker.add()[0], broker.add(2)[0]
    broker.send(one, [b"a"])
    broker.reopen()
    assert payloads_of(store.load(one.source_key, 1, 9)) == [b"a"]
    monkeypatch.delattr(PostgresSession, "rows")
    assert store.load(two.source_key, 1, 9) == []
