"""The bytes of a journal: segments, and in them one record for each commit. Nothing here touches a disk.

A segment is a file of fixed length that begins as zeros. All numbers are little-endian. Its header:

    0   8   "duobusJ1"
    8   8   store id
    16  8   sequence: 1 for a store's first segment, one more for each that is begun, whichever file it is in
    24  8   length of the file when the segment is begun; the file gets longer for a large commit, and never shorter
    32  8   salt: random, drawn when the segment is begun
    40  4   CRC-32 of the bytes before
    44  20  zeros

The header stands at byte 0 and, the same, at byte 4096. The first is synced before the second is written, and that
before any record, so of a segment that was begun one of them is whole: this use's, or that of the use before, whose
records SQLite has. From byte 8192 on follow records, without gaps. A record:

    0   4   "dJR1"
    4   8   salt of the segment
    12  4   length of the body
    16  8   generation of the store
    24  8   commit number
    32  4   CRC-32 of the body
    36  4   CRC-32 of the bytes before
    40      body

The body has the columns of a ``CommitBatch``: the number of the numbers (8 bytes), the numbers (8 bytes each, signed),
and the blobs, whose lengths are among the numbers. ``_Reader.batch`` is the order of both.

*What ends a segment.* A commit is written after the one before is synced, so at most one record of a journal was not
answered when the power went: the last one, of which any sectors may be missing (a torn tail). A record that is not
whole, with any other begun behind it, was answered and is damaged. Nobody who sends messages knows the salt, so no
message holds what passes for a record; and what an earlier use of the file left has another salt.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from duobus.storage.interface import CommitBatch, IdBlock, Put, Tombstone

SEGMENT_MAGIC: Final = b"duobusJ1"
RECORD_MAGIC: Final = b"dJR1"
#: Where the two copies of the header begin, sectors of different pages; and the first record.
HEADERS_AT: Final = (0, 4096)
RECORDS_AT: Final = 8192
HEADER_BYTES: Final = 64
_SEGMENT: Final = Struct("<8sQQQ8s")
_RECORD: Final = Struct("<4s8sIQQI")
_SUM: Final = Struct("<I")
_COUNT: Final = Struct("<Q")
RECORD_HEADER_BYTES: Final = _RECORD.size + _SUM.size
SALT_BYTES: Final = 8
#: A length that stands for "no metadata", which empty metadata is not.
_NONE: Final = -1
#: Bits of a put's kind.
_RESERVED, _COPIES, _EQUAL_METADATA, _SOME_METADATA = 1, 2, 4, 8
_KINDS_END: Final = 16


class JournalDamaged(Exception):
    """The bytes contradict themselves; the text says where."""


class SegmentHeader(NamedTuple):
    """Of which store a segment is, which of its uses, and how long its file is at least."""

    store_id: int
    sequence: int
    length: int
    salt: bytes


class Record(NamedTuple):
    """A record that is whole: what its header says, and its body."""

    generation: int
    commit_no: int
    body: bytes


class SegmentContents(NamedTuple):
    """What a segment holds.

    Attributes:
        header: Its header.
        records: Those from the beginning on that are whole.
        end: Where the first byte behind them is.
        is_followed: A record was begun behind ``end`` and its beginning, so what stands at ``end`` is damaged.
    """

    header: SegmentHeader
    records: list[Record]
    end: int
    is_followed: bool


def segment_header(header: SegmentHeader) -> bytes:
    """Return the bytes of a header."""
    head = _SEGMENT.pack(SEGMENT_MAGIC, *header)
    return (head + _SUM.pack(crc32(head))).ljust(HEADER_BYTES, b"\0")


def read_header(data: bytes) -> SegmentHeader | None:
    """Return the header of a segment, the newer one where the copies differ; None: it was never begun.

    Raises:
        JournalDamaged: There is something in it, and neither copy is whole, or the file was cut.
    """
    found = [header for at in HEADERS_AT if (header := _header_at(data, at)) is not None]
    if found:
        newest = max(found, key=lambda header: header.sequence)
        if len(data) < max(newest.length, RECORDS_AT):
            raise JournalDamaged(f"it has {len(data)} bytes and had {newest.length}")
        return newest
    # The first copy is the first that is ever written, and a sync that did not come to its end may leave some of it.
    if data[HEADER_BYTES:].strip(b"\0"):
        raise JournalDamaged("neither copy of the segment's header is whole")
    return None


def _header_at(data: bytes, at: int) -> SegmentHeader | None:
    head = data[at : at + HEADER_BYTES]
    if len(head) < HEADER_BYTES:
        return None
    magic, *fields = _SEGMENT.unpack_from(head)
    (check,) = _SUM.unpack_from(head, _SEGMENT.size)
    if magic != SEGMENT_MAGIC or check != crc32(head[: _SEGMENT.size]):
        return None
    return SegmentHeader(*fields)


def record_header(body: bytes, commit_no: int, generation: int, header: SegmentHeader) -> bytes:
    """Return what stands before the body of a commit, to be written with it in one call."""
    head = _RECORD.pack(RECORD_MAGIC, header.salt, len(body), generation, commit_no, crc32(body))
    return head + _SUM.pack(crc32(head))


def read_segment(data: bytes) -> SegmentContents | None:
    """Return what a segment holds; None: it was never begun.

    Raises:
        JournalDamaged: As of ``read_header``.
    """
    header = read_header(data)
    if header is None:
        return None
    mark = RECORD_MAGIC + header.salt
    records: list[Record] = []
    at = RECORDS_AT
    while (found := _record_at(data, at, mark)) is not None:
        records.append(found)
        at += RECORD_HEADER_BYTES + len(found.body)
    return SegmentContents(header, records, at, _is_begun_behind(data, at, mark))


def batch_of(found: Record) -> CommitBatch:
    """Return the commit of a record.

    Raises:
        JournalDamaged: The body is not one that ``body_of`` makes, although its checksum holds.
    """
    try:
        return _Reader(found.body).batch(found.commit_no)
    except (ValueError, IndexError) as error:
        raise JournalDamaged(f"the record of commit {found.commit_no} cannot be read: {error}") from None


def _record_at(data: bytes, at: int, mark: bytes) -> Record | None:
    head = _head_at(data, at, mark)
    if head is None:
        return None
    length, generation, commit_no, body_sum = head
    first = at + RECORD_HEADER_BYTES
    body = data[first : first + length]
    return Record(generation, commit_no, body) if len(body) == length and crc32(body) == body_sum else None


def _head_at(data: bytes, at: int, mark: bytes) -> tuple[int, int, int, int] | None:
    """Length, generation, commit number and the body's checksum of the record that begins here, if one does."""
    if at + RECORD_HEADER_BYTES > len(data):
        return None
    magic, salt, length, generation, commit_no, body_sum = _RECORD.unpack_from(data, at)
    (check,) = _SUM.unpack_from(data, at + _RECORD.size)
    if magic + salt != mark or check != crc32(data[at : at + _RECORD.size]):
        return None
    return length, generation, commit_no, body_sum


def _is_begun_behind(data: bytes, at: int, mark: bytes) -> bool:
    """Whether a record begins behind the first byte of what should be one."""
    at = data.find(mark, at + 1)
    while at >= 0:
        if _head_at(data, at, mark) is not None:
            return True
        at = data.find(mark, at + 1)
    return False


# -- bodies ---------------------------------------------------------------------------------------------------------


def body_of(batch: CommitBatch) -> bytes:
    """Return the body of a commit's record, without a Python step for each message."""
    columns: tuple[Sequence[object], ...] = (
        batch.epochs,
        batch.puts,
        batch.removed,
        batch.changes,
        batch.sources,
        batch.histories,
        batch.outdated,
        batch.tombstones,
        batch.forgotten,
    )
    numbers = [batch.broker_ms, *map(len, columns)]
    blobs: list[bytes] = []
    numbers += chain.from_iterable(batch.epochs)
    for put in batch.puts:
        _add_put(put, numbers, blobs)
    numbers += chain.from_iterable(batch.removed)
    for source_key, count, state, deliveries, metadata in batch.changes:
        numbers += (source_key, count, state, deliveries, _NONE if metadata is None else len(metadata))
        blobs.append(metadata or b"")
    for source_key, next_count, highest_delivered, counters in batch.sources:
        numbers += (source_key, next_count, highest_delivered, len(counters))
        blobs.append(counters)
    for block in batch.histories:
        numbers += (block.source_key, block.first_count, block.at_ms, len(block.ids))
        blobs.append(block.ids)
    numbers += chain.from_iterable(batch.outdated)
    for t in batch.tombstones:
        numbers += (t.store_id, t.generation, t.commit_no, t.source_key, t.first_count, t.last_count)
    numbers += chain.from_iterable(batch.forgotten)
    return b"".join((_COUNT.pack(len(numbers)), _swapped(array("q", numbers)).tobytes(), *blobs))


def _add_put(put: Put, numbers: list[int], blobs: list[bytes]) -> None:
    kind = _RESERVED if put.is_reserved else 0
    kind |= _COPIES if put.origins is not None else 0
    kind |= _EQUAL_METADATA if put.equal_metadata is not None else 0
    kind |= _SOME_METADATA if put.all_metadata is not None else 0
    numbers += (put.source_key, put.first_count, put.enqueued_ms, kind, len(put.payloads))
    numbers += map(len, put.payloads)
    blobs += put.payloads
    if put.origins is not None:
        numbers += put.origins
    if put.equal_metadata is not None:
        numbers += map(len, put.equal_metadata)
        blobs += put.equal_metadata
    if put.all_metadata is not None:
        numbers.append(len(put.all_metadata))
        for index, (state, deliveries, metadata) in put.all_metadata.items():
            numbers += (index, state, deliveries, _NONE if metadata is None else len(metadata))
            blobs.append(metadata or b"")


def _swapped(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class _Reader:
    """Takes a body apart, number by number and blob by blob; what does not fit raises ValueError or IndexError.

    A number that says how many of something follow is believed only as far as the body has bytes for them.
    """

    def __init__(self, body: bytes) -> None:
        if len(body) < _COUNT.size:
            raise ValueError("it has no numbers")
        (count,) = _COUNT.unpack_from(body)
        self._blob_at = _COUNT.size + 8 * count
        if self._blob_at > len(body):
            raise ValueError("it is shorter than its numbers")
        self._body = body
        self._numbers = _swapped(array("q", body[_COUNT.size : self._blob_at]))
        self._at = 0

    def batch(self, commit_no: int) -> CommitBatch:
        """Return the commit."""
        broker_ms, *sizes = self._take(10)
        batch = CommitBatch(commit_no, broker_ms)
        epochs, puts, removed, changes, sources, histories, outdated, tombstones, forgotten = sizes
        batch.epochs = [(key, epoch) for key, epoch in self._rows(epochs, 2)]
        batch.puts = [self._put() for _ in range(self._few(puts, 5))]
        batch.removed = [(key, first, last) for key, first, last in self._rows(removed, 3)]
        batch.changes = [(*row, self._optional(length)) for *row, length in self._rows(changes, 5)]  # type: ignore[misc]
        batch.sources = [(*row, self._blob(length)) for *row, length in self._rows(sources, 4)]  # type: ignore[misc]
        batch.histories = [
            IdBlock(key, first, at_ms, self._blob(length)) for key, first, at_ms, length in self._rows(histories, 4)
        ]
        batch.outdated = [(key, last) for key, last in self._rows(outdated, 2)]
        batch.tombstones = [Tombstone(*row) for row in self._rows(tombstones, 6)]
        batch.forgotten = [(store_id, generation) for store_id, generation in self._rows(forgotten, 2)]
        if self._at != len(self._numbers) or self._blob_at != len(self._body):
            raise ValueError("something is left over")
        return batch

    def _put(self) -> Put:
        source_key, first_count, enqueued_ms, kind, number = self._take(5)
        if not 0 <= kind < _KINDS_END:
            raise ValueError(f"a put of kind {kind}")
        put = Put(source_key, first_count, enqueued_ms, self._blobs(number))
        put.is_reserved = bool(kind & _RESERVED)
        if kind & _COPIES:
            put.origins = self._take(number)
        if kind & _EQUAL_METADATA:
            put.equal_metadata = self._blobs(number)
        if kind & _SOME_METADATA:
            put.all_metadata = {}
            for index, state, deliveries, length in self._rows(self._take(1)[0], 4):
                if not 0 <= index < number:
                    raise ValueError(f"metadata of message {index} of {number}")
                put.all_metadata[index] = (state, deliveries, self._optional(length))
        return put

    def _take(self, number: int) -> list[int]:
        end = self._at + number
        if number < 0 or end > len(self._numbers):
            raise ValueError(f"{number} numbers where {len(self._numbers) - self._at} are left")
        found = self._numbers[self._at : end].tolist()
        self._at = end
        return found

    def _few(self, number: int, width: int) -> int:
        """Return how many rows there are, if there can be so many."""
        if not 0 <= number * width <= len(self._numbers) - self._at:
            raise ValueError(f"{number} rows where {len(self._numbers) - self._at} numbers are left")
        return number

    def _rows(self, number: int, width: int) -> list[list[int]]:
        flat = self._take(self._few(number, width) * width)
        return [flat[start : start + width] for start in range(0, len(flat), width)]

    def _blobs(self, number: int) -> list[bytes]:
        lengths = self._take(number)
        if lengths and min(lengths) < 0:
            raise ValueError(f"a length of {min(lengths)}")
        ends = list(accumulate(lengths, initial=self._blob_at))
        if ends[-1] > len(self._body):
            raise ValueError("it is shorter than its blobs")
        self._blob_at = ends[-1]
        return [self._body[start:end] for start, end in pairwise(ends)]

    def _blob(self, length: int) -> bytes:
        if length < 0 or self._blob_at + length > len(self._body):
            raise ValueError(f"a blob of {length} bytes where {len(self._body) - self._blob_at} are left")
        start = self._blob_at
        self._blob_at += length
        return self._body[start : self._blob_at]

    def _optional(self, length: int) -> bytes | None:
        return None if length == _NONE else self._blob(length)
