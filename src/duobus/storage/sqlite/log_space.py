"""Room ahead in a store's log, so that commits overwrite it instead of making it longer.

``fdatasync`` of a file that has grown also commits the file system's journal; where the bytes were there before, it
writes them and nothing else. A commit of one message took 472 us in a log that grows and 199 us in one that had been
laid out (least of five runs of 1,500 commits on ext4; processor time 300 and 180 us). SQLite grows its log by each
commit until the first restart, after some 32 MiB: for the first minutes of a quiet store, and four times as long when
four stores share the load. So zeros are written behind the log's end, a bit at a time.

Zeros are no frames: recovery ends at the first frame whose page number is 0. They are written by the thread that
commits, between two commits, always behind all that the file holds; so they meet nothing that counts, at whatever
moment the power goes. A store that is opened cuts them off first: on a disk that is full its log has to be copied home
before anything is free, and that takes room.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from duobus.file_sync import sync_data

#: What is written between two commits: it takes 1 to 4 ms, its sync included.
PIECE_BYTES: Final = 1 << 20
#: A log that restarts at 32 MiB passes that by some. What SQLite cuts off is beyond.
LAID_OUT_MAX_BYTES: Final = 48 << 20
#: A store that hardly writes keeps a small log.
_USED_LEAST_BYTES: Final = 256 << 10
#: What commits may write until somebody looks again, at the least.
_AHEAD_BYTES: Final = 2 << 20
#: A disk with less free than this has better use for it.
FREE_LEAST_BYTES: Final = 256 << 20
#: Of a log and of each page in it (https://www.sqlite.org/fileformat2.html#the_write_ahead_log); where the log's header
#: says how large pages are.
_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_PAGE_SIZE_AT: Final = slice(8, 12)
_PAGE_SIZES: Final = range(512, (1 << 16) + 1)


def wanted(used: int) -> int:
    """How long the file should be for a log of ``used`` bytes; 0 for as it is."""
    return min(2 * used + _AHEAD_BYTES, LAID_OUT_MAX_BYTES) if used >= _USED_LEAST_BYTES else 0


def extend(path: str, length: int) -> bool:
    """Write a piece behind the end of a log; return whether there is more to do until the file has ``length``.

    Raises:
        OSError: The disk did not sync it. Nobody needs these bytes, but it is about to lose others (L3).
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        size = os.fstat(fd).st_size
        piece = min(PIECE_BYTES, length - size)
        disk = os.fstatvfs(fd)
        if piece <= 0 or disk.f_bavail * disk.f_frsize < FREE_LEAST_BYTES:
            return False
        written = 0
        # A disk that is full takes as much as it can: the log has use for it.
        with suppress(OSError):
            written = os.pwrite(fd, bytes(piece), size)
        sync_data(fd)
        return written == piece and size + piece < length
    finally:
        os.close(fd)


def cut(path: str) -> None:
    """Cut off what was laid out behind a log's last page; nobody may have the store open.

    Raises:
        OSError: The file cannot be read or cut.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        page = int.from_bytes(os.pread(fd, _HEADER_BYTES, 0)[_PAGE_SIZE_AT], "big")
        if page not in _PAGE_SIZES:
            return
        size = os.fstat(fd).st_size
        end = _end_of_bytes(fd, size)
        frame = _FRAME_HEADER_BYTES + page
        # A page may end with zeros of its own.
        whole = _HEADER_BYTES + -(-max(0, end - _HEADER_BYTES) // frame) * frame
        if whole < size:
            os.ftruncate(fd, whole)
    finally:
        os.close(fd)


def _end_of_bytes(fd: int, size: int) -> int:
    """Where the zeros begin that a file ends with."""
    while size:
        start = max(0, size - PIECE_BYTES)
        found = os.pread(fd, size - start, start).rstrip(b"\0")
        if found:
            return start + len(found)
        size = start
    return 0
