"""Messages that a receiver has seen: a durable, bounded window of message ids (IN8, IN10, TL12; invariant I51).

The broker promises each message at least once, and a message that was sent to two namespaces comes twice. A receiver
that must not work twice on a message keeps the ids of messages whose work is done. An id is recorded *after* the work:
a crash in between repeats the work rather than losing it, so the effect of the work has to be idempotent, or in the
same transaction as the record.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from duobus.file_sync import SQLITE_SETTINGS, sync_folder

#: Ids that are remembered unless another number is given: some 100 MB on disk.
WINDOW_DEFAULT: Final = 1_000_000
WINDOW_MAX: Final = 100_000_000
#: An id as long as Service Bus allows.
ID_LENGTH_MAX: Final = 128
FORMAT: Final = 1
#: ``PRAGMA synchronous`` of a record that is on disk when its commit returns.
_FULL: Final = 2

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS seen(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, result BLOB);
"""


class SeenMessages:
    """The newest ``window`` ids of messages whose work is done, on disk.

    Every record is on disk (fsync) when the call returns. Several processes of one user of one machine may share the
    file. Other users cannot read the file, because ids and results say what its owner works on.

    Args:
        path: The file; made if missing, and readable by its owner only.
        window: Ids that are remembered; older ones are forgotten. 1 to 100,000,000.

    Raises:
        ValueError: A window out of range, or a file of a newer version.
        PermissionError: The file, or one that SQLite keeps beside it, is a link, or belongs to another user.
    """

    def __init__(self, path: Path, window: int = WINDOW_DEFAULT) -> None:
        if not 1 <= window <= WINDOW_MAX:
            raise ValueError(f"window has to be 1 to {WINDOW_MAX:,}, not {window:,}")
        self._window = window
        path = Path(path)
        _make_private(path)
        self._database = sqlite3.connect(path, isolation_level=None)
        try:
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(f"PRAGMA synchronous={_FULL}")
            for setting in SQLITE_SETTINGS:
                self._database.execute(f"PRAGMA {setting}")
            self._demand_sync()
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version > FORMAT:
                raise ValueError(f"{path} has format {version}; this version of duobus reads up to {FORMAT}.")
            self._database.executescript(_CREATE)
            self._database.execute(f"PRAGMA user_version={FORMAT}")
            sync_folder(path.parent)
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __len__(self) -> int:
        (number,) = self._database.execute("SELECT count(*) FROM seen").fetchone()
        return int(number)

    def __contains__(self, message_id: str) -> bool:
        return self._database.execute("SELECT 1 FROM seen WHERE id = ?", (message_id,)).fetchone() is not None

    def result(self, message_id: str) -> bytes | None:
        """The result that was recorded with an id; None without a result, or when the id was not recorded."""
        row = self._database.execute("SELECT result FROM seen WHERE id = ?", (message_id,)).fetchone()
        return None if row is None else row[0]

    def record(self, message_id: str, result: bytes | None = None) -> None:
        """Remember an id and the result of its work; both are on disk when this returns."""
        self.record_all([(message_id, result)])

    def record_all(self, done: Iterable[tuple[str, bytes | None]]) -> None:
        """Remember many ids, in one sync. An id that is there already keeps its first result.

        Raises:
            ValueError: An id that is empty or longer than 128 characters; nothing is remembered.
        """
        rows = list(done)
        for message_id, _ in rows:
            if not 0 < len(message_id) <= ID_LENGTH_MAX:
                raise ValueError(f"a message id has 1 to {ID_LENGTH_MAX} characters, not {len(message_id)}")
        self._database.execute("BEGIN IMMEDIATE")
        try:
            # Not OR IGNORE: that uses a number up for what it ignores, and the window is counted in numbers.
            self._database.executemany(
                "INSERT INTO seen(id, result) SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM seen WHERE id = ?1)", rows
            )
            self._database.execute(
                "DELETE FROM seen WHERE number <= (SELECT max(number) FROM seen) - ?", (self._window,)
            )
            # In the transaction, where it cannot change any more: this is how the commit will be.
            self._demand_sync()
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def _demand_sync(self) -> None:
        (synchronous,) = self._database.execute("PRAGMA synchronous").fetchone()
        if synchronous != _FULL:
            raise sqlite3.OperationalError(
                f"synchronous is {synchronous} instead of {_FULL}: a record would not be on disk when the call returns"
            )


def _make_private(path: Path) -> None:
    """Make the file if it is missing; make sure that it is ours and that others cannot read it.

    Raises:
        PermissionError: It is a link, or it belongs to another user.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Not opened to look at it: closing it again would give up the locks that this process has on it.
        for there in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
            with contextlib.suppress(FileNotFoundError):
                _demand_private(there)


def _demand_private(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path} is a link, or not a file of this user. Name another file, or remove it.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o600)  # An earlier version left it readable.
