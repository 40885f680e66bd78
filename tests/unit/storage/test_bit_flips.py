"""Every bit of the pages that hold messages is flipped once: no altered message may ever come out (I57, F8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from duobus.errors import StoreFailed
from duobus.storage.interface import Tombstone
from duobus.storage.sqlite.store import SqliteStore
from kits.damage import Found, flip, used_part
from kits.store_builders import Broker, as_tuples, sqlite_store


@pytest.mark.slow
@pytest.mark.parametrize("table", ["messages", "exceptional"])
def test_no_single_flipped_bit_lets_an_altered_message_out(tmp_path: Path, table: str) -> None:
    store = sqlite_store(tmp_path)
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, [b"first", b"second", b"third", b""], all_metadata={1: (2, 1, b"why"), 3: (2, 0, None)})
    broker.change((1, 3, 0, 300, None))
    good, scanned = as_tuples(store.load(1, 1, 100)), as_tuples(store.scan(1, 2, 1, 100))
    assert (len(good), len(scanned)) == (4, 2)
    store.close()
    path = tmp_path / "store" / "f0.db"
    harmful = 0
    for offset in used_part(path, table):
        for bit in range(8):
            flip(path, offset, bit)
            found = Found(sqlite_store(tmp_path))
            flip(path, offset, bit)
            where = f"offset {offset}, bit {bit}"
            assert set(found.loaded) <= set(good), where
            assert set(found.scanned) <= set(scanned), where
            assert found.loaded == sorted(found.loaded), where
            if (found.loaded, found.scanned) != (good, scanned):
                harmful += 1
                assert found.is_caught, where
    assert harmful > 500 if table == "messages" else harmful > 50
    assert Found(sqlite_store(tmp_path)).loaded == good


@pytest.mark.parametrize("table", ["meta", "fragments", "sources", "tombstones"])
def test_no_single_flipped_bit_alters_what_the_store_says_of_itself(tmp_path: Path, table: str) -> None:
    broker = Broker(sqlite_store(tmp_path))
    (source, _) = broker.add(5, 3, (0, 1))
    source.counters = b"counters"
    batch = broker.batch()
    broker.put(batch, source, [b"x"])
    batch.tombstones = [Tombstone(2, 3, 4, 5, 6, 7)]
    broker.commit(batch)
    broker.reopen()
    broker.store.close()
    good = said_by(sqlite_store(tmp_path))
    assert good is not None
    path = tmp_path / "store" / "f0.db"
    refused = 0
    for offset in used_part(path, table):
        for bit in range(8):
            flip(path, offset, bit)
            said = said_by(sqlite_store(tmp_path))
            flip(path, offset, bit)
            # A row that has vanished is noticed by whoever knows that it was there; here: nothing is invented.
            assert said is None or said <= good, f"offset {offset}, bit {bit}"
            refused += said is None
    assert refused > 100


def said_by(store: SqliteStore) -> set[tuple[object, ...]] | None:
    """Return every number that ``open`` reports, or None when it refuses."""
    try:
        found = store.open()
    except StoreFailed:
        return None
    finally:
        store.close()
    said: set[tuple[object, ...]] = {(found.generation, found.last_commit_no, found.broker_ms)}
    for kind in (found.fragments, found.sources, found.tombstones):
        said |= {tuple(getattr(row, name) for name in row.__slots__) for row in kind}
    return said
