"""A body that several copies share is kept once, as long as one of them needs it, whatever happens."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from duobus.errors import StoreFailed
from duobus.storage.checksums import numbers_sum
from duobus.storage.interface import (
    COUNT_BITS,
    FORMAT_VERSION,
    READ_BYTES_MAX,
    MessagingStore,
    Put,
    SourceRow,
    StoredMessage,
    Tombstone,
)
from duobus.storage.postgres.store import PostgresStore
from duobus.storage.sqlite import schema
from duobus.storage.sqlite.schema import LARGE_BYTES
from duobus.storage.sqlite.shared_bodies import body_key_of
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import Broker, as_tuples, sqlite_store

BODY = b"b" * 1024


def topic(broker: Broker, subscriptions: int) -> tuple[SourceRow, list[SourceRow]]:
    """A topic's own source and those of its subscriptions."""
    home, *others = broker.add(source_nos=tuple(range(subscriptions + 1)))
    return home, others


def publish(broker: Broker, home: SourceRow, sources: list[SourceRow], bodies: list[bytes]) -> int:
    """Commit one copy of each message in each source; returns the count of the first message."""
    batch = broker.batch()
    first = home.next_count
    home.next_count += len(bodies)
    batch.sources.append((home.source_key, home.next_count, 0, b""))
    sign = -1 if len(sources) > 1 else 1
    for source in sources:
        put = broker.put(batch, source, bodies)
        put.enqueued_ms = 1_700_000_000_000
        put.origins = [sign * (first + index) for index in range(len(bodies))]
    broker.commit(batch)
    return first


def origins_of(messages: list[StoredMessage]) -> list[int]:
    return [message.origin for message in messages]


def faults_of(store: MessagingStore) -> list[str]:
    return store.verify() if isinstance(store, SqliteStore | PostgresStore) else []


def test_copies_come_back_with_their_body_and_the_number_of_their_message(broker: Broker) -> None:
    home, sources = topic(broker, 3)
    publish(broker, home, sources[:1], [b"alone"])
    first = publish(broker, home, sources, [b"one", b"two"])
    for source in sources[1:]:
        found = broker.store.load(source.source_key, 1, 10)
        assert [message.payload for message in found] == [b"one", b"two"]
        assert origins_of(found) == [first, first + 1]
    assert origins_of(broker.store.load(sources[0].source_key, 1, 10)) == [1, 2, 3]
    assert faults_of(broker.store) == []


def test_a_body_lies_in_the_store_once_and_goes_with_its_last_copy(broker: Broker) -> None:
    home, sources = topic(broker, 5)
    publish(broker, home, sources, [BODY])
    # Five copies and a body.
    assert broker.store.usage().rows == 6
    for left, source in zip((5, 4, 3, 2, 0), sources, strict=True):
        broker.remove((source.source_key, 1, 1))
        assert broker.store.usage().rows == left
        for other in sources[sources.index(source) + 1 :]:
            assert [m.payload for m in broker.store.load(other.source_key, 1, 9)] == [BODY]
        assert faults_of(broker.store) == []


def test_ten_copies_write_a_quarter_of_the_bytes_of_ten_messages(tmp_path: Path) -> None:
    sizes = []
    for shares in (True, False):
        broker = Broker(sqlite_store(tmp_path / str(shares)))
        home, sources = topic(broker, 10)
        broker.store.checkpoint()
        before = broker.store.usage().bytes_used
        for _ in range(100):
            if shares:
                publish(broker, home, sources, [BODY])
            else:
                for source in sources:
                    publish(broker, home, [source], [BODY])
        sizes.append(broker.store.usage().bytes_used - before)
        broker.store.close()
    assert sizes[0] * 4 <= sizes[1]


def test_the_store_tells_what_copies_take_up_and_counts_a_shared_body_once(broker: Broker) -> None:
    home, sources = topic(broker, 3)
    publish(broker, home, sources, [b"x" * 100])
    publish(broker, home, sources[:1], [b"y" * 7])
    batch = broker.batch()
    batch.removed = [(source.source_key, 1, 1) for source in sources[:2]]
    broker.commit(batch)
    assert batch.shared in ({}, {home.source_key: 107})
    batch = broker.batch()
    batch.removed = [(sources[2].source_key, 1, 1)]
    broker.commit(batch)
    assert batch.shared == {home.source_key: 7}
    broker.reopen()
    assert broker.contents.shared == {home.source_key: 7}


def test_dropping_a_source_takes_its_copies_in_slices_and_leaves_what_others_need(broker: Broker) -> None:
    home, sources = topic(broker, 2)
    publish(broker, home, sources, [b"%d" % n for n in range(10)])
    publish(broker, home, sources[:1], [b"alone"])
    slices = 1
    while broker.store.drop_source(1, 1, 4):
        slices += 1
        assert faults_of(broker.store) == []
    assert slices == 3
    assert not broker.store.drop_source(1, 1, 4)
    assert [m.payload for m in broker.store.load(sources[1].source_key, 1, 99)] == [b"%d" % n for n in range(10)]
    assert broker.store.usage().rows == 20
    broker.reopen()
    assert [row.source_no for row in broker.contents.sources] == [0, 2]
    assert broker.store.drop_source(1, 2, 100) is False
    assert broker.store.usage().rows == 0
    assert faults_of(broker.store) == []


def test_a_slice_of_a_fragment_has_no_more_rows_than_it_may_over_all_of_its_sources(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    for source in broker.add(source_nos=(0, 1)):
        broker.send(source, [b"a", b"b", b"c"])
    assert broker.store.drop_fragment(1, 0, 4)
    assert broker.store.usage().rows == 2
    assert not broker.store.drop_fragment(1, 0, 4)
    assert broker.store.usage().rows == 0
    broker.store.close()


def test_a_source_that_was_dropped_and_made_anew_has_another_key(broker: Broker) -> None:
    _, (old,) = topic(broker, 1)
    broker.store.drop_source(1, 1, 10)
    (new,) = broker.store.add_fragment(1, 0, [1])[1]
    assert new.source_key > old.source_key


def test_deleting_an_ambiguous_run_gives_back_the_bodies_of_its_copies(broker: Broker) -> None:
    home, sources = topic(broker, 3)
    publish(broker, home, sources, [b"kept"])
    first = publish(broker, home, sources, [b"gone", b"too"])
    tombstones = tuple(Tombstone(1, 1, 1, source.source_key, 2, 3) for source in sources)
    own = Tombstone(1, 1, 1, home.source_key, first, first + 1)
    broker.reopen((own, *tombstones))
    for source in sources:
        assert [m.payload for m in broker.store.load(source.source_key, 1, 9)] == [b"kept"]
    assert broker.store.usage().rows == 4
    assert faults_of(broker.store) == []


def test_dropping_a_topic_leaves_nothing(broker: Broker) -> None:
    home, sources = topic(broker, 3)
    publish(broker, home, sources, [b"a", b"b"])
    broker.store.drop_entity(1)
    assert broker.store.usage().rows == 0
    broker.reopen()
    assert broker.contents.shared == {}
    assert faults_of(broker.store) == []


def test_pages_of_copies_end_by_number_and_by_bytes_and_go_on_behind(broker: Broker) -> None:
    home, sources = topic(broker, 2)
    bodies = [b"%03d" % n for n in range(120)]
    publish(broker, home, sources, bodies)
    publish(broker, home, sources, [b"L" * (READ_BYTES_MAX // 2)] * 3)
    key = sources[1].source_key
    assert [m.payload for m in broker.store.load(key, 1, 50)] == bodies[:50]
    assert [m.payload for m in broker.store.load(key, 51, 70)] == bodies[50:]
    assert [m.count for m in broker.store.load(key, 121, 10)] == [121, 122]
    assert [m.count for m in broker.store.load(key, 123, 10)] == [123]


def test_exceptional_copies_are_found_by_their_state_and_change_it(broker: Broker) -> None:
    home, sources = topic(broker, 2)
    publish(broker, home, sources, [b"a", b"b"])
    broker.change((sources[0].source_key, 2, 4, 3, b"dead"))
    (found,) = broker.store.scan(sources[0].source_key, 4, 1, 10)
    assert as_tuples([found]) == [(2, 1_700_000_000_000, 4, 3, b"b", b"dead")]
    assert found.origin == 2
    assert broker.store.scan(sources[1].source_key, 4, 1, 10) == []


def test_a_body_must_have_a_count_that_is_its_own(broker: Broker) -> None:
    home, sources = topic(broker, 2)
    publish(broker, home, sources, [b"first"])
    batch = broker.batch()
    for source in sources:
        broker.put(batch, source, [b"second"]).origins = [-1]
    with pytest.raises(StoreFailed, match="count of a shared body"):
        broker.commit(batch)


def test_copies_in_source_0_are_refused(broker: Broker) -> None:
    home, _ = topic(broker, 1)
    batch = broker.batch()
    broker.put(batch, home, [b"x"]).origins = [1]
    with pytest.raises(StoreFailed, match="copies in source 0"):
        broker.commit(batch)


def edit(folder: Path, sql: str, *bindings: object) -> None:
    db = apsw.Connection(str(folder / "store" / "f0.db"))
    db.execute(sql, bindings)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def test_a_damaged_body_is_reported_for_every_copy_and_never_delivered(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    home, sources = topic(broker, 2)
    publish(broker, home, sources, [b"good", b"flipped", b"good"])
    broker.store.close()
    edit(
        tmp_path,
        "UPDATE messages SET payload = ? WHERE id = ?",
        b"fliqped",
        body_key_of(home.source_key) << COUNT_BITS | 2,
    )
    broker.open()
    for source in sources:
        assert [m.payload for m in broker.store.load(source.source_key, 1, 3)] == [b"good", b"good"]
        # A page that it was found on goes on behind its last copy.
        assert [m.count for m in broker.store.load(source.source_key, 1, 2)] == [1, 3]
    damaged = {(key, count) for key, count, _ in broker.store.quarantined()}
    assert {(source.source_key, 2) for source in sources} <= damaged
    broker.store.close()


def test_a_damaged_reference_takes_no_body_away_from_others(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    home, sources = topic(broker, 2)
    publish(broker, home, sources, [b"one", b"two"])
    assert faults_of(broker.store) == []
    broker.store.close()
    wrong = ((1 << 63) | 1).to_bytes(8, "big")
    edit(tmp_path, "UPDATE messages SET payload = ? WHERE id = ?", wrong, sources[0].source_key << COUNT_BITS | 2)
    broker.open()
    broker.remove((sources[0].source_key, 2, 2))
    broker.remove((sources[0].source_key, 1, 1))
    assert [m.payload for m in broker.store.load(sources[1].source_key, 1, 9)] == [b"one", b"two"]
    broker.store.close()


def test_a_body_without_copies_and_a_copy_without_body_are_found(tmp_path: Path) -> None:
    for sql in (
        "DELETE FROM messages WHERE id >> 44 = 2",
        "DELETE FROM messages WHERE id < 0",
        "UPDATE shares SET refs = 3 WHERE id & 1 = 1",
        "DELETE FROM shares WHERE id & 1 = 1",
    ):
        folder = tmp_path / str(len(sql))
        broker = Broker(sqlite_store(folder))
        home, sources = topic(broker, 2)
        publish(broker, home, sources, [b"one"])
        # It gives each copy its row.
        assert faults_of(broker.store) == []
        broker.store.close()
        edit(folder, sql)
        broker.open()
        assert faults_of(broker.store) != []
        broker.store.close()


def test_a_size_of_a_topic_that_its_copies_do_not_have_is_found(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    home, sources = topic(broker, 2)
    publish(broker, home, sources, [b"one", b"second"])
    assert faults_of(broker.store) == []
    broker.store.close()
    row_id = body_key_of(home.source_key) << COUNT_BITS
    wrong = (row_id, 0, 10, numbers_sum((row_id, 0, 10)))
    edit(tmp_path, "INSERT OR REPLACE INTO shares VALUES (?, ?, ?, ?)", *wrong)
    broker.open()
    assert faults_of(broker.store) == [f"source {home.source_key}: its copies have 9 bytes, noted are 10"]
    broker.store.close()


def test_a_large_body_is_shared_too(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    home, sources = topic(broker, 3)
    large = b"L" * (LARGE_BYTES + 5)
    publish(broker, home, sources, [large, b"small", large])
    for source in sources:
        assert [m.payload for m in broker.store.load(source.source_key, 1, 9)] == [large, b"small", large]
    broker.store.close()


def test_a_file_of_the_first_format_is_brought_forward_with_all_that_it_holds(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (queue,) = broker.add()
    broker.send(queue, [b"old"])
    broker.store.close()
    first_format(tmp_path)
    broker.open()
    assert [m.payload for m in broker.store.load(queue.source_key, 1, 9)] == [b"old"]
    home, sources = broker.add(entity_id=2, source_nos=(0, 1, 2))[0], broker.add(entity_id=2, source_nos=(1, 2))
    publish(broker, home, sources, [b"new"])
    assert faults_of(broker.store) == []
    broker.store.close()
    db = apsw.Connection(str(tmp_path / "store" / "f0.db"))
    assert db.pragma("user_version") == FORMAT_VERSION
    db.close()


def first_format(folder: Path) -> None:
    """Make a file what the first version wrote: no table of shares or folded copies, format 1 in header and own row."""
    from duobus.storage.checksums import numbers_sum

    db = apsw.Connection(str(folder / "store" / "f0.db"))
    row = db.execute(schema.READ_META).fetchone()
    assert row is not None
    db.execute("DROP TABLE shares")
    db.execute("DROP TABLE folded")
    db.execute(schema.UPDATE_FORMAT, (1, numbers_sum((1, *row[1:-1]))))
    db.execute("PRAGMA user_version=1")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def test_a_put_without_origins_is_no_copy(broker: Broker) -> None:
    _, (source,) = topic(broker, 1)
    broker.send(source, [b"state of a session"])
    (found,) = broker.store.load(source.source_key, 1, 9)
    assert (found.payload, found.origin) == (b"state of a session", 0)
    assert Put(1, 1, 1, []).origins is None
