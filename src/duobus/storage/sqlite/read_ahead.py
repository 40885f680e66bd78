"""The connection of a SQLite store that reads a deep backlog, on another thread than the commits (decision 0013)."""

from __future__ import annotations

import threading
from typing import Final

import apsw

from duobus.storage.interface import PlainColumns
from duobus.storage.sqlite import column_pages as columns
from duobus.storage.sqlite.file import DRIVER_ERRORS, StoreOptions, close, connect

#: It meets each page once.
_CACHE_KIB: Final = 1024
#: Payload bytes read from one ``is_forgetting_due`` to the next: the pages freed meanwhile fill one trunk page.
FORGET_BYTES: Final = 16 << 20


class Ahead:
    """Reads columns beside the commits; made when it is first needed.

    Args:
        path: The database file.
        options: As the store's.
    """

    __slots__ = ("_db", "_is_open", "_lock", "_options", "_path", "_size")

    def __init__(self, path: str, options: StoreOptions) -> None:
        self._path = path
        self._options = options
        # Held while it reads: whoever closes the store waits for that.
        self._lock = threading.Lock()
        self._db: apsw.Connection | None = None
        self._is_open = False
        self._size = 0

    def open(self) -> None:
        """Allow reading; a VFS in the place of files has no room for a second connection."""
        with self._lock:
            self._is_open = self._options.vfs is None

    def read(self, source_key: int, first_count: int, limit: int) -> list[PlainColumns]:
        """See ``columns.read``; nothing when the store is not open, or the driver refuses."""
        with self._lock:
            if not self._is_open:
                return []
            try:
                if self._db is None:
                    self._db = connect(self._path, self._options, cache_kib=_CACHE_KIB)
                found = columns.read(self._db, source_key, first_count, limit)
            except DRIVER_ERRORS:
                # ``load`` on the writer's connection meets it as well, and is the one to say so.
                return []
            self._size += sum(sum(map(len, plain.payloads)) for plain in found)
            return found

    def is_forgetting_due(self) -> bool:
        """Whether so much was read since it last said so that freed pages are worth looking for."""
        if self._size < FORGET_BYTES:
            return False
        self._size = 0
        return True

    def close(self) -> None:
        """Allow no more reading until ``open``."""
        with self._lock:
            self._is_open = False
            close(self._db)
            self._db = None
