"""What SQLite's tables say of copies of topics' messages, without changing anything: which body each has, how large.

A store with a journal asks before it writes a removal there, because the removal reaches these tables later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apsw

from duobus.storage.checksums import body_sum
from duobus.storage.interface import COUNT_BITS, COUNT_MAX, SOURCE_KEY_MAX
from duobus.storage.sqlite import rows as table_rows
from duobus.storage.sqlite import schema
from duobus.storage.sqlite.packed_refs import PackedRefs
from duobus.storage.sqlite.shared_bodies import APART, PREFIX, PREFIX_BYTES, body_key_of, holds


class CopyFound(NamedTuple):
    """A copy in the tables.

    Attributes:
        source_key, message_count: Which one it is.
        origin: Count of the message whose body it shares with others; 0: its body is its own.
        size: Bytes of its own body; 0 where it shares one.
    """

    source_key: int
    message_count: int
    origin: int
    size: int


def copies_in(db: apsw.Connection, packed: PackedRefs, spans: Sequence[tuple[int, int, int]]) -> Iterator[CopyFound]:
    """Yield the copies in spans (source key, first count, last count), those left out that are damaged."""
    ranges, singles = table_rows.removals(spans)
    ids = [copy_id for copy_id in singles if copy_id in packed.where] if packed.where else []
    for first_id, last_id in ranges if packed.where else ():
        ids += packed.within(first_id, last_id)
    for copy_id in ids:
        yield CopyFound(copy_id >> COUNT_BITS, copy_id & COUNT_MAX, packed.where[copy_id] & COUNT_MAX, 0)
    for start in range(0, len(singles), schema.ROWS_PER_STATEMENT):
        part = singles[start : start + schema.ROWS_PER_STATEMENT]
        yield from _found(list(db.execute(schema.FIND_COPIES.texts[len(part)], part)))
    for bounds in ranges:
        yield from _found(list(db.execute(schema.FIND_COPIES_BETWEEN, bounds)))


def _found(rows: list[tuple[Any, ...]]) -> Iterator[CopyFound]:
    for row_id, enqueued_ms, whole, size, check in rows:
        prefix = 0
        if whole is not None:
            if not isinstance(enqueued_ms, int) or check != body_sum(row_id, enqueued_ms, whole):
                continue
            (prefix,) = PREFIX.unpack(whole)
        key, count = row_id >> COUNT_BITS, row_id & COUNT_MAX
        if prefix & APART:
            yield CopyFound(key, count, prefix & COUNT_MAX, 0)
        elif isinstance(size, int):
            yield CopyFound(key, count, 0, max(0, size - PREFIX_BYTES))


def bodies_of(
    db: apsw.Connection, packed: PackedRefs, bodies: Collection[tuple[int, int]]
) -> Mapping[tuple[int, int], tuple[int, int]]:
    """Return copies and bytes of bodies (key of source 0, count), those left out of which nobody knows."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    ids = []
    for home, count in bodies:
        body_id = body_key_of(home) << COUNT_BITS | count
        pack = packed.bodies.get(body_id)
        if pack is None:
            ids.append(body_id)
        else:
            found[home, count] = (len(pack.copies), pack.size)
    for start in range(0, len(ids), schema.ROWS_PER_STATEMENT):
        part = ids[start : start + schema.ROWS_PER_STATEMENT]
        rows: list[tuple[Any, ...]] = list(db.execute(schema.FIND_SHARES.texts[len(part)], part))
        for row in rows:
            if holds(row):
                found[(row[0] >> COUNT_BITS) + SOURCE_KEY_MAX + 1, row[0] & COUNT_MAX] = (row[1], row[2])
    return found
