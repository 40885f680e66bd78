"""Pages of a paged tail as columns: how a deep backlog comes back into memory without a step per message.

The driver gives the interpreter lock away and takes it again with every row, while the event loop wants it all the
time: a page of 4,000 rows met it 4,000 times. Here one statement puts a stretch of rows together, payloads behind each
other and their numbers as decimal digits, and comes back once. It does so only for what nearly every stretch of a
backlog is: plain messages with consecutive counts. Whatever else it meets, it leaves to ``rows.MessageReader``,
which looks at each row by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from struct import unpack_from
from typing import Final

import apsw
import msgspec

from duobus.storage.checksums import body_sums
from duobus.storage.interface import COUNT_BITS, COUNT_MAX, READ_BYTES_MAX, PlainColumns
from duobus.storage.sqlite import schema

_LENGTH_MASK: Final = (1 << schema.LENGTH_BITS) - 1
#: Three times as fast as to split the digits.
_NUMBERS: Final = msgspec.json.Decoder(list[int])


def read(db: apsw.Connection, source_key: int, first_count: int, limit: int) -> list[PlainColumns]:
    """Return up to ``limit`` verified messages from ``first_count`` on in stretches, as far as they are plain.

    It ends with the stretch that makes it READ_BYTES_MAX bytes of payload.
    """
    stretches: list[PlainColumns] = []
    size = 0
    while limit >= schema.STRETCH and size < READ_BYTES_MAX:
        found = _stretch(db, source_key, first_count)
        if found is None:
            break
        stretches.append(found)
        number = len(found.payloads)
        first_count += number
        limit -= number
        size += sum(map(len, found.payloads))
    return stretches


def _stretch(db: apsw.Connection, source_key: int, first_count: int) -> PlainColumns | None:
    """Return the STRETCH messages from ``first_count`` on; None when not all of them are there, plain and undamaged.

    Only a row that verifies may end a source, and only ``rows.MessageReader`` can tell why one is missing. So a stretch
    is whole or it is none: as many rows as ids, and the ids are the ones that were asked for.
    """
    number = schema.STRETCH
    if first_count + number - 1 > COUNT_MAX:
        return None
    first_id = source_key << COUNT_BITS | first_count
    try:
        found = db.execute(schema.LOAD_STRETCH, (first_id, first_id, first_id + number - 1)).fetchone()
    except (apsw.CorruptError, UnicodeDecodeError):
        return None
    if found is None:
        return None
    rows, offsets, zero, sums, marks, payloads = found
    if rows != number or offsets != number * (number - 1) // 2 or zero != 0 or type(zero) is not int:
        return None
    return verified(first_id, number, sums, marks, payloads)


def verified(first_id: int, number: int, sums: str, marks: str, data: bytes) -> PlainColumns | None:
    """Cut payloads and hold each against its checksum; None when one is damaged, which ``load`` finds and quarantines.

    Args:
        first_id: Key of the first row; the others follow by one.
        number: Rows.
        sums: Of each row its checksum, with commas between.
        marks: Of each row its time and, in the lowest LENGTH_BITS, the length of its payload.
        data: All payloads, one behind the other.
    """
    try:
        expected, times_and_lengths = _NUMBERS.decode(f"[{sums}]"), _NUMBERS.decode(f"[{marks}]")
    except msgspec.MsgspecError:
        # Something else than integers, or one beyond 64 bits.
        return None
    if len(times_and_lengths) != number:
        return None
    times = [mark >> schema.LENGTH_BITS for mark in times_and_lengths]
    payloads = _cut(data, [mark & _LENGTH_MASK for mark in times_and_lengths])
    if payloads is None or _sums(first_id, times, payloads) != expected:
        return None
    return PlainColumns(first_id & COUNT_MAX, times, payloads)


def _cut(data: bytes, lengths: list[int]) -> Sequence[bytes] | None:
    """Return the payloads; None when the lengths don't add up to what is there."""
    if sum(lengths) != len(data):
        return None
    if lengths.count(lengths[0]) == len(lengths):
        return unpack_from(f"{lengths[0]}s" * len(lengths), data)
    payloads = []
    start = 0
    for length in lengths:
        payloads.append(data[start : start + length])
        start += length
    return payloads


def _sums(first_id: int, times: list[int], payloads: Sequence[bytes]) -> list[int]:
    if times.count(times[0]) == len(times):
        # One commit, or one millisecond: what a backlog that was filled fast consists of.
        return body_sums(first_id, times[0], payloads)
    sums: list[int] = []
    for time, run in groupby(times):
        start = len(sums)
        sums += body_sums(first_id + start, time, payloads[start : start + sum(1 for _ in run)])
    return sums
