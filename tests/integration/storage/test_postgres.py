"""What is particular about stores in PostgreSQL: one owner, durability, formats, damage, and errors that help."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from test_bodies import publish, topic

from duobus.errors import StoreFailed, StoreStale, StoreTooNew
from duobus.storage.interface import COUNT_BITS, IdBlock
from duobus.storage.postgres import schema as postgres_schema
from duobus.storage.postgres import session as postgres_link
from duobus.storage.postgres import store as module
from duobus.storage.postgres.address import PostgresAddress, parse
from duobus.storage.postgres.session import PostgresSession, SpareConnection
from duobus.storage.postgres.store import PostgresStore
from duobus.testing.postgres_server import PostgresServer
from kits.postgres import place_of
from kits.store_builders import Broker, payloads_of


@pytest.fixture
def place(postgres: PostgresServer) -> PostgresAddress:
    return place_of(postgres)


@pytest.fixture
def make(place: PostgresAddress) -> Iterator[Callable[..., PostgresStore]]:
    """Makes stores of one place, which are closed afterwards."""
    made: list[PostgresStore] = []

    def make(**options: bool) -> PostgresStore:
        made.append(PostgresStore(place, 1, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


def execute(postgres: PostgresServer, place: PostgresAddress, statement: str) -> list[tuple[object, ...]]:
    """Run a statement beside the store, in its schema."""
    with psycopg.connect(postgres.url(), autocommit=True, options=f"-c search_path={place.schema}") as session:
        cursor = session.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_second_owner_is_refused_and_the_first_goes_on(make: Callable[..., PostgresStore]) -> None:
    broker = Broker(make())
    (source,) = broker.add()
    with pytest.raises(StoreFailed, match="another process has this store open"):
        make(must_exist=True).open()
    broker.send(source, [b"mine"])
    assert payloads_of(broker.store.load(1, 1, 9)) == [b"mine"]


def test_whoever_was_taken_over_from_can_write_no_more(make: Callable[..., PostgresStore]) -> None:
    first = Broker(make())
    (source,) = first.add()
    first.send(source, [b"before"])
    second = Broker(make(must_exist=True, take_over=True))
    with pytest.raises(StoreFailed):
        first.send(source, [b"too late"])
    assert payloads_of(second.store.load(1, 1, 9)) == [b"before"]


def test_without_its_lock_an_owner_of_before_is_refused_by_the_database(
    make: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Broker(make())
    (source,) = first.add()
    # As after the promotion of a standby: locks of sessions are not replicated.
    monkeypatch.setattr("duobus.storage.postgres.setup._take_lock", lambda *_args, **_options: None)
    second = Broker(make(must_exist=True))
    for write in (lambda: first.send(source, [b"too late"]), first.store.probe, lambda: first.add(2)):
        with pytest.raises(StoreFailed):
            write()
    assert second.store.load(1, 1, 9) == []
    assert second.store.usage().rows == 0
    second.send(second.sources[1], [b"mine"])


def test_what_a_stale_owner_sent_before_it_knew_is_undone_as_a_whole(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress
) -> None:
    broker = Broker(make())
    (source,) = broker.add()
    broker.send(source, [b"kept"])
    execute(postgres, place, "UPDATE meta SET revision = revision + 1")
    batch = broker.batch()
    broker.put(batch, source, [b"lost"] * 100)
    batch.removed = [(1, 1, 1)]
    with pytest.raises(StoreStale, match="another owner has taken the store over"):
        broker.commit(batch)
    assert execute(postgres, place, "SELECT count(*) FROM messages") == [(1,)]


def test_an_epoch_that_the_database_has_raised_refuses_the_commit(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress
) -> None:
    broker = Broker(make())
    (source,) = broker.add()
    execute(postgres, place, "UPDATE fragments SET epoch = epoch + 1")
    with pytest.raises(StoreStale):
        broker.send(source, [b"x"])
    assert execute(postgres, place, "SELECT count(*) FROM messages") == [(0,)]


def test_a_session_that_the_server_has_ended_is_a_failure_that_reopening_heals(
    make: Callable[..., PostgresStore], postgres: PostgresServer
) -> None:
    broker = Broker(make())
    (source,) = broker.add()
    broker.send(source, [b"before"])
    postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'duobus-store-1'")
    with pytest.raises(StoreFailed, match=r"the store is reopened|dropped the session"):
        broker.send(source, [b"not acknowledged"])
    broker.reopen()
    assert payloads_of(broker.store.load(1, 1, 9)) == [b"before"]


def test_a_session_of_ours_that_the_server_still_keeps_is_ended_first(make: Callable[..., PostgresStore]) -> None:
    store = make()
    broker = Broker(store)
    assert store._link is not None
    # The network is cut: nobody tells the server.
    abandoned, store._link = store._link, None
    broker.open()
    with pytest.raises(psycopg.Error):
        abandoned.run("SELECT 1")


def test_a_server_that_says_nothing_is_given_up_and_comes_back(
    make: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "SILENCE_MS_MAX", 200)
    store = make()
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, [b"before"])
    assert store._link is not None
    stopped = store._link.pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(StoreFailed, match=r"no answer within 0\.2 seconds"):
            broker.send(source, [b"nobody knows"])
        assert store.load_columns(1, 1, 9) == []
    finally:
        os.kill(stopped, signal.SIGCONT)
    monkeypatch.undo()
    broker.reopen()
    assert payloads_of(broker.store.load(1, 1, 1)) == [b"before"]


def test_a_vacuum_under_way_keeps_nobody_waiting_who_closes(make: Callable[..., PostgresStore]) -> None:
    store = make()
    Broker(store)
    begun = threading.Event()

    def long(link: PostgresSession) -> None:
        begun.set()
        link.run("SELECT pg_sleep(60)")

    thread = threading.Thread(target=store._vacuum.use, args=(long,))
    thread.start()
    assert begun.wait(60)
    store.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_vacuum_that_has_not_reached_the_server_when_the_store_closes_is_stopped_all_the_same(
    make: Callable[..., PostgresStore],
) -> None:
    store = make()
    Broker(store)
    begun, closed = threading.Event(), threading.Event()

    def long(link: PostgresSession) -> None:
        begun.set()
        assert closed.wait(60)
        link.run("SELECT pg_sleep(60)")

    thread = threading.Thread(target=store._vacuum.use, args=(long,))
    thread.start()
    assert begun.wait(60)
    store.close()
    closed.set()
    thread.join(60)
    assert not thread.is_alive()


def test_a_session_that_is_opened_while_the_store_closes_does_nothing_more(make: Callable[..., PostgresStore]) -> None:
    store = make()
    Broker(store)
    used: list[PostgresSession] = []

    def opened() -> PostgresSession:
        spare.end(is_hasty=True)
        return store._make_spare()

    spare = SpareConnection(opened)
    spare.begin()
    assert spare.use(used.append) is None
    assert used == []
    store.close()


@pytest.mark.parametrize(
    ("setting", "word"), [({"unsafe_no_sync": "0"}, "fsync = off"), ({"unsafe_no_sync": "1"}, None)]
)
def test_a_server_that_does_not_sync_is_refused_unless_its_owner_says_so(
    postgres: PostgresServer, setting: dict[str, str], word: str | None
) -> None:
    store = PostgresStore(place_of(postgres, **setting), 1)
    if word is None:
        store.open()
    else:
        with pytest.raises(StoreFailed, match=word):
            store.open()
    store.close()


def test_a_store_that_must_exist_is_never_created(place: PostgresAddress) -> None:
    store = PostgresStore(place, 1, must_exist=True)
    with pytest.raises(StoreFailed, match="the store is missing"):
        store.open()


def test_a_store_that_was_used_is_never_taken_for_a_new_one(make: Callable[..., PostgresStore]) -> None:
    broker = Broker(make())
    broker.store.close()
    with pytest.raises(StoreFailed, match="catalog does not know"):
        make().open()
    make(must_exist=True).open()


def test_a_schema_of_another_store_is_refused(make: Callable[..., PostgresStore], place: PostgresAddress) -> None:
    Broker(make()).store.close()
    with pytest.raises(StoreFailed, match="this is store 1, not 2"):
        PostgresStore(place, 2, must_exist=True).open()


def test_a_newer_format_is_refused_and_left_alone(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress
) -> None:
    Broker(make()).store.close()
    execute(postgres, place, "INSERT INTO migrations VALUES (99, 'later')")
    with pytest.raises(StoreTooNew, match="format 99"):
        make(must_exist=True).open()


def test_a_store_made_by_other_migrations_is_refused(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress
) -> None:
    Broker(make()).store.close()
    execute(postgres, place, "UPDATE migrations SET digest = 'another text'")
    with pytest.raises(StoreFailed, match="other migrations"):
        make(must_exist=True).open()


def test_an_older_store_is_brought_forward_with_what_it_holds(
    make: Callable[..., PostgresStore],
    monkeypatch: pytest.MonkeyPatch,
    postgres: PostgresServer,
    place: PostgresAddress,
) -> None:
    broker = Broker(make())
    (source,) = broker.add()
    broker.send(source, [b"old"])
    broker.store.close()
    steps = (
        *postgres_schema.MIGRATIONS,
        "ALTER TABLE messages ADD COLUMN later int8; CREATE INDEX i ON messages(later)",
    )
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", steps)
    monkeypatch.setattr(postgres_schema, "FORMAT_VERSION", len(steps))
    newer = Broker(make(must_exist=True))
    assert payloads_of(newer.store.load(1, 1, 9)) == [b"old"]
    newer.store.close()
    numbers = [row[0] for row in execute(postgres, place, "SELECT number FROM migrations ORDER BY 1")]
    assert numbers == list(range(1, len(steps) + 1))
    monkeypatch.undo()
    with pytest.raises(StoreTooNew):
        make(must_exist=True).open()


@pytest.mark.parametrize(
    "damage",
    [
        "payload = set_byte(payload, 2, 0)",
        "enqueued_ms = enqueued_ms + 1",
        "body_sum = body_sum # 4",
        "deliveries = 1",
        "special = 'x'",
        "state_sum = 5",
    ],
)
def test_a_damaged_row_is_left_out_and_reported_and_the_others_are_delivered(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress, damage: str
) -> None:
    store = make()
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, [b"one", b"two", b"three", b"four"])
    assert store.verify() == []
    execute(postgres, place, f"UPDATE messages SET {damage} WHERE id = {1 << COUNT_BITS | 2}")
    assert payloads_of(store.load(1, 1, 3)) == [b"one", b"three", b"four"]
    ((key, count, _),) = store.quarantined()
    assert (key, count) == (1, 2)
    assert len(store.verify()) == 1
    # What is damaged is never read in columns, either.
    assert not [columns for columns in store.load_columns(1, 2, 9) if columns.first_count == 2]


def test_copies_of_a_damaged_body_are_reported_each(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress
) -> None:
    store = make()
    broker = Broker(store)
    home, sources = topic(broker, 2)
    publish(broker, home, sources, [b"one", b"two"])
    assert store.verify() == []
    execute(postgres, place, "UPDATE messages SET payload = 'oops' WHERE id = (SELECT min(id) FROM messages)")
    for source in sources:
        assert payloads_of(store.load(source.source_key, 1, 9)) == [b"two"]
    assert len(store.quarantined()) == 2
    assert store.verify() != []


def test_a_body_that_is_missing_or_not_needed_is_found_out(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress
) -> None:
    store = make()
    broker = Broker(store)
    home, sources = topic(broker, 2)
    publish(broker, home, sources, [b"one", b"two"])
    execute(postgres, place, "UPDATE messages SET body = NULL WHERE id IN (SELECT max(id) FROM messages)")
    assert store.verify() != []
    execute(postgres, place, "DELETE FROM messages WHERE id < 0")
    assert any("cannot be read" in problem for problem in store.verify())


def test_a_damaged_block_of_ids_is_left_out_and_reported(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress
) -> None:
    store = make()
    broker = Broker(store)
    broker.add()
    batch = broker.batch()
    batch.histories = [IdBlock(1, count, 5, b"ids") for count in (1, 2, 3)]
    broker.commit(batch)
    execute(postgres, place, f"UPDATE histories SET at_ms = 6 WHERE id = {1 << COUNT_BITS | 2}")
    assert [block.first_count for block in store.load_ids(1, 0, 9)] == [1, 3]
    assert store.quarantined() == [(1, 2, "duplicate history: the checksum does not hold")]
    assert len(store.verify()) == 1


@pytest.mark.parametrize("table", ["meta", "fragments", "sources"])
def test_damaged_rows_of_the_store_itself_keep_it_from_opening(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress, table: str
) -> None:
    broker = Broker(make())
    broker.add()
    broker.store.close()
    execute(postgres, place, f"UPDATE {table} SET row_sum = row_sum + 1")
    with pytest.raises(StoreFailed, match="damaged"):
        make(must_exist=True).open()


def test_a_server_that_lacks_what_was_acknowledged_is_not_gone_on_with(
    make: Callable[..., PostgresStore], postgres: PostgresServer, place: PostgresAddress
) -> None:
    store = make()
    broker = Broker(store)
    (source,) = broker.add()
    old = execute(postgres, place, "SELECT revision, last_commit_no, broker_ms, row_sum, rows FROM meta")[0]
    broker.send(source, [b"acknowledged"])
    store.close()
    columns = "(revision, last_commit_no, broker_ms, row_sum, rows)"
    execute(postgres, place, f"UPDATE meta SET {columns} = ({','.join(map(str, old))})")
    with pytest.raises(StoreFailed, match="commit 1 of generation 1 was acknowledged"):
        store.open()


def test_rows_that_are_gone_are_vacuumed_beside_the_commits(
    make: Callable[..., PostgresStore],
    monkeypatch: pytest.MonkeyPatch,
    postgres: PostgresServer,
    place: PostgresAddress,
) -> None:
    monkeypatch.setattr(module, "_VACUUM_ROWS", 100)
    store = make()
    broker = Broker(store)
    (source,) = broker.add()
    sizes = []
    for number in range(6):
        broker.send(source, [bytes(1000)] * 400)
        broker.remove((1, number * 400 + 1, (number + 1) * 400))
        assert store.checkpoint_aside() == (0, 0)
        sizes.append(execute(postgres, place, "SELECT pg_relation_size('messages')")[0][0])
    assert sizes[-1] == sizes[1]


def test_a_fragment_of_a_topic_goes_with_its_copies_and_their_bodies(make: Callable[..., PostgresStore]) -> None:
    store = make()
    broker = Broker(store)
    home, sources = topic(broker, 3)
    publish(broker, home, sources, [b"%d" % number for number in range(10)])
    while store.drop_fragment(1, 0, 7):
        pass
    broker.reopen()
    assert (store.usage().rows, broker.contents.shared) == (0, {})
    assert store.verify() == []


def test_columns_are_read_beside_the_commits(make: Callable[..., PostgresStore]) -> None:
    store = make()
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, [b"%d" % number for number in range(9)], all_metadata={7: (2, 0, None)})
    (plain,) = store.load_columns(1, 2, 100)
    assert list(plain.payloads) == [b"%d" % number for number in range(1, 7)]
    store.close()
    assert store.load_columns(1, 2, 100) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("/postgres?", "/nowhere?"), "there is no such database; create it"),
        (("postgres@", "nobody@"), "does not let this user in"),
    ],
)
def test_an_error_of_opening_says_what_to_do(postgres: PostgresServer, change: tuple[str, str], word: str) -> None:
    store = PostgresStore(parse(postgres.url(connect_timeout="5").replace(*change)).in_schema("x"), 1)
    with pytest.raises(StoreFailed, match=word):
        store.open()


def test_a_server_that_is_not_there_is_said_to_be_so() -> None:
    store = PostgresStore(parse("postgresql://me:secret@127.0.0.1:1/bus").in_schema("x"), 1)
    with pytest.raises(StoreFailed, match="cannot be reached") as refused:
        store.open()
    assert "secret" not in str(refused.value)
