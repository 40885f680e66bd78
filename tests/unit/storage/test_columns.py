"""Reading a deep backlog in columns: what comes out is what ``load`` would give, and nothing damaged ever does."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from duobus.storage.checksums import body_sums
from duobus.storage.interface import COUNT_MAX, MessagingStore, PlainColumns, SourceRow
from duobus.storage.memory import MemoryStore
from duobus.storage.sqlite import column_pages as columns
from duobus.storage.sqlite import schema
from duobus.storage.sqlite.column_pages import verified
from duobus.storage.sqlite.store import SqliteStore
from kits.damage import flip, used_part
from kits.store_builders import Broker, payloads_of, sqlite_store

STRETCH = 8

Message = tuple[int, int, bytes]


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "STRETCH", STRETCH)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = sqlite_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def broker(store: SqliteStore) -> Broker:
    return Broker(store)


@pytest.fixture
def source(broker: Broker) -> SourceRow:
    (source,) = broker.add()
    return source


def bodies(number: int, first: int = 0) -> list[bytes]:
    return [b"%d-" % i * (i % 3 + 1) for i in range(first, first + number)]


def taken(stretches: Sequence[PlainColumns]) -> list[Message]:
    """Everything in order."""
    found: list[Message] = []
    for plain in stretches:
        counts = range(plain.first_count, plain.first_count + len(plain.payloads))
        found += zip(counts, plain.enqueued_ms, plain.payloads, strict=True)
    return found


def loaded(store: MessagingStore, first: int, limit: int) -> list[Message]:
    return [(row.count, row.enqueued_ms, row.payload) for row in store.load(1, first, limit)]


def test_columns_hold_what_load_returns_over_commits_of_any_size(
    store: SqliteStore, broker: Broker, source: SourceRow
) -> None:
    for number in (1, 2, 5, 16, 1, 7):
        broker.send(source, bodies(number, source.next_count))
    stretches = store.load_columns(1, 1, 32)
    assert [len(columns.payloads) for columns in stretches] == [STRETCH] * 4
    assert taken(stretches) == loaded(store, 1, 32)


def test_payloads_of_one_length_and_none_at_all_come_whole(
    store: SqliteStore, broker: Broker, source: SourceRow
) -> None:
    broker.send(source, [b"\0\xff\xc3" * 5] * STRETCH + [b""] * STRETCH)
    assert taken(store.load_columns(1, 1, 100)) == loaded(store, 1, 16)


def test_a_read_stays_within_its_limit(store: SqliteStore, broker: Broker, source: SourceRow) -> None:
    broker.send(source, bodies(5 * STRETCH))
    assert sum(len(columns.payloads) for columns in store.load_columns(1, 1, 2 * STRETCH + 3)) == 2 * STRETCH
    assert store.load_columns(1, 1, STRETCH - 1) == []


def test_a_read_ends_with_the_stretch_that_makes_it_16_mib(
    store: SqliteStore, broker: Broker, source: SourceRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duobus.storage.sqlite.column_pages.READ_BYTES_MAX", STRETCH * 10 + 1)
    broker.send(source, [bytes(10)] * 4 * STRETCH)
    assert len(store.load_columns(1, 1, 4 * STRETCH)) == 2


@pytest.mark.parametrize("metadata", [(2, 0, None), (0, 1, None), (3, 0, b"life"), (0, 0, b"x")])
def test_what_is_not_ordinary_ends_the_columns(
    store: SqliteStore, broker: Broker, source: SourceRow, metadata: tuple[int, int, bytes | None]
) -> None:
    broker.send(source, bodies(3 * STRETCH), all_metadata={STRETCH + 2: metadata})
    assert [columns.first_count for columns in store.load_columns(1, 1, 100)] == [1]
    assert [columns.first_count for columns in store.load_columns(1, 2 * STRETCH + 1, 100)] == [2 * STRETCH + 1]


def test_a_large_message_ends_the_columns(store: SqliteStore, broker: Broker, source: SourceRow) -> None:
    largest = bytes(schema.STRETCH_PAYLOAD_MAX)
    broker.send(source, [*bodies(STRETCH - 1), largest, *bodies(STRETCH - 1), largest + b"x"])
    assert [columns.first_count for columns in store.load_columns(1, 1, 100)] == [1]


def test_a_gap_and_the_end_of_the_source_end_the_columns(store: SqliteStore, broker: Broker, source: SourceRow) -> None:
    (other,) = broker.add(2)
    broker.send(source, bodies(3 * STRETCH))
    broker.send(other, bodies(3 * STRETCH))
    broker.remove((1, STRETCH + 1, STRETCH + 1))
    assert [columns.first_count for columns in store.load_columns(1, 1, 100)] == [1]
    assert [columns.first_count for columns in store.load_columns(1, 2 * STRETCH + 1, 100)] == [2 * STRETCH + 1]
    assert store.load_columns(1, 2 * STRETCH + 2, 100) == []


def test_the_last_count_of_all_is_not_passed(store: SqliteStore, broker: Broker, source: SourceRow) -> None:
    assert store.load_columns(1, COUNT_MAX, 100) == []


@pytest.mark.slow
def test_no_single_flipped_bit_comes_out_of_columns(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, [b"a", b"bc", b"", b"def"])
    broker.send(source, [b"g", b"hi", b"j", b"kl"])
    good = loaded(store, 1, STRETCH)
    store.close()
    path = tmp_path / "store" / "f0.db"
    caught = 0
    for offset in used_part(path, "messages"):
        for bit in range(8):
            flip(path, offset, bit)
            damaged = sqlite_store(tmp_path)
            damaged.open()
            found = taken(damaged.load_columns(1, 1, STRETCH))
            damaged.close()
            flip(path, offset, bit)
            # Nothing: a checksum did not hold, or it was no whole stretch of ordinary rows. ``load`` sees to both.
            assert found in ([], good), f"offset {offset}, bit {bit}"
            caught += found != good
    assert caught > 100


@pytest.mark.parametrize(
    "column",
    [
        "body_sum = body_sum + (1 << 32)",
        "body_sum = -1",
        "body_sum = 0.5",
        "body_sum = 'x'",
        "payload = x'00'",
        "payload = 'text'",
        "state = 0.5",
        "deliveries = 1",
        "special = x''",
        "state_sum = 1",
        "enqueued_ms = enqueued_ms + 1",
        "enqueued_ms = 1 << 62",
        "enqueued_ms = enqueued_ms + (1 << 50)",
        "enqueued_ms = -enqueued_ms",
        "enqueued_ms = 1.5e300",
    ],
)
def test_a_damaged_value_is_left_to_load_which_quarantines_it(
    tmp_path: Path, store: SqliteStore, broker: Broker, source: SourceRow, column: str
) -> None:
    broker.send(source, bodies(2 * STRETCH))
    store.close()
    with sqlite3.connect(tmp_path / "store" / "f0.db") as db:
        db.execute(f"UPDATE messages SET {column} WHERE id & 65535 = 11")
    db.close()
    store.open()
    found = store.load_columns(1, 1, 100)
    assert taken(found[:1]) == loaded(store, 1, STRETCH)
    assert not taken(found[1:])
    assert len(store.load(1, 1, 100)) == 2 * STRETCH - 1
    assert [(key, count) for key, count, _ in store.quarantined()] == [(1, 11)]


def test_lengths_that_don_t_add_up_are_damage(store: SqliteStore, broker: Broker, source: SourceRow) -> None:
    marks = ",".join(str((5 << schema.LENGTH_BITS) + length) for length in (9, 1))
    for data in (b"short", b"longer than ten"):
        assert verified(1 << 44 | 1, 2, "0,0", marks, data) is None


@pytest.mark.parametrize("digits", ["", "1", "1,2,3", "1,x", "1,2.5", "1,1e30", "1,,2"])
def test_digits_that_are_no_whole_numbers_are_damage(digits: str) -> None:
    first_id = 1 << 44 | 1
    sums = ",".join(map(str, body_sums(first_id, 0, [b"a", b"b"])))
    assert verified(first_id, 2, sums, "1,1", b"ab") is not None
    assert verified(first_id, 2, digits, "1,1", b"ab") is None
    assert verified(first_id, 2, sums, digits, b"ab") is None


def test_another_thread_reads_while_a_commit_is_under_way(
    store: SqliteStore, broker: Broker, source: SourceRow
) -> None:
    broker.send(source, bodies(STRETCH))
    found: list[int] = []

    def read() -> None:
        found.append(len(store.load_columns(1, 1, 100)))

    assert store._db is not None
    store._db.execute("BEGIN IMMEDIATE")
    store._db.execute("DELETE FROM messages")
    thread = threading.Thread(target=read)
    thread.start()
    thread.join(60)
    store._db.execute("ROLLBACK")
    assert found == [1]


def test_the_log_is_emptied_at_the_close_after_reading(store: SqliteStore, broker: Broker, source: SourceRow) -> None:
    broker.send(source, bodies(STRETCH))
    assert store.load_columns(1, 1, 100)
    log = Path(f"{store._path}-wal")
    assert log.stat().st_size > 0
    store.close()
    assert not log.exists() or log.stat().st_size == 0


def test_a_store_that_is_closed_or_failed_has_none(store: SqliteStore, broker: Broker, source: SourceRow) -> None:
    broker.send(source, bodies(STRETCH))
    assert store.load_columns(1, 1, 100)
    store.close()
    assert store.load_columns(1, 1, 100) == []


def test_an_error_of_the_driver_is_left_to_load(
    tmp_path: Path, store: SqliteStore, broker: Broker, source: SourceRow
) -> None:
    broker.send(source, bodies(STRETCH))
    store.close()
    store.open()
    # No connection can be made: the file's name leads elsewhere.
    store._ahead._path = str(tmp_path)
    assert store.load_columns(1, 1, 100) == []
    assert payloads_of(store.load(1, 1, 100)) == bodies(STRETCH)


def test_the_store_in_memory_has_columns_too() -> None:
    store = MemoryStore()
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, bodies(10), all_metadata={6: (2, 0, None)})
    assert taken(store.load_columns(1, 1, 100)) == loaded(store, 1, 6)
    assert store.load_columns(1, 7, 100) == store.load_columns(9, 1, 100) == []
    store.close()
    assert store.load_columns(1, 1, 100) == []


def test_a_read_ends_with_the_stretch_that_fills_it_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    broker.send(source, [b"x" * 10] * 2 * schema.STRETCH)
    monkeypatch.setattr(columns, "READ_BYTES_MAX", 10 * schema.STRETCH)
    assert len(broker.store.load_columns(source.source_key, 1, 2 * schema.STRETCH)) == 1
    monkeypatch.setattr(columns, "READ_BYTES_MAX", 10 * schema.STRETCH + 1)
    assert len(broker.store.load_columns(source.source_key, 1, 2 * schema.STRETCH)) == 2
    broker.store.close()
