"""One commit as one record: all numbers in one array, all bytes behind it.

    header   magic, length of the body, CRC of the body, generation, commit number, sequence of the segment
    body     the number of numbers, the numbers, and the blobs that the numbers tell the lengths of
"""

from __future__ import annotations

from array import array
from itertools import chain
from struct import Struct
from zlib import crc32

from duobus.storage.interface import CommitBatch, IdBlock, Put, Tombstone

MAGIC = b"dbJ1"
HEADER = Struct("<4sIIIQQQ")
_COUNT = Struct("<I4x")


def encoded(batch: CommitBatch, generation: int, segment: int) -> list[bytes]:
    """Return a record as the pieces of one vectored write."""
    numbers = [
        batch.broker_ms,
        len(batch.epochs),
        len(batch.puts),
        len(batch.removed),
        len(batch.changes),
        len(batch.sources),
        len(batch.histories),
        len(batch.outdated),
        len(batch.tombstones),
        len(batch.forgotten),
    ]
    blobs: list[bytes] = []
    for pair in batch.epochs:
        numbers += pair
    for put in batch.puts:
        payloads = put.payloads
        kind = (
            put.is_reserved | (put.origins is not None) << 1 | (put.equal_metadata is not None) << 2
            | bool(put.all_metadata) << 3
        )
        numbers += (put.source_key, put.first_count, put.enqueued_ms, len(payloads), kind)
        numbers += map(len, payloads)
        blobs += payloads
        if put.origins is not None:
            numbers += put.origins
        if put.equal_metadata is not None:
            numbers += map(len, put.equal_metadata)
            blobs += put.equal_metadata
        if put.all_metadata:
            numbers.append(len(put.all_metadata))
            for index, (state, deliveries, metadata) in put.all_metadata.items():
                numbers += (index, state, deliveries, -1 if metadata is None else len(metadata))
                blobs.append(metadata or b"")
    numbers += chain.from_iterable(batch.removed)
    for source_key, count, state, deliveries, metadata in batch.changes:
        numbers += (source_key, count, state, deliveries, -1 if metadata is None else len(metadata))
        blobs.append(metadata or b"")
    for source_key, next_count, highest, counters in batch.sources:
        numbers += (source_key, next_count, highest, len(counters))
        blobs.append(counters)
    for block in batch.histories:
        numbers += (block.source_key, block.first_count, block.at_ms, len(block.ids))
        blobs.append(block.ids)
    numbers += chain.from_iterable(batch.outdated)
    for t in batch.tombstones:
        numbers += (t.store_id, t.generation, t.commit_no, t.source_key, t.first_count, t.last_count)
    numbers += chain.from_iterable(batch.forgotten)
    body = b"".join((_COUNT.pack(len(numbers)), array("q", numbers).tobytes(), *blobs))
    return [HEADER.pack(MAGIC, len(body), crc32(body), 0, generation, batch.commit_no, segment), body]


def decoded(body: bytes, commit_no: int) -> CommitBatch:
    """Return the batch of a body whose checksum holds."""
    (count,) = _COUNT.unpack_from(body)
    numbers = array("q")
    at = _COUNT.size + 8 * count
    numbers.frombytes(body[_COUNT.size : at])
    number = iter(numbers).__next__

    def blob(length: int) -> bytes:
        nonlocal at
        at += length
        return body[at - length : at]

    batch = CommitBatch(commit_no, number())
    sizes = [number() for _ in range(9)]
    batch.epochs = [(number(), number()) for _ in range(sizes[0])]
    for _ in range(sizes[1]):
        source_key, first_count, enqueued_ms, n, kind = (number() for _ in range(5))
        put = Put(source_key, first_count, enqueued_ms, [blob(number()) for _ in range(n)])
        put.is_reserved = bool(kind & 1)
        if kind & 2:
            put.origins = [number() for _ in range(n)]
        if kind & 4:
            put.equal_metadata = [blob(number()) for _ in range(n)]
        if kind & 8:
            put.all_metadata = {}
            for _ in range(number()):
                index, state, deliveries, length = (number() for _ in range(4))
                put.all_metadata[index] = (state, deliveries, None if length < 0 else blob(length))
        batch.puts.append(put)
    batch.removed = [(number(), number(), number()) for _ in range(sizes[2])]
    for _ in range(sizes[3]):
        source_key, first_count, state, deliveries, length = (number() for _ in range(5))
        batch.changes.append((source_key, first_count, state, deliveries, None if length < 0 else blob(length)))
    for _ in range(sizes[4]):
        source_key, next_count, highest, length = (number() for _ in range(4))
        batch.sources.append((source_key, next_count, highest, blob(length)))
    for _ in range(sizes[5]):
        source_key, first_count, at_ms, length = (number() for _ in range(4))
        batch.histories.append(IdBlock(source_key, first_count, at_ms, blob(length)))
    batch.outdated = [(number(), number()) for _ in range(sizes[6])]
    batch.tombstones = [Tombstone(*(number() for _ in range(6))) for _ in range(sizes[7])]
    batch.forgotten = [(number(), number()) for _ in range(sizes[8])]
    return batch
