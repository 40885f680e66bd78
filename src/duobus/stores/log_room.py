"""Room ahead in a store's log, so that commits overwrite it instead of making it longer.

``fdatasync`` of a file that has grown also commits the file system's journal; where the bytes were there before, it
writes them and nothing else. A commit of one message took 472 us in a log that grows and 199 us in one that had been
laid out (least of five runs of 1,500 commits on ext4; processor time 300 and 180 us). SQLite grows its log by each
commit until the first restart, after some 32 MiB: for the first minutes of a quiet store, and four times as long when
four stores share the load. So zeros are written behind the log's end, a bit at a time.

Zeros are no frames: recovery ends at the first frame whose page number is 0. They are written by the thread that
commits, between two commits, always behind all that the file holds; so they meet nothing that counts, at whatever
moment the power goes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

import apsw

_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
#: The first piece, of a store that may never see much, and the largest: one write and one sync of 1 MiB take 1 to 4 ms.
PIECE_MIN_BYTES: Final = 256 << 10
PIECE_MAX_BYTES: Final = 1 << 20
#: A log that restarts at 32 MiB passes that by some; what SQLite cuts off when it restarts is not laid out again.
LAID_OUT_MAX_BYTES: Final = 64 << 20


def keep_room(db: apsw.Connection, page_size: int) -> None:
    """From now on lay the log out ahead of the commits of this connection, its only writer."""
    path = db.filename_wal
    frame = _FRAME_HEADER_BYTES + page_size

    def committed(_db: apsw.Connection, _name: str, frames: int) -> int:
        with suppress(FileNotFoundError):
            # Not kept from call to call: the log is also cut, at an open and where it passed its limit.
            size = os.stat(path).st_size  # noqa: PTH116 - no Path per commit
            piece = piece_after(size, _HEADER_BYTES + frames * frame)
            if piece:
                _append(path, size, piece)
        return apsw.SQLITE_OK

    db.set_wal_hook(committed)


def piece_after(size: int, used: int) -> int:
    """Bytes to lay out behind a log's file of ``size`` bytes, of which ``used`` hold the log; 0 for none."""
    piece = min(max(size, PIECE_MIN_BYTES), PIECE_MAX_BYTES)
    if size - used >= piece // 2 or size + piece > LAID_OUT_MAX_BYTES:
        return 0
    return piece


def _append(path: str, size: int, piece: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        # A disk that is full takes as much as it can: the log has use for it.
        with suppress(OSError):
            os.pwrite(fd, bytes(piece), size)
        # Nobody needs these bytes, but a disk that refuses this is about to lose others: the store is reopened (L3).
        os.fdatasync(fd)
    finally:
        os.close(fd)
