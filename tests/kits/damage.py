"""What is done to the file of a store to damage it, and what such a store still gives back."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from duobus.errors import StoreFailed
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import as_tuples

Message = tuple[int, int, int, int, bytes, bytes | None]


class Found:
    """What a damaged store gave back."""

    def __init__(self, store: SqliteStore) -> None:
        self.loaded: list[Message] = []
        self.scanned: list[Message] = []
        self.is_caught = False
        try:
            store.open()
            self.loaded = as_tuples(store.load(1, 1, 100))
            self.scanned = as_tuples(store.scan(1, 2, 1, 100))
            self.is_caught = bool(store.quarantined()) or bool(store.verify())
        except StoreFailed:
            self.is_caught = True
        finally:
            store.close()


def flip(path: Path, offset: int, bit: int) -> None:
    fd = os.open(path, os.O_RDWR)
    (byte,) = os.pread(fd, 1, offset)
    os.pwrite(fd, bytes([byte ^ 1 << bit]), offset)
    os.close(fd)


def used_part(path: Path, table: str) -> list[int]:
    """Return the offsets of the bytes in use of a one-page table or index."""
    db = sqlite3.connect(path)
    (page_size,) = db.execute("PRAGMA page_size").fetchone()
    (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    db.close()
    start = (root - 1) * page_size
    page = path.read_bytes()[start : start + page_size]
    assert page[0] in (10, 13), "the test needs a tree of one page"
    cells, content = int.from_bytes(page[3:5], "big"), int.from_bytes(page[5:7], "big")
    return [start + i for i in (*range(8 + 2 * cells), *range(content, page_size))]
