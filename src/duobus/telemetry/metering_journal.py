"""The counts of the running minute in a mapped file, so that a process that is killed loses none of them (I59).

Memory that is mapped from a file belongs to the system: it is still there when the process is not. Each count has a
place of its own that is overwritten in place, without a call of the system. What a power cut takes is at most the
running minute. The numbers of records are those that they get in the log, so that a minute that is found in both is
read once.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any, Final

from duobus.model.metering import MeteringRecord

#: Bytes that are laid out at first, some 7,000 counts; doubled when they are full.
SIZE_FIRST: Final = 1 << 20
#: No journal grows beyond it, some 200,000 counts; later ones are in the memory alone until the minute ends.
SIZE_MAX: Final = 1 << 25

_NAME: Final = re.compile(r"running-\d{8}\.bin")
_MAGIC: Final = b"duobus-metering-1"
#: Length and checksum of the names; the names; then messages, bytes, operations behind them.
_HEAD: Final = Struct("<II")
_NUMBERS: Final = Struct("<QQQ")
_MINUTE_MS: Final = 60_000


class MeteringJournal:
    """One minute in one file; not for several threads at a time. A disk that refuses leaves it without effect."""

    __slots__ = ("_end", "_file", "_map", "_path", "_size")

    def __init__(self, folder: Path, generation: int, server: str, minute_ms: int) -> None:
        self._path = folder / f"running-{generation:08d}.bin"
        self._size = 0
        self._end = 0
        self._map: mmap.mmap | None = None
        self._file = -1
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            self._lay_out(SIZE_FIRST)
        except OSError:
            self.drop()
            return
        self._enter(json.dumps([_MAGIC.decode(), server, minute_ms - minute_ms % _MINUTE_MS]).encode())

    def enter(self, number: int, namespace: str, entity: str, kind: str, key: str) -> int:
        """Give a count its place; 0 when there is none."""
        return self._enter(json.dumps([number, namespace, entity, kind, key]).encode())

    def put(self, place: int, messages: int, size_bytes: int, operations: int) -> None:
        """Write what a count is now. A kill between the three numbers leaves one batch in some of them only."""
        if self._map is not None:
            _NUMBERS.pack_into(self._map, place, messages, size_bytes, operations)

    def drop(self) -> None:
        """Its records are in the log, or there will be none."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._path.unlink(missing_ok=True)

    def _enter(self, names: bytes) -> int:
        place = self._end + _HEAD.size + len(names)
        end = place + _NUMBERS.size
        try:
            if end + _HEAD.size > self._size:
                self._lay_out(max(self._size * 2, SIZE_FIRST))
        except OSError:
            return 0
        if self._map is None or end + _HEAD.size > self._size:
            return 0
        self._map[self._end + _HEAD.size : place] = names
        # Last, since it makes the rest valid.
        _HEAD.pack_into(self._map, self._end, len(names), zlib.crc32(names))
        self._end = end
        return place

    def _lay_out(self, size: int) -> None:
        if size > SIZE_MAX or self._file < 0:
            return
        # The blocks are taken now: a page that finds no room on the disk would end the process.
        os.posix_fallocate(self._file, 0, size)
        if self._map is None:
            self._map = mmap.mmap(self._file, size)
        else:
            self._map.resize(size)
        self._size = size


def left_behind(folder: Path) -> list[Path]:
    """Journals of processes that did not come to the end of their minute."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name) and not path.is_symlink())


def read_journal(path: Path) -> list[MeteringRecord]:
    """Return the records of a journal; none of one that is damaged from its start."""
    content = path.read_bytes()[:SIZE_MAX]
    entries = _entries(content)
    found = []
    try:
        names, _ = next(entries)
        magic, server, minute_ms = names
        if magic != _MAGIC.decode():
            return []
        for (number, namespace, entity, kind, key), (messages, size, operations) in entries:
            # Counted in no batch: the process ended between the two.
            if messages or operations:
                about = (namespace, entity, kind, messages, size, operations, key)
                found.append(MeteringRecord(server, number, minute_ms, *about))
    except (StopIteration, ValueError, TypeError):
        # What stands before the damage is whole: each entry has its checksum.
        return found
    return found


def _entries(content: bytes) -> Iterator[tuple[Any, tuple[int, ...]]]:
    start = 0
    while start + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, start)
        place = start + _HEAD.size + length
        names = content[start + _HEAD.size : place]
        if not length or place + _NUMBERS.size > len(content) or zlib.crc32(names) != checksum:
            return
        yield json.loads(names), _NUMBERS.unpack_from(content, place)
        start = place + _NUMBERS.size
