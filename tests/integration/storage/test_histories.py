"""Duplicate histories in the stores: blocks of ids that live as long as their run, or until they are outdated."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from duobus.errors import StoreStale
from duobus.storage.interface import IdBlock, SourceRow, Tombstone
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import Broker, sqlite_store


def send(broker: Broker, source: SourceRow, number: int, ids: bytes) -> int:
    """Commit messages with their ids; returns the first count."""
    batch = broker.batch()
    put = broker.put(batch, source, [b"m"] * number)
    batch.histories.append(IdBlock(source.source_key, put.first_count, batch.broker_ms, ids))
    broker.commit(batch)
    return put.first_count


def blocks(broker: Broker, source: SourceRow, first: int = 0, limit: int = 100) -> list[tuple[int, int, bytes]]:
    found = broker.store.load_ids(source.source_key, first, limit)
    return [(block.first_count, block.at_ms, block.ids) for block in found]


def test_blocks_come_back_in_order_after_reopening_in_pages(broker: Broker) -> None:
    first, second = broker.add(source_nos=(0, 1))
    for number in range(1, 5):
        send(broker, first, number, b"i%d" % number)
    send(broker, second, 1, b"other")
    broker.reopen()
    assert blocks(broker, first) == [(1, 1000, b"i1"), (2, 1001, b"i2"), (4, 1002, b"i3"), (7, 1003, b"i4")]
    assert [count for count, _, _ in blocks(broker, first, 2, 2)] == [2, 4]
    assert blocks(broker, second) == [(1, 1004, b"other")]
    assert broker.store.load_ids(77, 0, 10) == []


def test_all_blocks_of_a_commit_are_kept(broker: Broker) -> None:
    sources = broker.add(source_nos=(0, 1))
    batch = broker.batch()
    for source in sources:
        batch.histories.append(IdBlock(source.source_key, source.next_count, 5, b"%d" % source.source_no))
        broker.put(batch, source, [b"m"])
    broker.commit(batch)
    broker.reopen()
    assert [blocks(broker, source) for source in sources] == [[(1, 5, b"0")], [(1, 5, b"1")]]


def test_blocks_stay_when_their_messages_are_removed(broker: Broker) -> None:
    (source,) = broker.add()
    send(broker, source, 3, b"abc")
    broker.remove((source.source_key, 1, 3))
    broker.reopen()
    assert blocks(broker, source) == [(1, 1000, b"abc")]


def test_outdated_blocks_go_and_later_ones_stay(broker: Broker) -> None:
    first, second = broker.add(source_nos=(0, 1))
    for _ in range(3):
        send(broker, first, 2, b"x")
        send(broker, second, 2, b"y")
    batch = broker.batch()
    batch.outdated.append((first.source_key, 3))
    broker.commit(batch)
    broker.reopen()
    assert [count for count, _, _ in blocks(broker, first)] == [5]
    assert [count for count, _, _ in blocks(broker, second)] == [1, 3, 5]


def test_the_blocks_of_a_run_that_is_deleted_go_with_it(broker: Broker) -> None:
    (source,) = broker.add()
    for _ in range(3):
        send(broker, source, 2, b"x")
    tombstone = Tombstone(1, broker.generation, broker.commit_no, source.source_key, 3, 4)
    broker.reopen((tombstone,))
    assert [count for count, _, _ in blocks(broker, source)] == [1, 5]
    assert [m.count for m in broker.store.load(source.source_key, 1, 10)] == [1, 2, 5, 6]


def test_a_dropped_entity_leaves_no_block(broker: Broker) -> None:
    (gone,) = broker.add(entity_id=1)
    (kept,) = broker.add(entity_id=2)
    send(broker, gone, 1, b"x")
    send(broker, kept, 1, b"y")
    broker.store.drop_entity(1)
    broker.store.close()
    broker.open()
    assert blocks(broker, gone) == []
    assert [ids for _, _, ids in blocks(broker, kept)] == [b"y"]


def test_a_block_without_the_epoch_of_its_fragment_is_refused(broker: Broker) -> None:
    (source,) = broker.add()
    batch = broker.batch()
    batch.epochs.clear()
    batch.outdated.append((source.source_key, 1))
    with pytest.raises(StoreStale):
        broker.commit(batch)


def test_a_block_whose_checksum_does_not_hold_is_left_out_and_reported(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    for _ in range(3):
        send(broker, source, 1, b"x")
    broker.store.close()
    path = str(tmp_path / "store" / "f0.db")
    other = apsw.Connection(path)
    other.execute("UPDATE histories SET ids = ? WHERE rowid % 10 = 2", (b"z",))
    changed = other.changes()
    other.execute("UPDATE histories SET at_ms = CAST(x'FF' AS TEXT) WHERE id = (SELECT max(id) FROM histories)")
    other.close()
    broker.open()
    assert len(blocks(broker, source)) == 2 - changed
    report = broker.store.quarantined()
    assert len(report) == 1 + changed
    assert all("duplicate history" in fault for _, _, fault in report)
    broker.store.close()


def test_a_page_with_a_damaged_block_has_no_more_than_were_asked_for(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    for _ in range(4):
        send(broker, source, 1, b"x")
    broker.store.close()
    other = apsw.Connection(str(tmp_path / "store" / "f0.db"))
    other.execute("UPDATE histories SET ids = ? WHERE id = (SELECT min(id) FROM histories)", (b"z",))
    other.close()
    broker.open()
    assert [first for first, *_ in blocks(broker, source, limit=2)] == [2, 3]
    broker.store.close()


def test_a_file_made_before_there_were_histories_gets_its_table(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    broker.send(source, [b"old"])
    broker.store.close()
    other = apsw.Connection(str(tmp_path / "store" / "f0.db"))
    other.execute("DROP TABLE histories")
    other.close()
    broker.open()
    send(broker, source, 1, b"x")
    assert blocks(broker, source) == [(2, 1001, b"x")]
    broker.store.close()


def test_a_store_whose_histories_hold_has_nothing_wrong_with_them(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    for number in range(3):
        send(broker, source, 1, b"%d" % number)
    store = broker.store
    assert isinstance(store, SqliteStore)
    assert store.verify() == []
    store.close()
    db = apsw.Connection(str(tmp_path / "store" / "f0.db"))
    db.execute("UPDATE histories SET ids = x'00' WHERE id & 0xFF = 2")
    db.close()
    broker.open()
    assert store.verify() == [f"source {source.source_key}, duplicate history at 2: the checksum does not hold"]
    store.close()
