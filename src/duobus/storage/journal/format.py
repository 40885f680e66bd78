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

The body is the columns of a ``CommitBatch`` as an array of MessagePack:

    broker_ms
    epochs       arrays of (fragment key, epoch)
    puts         arrays of (source key, first count, enqueued_ms, is reserved, payloads, origins or nil, metadata of
                 each message or nil, arrays of (index, state, deliveries, metadata or nil) or nil); a payload is nil
                 where its origin is negative and the payload is that of the last message before, in this record, with
                 the same origin and a payload
    removed      arrays of (source key, first count, last count)
    changes      arrays of (source key, count, state, deliveries, metadata or nil)
    sources      arrays of (source key, next count, highest delivered, counters)
    histories    arrays of (source key, first count, at_ms, ids)
    outdated     arrays of (source key, last count)
    tombstones   arrays of (store id, generation, commit number, source key, first count, last count)
    forgotten    arrays of (store id, generation)

*What ends a segment.* A commit is written after the one before is synced, so at most one record of a journal was not
answered when the power went: the last one, of which any sectors may be missing (a torn tail). A record that is not
whole, with any other begun behind it, was answered and is damaged. Nobody who sends messages knows the salt, so no
message holds what passes for a record; and what an earlier use of the file left has another salt.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from msgspec import DecodeError, ValidationError
from msgspec.msgpack import Decoder, Encoder

from duobus.storage.checksums import crc32
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
RECORD_HEADER_BYTES: Final = _RECORD.size + _SUM.size
SALT_BYTES: Final = 8


class JournalDamaged(Exception):
    """The bytes contradict themselves; the text says where."""


class SegmentHeader(NamedTuple):
    """Of which store a segment is, which of its uses, and how long its file is at least."""

    store_id: int
    sequence: int
    length: int
    salt: bytes


class CommitRecord(NamedTuple):
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
        torn_no: The commit whose record begins at ``end`` and is not whole, if its header is; else 0.
    """

    header: SegmentHeader
    records: list[CommitRecord]
    end: int
    is_followed: bool
    torn_no: int


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
    records: list[CommitRecord] = []
    at = RECORDS_AT
    while (found := _record_at(data, at, mark)) is not None:
        records.append(found)
        at += RECORD_HEADER_BYTES + len(found.body)
    head = _head_at(data, at, mark)
    return SegmentContents(header, records, at, _is_begun_behind(data, at, mark), 0 if head is None else head[2])


def batch_of(found: CommitRecord) -> CommitBatch:
    """Return the commit of a record.

    Raises:
        JournalDamaged: The body is not one that ``body_of`` makes, although its checksum holds.
    """
    try:
        broker_ms, epochs, puts, *rows = _DECODER.decode(found.body)
        batch = CommitBatch(found.commit_no, broker_ms)
        written: dict[int, bytes] = {}
        batch.epochs, batch.puts = epochs, [_put_of(put, written) for put in puts]
    except DecodeError as error:
        raise JournalDamaged(f"the record of commit {found.commit_no} cannot be read: {error}") from None
    batch.removed, batch.changes, batch.sources, histories, batch.outdated, tombstones, batch.forgotten = rows
    batch.histories = [IdBlock(*row) for row in histories]
    batch.tombstones = [Tombstone(*row) for row in tombstones]
    return batch


def _record_at(data: bytes, at: int, mark: bytes) -> CommitRecord | None:
    head = _head_at(data, at, mark)
    if head is None:
        return None
    length, generation, commit_no, body_sum = head
    first = at + RECORD_HEADER_BYTES
    body = data[first : first + length]
    return CommitRecord(generation, commit_no, body) if len(body) == length and crc32(body) == body_sum else None


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

_Metadata = tuple[int, int, int, bytes | None]
_Put = tuple[int, int, int, bool, list[bytes | None], Sequence[int] | None, list[bytes] | None, list[_Metadata] | None]
_Columns = tuple[
    int,
    list[tuple[int, int]],
    list[_Put],
    list[tuple[int, int, int]],
    list[tuple[int, int, int, int, bytes | None]],
    list[tuple[int, int, int, bytes]],
    list[tuple[int, int, int, bytes]],
    list[tuple[int, int]],
    list[tuple[int, int, int, int, int, int]],
    list[tuple[int, int]],
]
_ENCODER: Final = Encoder()
_DECODER: Final = Decoder(_Columns)


def body_of(batch: CommitBatch) -> bytes:
    """Return the body of a commit's record, without a Python step for each message."""
    columns: _Columns = (
        batch.broker_ms,
        batch.epochs,
        _puts(batch.puts),
        batch.removed,
        batch.changes,
        batch.sources,
        [(block.source_key, block.first_count, block.at_ms, block.ids) for block in batch.histories],
        batch.outdated,
        [(t.store_id, t.generation, t.commit_no, t.source_key, t.first_count, t.last_count) for t in batch.tombstones],
        batch.forgotten,
    )
    return _ENCODER.encode(columns)


def _puts(puts: Sequence[Put]) -> list[_Put]:
    """Return the columns of new messages; a body that copies share stands there once."""
    written: dict[int, bytes] = {}
    return [_put(put, put.payloads if put.origins is None else _once(put, written)) for put in puts]


def _once(put: Put, written: dict[int, bytes]) -> Sequence[bytes | None]:
    """Return the payloads of copies, None for those that stand in the record already, by the count of their message."""
    origins = put.origins or ()
    if not origins or min(origins) >= 0:
        return put.payloads
    payloads: list[bytes | None] = []
    for payload, origin in zip(put.payloads, origins, strict=True):
        if origin >= 0:
            payloads.append(payload)
        elif written.get(origin) is payload:
            payloads.append(None)
        else:
            written[origin] = payload
            payloads.append(payload)
    return payloads


def _put(put: Put, payloads: Sequence[bytes | None]) -> _Put:
    some = None if put.all_metadata is None else [(index, *found) for index, found in put.all_metadata.items()]
    return (
        put.source_key,
        put.first_count,
        put.enqueued_ms,
        put.is_reserved,
        list(payloads),
        put.origins,
        put.equal_metadata,
        some,
    )


def _put_of(columns: _Put, written: dict[int, bytes]) -> Put:
    source_key, first_count, enqueued_ms, is_reserved, payloads, origins, equal_metadata, some = columns
    for one_each in (origins, equal_metadata):
        if one_each is not None and len(one_each) != len(payloads):
            raise ValidationError(f"{len(one_each)} values for {len(payloads)} messages")
    put = Put(source_key, first_count, enqueued_ms, _whole(payloads, origins, written), origins=origins)
    put.is_reserved = is_reserved
    put.equal_metadata = equal_metadata
    if some is not None:
        if any(not 0 <= index < len(payloads) for index, *_ in some):
            raise ValidationError("metadata of a message that is not there")
        put.all_metadata = {index: (state, deliveries, metadata) for index, state, deliveries, metadata in some}
    return put


def _whole(
    payloads: Sequence[bytes | None], origins: Sequence[int] | None, written: dict[int, bytes]
) -> Sequence[bytes]:
    """Return payloads with those put in that stand earlier in the record."""
    found: list[bytes] = []
    for index, payload in enumerate(payloads):
        origin = 0 if origins is None else origins[index]
        whole = written.get(origin) if payload is None and origin < 0 else payload
        if whole is None:
            raise ValidationError("a message without a payload")
        if origin < 0:
            written[origin] = whole
        found.append(whole)
    return found
