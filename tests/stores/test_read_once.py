"""What a deep backlog leaves in the system's cache: nothing that nobody reads again, and no lock is lost by that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_builders import Broker, payloads_of, sqlite_store

from duobus.stores import ahead, schema
from duobus.stores.interface import SourceRow
from duobus.stores.sqlite import SqliteStore

STRETCH = 8
SIZE = 100

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no way to be told")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    monkeypatch.setattr(schema, "STRETCH", STRETCH)
    monkeypatch.setattr(ahead, "FORGET_BYTES", 2 * STRETCH * SIZE)
    store = sqlite_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def source(store: SqliteStore) -> SourceRow:
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, [bytes(SIZE)] * STRETCH * 5)
    return source


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the system is told, as the real one is told it."""
    advice: list[int] = []
    real = os.posix_fadvise

    def noted(descriptor: int, offset: int, length: int, kind: int) -> None:
        advice.append(kind)
        real(descriptor, offset, length, kind)

    monkeypatch.setattr(os, "posix_fadvise", noted)
    return advice


def read(store: SqliteStore, source: SourceRow, first: int) -> None:
    (stretch,) = store.load_columns(source.source_key, first, STRETCH)
    plain = stretch.take(STRETCH)
    assert plain is not None
    assert list(plain.payloads) == [bytes(SIZE)] * STRETCH


def test_the_cache_is_told_to_forget_once_in_many_bytes(store: SqliteStore, source: SourceRow, told: list[int]) -> None:
    for index in range(5):
        read(store, source, 1 + index * STRETCH)
    assert told == [os.POSIX_FADV_DONTNEED] * 2
    assert payloads_of(store.load(source.source_key, 1, 100)) == [bytes(SIZE)] * STRETCH * 5


def test_the_driver_keeps_its_locks_and_the_descriptor_is_given_back(
    store: SqliteStore, source: SourceRow, told: list[int]
) -> None:
    open_before = _descriptors(store._path)
    for index in range(4):
        read(store, source, 1 + index * STRETCH)
    assert told
    assert _descriptors(store._path) == open_before + 2, "the reader's connection, and the one that tells the system"
    # Whoever else opens the file is kept from taking it over as if nobody had it.
    held = subprocess.run([sys.executable, "-c", _TRY, store._path], capture_output=True, text=True, check=True)
    assert held.stdout.strip() == "busy"
    store.close()
    assert _descriptors(store._path) == 0


_TRY = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=0)
db.execute("PRAGMA locking_mode=EXCLUSIVE")
try:
    db.execute("PRAGMA journal_mode=DELETE").fetchall()
    print("taken")
except sqlite3.OperationalError:
    print("busy")
"""


def _descriptors(path: str) -> int:
    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not tell what is open")
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += str(entry.readlink()) == path
        except FileNotFoundError:
            continue
    return found
