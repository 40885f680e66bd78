"""Rows of duplicate histories in the SQLite store: blocks of message ids with their checksums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from duobus.storage.checksums import numbers_sum, split_id
from duobus.storage.interface import COUNT_BITS, COUNT_MAX, IdBlock
from duobus.storage.sqlite import schema


def values(blocks: Sequence[IdBlock]) -> list[Any]:
    """Return the flat values of new blocks, checksums included."""
    flat: list[Any] = []
    for block in blocks:
        numbers = (block.source_key << COUNT_BITS | block.first_count, block.at_ms)
        flat += (*numbers, block.ids, numbers_sum(numbers, block.ids))
    return flat


def delete(db: apsw.Connection, source_key: int, first_count: int, last_count: int) -> None:
    """Delete the blocks of a source with first counts in this range, inclusive."""
    base = source_key << COUNT_BITS
    db.execute(schema.DELETE_HISTORIES, (base | first_count, base | last_count))


def load(
    db: apsw.Connection, quarantine: dict[int, str], source_key: int, first_count: int, limit: int
) -> list[IdBlock]:
    """Return blocks that verify, ascending; the others go to the quarantine and count towards the limit no less."""
    base = source_key << COUNT_BITS
    blocks: list[IdBlock] = []
    while len(blocks) < limit and first_count <= COUNT_MAX:
        rows = _rows(db, base | first_count, base | COUNT_MAX, limit - len(blocks))
        if not rows:
            break
        for row in rows:
            if holds(row):
                blocks.append(IdBlock(source_key, split_id(row[0])[1], row[1], row[2]))
            else:
                quarantine[row[0]] = "duplicate history: the checksum does not hold; its ids may be taken again"
        first_count = split_id(rows[-1][0])[1] + 1
    return blocks


def faults(db: apsw.Connection) -> list[str]:
    """Return what is wrong with the table, in words; reads all of it."""
    bad = [split_id(row[0]) for row in _rows(db, -(1 << 63), (1 << 63) - 1, -1) if not holds(row)]
    return [f"source {key}, duplicate history at {count}: the checksum does not hold" for key, count in bad]


def _rows(db: apsw.Connection, first_id: int, last_id: int, limit: int) -> list[tuple[Any, ...]]:
    """The rows of a range; one that the driver cannot read comes as an id without a value that could hold."""
    try:
        return list(db.execute(schema.LOAD_HISTORIES, (first_id, last_id, limit)))
    except (apsw.CorruptError, UnicodeDecodeError):
        found: list[tuple[Any, ...]] = []
        for (row_id,) in list(db.execute(schema.LOAD_HISTORY_IDS, (first_id, last_id, limit))):
            try:
                found += db.execute(schema.LOAD_HISTORIES, (row_id, row_id, 1))
            except (apsw.CorruptError, UnicodeDecodeError):
                found.append((row_id, None, None, None))
        return found


def holds(row: tuple[Any, ...]) -> bool:
    """Return whether a row is what was written; types are looked at first, a flipped bit can change them."""
    row_id, at_ms, ids, row_sum = row
    return type(at_ms) is int and isinstance(ids, bytes) and numbers_sum((row_id, at_ms), ids) == row_sum
