"""Fuzz target of the journal of a store: its reader takes what a disk gives back after anything has happened to it.

The first byte says what the others are: a segment as it is, or the body of a record whose checksums hold, so that the
search gets behind them.
"""

from __future__ import annotations

from duobus.storage.interface import CommitBatch, IdBlock, Put, Tombstone
from duobus.storage.journal.format import (
    HEADER_BYTES,
    HEADERS_AT,
    RECORDS_AT,
    CommitRecord,
    JournalDamaged,
    SegmentHeader,
    batch_of,
    body_of,
    read_segment,
    record_header,
    segment_header,
)

HEADER = SegmentHeader(1, 2, 0, b"saltsalt")
_COMMIT_NO = 5


def segment_of(records: bytes) -> bytes:
    """Return a segment with these bytes where the records begin."""
    start = bytearray(RECORDS_AT)
    for at in HEADERS_AT:
        start[at : at + HEADER_BYTES] = segment_header(HEADER)
    return bytes(start) + records


def journals(data: bytes) -> None:
    """A segment, or a body; whatever is read is written as it was, and read as the same again."""
    if data[:1] == b"\0":
        _read(data[1:])
        return
    body = data[1:]
    contents = read_segment(segment_of(record_header(body, _COMMIT_NO, 1, HEADER) + body))
    if contents is None or [record.body for record in contents.records] != [body]:
        raise AssertionError("a record that is whole was not found")
    _same(contents.records[0])


def _read(data: bytes) -> None:
    try:
        contents = read_segment(data)
    except JournalDamaged:
        return
    if contents is not None:
        if contents.end > len(data):
            raise AssertionError("records were read that are not there")
        for record in contents.records:
            _same(record)


def _same(record: CommitRecord) -> None:
    try:
        batch = batch_of(record)
    except JournalDamaged:
        return
    # A body of ours is the only one that says what it says, but for metadata of one message that is there twice.
    body = body_of(batch)
    if body_of(batch_of(record._replace(body=body))) != body or len(body) > len(record.body):
        raise AssertionError("what was read is not what is written")


def seeds() -> list[bytes]:
    """Return bodies with something in every column, and segments: whole, torn, and damaged in the middle."""
    body = body_of(_batch())
    small = body_of(CommitBatch(_COMMIT_NO, 1_000))
    records = b"".join(record_header(small, number, 1, HEADER) + small for number in (5, 6, 7))
    damaged = bytearray(records)
    damaged[50] ^= 1
    whole = (segment_of(records), segment_of(records[:-9]), segment_of(bytes(damaged)), bytes(RECORDS_AT) + records)
    return [b"\1" + body, b"\1" + small, *(b"\0" + data for data in whole)]


def _batch() -> CommitBatch:
    batch = CommitBatch(_COMMIT_NO, 1_700_000_000_000)
    batch.epochs = [(1, 2)]
    mixed = Put(2, 10, 99, [b"a", b"", b"ccc"], {1: (2, 3, None), 2: (0, 1, b"m")}, [-5, 0, 6])
    equal = Put(3, 4, 98, [b"x" * 30, b"y"])
    equal.equal_metadata = [b"m", b""]
    batch.puts = [mixed, equal]
    batch.removed = [(2, 1, 9), (3, 3, 3)]
    batch.changes = [(2, 11, 1, 2, b"special"), (2, 12, 0, 0, None)]
    batch.sources = [(2, 13, 12, b"counters")]
    batch.histories = [IdBlock(2, 10, 99, b"ids")]
    batch.outdated = [(2, 4)]
    batch.tombstones = [Tombstone(1, 2, 3, 4, 5, 6)]
    batch.forgotten = [(9, 8)]
    return batch
