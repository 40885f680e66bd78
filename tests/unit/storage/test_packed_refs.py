"""Copies without rows of their own: whatever is done to them, they are what copies with rows would be."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from duobus.errors import StoreFailed
from duobus.storage.interface import COUNT_BITS, SourceRow, Tombstone
from duobus.storage.memory import MemoryStore
from duobus.storage.sqlite import schema
from duobus.storage.sqlite import shared_bodies as bodies
from duobus.storage.sqlite.packed_refs import COPIES_MAX, COPIES_OF_A_BODY_MAX, PackedBody, PackedRefs, read
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import Broker, as_tuples, sqlite_store

BODY = b"b" * 1024
NOW_MS = 1_700_000_000_000


class Topic:
    """A topic in a store, with some subscriptions."""

    def __init__(self, broker: Broker, subscriptions: int) -> None:
        self.broker = broker
        self.home: SourceRow
        self.sources: list[SourceRow]
        self.home, *self.sources = broker.add(source_nos=tuple(range(subscriptions + 1)))

    def publish(self, takers: list[list[int]], removed: list[tuple[int, int, int]] | None = None) -> None:
        """Commit messages, each for the subscriptions with these indices, in one batch."""
        batch = self.broker.batch()
        first = self.home.next_count
        self.home.next_count += len(takers)
        batch.sources.append((self.home.source_key, self.home.next_count, 0, b""))
        for index, source in enumerate(self.sources):
            taken = [(first + number, who) for number, who in enumerate(takers) if index in who]
            if taken:
                put = self.broker.put(batch, source, [b"%d" % origin * 99 for origin, _ in taken])
                put.enqueued_ms = NOW_MS
                put.origins = [-origin if len(who) > 1 else origin for origin, who in taken]
        batch.removed += removed or ()
        self.broker.commit(batch)

    def found(self) -> list[object]:
        return [as_tuples(self.broker.store.load(source.source_key, 1, 999)) for source in self.sources]


def sqlite_of(broker: Broker) -> SqliteStore:
    assert isinstance(broker.store, SqliteStore)
    return broker.store


def number_packed(broker: Broker) -> int:
    return len(sqlite_of(broker)._packed.where)


def count(folder: Path, table: str) -> int:
    db = apsw.Connection(str(folder / "store" / "f0.db"))
    try:
        return int(next(db.execute(f"SELECT count(*) FROM {table}"))[0])
    finally:
        db.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_store_with_folded_copies_is_like_one_that_has_none(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    topics = [Topic(Broker(sqlite_store(tmp_path)), 4), Topic(Broker(MemoryStore(1)), 4)]
    left: list[tuple[int, int]] = []

    def both(step: int) -> None:
        takers = [[index for index in range(4) if dice.random() < 0.7] for _ in range(dice.randrange(6))]
        settled = [(key, number, number) for key, number in left if dice.random() < 0.3]
        end = dice.randrange(1, 20)
        if step % 7 == 3:
            key = dice.choice(topics[0].sources).source_key
            settled.append((key, 1, end))
        for topic in topics:
            topic.publish(takers, list(settled))
        gone = {(key, number) for key, first, last in settled for number in range(first, last + 1)}
        left[:] = [copy for copy in left if copy not in gone]

    for step in range(30):
        known = [(source.source_key, source.next_count) for source in topics[0].sources]
        both(step)
        for (key, first), source in zip(known, topics[0].sources, strict=True):
            left += [(key, number) for number in range(first, source.next_count)]
        if step % 5 == 4 and left:
            key, number = dice.choice(left)
            for topic in topics:
                topic.broker.change((key, number, 0, step, None))
        if step % 10 == 6:
            # Both begin a new generation; what was not read is read from the file.
            tombstones = [Tombstone(1, 1, 1, *dice.choice(left), 99)] if left and dice.random() < 0.5 else []
            for topic in topics:
                topic.broker.reopen(tuple(tombstones))
            gone = {(s.source_key, n) for s in tombstones for n in range(s.first_count, s.last_count + 1)}
            left[:] = [copy for copy in left if copy not in gone]
        assert topics[0].broker.store.usage().rows == topics[1].broker.store.usage().rows
        if step % 10 == 9:
            assert topics[0].found() == topics[1].found()
    assert topics[0].found() == topics[1].found()
    sqlite, memory = (topic.broker.contents.shared for topic in topics)
    assert sqlite == memory
    assert sqlite_of(topics[0].broker).verify() == []
    topics[0].broker.store.close()


def test_copies_that_are_settled_soon_never_get_a_row(tmp_path: Path) -> None:
    topic = Topic(Broker(sqlite_store(tmp_path)), 10)
    for number in range(1, 51):
        topic.publish([list(range(10))])
        assert count(tmp_path, "messages") == 1
        assert count(tmp_path, "shares") == 1
        for source in topic.sources:
            topic.broker.remove((source.source_key, number, number))
        assert count(tmp_path, "messages") == count(tmp_path, "folded") == 0
    assert sqlite_of(topic.broker).verify() == []
    topic.broker.store.close()


def test_a_copy_that_changes_gets_a_row_and_so_do_those_of_the_same_message(tmp_path: Path) -> None:
    topic = Topic(Broker(sqlite_store(tmp_path)), 3)
    topic.publish([[0, 1, 2], [0, 1]])
    topic.broker.change((topic.sources[1].source_key, 1, 4, 2, b"dead"))
    assert number_packed(topic.broker) == 2
    (found,) = topic.broker.store.scan(topic.sources[1].source_key, 4, 1, 9)
    assert (found.count, found.deliveries, found.metadata) == (1, 2, b"dead")
    assert found.payload == b"1" * 99
    topic.broker.store.close()


def test_a_copy_may_come_change_and_go_in_one_commit(tmp_path: Path) -> None:
    topic = Topic(Broker(sqlite_store(tmp_path)), 2)
    keys = [source.source_key for source in topic.sources]
    topic.publish([[0, 1], [0, 1]], [(keys[0], 1, 1)])
    batch = topic.broker.batch()
    batch.changes.append((keys[0], 2, 0, 1, None))
    batch.removed.append((keys[0], 2, 2))
    topic.broker.commit(batch)
    assert [message.count for message in topic.broker.store.load(keys[1], 1, 9)] == [1, 2]
    assert topic.broker.store.load(keys[0], 1, 9) == []
    assert sqlite_of(topic.broker).verify() == []
    topic.broker.store.close()


def test_messages_with_very_many_copies_have_a_row_for_each(tmp_path: Path) -> None:
    number = COPIES_OF_A_BODY_MAX + 1
    topic = Topic(Broker(sqlite_store(tmp_path)), number)
    topic.publish([list(range(number)), list(range(number - 1))])
    assert number_packed(topic.broker) == COPIES_OF_A_BODY_MAX
    assert count(tmp_path, "messages") == 2 + number
    assert sqlite_of(topic.broker).verify() == []
    topic.broker.store.close()


def test_the_copies_without_rows_are_bounded(tmp_path: Path) -> None:
    topic = Topic(Broker(sqlite_store(tmp_path)), 16)
    for _ in range(COPIES_MAX // 160 + 2):
        topic.publish([list(range(16))] * 10)
        assert number_packed(topic.broker) <= COPIES_MAX
    assert count(tmp_path, "messages") > COPIES_MAX
    assert sqlite_of(topic.broker).verify() == []
    topic.broker.store.close()


def test_folded_copies_outlive_a_crash(tmp_path: Path) -> None:
    topic = Topic(Broker(sqlite_store(tmp_path)), 3)
    topic.publish([[0, 1, 2], [0, 2]])
    topic.broker.remove((topic.sources[2].source_key, 1, 1))
    store = sqlite_of(topic.broker)
    # Nothing is tidied up: the log is all that the next one finds.
    store._abandon("killed")
    topic.broker.open()
    found = [[message.count for message in store.load(source.source_key, 1, 9)] for source in topic.sources]
    assert found == [[1, 2], [1], [2]]
    assert store.verify() == []
    store.close()


def edit(folder: Path, sql: str) -> None:
    db = apsw.Connection(str(folder / "store" / "f0.db"))
    db.execute(sql)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE folded SET size = size + 1",
        "UPDATE folded SET enqueued_ms = enqueued_ms + 1",
        "UPDATE folded SET copies = substr(copies, 1, 8)",
        "UPDATE folded SET copies = 7",
        "UPDATE folded SET row_sum = row_sum + 1",
        "UPDATE folded SET id = id + 1",
        "DELETE FROM folded",
    ],
)
def test_damaged_references_are_reported_and_give_nothing(tmp_path: Path, sql: str) -> None:
    topic = Topic(Broker(sqlite_store(tmp_path)), 2)
    topic.publish([[0, 1]])
    topic.broker.store.close()
    edit(tmp_path, sql)
    topic.broker.open()
    store = sqlite_of(topic.broker)
    if "substr" not in sql and "DELETE" not in sql and "= 7" not in sql:
        damaged = {(key, number) for key, number, _ in store.quarantined()}
        assert damaged == {(source.source_key, 1) for source in topic.sources}
    assert topic.found() == [[], []]
    assert store.verify() != []
    store.close()


@pytest.mark.slow
def test_no_flipped_bit_of_a_reference_gives_an_altered_message(tmp_path: Path) -> None:
    topic = Topic(Broker(sqlite_store(tmp_path)), 2)
    topic.publish([[0, 1], [0, 1]])
    expected = {1: b"1" * 99, 2: b"2" * 99}
    store = sqlite_of(topic.broker)
    store.close()
    path = tmp_path / "store" / "f0.db"
    db = apsw.Connection(str(path))
    (root,) = next(db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'folded'"))
    size = db.pragma("page_size")
    db.close()
    whole = path.read_bytes()
    page = whole[(root - 1) * size : root * size]
    content = int.from_bytes(page[5:7], "big")
    for offset in (*range(8, 12), *range(content, size)):
        for bit in range(8):
            altered = bytearray(whole)
            altered[(root - 1) * size + offset] ^= 1 << bit
            path.write_bytes(altered)
            Path(f"{path}-wal").unlink(missing_ok=True)
            damaged = sqlite_store(tmp_path)
            try:
                damaged.open()
                found = [message for source in topic.sources for message in damaged.load(source.source_key, 1, 9)]
                for message in found:
                    assert message.payload == expected[message.count]
                    assert message.enqueued_ms == NOW_MS
                # A blob that became a text of the same bytes has lost nothing.
                assert len(found) == 4 or damaged.quarantined() or damaged.verify()
            except StoreFailed:
                continue
            finally:
                damaged.close()


def test_a_range_of_any_width_finds_its_first_and_its_last_copy() -> None:
    found = PackedRefs()
    found.add({-5: PackedBody(0, 1, [10, 20]), -6: PackedBody(0, 1, [30])})
    for last, wanted in ((9, []), (10, [10]), (20, [10, 20]), (30, [10, 20, 30])):
        assert sorted(found.within(1, last)) == wanted
        assert sorted(found.within(last, last)) == [copy for copy in wanted if copy == last]


def test_copies_in_a_damaged_row_are_those_of_its_own_topic() -> None:
    db = apsw.Connection(":memory:")
    db.execute(schema.CREATE_PACKED)
    home, source, stranger, other = 1, 2, 3, 4
    body_id = bodies.body_key_of(home) << COUNT_BITS | 7
    copies = [key << COUNT_BITS | 1 for key in (source, stranger, other)]
    row = PackedBody(NOW_MS, 9, copies).values(body_id)
    db.execute("INSERT INTO folded VALUES (?, ?, ?, ?, ?)", (*row[:-1], row[-1] ^ 1))
    quarantine: dict[int, str] = {}
    # One is of a source that is gone, one of another topic: the flipped bit may be in their ids.
    assert read(db, quarantine, {source: home, other: 9}).bodies == {}
    assert list(quarantine) == [source << COUNT_BITS | 1]
    assert "checksum" in quarantine[source << COUNT_BITS | 1]
    db.close()


def test_reading_what_is_no_copy_writes_nothing(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    store = sqlite_of(broker)
    (plain,) = broker.add(2)
    commits = store.commits
    broker.store.load(plain.source_key, 1, 9)
    assert store.commits == commits
    topic = Topic(broker, 2)
    topic.publish([[0, 1], [0, 1]])
    commits = store.commits
    broker.store.load(plain.source_key, 1, 9)
    broker.store.load(topic.home.source_key, 1, 9)
    assert (store.commits, number_packed(broker)) == (commits, 4)
    broker.store.load(topic.sources[0].source_key, 1, 9)
    assert (store.commits, number_packed(broker)) == (commits + 1, 0)
    broker.store.close()


def test_a_copy_that_is_not_ordinary_is_not_folded_and_keeps_what_it_is(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    topic = Topic(broker, 2)
    batch = broker.batch()
    topic.home.next_count += 2
    batch.sources.append((topic.home.source_key, topic.home.next_count, 0, b""))
    for source, all_metadata in zip(topic.sources, ({1: (0, 3, b"special")}, None), strict=True):
        put = broker.put(batch, source, [b"first", b"second"], all_metadata)
        put.enqueued_ms, put.origins = NOW_MS, [-1, -2]
    broker.commit(batch)
    # Both copies of the second message have rows, and those of the first are folded.
    assert number_packed(broker) == 2
    broker.reopen()
    rows = [broker.store.load(source.source_key, 1, 9) for source in topic.sources]
    assert [[(row.payload, row.deliveries, row.metadata) for row in found] for found in rows] == [
        [(b"first", 0, None), (b"second", 3, b"special")],
        [(b"first", 0, None), (b"second", 0, None)],
    ]
    broker.store.close()


@pytest.mark.parametrize("what", ["metadata", "times"])
def test_copies_are_folded_only_where_all_of_them_are_alike(tmp_path: Path, what: str) -> None:
    broker = Broker(sqlite_store(tmp_path))
    topic = Topic(broker, 2)
    batch = broker.batch()
    topic.home.next_count += 2
    batch.sources.append((topic.home.source_key, topic.home.next_count, 0, b""))
    for number, source in enumerate(topic.sources):
        put = broker.put(batch, source, [b"first", b"second"])
        put.enqueued_ms, put.origins = NOW_MS, [-1, -2]
        if what == "metadata":
            put.equal_metadata = [b"session", b"session"]
        else:
            put.enqueued_ms += number
    broker.commit(batch)
    assert number_packed(broker) == 0
    broker.reopen()
    for number, source in enumerate(topic.sources):
        found = broker.store.load(source.source_key, 1, 9)
        assert [row.payload for row in found] == [b"first", b"second"]
        assert {row.metadata for row in found} == ({b"session"} if what == "metadata" else {None})
        assert {row.enqueued_ms for row in found} == {NOW_MS + (number if what == "times" else 0)}
    broker.store.close()
