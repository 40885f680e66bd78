"""The SQLite file under a store: opening it the safe way, keeping others out, and naming what went wrong.

How a store is opened, and why:

* WAL with ``synchronous=FULL``: a commit that has returned is on disk. NORMAL lost up to 823 acknowledged
  messages in a power cut, FULL none.
* Normal locking mode, because checkpoints run on a connection of their own, which exclusive mode would not
  let in. Instead a ``flock`` on ``<file>.lock`` keeps a second process out; exclusive mode measured 3 % faster.
* The log's index in this process's memory, which its connections share, and not in a ``-shm`` file that is mapped:
  where the file system finds no room for a page of that, the process ends by SIGBUS (decision 0037).
* No automatic checkpoints and none at close: SQLite would put them inside a commit, or run one on a file
  that has just failed an fsync.
* At open, the whole log is copied into the database file, synced, and cut to nothing. After a refused fsync
  the kernel may hold pages that it calls clean and that never reached the disk; whatever is read back from
  them is thereby written once more before anyone relies on it (L3).
* SQLite never makes the file, and never sees one without a page in the place of a store that has existed: beside such
  a file it deletes the log, and with it whatever was acknowledged and had not been copied home.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Final

import apsw

from duobus.errors import StoreFailed, StoreTooNew
from duobus.file_sync import SQLITE_SETTINGS, begun_ahead, sync_data, sync_folder
from duobus.storage.interface import FORMAT_VERSION, FORMAT_VERSION_MIN, JOURNAL_VERSION
from duobus.storage.sqlite.free_pages import forget
from duobus.storage.sqlite.schema import APPLICATION_ID

#: SQLite's own files, but the log's index in memory: for the connections of one process. No other can open the file.
VFS: Final = "unix-excl"
#: 8 KiB holds seven rows of 1 KiB: 236,000 rows/s at commits of 100, against 216,000 with 4 KiB and 192,000
#: with 16 KiB, where a commit of one message writes too much (medians, inserted and deleted).
PAGE_SIZE = 8192
_CACHE_KIB = 16 * 1024
#: What a restarted log is cut back to; a passing peak must not occupy the disk for ever.
_LOG_LIMIT_BYTES = 64 * 1024 * 1024
#: Prepared statements kept: five of variable length times 50, and the fixed ones.
_STATEMENT_CACHE = 300
_BUSY_MS = 2000

DRIVER_ERRORS = (apsw.Error, OSError, UnicodeDecodeError)
#: What SQLite says of pages that do not belong together.
DAMAGED = (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError)

#: First match wins; the texts say what to do.
_ERROR_TEXTS: tuple[tuple[type[BaseException], str], ...] = (
    (apsw.FullError, "the disk is full; free space, then the store is reopened"),
    (apsw.IOError, "the disk refused to read, write or sync; see the system's log"),
    (apsw.CorruptError, "the file is damaged; verify it and restore what is lost"),
    (apsw.NotADBError, "the file is no database or its first page is damaged; restore it"),
    (UnicodeDecodeError, "the file is damaged; verify it and restore what is lost"),
    (apsw.CantOpenError, "the file cannot be opened; check path and permissions"),
    (apsw.ReadOnlyError, "the file or its file system is read-only"),
    (apsw.PermissionsError, "access was refused; check permissions"),
    (apsw.BusyError, "the file is in use by somebody else"),
    (apsw.LockedError, "the file is in use by somebody else"),
    (apsw.ProtocolError, "the file is in use by somebody else"),
    (apsw.NoMemError, "memory is exhausted"),
    (apsw.ConstraintError, "the rows contradict what is stored; this is a fault of the broker"),
    (OSError, "the operating system refused"),
)


def store_failed(path: str, doing: str, error: BaseException) -> StoreFailed:
    """Return the one exception that leaves a store, with path, what was done, why, and the driver's words."""
    advice = next((text for kind, text in _ERROR_TEXTS if isinstance(error, kind)), "the database refused")
    code = getattr(error, "extendedresult", None)
    name = f" [{apsw.mapping_extended_result_codes.get(code, code)}]" if code is not None else ""
    return StoreFailed(f"{path}: could not {doing}: {advice} ({error}{name})")


class StoreOptions:
    """What only tests and unusual installations set.

    Attributes:
        unsafe_no_sync: ``synchronous=NORMAL``: a commit returns before it is on disk, and a power cut loses
            acknowledged messages. Never for anyone's data.
        max_pages: Largest number of pages the file may have; 0 for no limit.
        vfs: Name of a registered SQLite VFS in place of the operating system's files. It must give one
            process exclusive use by itself: there is no lock file and no connection for checkpoints.
    """

    __slots__ = ("max_pages", "unsafe_no_sync", "vfs")

    def __init__(self, *, unsafe_no_sync: bool = False, max_pages: int = 0, vfs: str | None = None) -> None:
        self.unsafe_no_sync = unsafe_no_sync
        self.max_pages = max_pages
        self.vfs = vfs


class StoreFile:
    """Folder, lock and identity of a store's file; absent (all methods no-ops) under a VFS.

    Args:
        path: The database file; ``-wal`` and ``.lock`` lie beside it.
        is_virtual: Whether a VFS keeps the file.
    """

    def __init__(self, path: str, *, is_virtual: bool) -> None:
        self._path = Path(path)
        self._name = path
        self._is_virtual = is_virtual
        self._lock: int | None = None
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None

    def prepare(self, *, must_exist: bool) -> None:
        """Make sure that the file exists, is private (0600 in a folder of 0700) and that nobody else has it.

        Raises:
            StoreFailed: It is missing although it must exist, or another process has it open.
            OSError: The operating system refused.
        """
        if self._is_virtual:
            return
        self._demand(must_exist=must_exist)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_lock()
        self._demand(must_exist=must_exist)
        if not must_exist:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        # What is wrong with it, SQLite says better.
        with suppress(OSError):
            # Open as long as SQLite has it: to close a file takes away all locks on it that this process has.
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        for folder in (self._path.parent, self._path.parent.parent):
            sync_folder(folder)
        self._identity = self._stat()

    def check_identity(self) -> None:
        """Raise StoreFailed when the file that is open is no longer the one at its path."""
        if self._identity is not None and self._stat() != self._identity:
            raise StoreFailed(
                f"{self._path}: the store's file was moved, removed or replaced while in use; put it back"
            )

    def sizes(self) -> tuple[int, int | None]:
        """Return the bytes of the files and the bytes free on their disk."""
        if self._is_virtual:
            return 0, None
        used = 0
        for suffix in ("", "-wal"):
            try:
                used += os.stat(f"{self._path}{suffix}").st_size  # noqa: PTH116 - no Path per call, once a second
            except FileNotFoundError:
                continue
        disk = os.statvfs(self._path.parent)
        return used, disk.f_bavail * disk.f_frsize

    def release_free_pages(self) -> None:
        """See ``freed.forget``; called by the thread of the checkpoints."""
        if self._file is not None:
            forget(self._file)

    def sync_begun_ahead(self) -> AbstractContextManager[None]:
        """See ``file_sync.begun_ahead``; around a pass that copies the log home."""
        return nullcontext() if self._file is None else begun_ahead(self._file)

    def sync_copied(self) -> None:
        """Make the database durable as it is now; called by the thread of the checkpoints.

        Raises:
            OSError: The disk refused.
        """
        if self._file is not None:
            sync_data(self._file)

    def remove_index(self) -> None:
        """Remove the log's index that an earlier version kept in a file; called when SQLite has locked the store."""
        if not self._is_virtual:
            # It is of no use, and does no harm.
            with suppress(OSError):
                Path(f"{os.path.realpath(self._path)}-shm").unlink(missing_ok=True)

    def release(self) -> None:
        """Let others have the store, of which all connections are closed; harmless when nothing is held."""
        self._identity = None
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _demand(self, *, must_exist: bool) -> None:
        if not must_exist:
            return
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            raise StoreFailed(
                f"{self._path}: the store's file is missing; put it back, or declare the store lost."
                " It is never created anew by itself"
            ) from None
        if not size:
            raise empty_file(str(self._path))

    def _stat(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self._name)  # noqa: PTH116 - no Path per commit
        except FileNotFoundError:
            return None
        return stat.st_dev, stat.st_ino

    def _take_lock(self) -> None:
        # The lock file is never removed: whoever locks a file that another process unlinks locks nothing.
        lock = os.open(f"{self._path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StoreFailed(f"{self._path}: another process has this store open; one store has one owner") from None
        self._lock = lock


def empty_file(path: str) -> StoreFailed:
    """What to raise when a store that has existed has a file with nothing in it."""
    return StoreFailed(f"{path}: the store's file is empty; put it back, or declare the store lost")


def connect(path: str, options: StoreOptions, *, cache_kib: int = _CACHE_KIB) -> apsw.Connection:
    """Return a connection with every setting that safety and speed need; nothing is written yet, and no file made."""
    flags = apsw.SQLITE_OPEN_READWRITE
    if options.vfs is not None:
        flags |= apsw.SQLITE_OPEN_CREATE
    db = apsw.Connection(path, flags, vfs=options.vfs or VFS, statementcachesize=_STATEMENT_CACHE)
    try:
        _set_up(db, options, cache_kib)
    except BaseException:
        # Others would share its index of a log that may be another by then.
        close(db)
        raise
    return db


def _set_up(db: apsw.Connection, options: StoreOptions, cache_kib: int) -> None:
    db.set_busy_timeout(_BUSY_MS)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    if options.vfs is not None:
        # Without shared memory there is no other way to use WAL.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
    for setting in (
        f"page_size={PAGE_SIZE}",
        f"synchronous={'NORMAL' if options.unsafe_no_sync else 'FULL'}",
        *SQLITE_SETTINGS,
        "wal_autocheckpoint=0",
        f"cache_size=-{cache_kib}",
        "mmap_size=0",
        "temp_store=MEMORY",
        "trusted_schema=OFF",
        "cell_size_check=ON",
    ):
        db.execute(f"PRAGMA {setting}")


def check_format(db: apsw.Connection, path: str, *, must_exist: bool, has_journal: bool = False) -> bool:
    """Return whether the file holds a store that we can read; False: it is empty and may become one.

    Raises:
        StoreTooNew: A newer version wrote it (I65); nothing was touched.
        StoreFailed: It is something else, or empty although it must not be, or it has a journal beside it, which only
            who says ``has_journal`` knows of.
    """
    version = int(db.pragma("user_version"))
    application_id = int(db.pragma("application_id")) & 0xFFFFFFFF
    is_empty = version == 0 and db.execute("SELECT count(*) FROM sqlite_master").get == 0
    if is_empty and must_exist:
        raise empty_file(path)
    if is_empty:
        return False
    if application_id != APPLICATION_ID:
        raise StoreFailed(f"{path}: the file is not a messaging store of duobus, or its first page is damaged")
    if version == JOURNAL_VERSION:
        if has_journal:
            return True
        raise StoreFailed(
            f"{path}: the store was not closed in order, and its journal holds messages that this file lacks; start the"
            " server and stop it again, which brings them over"
        )
    if version > FORMAT_VERSION:
        raise StoreTooNew(
            f"{path}: the store has format {version}, this version reads up to {FORMAT_VERSION};"
            " use the version of duobus that wrote it"
        )
    if version < FORMAT_VERSION_MIN:
        raise StoreFailed(f"{path}: the store has the unknown format {version}; its first page is damaged")
    return True


def use_log(db: apsw.Connection, options: StoreOptions) -> None:
    """Switch to the write-ahead log (writes to a new file only) and set what depends on it."""
    mode = db.pragma("journal_mode", "wal")
    if mode != "wal":
        raise StoreFailed(f"{db.filename}: the file system cannot keep a write-ahead log (journal mode {mode})")
    db.pragma("journal_size_limit", _LOG_LIMIT_BYTES)
    if options.max_pages:
        db.pragma("max_page_count", options.max_pages)


def empty_log(db: apsw.Connection) -> None:
    """Copy the whole log home, sync, and cut it to nothing."""
    busy, _, _ = next(db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
    if busy:
        raise StoreFailed(f"{db.filename}: the log could not be emptied: the file is in use by somebody else")


def close(db: apsw.Connection | None) -> None:
    """Close a connection; an open transaction is rolled back by that."""
    if db is None:
        return
    try:
        db.close(True)
    except apsw.Error:
        # It is closed all the same; the error is the one that brought us here, or about to be found at open.
        return
