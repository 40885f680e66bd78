"""The SQLite file of an outbox, and the thread that writes it: many waiting operations become one commit, one fsync."""

from __future__ import annotations

import os
import queue
import sqlite3
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from duobus.file_sync import SQLITE_SETTINGS, sync_folder
from duobus.ha.errors import OutboxFailed
from duobus.ha.outbox.message import Packed

FORMAT: Final = 1
#: Operations of one commit. What is behind them joins the next one.
COMMIT_OPERATIONS_MAX: Final = 1_000
#: Seconds that opening waits for another process that closes the file.
OPEN_S: Final = 1.0

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS messages(
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, size INTEGER NOT NULL, stored_ms INTEGER NOT NULL,
    checksum INTEGER NOT NULL, head BLOB NOT NULL, data BLOB NOT NULL, reason TEXT
);
CREATE INDEX IF NOT EXISTS set_aside ON messages(number) WHERE reason IS NOT NULL;
"""

T = TypeVar("T")


class _Operation(NamedTuple):
    """What a commit does, and who hears of it, all in the thread of the file."""

    act: Callable[[sqlite3.Connection], Any]
    #: Called after the commit, in the order of operations and before the future is done; with an error, or None.
    then: Callable[[Any, Exception | None], None]
    future: Future[Any]


class Waiting(NamedTuple):
    """A message that is stored, as far as the plan needs it."""

    number: int
    key: str
    size: int


class SetAside(NamedTuple):
    """A message that the namespace will not take; it stays until it is tried again or discarded."""

    number: int
    reason: str
    size: int
    stored_ms: int


class OutboxFile:
    """Rows of messages in a file that this process alone has open.

    Every method but ``close`` returns at once; its future is done, in the thread of the file, when what it did is on
    disk.

    Args:
        path: The file; made if missing, readable by its owner only.

    Raises:
        OutboxFailed: It cannot be opened: another process has it, it belongs to another user, it is a link, it is of a
            newer version.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._todo: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._fault: Exception | None = None
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="duobus outbox", daemon=True)
        self._thread.start()
        try:
            opened.result()
        except (sqlite3.Error, OSError) as error:
            held = "another process has it open" if "locked" in str(error) else str(error)
            raise OutboxFailed(f"{path} cannot be opened: {held}.") from error

    def append(
        self, messages: Sequence[Packed], now_ms: int, then: Callable[[list[Waiting] | None, Exception | None], None]
    ) -> Future[list[Waiting]]:
        """Store messages, all or none; ``then`` hears of them in their order, before the future is done."""

        def store(database: sqlite3.Connection) -> list[Waiting]:
            stored = []
            for packed in messages:
                row = (packed.key, packed.size, now_ms, _checksum(packed.head, packed.data), packed.head, packed.data)
                cursor = database.execute(
                    "INSERT INTO messages(key, size, stored_ms, checksum, head, data) VALUES (?, ?, ?, ?, ?, ?)", row
                )
                assert cursor.lastrowid is not None
                stored.append(Waiting(cursor.lastrowid, packed.key, packed.size))
            return stored

        return self.submit(store, then)

    def read(self, numbers: Iterable[int]) -> Future[list[tuple[int, bytes, bytes] | int]]:
        """Return number, head and data of messages; of one that is damaged or gone, the number alone."""
        wanted = list(numbers)

        def load(database: sqlite3.Connection) -> list[tuple[int, bytes, bytes] | int]:
            found: list[tuple[int, bytes, bytes] | int] = []
            for number in wanted:
                row = database.execute(
                    "SELECT checksum, head, data FROM messages WHERE number = ?", (number,)
                ).fetchone()
                is_there = row is not None and isinstance(row[1], bytes) and isinstance(row[2], bytes)
                is_whole = is_there and _checksum(row[1], row[2]) == row[0]
                found.append((number, row[1], row[2]) if is_whole else number)
            return found

        return self.submit(load)

    def remove(
        self, numbers: Iterable[int], then: Callable[[None, Exception | None], None] = lambda _, __: None
    ) -> Future[None]:
        """Take messages out; ``then`` hears of it before the future is done."""
        rows = [(number,) for number in numbers]

        def delete(database: sqlite3.Connection) -> None:
            database.executemany("DELETE FROM messages WHERE number = ?", rows)

        return self.submit(delete, then)

    def set_aside(self, numbers: Iterable[int], reason: str) -> Future[None]:
        """Note that messages are not to be sent, and why."""
        rows = [(reason, number) for number in numbers]

        def note(database: sqlite3.Connection) -> None:
            database.executemany("UPDATE messages SET reason = ? WHERE number = ?", rows)

        return self.submit(note)

    def move_behind(self, numbers: Iterable[int]) -> Future[list[Waiting]]:
        """Give messages that are set aside new numbers, behind all others, to be sent."""
        wanted = list(numbers)

        def move(database: sqlite3.Connection) -> list[Waiting]:
            moved = []
            for number in wanted:
                cursor = database.execute(
                    "INSERT INTO messages(key, size, stored_ms, checksum, head, data) "
                    "SELECT key, size, stored_ms, checksum, head, data FROM messages WHERE number = ?",
                    (number,),
                )
                found = database.execute("SELECT number, key, size FROM messages WHERE number = ?", (cursor.lastrowid,))
                moved.append(Waiting(*found.fetchone()))
                database.execute("DELETE FROM messages WHERE number = ?", (number,))
            return moved

        return self.submit(move)

    def waiting(self) -> Future[list[Waiting]]:
        """All that is to be sent, in order."""
        statement = "SELECT number, key, size FROM messages WHERE reason IS NULL ORDER BY number"
        return self.submit(lambda database: [Waiting(*row) for row in database.execute(statement)])

    def are_set_aside(self) -> Future[list[SetAside]]:
        """All that is set aside, in order."""
        statement = "SELECT number, reason, size, stored_ms FROM messages WHERE reason IS NOT NULL ORDER BY number"
        return self.submit(lambda database: [SetAside(*row) for row in database.execute(statement)])

    def submit(
        self,
        act: Callable[[sqlite3.Connection], T],
        then: Callable[[T | None, Exception | None], None] = lambda _, __: None,
    ) -> Future[T]:
        """Do something in the next commit.

        Raises:
            OutboxFailed: The file is closed, or an earlier error of the disk has made it unusable.
        """
        future: Future[T] = Future()
        # Cancelling would leave the caller in doubt and spare nothing.
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_closed:
                raise OutboxFailed(f"{self._path} is closed.") from self._fault
            self._todo.put(_Operation(act, then, future))
        return future

    def close(self) -> None:
        """Do what waits, then close the file."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._todo.put(None)
        self._thread.join()

    def _run(self, opened: Future[None]) -> None:
        try:
            database = _open(self._path)
        except BaseException as error:  # noqa: BLE001 - it is raised where the file was to be opened
            self._is_closed = True
            opened.set_exception(error)
            return
        opened.set_result(None)
        try:
            while (first := self._todo.get()) is not None:
                batch = [first]
                is_last = False
                while len(batch) < COMMIT_OPERATIONS_MAX and not is_last:
                    try:
                        item = self._todo.get_nowait()
                    except queue.Empty:
                        break
                    is_last = item is None
                    if item is not None:
                        batch.append(item)
                self._commit(database, batch)
                if is_last:
                    break
        finally:
            database.close()

    def _commit(self, database: sqlite3.Connection, batch: list[_Operation]) -> None:
        """Do all or nothing, and answer when it is on disk."""
        if self._fault is not None:
            self._refuse(batch, self._fault)
            return
        try:
            database.execute("BEGIN IMMEDIATE")
            answers = [operation.act(database) for operation in batch]
            database.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - all callers hear of it
            self._on_error(database, error)
            self._refuse(batch, error)
            return
        for operation, answer in zip(batch, answers, strict=True):
            operation.then(answer, None)
            operation.future.set_result(answer)

    def _on_error(self, database: sqlite3.Connection, error: Exception) -> None:
        """Give up the transaction; after anything but a full disk give up the file, as what is on it is not known."""
        try:
            if database.in_transaction:
                database.execute("ROLLBACK")
        except sqlite3.Error:
            self._fault = error
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
            self._fault = error
        if self._fault is not None:
            with self._lock:
                self._is_closed = True
                self._todo.put(None)

    def _refuse(self, batch: list[_Operation], error: Exception) -> None:
        for operation in batch:
            refusal = OutboxFailed(f"{self._path}: {error}")
            refusal.__cause__ = error
            operation.then(None, refusal)
            operation.future.set_exception(refusal)


def _open(path: Path) -> sqlite3.Connection:
    """Open the file for this process alone.

    Raises:
        OSError, sqlite3.Error: It cannot be.
    """
    # A link, or the file of another user, may lead the messages anywhere; the mode keeps them from others. A file that
    # is there is not opened to look at it: closing it again would give up the locks that this process has on it.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not a file of this user") from None
    else:
        os.close(descriptor)
    database = sqlite3.connect(path, isolation_level=None, timeout=OPEN_S)
    try:
        # Before the first statement that reads, so that the lock is taken for good.
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        for setting in SQLITE_SETTINGS:
            database.execute(f"PRAGMA {setting}")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > FORMAT:
            raise sqlite3.DatabaseError(f"it has format {version}; this version of duobus reads up to {FORMAT}")
        database.execute("BEGIN EXCLUSIVE")
        for statement in _CREATE.split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version={FORMAT}")
        database.execute("COMMIT")
        # SQLite syncs the folder for its log, but not for a file that is new.
        sync_folder(path.parent)
    except BaseException:
        database.close()
        raise
    return database


def _checksum(head: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(head))
