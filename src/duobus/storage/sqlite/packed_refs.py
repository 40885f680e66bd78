"""Packed copies: references to a shared body that stand in one row together, before each has a row of its own.

A message for ten subscriptions would touch ten places of the table, a page of the log for each. So its copies are
first written as one row, beside those of the messages before it; most of them are settled while they stand there. What
is left gets rows of its own when one of a message's copies changes, when somebody reads copies or drops them, or when
there are too many: then those of many messages lie beside each other.

A row of ``packed`` is whole or it is not there: it has the ids of all copies that are left of a body, which then has
no row of ``shares``. It is written and deleted in the transactions that add, unpack and remove copies. All of them are
in memory, too, so that a commit finds out without reading whether what it removes is packed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import groupby
from struct import Struct
from typing import Any, Final

import apsw

from duobus.storage.checksums import numbers_sum
from duobus.storage.interface import COUNT_BITS, SOURCE_KEY_MAX, Put
from duobus.storage.sqlite import rows as table_rows
from duobus.storage.sqlite import schema

#: Copies of one message that are packed: each that is settled writes those that are left once more.
COPIES_OF_A_BODY_MAX: Final = 64
#: Packed copies of a store: what all of them take in memory, and what a commit may have to write for others (12 ms).
COPIES_MAX: Final = 4096

_ID_BYTES: Final = 8


class PackedBody:
    """The copies of one body.

    Attributes:
        enqueued_ms: Of the message.
        size: Of the body.
        copies: Their ids, as keys.
    """

    __slots__ = ("copies", "enqueued_ms", "size")

    def __init__(self, enqueued_ms: int, size: int, copies: Iterable[int] = ()) -> None:
        self.enqueued_ms = enqueued_ms
        self.size = size
        self.copies = dict.fromkeys(copies)

    def values(self, body_id: int) -> tuple[Any, ...]:
        """The row, with its checksum."""
        numbers = (body_id, self.enqueued_ms, self.size)
        blob = _ids(len(self.copies)).pack(*self.copies)
        return (*numbers, blob, numbers_sum(numbers, blob))


class PackedRefs:
    """All packed copies of a store.

    Attributes:
        bodies: Id of a body to its copies.
        where: Id of a copy to that of its body.
    """

    __slots__ = ("bodies", "where")

    def __init__(self) -> None:
        self.bodies: dict[int, PackedBody] = {}
        self.where: dict[int, int] = {}

    def add(self, bodies: Mapping[int, PackedBody]) -> None:
        """Take over new ones."""
        for body_id, pack in bodies.items():
            self.bodies[body_id] = pack
            self.where.update(dict.fromkeys(pack.copies, body_id))

    def pop(self, body_id: int) -> PackedBody:
        """Give a body away with all of its copies."""
        pack = self.bodies.pop(body_id)
        for copy_id in pack.copies:
            del self.where[copy_id]
        return pack

    def remove(self, copy_id: int) -> int:
        """Forget a copy; returns its body, which may have none any more."""
        body_id = self.where.pop(copy_id)
        del self.bodies[body_id].copies[copy_id]
        return body_id

    def within(self, first_id: int, last_id: int) -> list[int]:
        """The copies with ids in a range, inclusive."""
        where = self.where
        if last_id - first_id < len(where):
            return [copy_id for copy_id in range(first_id, last_id + 1) if copy_id in where]
        return [copy_id for copy_id in where if first_id <= copy_id <= last_id]


class PutSegment:
    """Neighbours among the copies of a put, all packed or all with rows.

    Attributes:
        is_packed: Whether they are packed.
        first_count, payloads, origins, all_metadata: As in a Put.
    """

    __slots__ = ("all_metadata", "first_count", "is_packed", "origins", "payloads")

    def __init__(self, put: Put, start: int, end: int, *, is_packed: bool) -> None:
        self.is_packed = is_packed
        self.first_count = put.first_count + start
        is_whole = end - start == len(put.payloads)
        origins = put.origins or [0] * len(put.payloads)
        self.payloads = put.payloads if is_whole else put.payloads[start:end]
        self.origins = origins if is_whole else origins[start:end]
        self.all_metadata = put.all_metadata
        if put.all_metadata and not is_whole:
            self.all_metadata = {
                index - start: found for index, found in put.all_metadata.items() if start <= index < end
            }


def unfoldable(puts: Sequence[Put], homes: Mapping[int, int]) -> dict[int, Set[int]]:
    """The messages, by the (negative) origin of their copies, of which not all copies can be packed.

    Returns:
        Key of source 0 of a fragment to its messages, for each fragment with puts of copies.
    """
    found: dict[int, set[int]] = {}
    numbers: dict[int, Counter[int]] = {}
    times: dict[int, dict[int, list[Put]]] = {}
    for put in puts:
        home = homes.get(put.source_key)
        if home is None or put.origins is None:
            continue
        kept = found.setdefault(home, set())
        times.setdefault(home, {}).setdefault(put.enqueued_ms, []).append(put)
        if put.equal_metadata is not None:
            kept.update(put.origins)
            continue
        if put.origins and min(put.origins) >= 0:
            # Each is the only copy of its message.
            continue
        kept.update([put.origins[index] for index in put.all_metadata or ()])
        numbers.setdefault(home, Counter()).update(put.origins)
    for home, counter in numbers.items():
        if counter and max(counter.values()) > COPIES_OF_A_BODY_MAX:
            found[home].update([origin for origin, number in counter.items() if number > COPIES_OF_A_BODY_MAX])
    for home, by_time in times.items():
        if len(by_time) > 1:
            found[home].update(_of_several_times(by_time.values()))
    return dict(found)


def _of_several_times(puts: Iterable[Sequence[Put]]) -> set[int]:
    """The origins that have copies of more than one time: there is one time in a packed row."""
    seen: set[int] = set()
    again: set[int] = set()
    for of_one_time in puts:
        origins = {origin for put in of_one_time for origin in put.origins or () if origin < 0}
        again |= origins & seen
        seen |= origins
    return again


def parts(put: Put, kept: Set[int] | None) -> Iterator[PutSegment]:
    """Cut a put of copies into what is packed and what is not.

    Args:
        put: Of copies.
        kept: See ``unfoldable``; None: nothing can be packed.
    """
    origins, number = put.origins, len(put.payloads)
    if not number:
        return
    if kept is None or origins is None or min(origins) >= 0:
        yield PutSegment(put, 0, number, is_packed=False)
        return
    if max(origins) < 0 and kept.isdisjoint(origins):
        yield PutSegment(put, 0, number, is_packed=True)
        return
    start = 0
    for is_packed, run in groupby(origins, lambda origin: origin < 0 and origin not in kept):
        end = start + sum(1 for _ in run)
        yield PutSegment(put, start, end, is_packed=is_packed)
        start = end


def read(db: apsw.Connection, quarantine: dict[int, str], homes: Mapping[int, int]) -> PackedRefs:
    """Return what the file has; the copies in a damaged row go to the quarantine, as far as they can be told."""
    packed = PackedRefs()
    for row in list(db.execute(schema.READ_PACKED)):
        body_id, enqueued_ms, size, blob, _ = row
        copies = _ids(len(blob) // _ID_BYTES).unpack_from(blob) if type(blob) is bytes else ()
        if _holds(row):
            packed.add({body_id: PackedBody(enqueued_ms, size, copies)})
            continue
        for copy_id in copies:
            if homes.get(copy_id >> COUNT_BITS, 0) - SOURCE_KEY_MAX - 1 == body_id >> COUNT_BITS:
                quarantine[copy_id] = "body: the checksum of its reference does not hold"
    return packed


def faults(db: apsw.Connection) -> list[str]:
    """Return what is wrong with packed copies, in words; all that could be read have been unpacked before."""
    return [f"copies of body {row[0]} of a topic are damaged" for row in list(db.execute(schema.READ_PACKED))]


def write(db: apsw.Connection, values: list[Any], gone: list[int]) -> None:
    """Write rows and delete rows."""
    table_rows.run(db, schema.WRITE_PACKED, values)
    table_rows.run(db, schema.DELETE_PACKED, gone)


def _holds(row: tuple[Any, ...]) -> bool:
    *numbers, blob, check = row
    return (
        all(type(number) is int for number in numbers)
        and type(blob) is bytes
        and len(blob) % _ID_BYTES == 0
        and numbers_sum(numbers, blob) == check
    )


def _ids(number: int) -> Struct:
    found = _STRUCTS.get(number)
    return Struct(f">{number}Q") if found is None else found


_STRUCTS: Final = {number: Struct(f">{number}Q") for number in range(COPIES_OF_A_BODY_MAX + 1)}
