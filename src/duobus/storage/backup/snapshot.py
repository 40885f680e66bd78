"""Snapshot: one messaging store as it was at one instant, copied while commits go on.

A connection of its own opens a read transaction: from then on it sees that instant, whatever is committed beside it.
SQLite's backup copies what that connection sees, in steps, and never has to start again, because nothing changes there.
Meanwhile the store's log cannot start afresh, so it grows by all that is written: whoever copies looks at that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from duobus.storage.backup.manifest import StoreState, sync_file
from duobus.storage.interface import FORMAT_VERSION, JOURNAL_VERSION
from duobus.storage.sqlite import rows
from duobus.storage.sqlite.file import DRIVER_ERRORS, StoreOptions, check_format, close, connect, store_failed

#: Pages copied in one step, 2 MiB: a few milliseconds, after which others have the disk.
_STEP_PAGES: Final = 256
#: Each page is met once.
_CACHE_KIB: Final = 1024
#: Bytes after which what was copied is synced. The rest of one long sync would be in the way of the commits'.
_SYNC_BYTES: Final = 16 << 20


class Snapshot:
    """A store's file at one instant.

    Args:
        path: The store's file, which has to exist; whoever owns the store keeps it open, or nobody does.
        has_journal: There may be a journal beside the file, all of which its owner brings over before ``pin``.

    Raises:
        StoreFailed: It cannot be opened, or is no store.
        StoreTooNew: A newer version wrote it.
    """

    def __init__(self, path: Path, *, has_journal: bool = False) -> None:
        self._path = str(path)
        self._db: apsw.Connection | None = None
        try:
            self._db = connect(self._path, StoreOptions(), cache_kib=_CACHE_KIB)
            check_format(self._db, self._path, must_exist=True, has_journal=has_journal)
        except DRIVER_ERRORS as error:
            self.close()
            raise store_failed(self._path, "open the store for a backup", error) from error
        except BaseException:
            self.close()
            raise

    def pin(self) -> None:
        """See the store as it is now, and nothing later, until ``close``; pinning again gives the first one up."""
        try:
            db = self._opened()
            if db.in_transaction:
                db.execute("ROLLBACK")
            db.execute("BEGIN")
            # The transaction begins with the first read.
            db.pragma("user_version")
            db.execute("SELECT last_commit_no FROM meta").fetchall()
        except DRIVER_ERRORS as error:
            raise store_failed(self._path, "read for a backup", error) from error

    def sizes(self) -> tuple[int, int]:
        """Return the bytes that a copy will have, and the bytes that the store's log has now."""
        try:
            db = self._opened()
            size = int(db.pragma("page_count")) * int(db.pragma("page_size"))
            log = Path(f"{self._path}-wal")
            return size, log.stat().st_size if log.exists() else 0
        except DRIVER_ERRORS as error:
            raise store_failed(self._path, "read for a backup", error) from error

    def state(self) -> StoreState:
        """Return how far the store had come."""
        try:
            db = self._opened()
            version = int(db.pragma("user_version"))
            meta = rows.read_meta(db, self._path, version)
        except DRIVER_ERRORS as error:
            raise store_failed(self._path, "read for a backup", error) from error
        # No journal is part of a backup.
        version = FORMAT_VERSION if version == JOURNAL_VERSION else version
        return StoreState(meta.store_id, version, meta.generation, meta.last_commit_no, meta.broker_ms, meta.rows)

    def copy(self, target: Path) -> Iterator[int]:
        """Copy to a new file, durable at the end; yields the bytes copied, after each step."""
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        try:
            copy = apsw.Connection(str(target))
            try:
                # A half copy is no copy, so nothing has to be undone in it.
                copy.pragma("journal_mode", "off")
                copy.pragma("synchronous", "off")
                yield from self._steps(copy, target)
                if int(copy.pragma("user_version")) == JOURNAL_VERSION:
                    copy.pragma("user_version", FORMAT_VERSION)
            finally:
                close(copy)
            sync_file(target)
        except DRIVER_ERRORS as error:
            raise store_failed(self._path, f"be copied to {target}", error) from error

    def _steps(self, copy: apsw.Connection, target: Path) -> Iterator[int]:
        db = self._opened()
        page_size = int(db.pragma("page_size"))
        unsynced = 0
        with copy.backup("main", db, "main") as backup:
            while not backup.done:
                backup.step(_STEP_PAGES)
                unsynced += _STEP_PAGES * page_size
                if unsynced >= _SYNC_BYTES:
                    sync_file(target)
                    unsynced = 0
                yield (backup.page_count - backup.remaining) * page_size

    @property
    def is_closed(self) -> bool:
        """Whether it was given up, or is done with."""
        return self._db is None

    def close(self) -> None:
        """Let the store's log start afresh; never raises, and may be called again."""
        db, self._db = self._db, None
        close(db)

    def _opened(self) -> apsw.Connection:
        if self._db is None:
            raise apsw.ConnectionClosedError("the snapshot was given up")
        return self._db
