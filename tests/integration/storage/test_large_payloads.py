"""Messages of many pages: bit-exact, found out when damaged, and without copies that stay (I57)."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import apsw
import pytest

from duobus.storage.sqlite.file import PAGE_SIZE
from duobus.storage.sqlite.schema import LARGE_BYTES
from duobus.storage.sqlite.store import SqliteStore
from kits.damage import Found, flip, used_part
from kits.store_builders import Broker, as_tuples, payloads_of, sqlite_store

MIB = 1 << 20
#: What SQLite keeps in memory of a store whatever was in it: its cache of pages, twice (reading and checkpoints).
CACHE_BYTES = 2 * 16 * MIB


def _body(size: int, seed: int = 0) -> bytes:
    # Of a length that no page has, so that a page in the wrong place is noticed.
    block = sha256(bytes([seed])).digest() * 99
    return (block * (size // len(block) + 1))[:size]


@pytest.mark.parametrize("size", [LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 5 * MIB + 123])
def test_large_messages_come_back_bit_exact_among_small_ones(broker: Broker, size: int) -> None:
    (source,) = broker.add()
    bodies = [b"before", _body(size), b"", _body(size, 1), b"after"]
    broker.send(source, bodies, all_metadata={3: (2, 1, b"special")})
    broker.reopen()
    assert payloads_of(broker.store.load(1, 1, 10)) == bodies
    assert payloads_of(broker.store.load(1, 2, 1)) == bodies[1:2]
    (scanned,) = broker.store.scan(1, 2, 1, 10)
    assert (scanned.payload, scanned.metadata) == (bodies[3], b"special")


def test_a_large_message_changes_its_state_and_goes_like_any_other(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    body = _body(2 * MIB)
    broker.send(source, [body, b"small"])
    broker.change((1, 1, 4, 3, b"overlay"))
    broker.reopen()
    first, _ = broker.store.load(1, 1, 10)
    assert (first.payload, first.state, first.deliveries, first.metadata) == (body, 4, 3, b"overlay")
    broker.remove((1, 1, 1))
    assert payloads_of(broker.store.load(1, 1, 10)) == [b"small"]
    assert isinstance(broker.store, SqliteStore)
    assert broker.store.verify() == []
    broker.store.close()


@pytest.mark.slow
def test_nothing_of_a_large_message_stays_in_memory_once_it_is_stored(tmp_path: Path) -> None:
    """A prepared statement holds what was bound last; the store keeps its statements (measured: 100 MB a store)."""
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    broker.send(source, [b"small"])
    before = apsw.memory_used()
    broker.send(source, [_body(64 * MIB)])
    broker.send(source, [_body(64 * MIB)], all_metadata={0: (2, 0, b"special")})
    assert apsw.memory_used() - before < CACHE_BYTES
    broker.store.close()


def test_statements_of_ordinary_commits_stay_prepared(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    broker.send(source, [bytes(1024)] * 1000)
    db = broker.store._db  # type: ignore[attr-defined]
    before = db.cache_stats()
    broker.send(source, [bytes(1024)] * 1000)
    after = db.cache_stats()
    assert after["misses"] == before["misses"]
    assert after["no_cache"] == before["no_cache"]
    broker.store.close()


@pytest.mark.parametrize("read", [lambda store: store.load(1, 1, 1), lambda store: store.scan(1, 2, 1, 1)])
def test_the_driver_makes_no_copy_of_its_own_of_what_is_read(
    tmp_path: Path, read: Callable[[SqliteStore], object]
) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    broker.send(source, [_body(64 * MIB)], all_metadata={0: (2, 0, None)})
    broker.reopen()
    assert isinstance(broker.store, SqliteStore)
    before = apsw.memory_used()
    apsw.memory_high_water(True)
    assert read(broker.store)
    assert apsw.memory_high_water() - before < CACHE_BYTES
    broker.store.close()


@pytest.mark.slow
def test_a_flipped_bit_in_a_large_message_never_lets_it_out_altered(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source,) = broker.add()
    broker.send(source, [b"before", _body(LARGE_BYTES + 5_000), b"after"], all_metadata={1: (2, 1, b"why")})
    good, scanned = as_tuples(broker.store.load(1, 1, 100)), as_tuples(broker.store.scan(1, 2, 1, 100))
    assert (len(good), len(scanned)) == (3, 1)
    broker.store.close()
    path = tmp_path / "store" / "f0.db"
    in_tree = used_part(path, "messages")
    pages = path.stat().st_size // PAGE_SIZE
    # All of the tree's page that is not the message's own bytes, and of three pages that hold them the pointer to the
    # next and a byte in the middle.
    offsets = in_tree[:14] + in_tree[14:54] + in_tree[-60:]
    for page in (pages // 2, pages - 10, pages - 1):
        offsets += [*range(page * PAGE_SIZE, page * PAGE_SIZE + 4), page * PAGE_SIZE + PAGE_SIZE // 2]
    harmful = 0
    for offset in offsets:
        for bit in (0, 3, 7):
            flip(path, offset, bit)
            found = Found(sqlite_store(tmp_path))
            flip(path, offset, bit)
            where = f"offset {offset}, bit {bit}"
            assert set(found.loaded) <= set(good), where
            assert set(found.scanned) <= set(scanned), where
            if (found.loaded, found.scanned) != (good, scanned):
                harmful += 1
                assert found.is_caught, where
    assert harmful > 100
    assert Found(sqlite_store(tmp_path)).loaded == good
