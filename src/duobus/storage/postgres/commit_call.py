"""The commit of every day as one call of a prepared function, with binary arrays for its values: one round trip.

A string of statements with a COPY in it (``rows.py``) is read and planned anew for each commit, and the COPY
takes a round trip of its own. What most commits hold (plain messages that come, messages that go, sources that
advance) needs neither. Everything else, and what is large, goes the other way; both leave the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from struct import Struct
from typing import Final

from duobus.storage.checksums import body_sums
from duobus.storage.interface import COUNT_BITS, CommitBatch, SourceRow
from duobus.storage.postgres.rows import PostgresMeta
from duobus.storage.sqlite.rows import removals, source_values

#: Bytes of new payloads that a call holds at most. The server takes the values of a call into its memory several times
#: over, and a COPY goes row by row: with 500 messages of 1 KiB the call still takes less, with 1,000 the COPY does.
CALL_BYTES_MAX: Final = 512 << 10

NAME: Final = b"commit"
STATEMENT: Final = (
    b"SELECT commit_plain($1::int8[],$2::int8[],$3::int8[],$4::bytea[],$5::int8[],$6::int8[],$7::int8[],"
    b"$8::int8[],$9::int8[],$10::int8[],$11::bytea[],$12::int8[],$13::int8[],$14::int8[],$15::int8[])"
)
#: Parameters of it.
PARAMETERS: Final = 15

_INT8_OID: Final = 20
_BYTEA_OID: Final = 17
#: Head of a binary array: dimensions, whether NULLs are in it, the type; then the length and the first index of each.
_HEAD: Final = Struct(">iiiii").pack
_EMPTY: Final = Struct(">iii").pack
_NUMBER: Final = Struct(">iq").pack
_LENGTH: Final = Struct(">i").pack
_NO_NUMBERS: Final = _EMPTY(0, 0, _INT8_OID)
_NO_BLOBS: Final = _EMPTY(0, 0, _BYTEA_OID)


def is_plain(batch: CommitBatch, homes: Mapping[int, int]) -> bool:
    """Whether a commit holds nothing beyond what the call takes; ``homes``: see ``topic_keys_of``."""
    if batch.changes or batch.histories or batch.outdated or batch.tombstones or batch.forgotten:
        return False
    size = 0
    for put in batch.puts:
        if put.all_metadata or put.equal_metadata is not None or put.source_key in homes:
            return False
        size += sum(map(len, put.payloads))
    return size <= CALL_BYTES_MAX and not any(row[0] in homes for row in batch.removed)


def values(batch: CommitBatch, sources: Mapping[int, SourceRow], old: PostgresMeta, new: PostgresMeta) -> list[bytes]:
    """The parameters of the call for a commit that ``is_plain``."""
    ids: list[int] = []
    moments: list[int] = []
    sums: list[int] = []
    payloads: list[bytes] = []
    for put in batch.puts:
        number = len(put.payloads)
        first_id = put.source_key << COUNT_BITS | put.first_count
        ids.extend(range(first_id, first_id + number))
        moments.extend(repeat(put.enqueued_ms, number))
        sums += body_sums(first_id, put.enqueued_ms, put.payloads)
        payloads += put.payloads
    ranges, singles = removals(batch.removed)
    flat = source_values(batch.sources, sources)
    keys, nexts, delivered, counters, checks = (flat[column::5] for column in range(5))
    numbers = (old.generation, old.revision, new.generation, new.last_commit_no, new.broker_ms)
    return [
        integers(ids),
        integers(moments),
        integers(sums),
        blobs(payloads),
        integers([first for first, _ in ranges]),
        integers([last for _, last in ranges]),
        integers(singles),
        integers(keys),
        integers(nexts),
        integers(delivered),
        blobs(counters),
        integers(checks),
        integers([row[0] for row in batch.epochs]),
        integers([row[1] for row in batch.epochs]),
        integers((*numbers, new.next_fragment_key, new.next_source_key, new.check_sum())),
    ]


def integers(numbers: Sequence[int]) -> bytes:
    """A binary array of int8."""
    if not numbers:
        return _NO_NUMBERS
    return _HEAD(1, 0, _INT8_OID, len(numbers), 1) + b"".join(map(_NUMBER, repeat(8), numbers))


def blobs(pieces: Sequence[bytes]) -> bytes:
    """A binary array of bytea."""
    if not pieces:
        return _NO_BLOBS
    return b"".join(_laid_out(pieces))


def _laid_out(pieces: Sequence[bytes]) -> Iterable[bytes]:
    flat: list[bytes] = [b""] * (2 * len(pieces) + 1)
    flat[0] = _HEAD(1, 0, _BYTEA_OID, len(pieces), 1)
    flat[1::2] = map(_LENGTH, map(len, pieces))
    flat[2::2] = pieces
    return flat
