"""Bringing files to the disk, in the one way that does it on each system.

On macOS ``fsync`` hands the data to the drive, which may keep it in a cache that a power cut empties; ``F_FULLFSYNC``
has the drive write it. SQLite does that when it is told to (``SQLITE_SETTINGS``), our own files by ``sync_file``.
Elsewhere ``fsync`` and ``fdatasync`` do it. Where a file system knows no ``F_FULLFSYNC``, as some of networks, they are
the best there is; SQLite does the same.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Final

try:
    import fcntl
except ImportError:  # Windows, where only the client side runs
    fcntl = None  # type: ignore[assignment]

#: The request for ``fcntl``; None where there is none.
FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
#: How often a file is handed on to the disk by ``begun_ahead``.
AHEAD_S: Final = 0.002
#: Of ``sync_file_range(2)``: begin to write what has changed. Errors are left for the sync to find.
_BEGIN_TO_WRITE: Final = 2
_UNKNOWN_ERRORS: Final = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
#: For every connection to SQLite, after ``PRAGMA``; without effect where there is no F_FULLFSYNC.
SQLITE_SETTINGS: Final = ("fullfsync=ON", "checkpoint_fullfsync=ON")


def sync_file(fd: int) -> None:
    """Make the contents of an open file, or the names in an open folder, durable.

    Raises:
        OSError: The disk refused; what was written since the last sync may be lost, and trying again shows nothing.
    """
    if not _full_sync(fd):
        os.fsync(fd)


def full_data_sync(fd: int) -> None:
    """What ``sync_data`` is where ``fdatasync`` does not reach the disk, or there is none."""
    if not _full_sync(fd):
        os.fsync(fd)


#: Make the contents of an open file durable, and of what is known about it what it takes to read them; raises as
#: ``sync_file``. A journal calls this for each commit, so it is the system's own function where that is enough.
sync_data: Final[Callable[[int], None]] = (
    getattr(os, "fdatasync", full_data_sync) if FULL_SYNC is None else full_data_sync
)


def sync_folder(folder: Path | str) -> None:
    """Make the names in a folder durable; without it a power cut may forget that a file exists.

    Raises:
        OSError: As of ``sync_file``.
    """
    fd = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        sync_file(fd)
    finally:
        os.close(fd)


@contextmanager
def begun_ahead(fd: int) -> Iterator[None]:
    """While this lasts, have the disk begin to write what has changed in an open file, every AHEAD_S.

    A sync of several megabytes keeps a disk busy in one piece, and each other sync of that disk stands behind it. Begun
    ahead, the same bytes go in pieces. It promises nothing: only ``sync_data`` says that bytes are on the disk, and
    tells of errors. Linux alone has this; elsewhere nothing happens.
    """
    begin = _begin_to_write()
    if begin is None:
        yield
        return
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(AHEAD_S) and begin(fd, 0, 0, _BEGIN_TO_WRITE) == 0:
            pass

    thread = threading.Thread(target=run, name="sync ahead", daemon=False)
    # A process that may have no more threads does without.
    with suppress(RuntimeError):
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        if thread.ident is not None:
            thread.join()


@cache
def _begin_to_write() -> Callable[[int, int, int, int], int] | None:
    """The system's ``sync_file_range``, which Python does not offer; None where there is none."""
    # Not needed by whoever only reads, as the commands do.
    import ctypes

    try:
        begin = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    begin.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    begin.restype = ctypes.c_int
    return begin


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when it is complete and durable; until then, or after an error, the old one stays.

    Raises:
        OSError: The disk refused, and ``path`` is what it was.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            sync_file(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _full_sync(fd: int) -> bool:
    if FULL_SYNC is None:
        return False
    try:
        fcntl.fcntl(fd, FULL_SYNC)
    except OSError as error:
        if error.errno in _UNKNOWN_ERRORS:
            return False
        raise
    return True
