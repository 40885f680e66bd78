"""What it costs to make a commit one string of bytes: ``python -m prototypes.journal.encodings``; least of many."""

from __future__ import annotations

import marshal
import os
import struct
from array import array
from time import perf_counter
from zlib import crc32

from duobus.storage.checksums import body_sums
from duobus.storage.interface import CommitBatch, Put
from duobus.storage.journal.format import SegmentHeader, body_of, record_header

HEADER = SegmentHeader(1, 1, 0, b"saltsalt")


def batch_of(size: int) -> CommitBatch:
    """A commit that puts and removes."""
    batch = CommitBatch(9, 1_700_000_000_000)
    batch.epochs = [(1, 2)]
    batch.puts = [Put(1, 1000, 1_700_000_000_000, [os.urandom(1024) for _ in range(size)])]
    batch.removed = [(1, 500, 499 + size)]
    batch.sources = [(1, 1000 + size, 999, b"x" * 40)]
    return batch


def columns(batch: CommitBatch) -> tuple:
    """The same for encoders that take tuples."""
    puts = [(p.source_key, p.first_count, p.enqueued_ms, p.is_reserved, list(p.payloads)) for p in batch.puts]
    return batch.broker_ms, batch.epochs, puts, batch.removed, batch.changes, batch.sources


def arrayed(batch: CommitBatch) -> bytes:
    """All numbers in one array, all bytes behind it."""
    payloads = batch.puts[0].payloads
    numbers = [batch.broker_ms, 1, 1, 1, 0, 1, *batch.epochs[0], 1, 1000, 17, 0, len(payloads), *map(len, payloads)]
    numbers += (*batch.removed[0], *batch.sources[0][:3])
    return b"".join((array("q", numbers).tobytes(), *payloads, batch.sources[0][3]))


def packed(batch: CommitBatch) -> bytes:
    """Struct in the place of the array."""
    payloads = batch.puts[0].payloads
    numbers = [batch.broker_ms, 1, 1, 1, 0, 1, *batch.epochs[0], 1, 1000, 17, 0, len(payloads), *map(len, payloads)]
    numbers += (*batch.removed[0], *batch.sources[0][:3])
    return b"".join((struct.pack(f"<{len(numbers)}q", *numbers), *payloads, batch.sources[0][3]))


def least(call) -> float:  # noqa: ANN001
    """Microseconds."""
    best = 1.0
    for _ in range(400):
        began = perf_counter()
        call()
        best = min(best, perf_counter() - began)
    return best * 1e6


def main() -> None:
    """Measure."""
    for size in (1, 10, 100, 1000):
        batch = batch_of(size)
        body = body_of(batch)
        print(
            f"{size:5} messages: array {least(lambda: arrayed(batch)):7.1f}  struct {least(lambda: packed(batch)):7.1f}"  # noqa: B023
            f"  marshal {least(lambda: marshal.dumps(columns(batch))):7.1f}"  # noqa: B023
            f"  msgpack {least(lambda: body_of(batch)):7.1f}"  # noqa: B023
            f"  CRC-32 {least(lambda: record_header(body, 1, 1, HEADER)):7.1f}"  # noqa: B023
            f"  SQLite's row sums {least(lambda: body_sums(1, 1, batch.puts[0].payloads)):7.1f} us"  # noqa: B023
        )


if __name__ == "__main__":
    main()
