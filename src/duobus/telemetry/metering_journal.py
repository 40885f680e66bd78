"""The counts of the running minute in a mapped file, so that a process that is killed loses none of them (I59).

Memory that is mapped from a file belongs to the system: it is still there when the process is not. Each count has a
place of its own that is overwritten in place, without a call of the system: 0.1 us instead of 0.8. Where the file
system would need a new block for that, a full disk would end the process by SIGBUS (decision 0037); there the counts
are written by calls, which the disk may refuse. What a power cut takes is at most the running minute. The numbers of
records are those that they get in the log, so that a minute that is found in both is read once.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import zlib
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path
from struct import Struct
from typing import Any, Final

from duobus.model.metering import MeteringRecord

#: Bytes that are laid out at first, some 7,000 counts; doubled when they are full.
SIZE_FIRST: Final = 1 << 20
#: No journal grows beyond it, some 200,000 counts; later ones are in the memory alone until the minute ends.
SIZE_MAX: Final = 1 << 25

#: File systems on which a page of a file that has its block is changed without another one. Not btrfs, nor xfs, where
#: a copy of the file may share its blocks, nor an overlay, which may lie on either.
_IN_PLACE: Final = frozenset(("ext2", "ext3", "ext4", "tmpfs"))
_MOUNTS: Final = Path("/proc/self/mountinfo")

_NAME: Final = re.compile(r"running-\d{8}\.bin")
_MAGIC: Final = b"duobus-metering-1"
#: Length and checksum of the names; the names; then messages, bytes, operations behind them.
_HEAD: Final = Struct("<II")
_NUMBERS: Final = Struct("<QQQ")
_MINUTE_MS: Final = 60_000


class MeteringJournal:
    """One minute in one file; not for several threads at a time. A disk that refuses leaves it without effect."""

    __slots__ = ("_end", "_file", "_is_mapped", "_is_refused", "_map", "_path", "_size")

    def __init__(self, folder: Path, generation: int, server: str, minute_ms: int) -> None:
        self._path = folder / f"running-{generation:08d}.bin"
        self._size = 0
        self._end = 0
        self._map: mmap.mmap | None = None
        self._file = -1
        self._is_mapped = True
        self._is_refused = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._is_mapped = file_system(folder) in _IN_PLACE
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
        elif self._file >= 0 and not self._is_refused:
            try:
                os.pwrite(self._file, _NUMBERS.pack(messages, size_bytes, operations), place)
            except OSError:
                # Not again in this minute: a full btrfs takes 3 ms to refuse, and everybody would wait for that.
                self._is_refused = True

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
        if self._is_refused:
            return 0
        place = self._end + _HEAD.size + len(names)
        end = place + _NUMBERS.size
        try:
            if end + _HEAD.size > self._size:
                self._lay_out(max(self._size * 2, SIZE_FIRST))
            if self._file < 0 or end + _HEAD.size > self._size:
                return 0
            self._write(names, _HEAD.pack(len(names), zlib.crc32(names)))
        except OSError:
            self._is_refused = not self._is_mapped
            return 0
        self._end = end
        return place

    def _write(self, names: bytes, head: bytes) -> None:
        start = self._end + _HEAD.size
        if self._map is not None:
            self._map[start : start + len(names)] = names
            # Last, since it makes the rest valid.
            self._map[self._end : start] = head
            return
        behind = names + bytes(_NUMBERS.size)
        if os.pwrite(self._file, behind, start) < len(behind) or os.pwrite(self._file, head, self._end) < len(head):
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    def _lay_out(self, size: int) -> None:
        if size > SIZE_MAX or self._file < 0:
            return
        # The blocks are taken now: a page that finds no room on the disk would end the process.
        os.posix_fallocate(self._file, 0, size)
        if not self._is_mapped:
            self._size = size
            return
        if self._map is None:
            self._map = mmap.mmap(self._file, size)
        else:
            self._map.resize(size)
        self._size = size


def file_system(folder: Path) -> str:
    """The kind of the file system that a folder is on, as Linux names it; empty where that is not to be known."""
    real, length, kind = folder.resolve(), 0, ""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        mount, _, rest = line.partition(" - ")
        # Spaces and the like stand there as octal numbers.
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), mount.split(" ")[4])
        # What is mounted later lies above.
        if real.is_relative_to(point) and len(point) >= length:
            length, kind = len(point), rest.split(" ")[0]
    return kind


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
