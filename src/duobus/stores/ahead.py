"""Reading a deep backlog on a connection of its own, beside the commits (decision 0013).

What was read is soon received and deleted, and not wanted from the system's page cache a second time. So the cache is
told to forget the file from time to time: a long backlog then goes through the same few pages of memory, where it would
take all that is free. On a guest of a hypervisor that is dear: memory which was free for a while belongs to the host
again, and to get it back took 2.2 us of processor time per KiB that was read, against 0.2 us (measured).
"""

from __future__ import annotations

import threading
from typing import Final

import apsw

from duobus.stores import columns
from duobus.stores.database import DRIVER_ERRORS, StoreFile, StoreOptions, connect
from duobus.stores.interface import Columns

#: Reading ahead meets each page once.
_CACHE_KIB: Final = 1024
#: Payload bytes between two times that the cache is told: a multiple of what is read and not deleted yet, since that
#: has to be read once more.
FORGET_BYTES: Final = 64 << 20


class ReadAhead:
    """The reading side of one SQLite store; another thread than the writer's may use it.

    Args:
        path: The database file.
        options: See StoreOptions.
        file: Its file.
    """

    __slots__ = ("_db", "_file", "_is_open", "_lock", "_options", "_path", "_read_bytes")

    def __init__(self, path: str, options: StoreOptions, file: StoreFile) -> None:
        self._path = path
        self._options = options
        self._file = file
        self._lock = threading.Lock()
        self._db: apsw.Connection | None = None
        self._is_open = False
        self._read_bytes = 0

    def open(self) -> None:
        """The store is open; the connection is made when it is wanted."""
        with self._lock:
            # Without shared memory nobody else gets in.
            self._is_open = self._options.vfs is None

    def read(self, source_key: int, first_count: int, limit: int) -> list[Columns]:
        """See ``columns.read``; empty when the store is not open, or the disk refuses."""
        with self._lock:
            if not self._is_open:
                return []
            try:
                if self._db is None:
                    self._db = connect(self._path, self._options, cache_kib=_CACHE_KIB)
                found: list[Columns] = list(columns.read(self._db, source_key, first_count, limit))
                self._read_bytes += sum(stretch.size for stretch in found)
                if self._read_bytes >= FORGET_BYTES:
                    self._read_bytes = 0
                    self._file.forget_cached()
            except DRIVER_ERRORS:
                # ``load`` on the writer's connection meets it as well, and is the one to say so.
                return []
        return found

    def close(self) -> None:
        """Give the connection back; nothing is read until ``open``."""
        with self._lock:
            self._is_open = False
            self._read_bytes = 0
            db, self._db = self._db, None
            if db is None:
                return
            try:
                db.close(True)
            except apsw.Error:
                # It is closed all the same.
                return
