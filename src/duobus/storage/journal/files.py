"""The calls to the operating system that a journal makes, in one place: a simulated disk can stand in for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from duobus.file_sync import sync_data, sync_file, sync_folder

#: Between the name of the database and the number of a segment's file.
SUFFIX: Final = "-journal."
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


def is_no_room(error: BaseException) -> bool:
    """Whether the disk refused something because it is full."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


@contextmanager
def suppress_no_room() -> Iterator[None]:
    """Pass over what a full disk does not take."""
    try:
        yield
    except OSError as error:
        if not is_no_room(error):
            raise


class JournalFiles:
    """The files of a journal where the operating system keeps them.

    Every method raises OSError where the system refuses.

    Attributes:
        write: Called with a file, buffers and an offset, writes the buffers one behind the other there; returns how
            many bytes the disk took.
        sync: Called with a file, has the disk keep what was written over bytes that the file had already.
    """

    # Each commit makes these two calls, so they are the system's own.
    write: Callable[[int, Sequence[bytes], int], int] = staticmethod(os.pwritev)
    sync: Callable[[int], None] = staticmethod(sync_data)

    def names(self, path: str) -> list[str]:
        """Return the segments' files beside a database, sorted."""
        database = Path(path)
        if not database.parent.is_dir():
            return []
        prefix = database.name + SUFFIX
        return sorted(str(file) for file in database.parent.iterdir() if file.name.startswith(prefix))

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        return Path(name).read_bytes()

    def create(self, name: str, *, is_new: bool) -> int:
        """Open a file to write into it; ``is_new``: there must be none yet."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags | (os.O_EXCL if is_new else 0), 0o600)

    def free(self, path: str) -> int:
        """Return the bytes that the disk of a database has free."""
        disk = os.statvfs(Path(path).parent)
        return disk.f_bavail * disk.f_frsize

    def truncate(self, file: int, length: int) -> None:
        """Cut a file."""
        os.ftruncate(file, length)

    def sync_length(self, file: int) -> None:
        """Have the disk keep what was written, with the length that the file has now."""
        sync_file(file)

    def sync_names(self, path: str) -> None:
        """Have the disk keep which files there are beside a database."""
        sync_folder(Path(path).parent)

    def is_at(self, name: str, file: int) -> bool:
        """Whether the open file is the one at a name; FileNotFoundError where nothing is."""
        found, kept = os.stat(name), os.fstat(file)  # noqa: PTH116 - no Path ten times a second
        return (found.st_dev, found.st_ino) == (kept.st_dev, kept.st_ino)

    def remove(self, name: str) -> None:
        """Remove a file, which may be gone already."""
        Path(name).unlink(missing_ok=True)

    def close(self, file: int) -> None:
        """Give a file back."""
        os.close(file)


#: Those of this machine.
SYSTEM_FILES: Final = JournalFiles()
