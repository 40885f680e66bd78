"""Who may change the folders of captured messages: many captures at a time, or one compaction, for a moment.

A compaction puts a new folder in the place of an hour's folder. A batch that a capture moved there in that moment would
be put aside with the old folder. So a capture that moves files into the folder holds a lock that others share, and a
compaction holds the lock alone while it changes places. The lock is one of the system on a file: it ends with its
process. Folders that are not on a disk of this machine have no compaction, and need no lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from duobus.spark.source.query_end import local_folder

try:
    import fcntl
except ImportError:  # Windows, where folders cannot change places, so that there is no compaction
    fcntl = None  # type: ignore[assignment]

#: Folder, in that of the captured messages, that readers pass over because of the underscore.
NOTES: Final = "_duobus"
#: Whether this system has such locks.
HAS_LOCKS: Final = fcntl is not None
_LOCK: Final = "places.lock"


@contextmanager
def writing(location: str) -> Iterator[None]:
    """Hold the lock that captures share.

    Args:
        location: Folder of the captured messages.
    """
    folder = local_folder(location)
    if folder is None or fcntl is None:
        yield
        return
    with _held(folder, fcntl.LOCK_SH):
        yield


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Hold the lock alone; waits until the captures have written the batches that they are at."""
    with _held(folder, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(folder: Path, kind: int) -> Iterator[None]:
    place = folder / NOTES
    place.mkdir(parents=True, exist_ok=True)
    file = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, kind)
        yield
    finally:
        os.close(file)
