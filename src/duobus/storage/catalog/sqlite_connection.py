"""CatalogConnection: a connection to the catalog whose changes never stand in its write-ahead log alone.

The catalog changes seldom, so each change is copied home before it is answered: a log that is removed or replaced later
takes nothing with it. SQLite would replay another log that it finds beside the file, though, as an older copy of this
one, and would not notice an older copy of the file. So every change counts ``user_version`` up, and the mark beside the
file (``log_watch.py``) says how far it had come.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import apsw

from duobus.errors import StoreFailed
from duobus.storage.sqlite.log_watch import Mark, MarkFile, put_aside, read_mark


class CatalogConnection(apsw.Connection):
    """Counts, copies home and marks what was changed in ``with`` blocks, at the end of the outermost.

    Args:
        path: The catalog's file, which exists.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), apsw.SQLITE_OPEN_READWRITE)
        # It would replay another's log into a catalog that is refused.
        self.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._name = os.path.realpath(path)
        self._log_name = f"{self._name}-wal"
        self._mark = MarkFile(self._name)
        self._identity = _identity(self._name)
        self._log_identity: tuple[int, int] | None = None
        self._depth = 0
        self._changes = 0
        #: Whether its log is no longer the one that another process would find: it has to be opened again.
        self.has_lost_log = False

    def demand_own(self) -> None:
        """Refuse a catalog that is older than what was committed; nothing was written yet.

        Raises:
            StoreFailed: It is.
        """
        steps = int(self.pragma("user_version"))
        mark = read_mark(self._name)
        if mark is not None and steps < mark.steps:
            raise StoreFailed(
                f"{self._name}: the catalog or its log ({self._log_name}) is older than what was committed to it"
                f" (change {steps} of {mark.steps}): another copy was put in its place. Put back what was there"
            )
        self._log_identity = _identity(self._log_name)

    def settle(self) -> None:
        """Copy home what a server that was killed has left in the log: from now on people see it.

        After a power cut the mark may be behind, too.
        """
        steps = int(self.pragma("user_version"))
        mark = read_mark(self._name)
        with suppress(FileNotFoundError):
            if os.stat(self._log_name).st_size or (mark is not None and mark.steps < steps):  # noqa: PTH116 - as below
                self._bring_home(steps)

    def __enter__(self) -> Self:
        if not self._depth:
            self._changes = self.total_changes()
        super().__enter__()
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._depth -= 1
        steps = 0
        if not self._depth and kind is None and self.total_changes() != self._changes:
            steps = int(self.pragma("user_version")) + 1
            self.execute(f"PRAGMA user_version={steps}")
        result = super().__exit__(kind, error, trace)
        if steps:
            self._bring_home(steps)
        return result

    def _bring_home(self, steps: int) -> None:
        if _identity(self._name) != self._identity:
            raise FileNotFoundError("its file was moved, removed or replaced while in use; put it back")
        busy, _, _ = next(self.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
        if busy:
            raise OSError("its log could not be copied home: the file is in use by somebody else")
        self._mark.write(Mark(False, steps, 0))
        if self._log_identity is None:
            self._log_identity = _identity(self._log_name)
        elif _identity(self._log_name) != self._log_identity:
            # What it holds is home. Another's must not be replayed at the next open.
            put_aside(self._log_name)
            self.has_lost_log = True

    def close(self, force: bool = False) -> None:
        """Close the connection, and its mark."""
        super().close(force)
        self._mark.close()


def _identity(name: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(name)  # noqa: PTH116 - as the functions of log_watch.py
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino
