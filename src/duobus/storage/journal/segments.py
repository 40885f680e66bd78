"""The files of a journal: laid out once, written one after the other, and used again when SQLite has what they hold.

    append    ──record──sync──record──sync──┬──record──sync──         the thread that commits
    segments     1 ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪ │ 2 ▪▪▪▪▪▪▪
    release   ──────────SQLite synced commit 7 ─ segment 1 is free ─ prepare: begun anew as 3

A segment is laid out with zeros, so that an append overwrites and a sync writes these bytes and nothing else
(decision 0027). The first file is short, each other one twice as long as the one before, and a file grows by as much
whenever it is begun anew: a store that writes little lays out little.

A segment is begun ahead of need, by ``prepare``, because that takes two syncs; ``append`` goes to one that is prepared,
and where none is, prepares one itself if there may be one more.

A journal whose segments are all full takes nothing: ``append`` says so, and its caller brings commits to SQLite. So it
does where the disk has no room for another segment, or for none. There is room when all that the journal could hold
still has a place in the database and in its log afterwards: else a store that was killed could not be opened again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch
from duobus.storage.journal.files import SUFFIX, SYSTEM_FILES, JournalFiles, is_no_room
from duobus.storage.journal.format import (
    HEADERS_AT,
    RECORD_HEADER_BYTES,
    RECORDS_AT,
    SALT_BYTES,
    JournalDamaged,
    SegmentContents,
    SegmentHeader,
    body_of,
    read_segment,
    record_header,
    segment_header,
)

#: A sixth of a second of traffic at 100,000 messages of 1 KiB a second. A larger commit makes its segment longer.
SEGMENT_BYTES: Final = 16 << 20
#: Of the first file: each store of a server writes it at each start, whether or not any message comes.
FIRST_BYTES: Final = 1 << 20
_PIECE: Final = 1 << 20


class _Segment:
    """One file; ``last_no`` is the last commit in it, 0 before the first."""

    __slots__ = ("end", "fd", "header", "last_no", "name", "size")

    def __init__(self, name: str, fd: int, size: int) -> None:
        self.name = name
        self.fd = fd
        self.size = size
        self.header = SegmentHeader(0, 0, 0, b"")
        self.end = RECORDS_AT
        self.last_no = 0


class Segments:
    """The journal of one store while the store is open.

    Every method raises OSError where the disk refuses; the journal is not to be used after that (L3). One thread may
    append while another one releases and prepares.

    Args:
        path: The database, beside which the files lie.
        store_id: Whose journal it is.
        salt: Draws the salt of a segment.
        number: Of its segments, at the most.
        segment_bytes: Length of a file that has grown.
        first_bytes: Length of the first one, if that is less.
        files: The disk.
    """

    def __init__(
        self,
        path: str,
        store_id: int,
        salt: Callable[[int], bytes],
        number: int,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        first_bytes: int = FIRST_BYTES,
        files: JournalFiles = SYSTEM_FILES,
    ) -> None:
        self._path = path
        self._first_bytes = min(first_bytes, segment_bytes)
        self._files = files
        self._store_id = store_id
        self._salt = salt
        self._segment_bytes = segment_bytes
        self._sequence = 0
        self._segments_most = self._segments_left = number
        self._number = 0
        self._used: deque[_Segment] = deque()
        self._prepared: deque[_Segment] = deque()
        self._free: list[_Segment] = []
        # Segments are used in the order of their sequences, so one is begun at a time.
        self._preparing = threading.Lock()

    @staticmethod
    def read(path: str, files: JournalFiles = SYSTEM_FILES) -> list[SegmentContents]:
        """Return what the files beside a database hold; touches nothing.

        Raises:
            StoreFailed: A file that was begun cannot be told any more.
        """
        found = []
        for file in files.names(path):
            try:
                contents = read_segment(files.read(file))
            except JournalDamaged as error:
                raise StoreFailed(f"{file}: the journal is damaged: {error}") from None
            if contents is not None:
                found.append(contents)
        return found

    def begin(self, highest_sequence: int) -> bool:
        """Begin an empty journal: all that the files hold is in the database, durably, which is the caller's word.

        Args:
            highest_sequence: Of all segments that were found.

        Returns:
            Whether there is one; False: the disk has no room, and until the next call there is none.
        """
        self._sequence = highest_sequence
        self._segments_left = self._segments_most
        remove_files(self._path, self._files)
        self._number = 0
        return self.prepare()

    def append(self, batch: CommitBatch, generation: int) -> bool:
        """Write a commit, durable on return; False: there is no room until ``release``, and nothing was written."""
        body = body_of(batch)
        length = RECORD_HEADER_BYTES + len(body)
        segment = self._segment_for(length)
        if segment is None:
            return False
        head = record_header(body, batch.commit_no, generation, segment.header)
        if self._files.write(segment.fd, (head, body), segment.end) != length:
            raise OSError(f"{self._path}{SUFFIX}*: the disk took only some of a commit")
        self._files.sync(segment.fd)
        segment.end += length
        segment.last_no = batch.commit_no
        return True

    def release(self, commit_no: int) -> None:
        """Note that the database has all commits up to this one, and that a sync of it has come back since.

        The segment that is being written is left alone, even if all of it is there: it has room.
        """
        while len(self._used) > 1 and self._used[0].last_no <= commit_no:
            segment = self._used.popleft()
            if segment.size > self._segment_bytes:
                # Laid out for one large commit.
                self._files.truncate(segment.fd, self._segment_bytes)
                segment.size = self._segment_bytes
            self._free.append(segment)

    def prepare(self) -> bool:
        """Begin one more segment, if none is prepared and there may be one; return whether one is prepared then."""
        with self._preparing:
            if self._prepared:
                return True
            if self._free:
                segment = self._grown(self._free[-1])
                self._free.pop()
            elif (laid_out := self._laid_out(min(self._first_bytes << self._number, self._segment_bytes))) is not None:
                segment = laid_out
            else:
                return False
            self._prepared.append(self._begun(segment))
            return True

    @property
    def wants_segment(self) -> bool:
        """Whether ``prepare`` has something to do."""
        return not self._prepared and bool(self._free or self._segments_left)

    def demand_files(self) -> None:
        """Raise FileNotFoundError or OSError when a file with commits is not at its name any more."""
        for segment in tuple(self._used):
            if not self._files.is_at(segment.name, segment.fd):
                raise OSError(f"{segment.name}: the journal's file was moved or replaced while in use")

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(segment.size for segment in (*self._used, *self._prepared, *self._free))

    def close(self) -> None:
        """Give the files back; they stay."""
        for segment in (*self._used, *self._prepared, *self._free):
            self._files.close(segment.fd)
        self._used.clear()
        self._prepared.clear()
        self._free.clear()

    def _segment_for(self, length: int) -> _Segment | None:
        """The segment that has room for a record; None where all are full."""
        if self._used and self._used[-1].end + length <= self._used[-1].size:
            return self._used[-1]
        if not self.prepare():
            return None
        segment = self._prepared[0]
        missing = RECORDS_AT + length - segment.size
        if missing > 0 and not self._is_longer(segment, missing):
            return None
        self._prepared.popleft()
        self._used.append(segment)
        return segment

    def _laid_out(self, length: int) -> _Segment | None:
        """A new file of zeros, which are on the disk, and its name, too; None: there may be no more, or is no room."""
        if self._segments_left and not self._has_room(length):
            self._segments_left = 0
        if not self._segments_left:
            return None
        name = f"{self._path}{SUFFIX}{self._number}"
        self._number += 1
        self._segments_left -= 1
        fd = self._files.create(name, is_new=True)
        try:
            self._lay_out(fd, 0, length)
            self._files.sync_names(self._path)
        except BaseException as error:
            self._files.close(fd)
            if not is_no_room(error):
                raise
            # Whatever was laid out of it gives its room back; the database may need that.
            self._files.remove(name)
            self._segments_left = 0
            return None
        return _Segment(name, fd, length)

    def _has_room(self, length: int) -> bool:
        return self._files.free(self._path) - length >= 2 * (self.size + length)

    def _grown(self, segment: _Segment) -> _Segment:
        """A segment that holds nothing any more, longer than it was, if there is room for that."""
        missing = min(segment.size, self._segment_bytes - segment.size)
        if missing > 0:
            self._is_longer(segment, missing)
        return segment

    def _is_longer(self, segment: _Segment, missing: int) -> bool:
        """Make a segment so much longer; return whether there was room for that."""
        if not self._has_room(missing):
            return False
        try:
            self._lay_out(segment.fd, segment.size, segment.size + missing)
        except OSError as error:
            if not is_no_room(error):
                raise
            self._files.truncate(segment.fd, segment.size)
            return False
        segment.size += missing
        return True

    def _lay_out(self, fd: int, start: int, end: int) -> None:
        while start < end:
            start += self._files.write(fd, (bytes(min(_PIECE, end - start)),), start)
        self._files.sync_length(fd)

    def _begun(self, segment: _Segment) -> _Segment:
        self._sequence += 1
        segment.header = SegmentHeader(self._store_id, self._sequence, segment.size, self._salt(SALT_BYTES))
        segment.end, segment.last_no = RECORDS_AT, 0
        for at in HEADERS_AT:
            self._files.write(segment.fd, (segment_header(segment.header),), at)
            self._files.sync(segment.fd)
        return segment


def files_of(path: str) -> list[Path]:
    """Return the files of a database's journal."""
    return [*map(Path, SYSTEM_FILES.names(path))]


def remove_files(path: str, files: JournalFiles = SYSTEM_FILES) -> None:
    """Remove a database's journal, which holds nothing that the database lacks; durable on return."""
    for file in files.names(path):
        files.remove(file)
    files.sync_names(path)
