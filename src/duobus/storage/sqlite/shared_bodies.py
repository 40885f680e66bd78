"""Copies of a topic's messages in the SQLite store: a body that several copies share is kept once.

A row of a source other than 0 begins with eight bytes: the count that its message had in source 0 of the fragment.
The highest bit set means that nothing follows, since the body is a plain row with that count and a negative key
that stands for source 0 (``body_key_of``): whoever reads a source never meets one. New copies of a message may first
stand in one row together (``packed_refs.py``), until they get such rows or are gone. A row of ``shares`` says how many
copies a body has, and the one with count 0 what all bodies and copies of the fragment take up; both are written in the
transaction that adds or removes copies. The references lie in a narrow table of their own so that settling a copy
rewrites no body.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import add
from struct import Struct
from typing import Any

import apsw

from duobus.errors import StoreFailed
from duobus.storage.checksums import body_sum, numbers_sum, split_id
from duobus.storage.interface import (
    COUNT_BITS,
    COUNT_MAX,
    READ_BYTES_MAX,
    SOURCE_KEY_MAX,
    Put,
    SourceRow,
    StoredMessage,
    is_end,
)
from duobus.storage.sqlite import duplicate_ids as history_rows
from duobus.storage.sqlite import rows as table_rows
from duobus.storage.sqlite import schema
from duobus.storage.sqlite.packed_refs import COPIES_MAX, PackedBody, PackedRefs, PutSegment, parts, unfoldable
from duobus.storage.sqlite.packed_refs import write as write_packed

PREFIX = Struct(">Q")
PREFIX_BYTES = 8
APART = 1 << 63
#: Bodies that are read at once: each has LARGE_BYTES at most, larger ones are read singly.
_BODIES_AT_ONCE = 16


def body_key_of(home: int) -> int:
    """The key under which the bodies lie that the copies of a fragment share, by the key of its source 0."""
    return home - SOURCE_KEY_MAX - 1


def topic_keys_of(sources: Mapping[int, SourceRow]) -> dict[int, int]:
    """Source key of every source other than 0 to the key of source 0 of its fragment (0: it has none)."""
    homes = {row.fragment_key: row.source_key for row in sources.values() if row.source_no == 0}
    return {row.source_key: homes.get(row.fragment_key, 0) for row in sources.values() if row.source_no != 0}


class Changes:
    """What one transaction does to copies and to the bodies that they share.

    Args:
        homes: See ``topic_keys_of``.
        shared: What the copies of each fragment take up before it, by the key of its source 0.
        packed: The copies without rows; changed as soon as the transaction is under way.
    """

    __slots__ = ("_added", "_dropped", "_homes", "_packed", "_shared", "_sizes", "_touched", "_unfolded")

    def __init__(self, homes: Mapping[int, int], shared: Mapping[int, int], packed: PackedRefs) -> None:
        self._homes = homes
        self._shared = shared
        self._packed = packed
        #: Bodies whose copies are packed now, with new ones or fewer; and those whose copies no longer are.
        self._touched: dict[int, PackedBody] = {}
        self._unfolded: list[int] = []
        #: Id of a new body to its references and size; id of an old one to the references that it loses.
        self._added: dict[int, list[int]] = {}
        self._dropped: dict[int, int] = {}
        self._sizes: dict[int, int] = {}

    def are_copies(self, row_id: int) -> bool:
        """Whether a row belongs to a source with copies."""
        return row_id >> COUNT_BITS in self._homes

    def framed(self, puts: Sequence[Put]) -> list[Put]:
        """The puts as they are written: copies in their form, those left out that are packed, and shared bodies."""
        written: list[Put] = []
        bodies: dict[int, tuple[int, bytes]] = {}
        kept = unfoldable(puts, self._homes)
        for put in puts:
            home = self._homes.get(put.source_key)
            if home is None:
                written.append(put)
                continue
            for part in parts(put, kept.get(home)):
                if part.is_packed:
                    self._pack(put, part, home, bodies)
                else:
                    written.append(self._framed(put, part, home, bodies))
        return written + list(_body_puts(bodies))

    def _framed(self, put: Put, part: PutSegment, home: int, bodies: dict[int, tuple[int, bytes]]) -> Put:
        """A part of a put as rows."""
        payloads = []
        size = 0
        if part.origins and min(part.origins) >= 0:
            # Each the only copy of its message, which most filters lead to.
            payloads = [*map(add, map(PREFIX.pack, part.origins), part.payloads)]
            size = sum(map(len, part.payloads))
        for payload, origin in () if payloads else zip(part.payloads, part.origins, strict=True):
            if origin >= 0:
                payloads.append(PREFIX.pack(origin) + payload)
                size += len(payload)
                continue
            body_id = body_key_of(home) << COUNT_BITS | -origin
            if body_id not in bodies:
                bodies[body_id] = (put.enqueued_ms, payload)
                self._added[body_id] = [0, len(payload)]
                size += len(payload)
            self._added[body_id][0] += 1
            payloads.append(PREFIX.pack(APART | -origin))
        self._sizes[home] = self._sizes.get(home, 0) + size
        framed = Put(put.source_key, part.first_count, put.enqueued_ms, payloads, part.all_metadata)
        framed.equal_metadata = put.equal_metadata
        return framed

    def _pack(self, put: Put, part: PutSegment, home: int, bodies: dict[int, tuple[int, bytes]]) -> None:
        """Note a part of a put as copies without rows."""
        body_key = body_key_of(home) << COUNT_BITS
        size = 0
        touched = self._touched
        for copy_id, (payload, origin) in enumerate(
            zip(part.payloads, part.origins, strict=True), put.source_key << COUNT_BITS | part.first_count
        ):
            body_id = body_key | -origin
            pack = touched.get(body_id)
            if pack is None:
                pack = touched[body_id] = PackedBody(put.enqueued_ms, len(payload))
                bodies[body_id] = (put.enqueued_ms, payload)
                size += len(payload)
            pack.copies[copy_id] = None
        self._sizes[home] = self._sizes.get(home, 0) + size

    def pack(self, changed: Sequence[tuple[int, int, int, int, bytes | None]]) -> list[Any]:
        """Take over the new copies without rows; the transaction is under way.

        Returns:
            The flat values of rows for copies that need some now: one of the same message changes, or all are too many.
        """
        packed = self._packed
        packed.add(self._touched)
        where = packed.where
        if len(where) > COPIES_MAX:
            return self.unpack(list(packed.bodies))
        changed_ids = [source_key << COUNT_BITS | count for source_key, count, *_ in changed] if where else ()
        return self.unpack({where[copy_id] for copy_id in changed_ids if copy_id in where})

    def unpack(self, body_ids: Collection[int]) -> list[Any]:
        """Give the copies of these bodies rows of their own, whose flat values are returned."""
        found: list[tuple[int, int, bytes]] = []
        for body_id in body_ids:
            pack = self._packed.pop(body_id)
            self._touched.pop(body_id, None)
            self._unfolded.append(body_id)
            self._added[body_id] = [len(pack.copies), pack.size]
            payload = PREFIX.pack(APART | body_id & COUNT_MAX)
            found += [(copy_id, pack.enqueued_ms, payload) for copy_id in pack.copies]
        # Neighbours together, so that each page is met once.
        found.sort()
        return [value for row in found for value in (*row, body_sum(*row))]

    def take(self, copy_ids: Sequence[int]) -> None:
        """Remove copies that are packed."""
        for copy_id in copy_ids:
            body_id = self._packed.remove(copy_id)
            self._touched[body_id] = self._packed.bodies[body_id]

    def is_packed(self, copy_id: int) -> bool:
        """Whether a copy has no row."""
        return copy_id in self._packed.where

    def packed_bodies(self) -> list[int]:
        """The bodies whose copies have no rows."""
        return list(self._packed.bodies)

    def within(self, first_id: int, last_id: int) -> list[int]:
        """The copies without rows whose ids are in a range, inclusive."""
        return self._packed.within(first_id, last_id) if self._packed.where else []

    def removed(self, rows: Iterator[tuple[Any, ...]]) -> int:
        """Note rows that were deleted, as ``schema.RETURNING`` tells of them; return their number."""
        number = 0
        for row_id, enqueued_ms, whole, size, check in rows:
            number += 1
            home = self._homes.get(row_id >> COUNT_BITS, 0)
            prefix = 0
            if whole is not None:
                # A damaged row must not take a body away from other copies.
                if not isinstance(enqueued_ms, int) or check != body_sum(row_id, enqueued_ms, whole):
                    continue
                (prefix,) = PREFIX.unpack(whole)
            if prefix & APART:
                body_id = body_key_of(home) << COUNT_BITS | prefix & COUNT_MAX
                self._dropped[body_id] = self._dropped.get(body_id, 0) + 1
            elif isinstance(size, int):
                self._sizes[home] = self._sizes.get(home, 0) - max(0, size - PREFIX_BYTES)
        return number

    def write(self, db: apsw.Connection) -> tuple[dict[int, int], int]:
        """Write references and sums, and delete bodies that nobody refers to any more.

        Returns:
            What the copies of each fragment take up now, of those that have changed; and how many bodies are gone.
        """
        values: list[Any] = []
        gone: list[int] = []
        for body_id, (refs, size) in self._added.items():
            left = refs - self._dropped.pop(body_id, 0)
            self._keep(body_id, left, size, values, gone)
        if self._dropped:
            self._drop(db, values, gone)
        self._write_packed(db, gone)
        totals: dict[int, int] = {}
        for home, change in self._sizes.items():
            if home and change:
                totals[home] = max(0, self._shared.get(home, 0) + change)
                values += _share(body_key_of(home) << COUNT_BITS, 0, totals[home])
        table_rows.run(db, schema.WRITE_SHARES, values)
        number = table_rows.run(db, schema.DELETE_IDS, gone)
        table_rows.run(db, schema.DELETE_SHARE_IDS, gone)
        return totals, number

    def _write_packed(self, db: apsw.Connection, gone: list[int]) -> None:
        values: list[Any] = []
        for body_id, pack in self._touched.items():
            if pack.copies:
                values += pack.values(body_id)
                continue
            del self._packed.bodies[body_id]
            self._unfolded.append(body_id)
            self._keep(body_id, 0, pack.size, values, gone)
        write_packed(db, values, self._unfolded)

    def _drop(self, db: apsw.Connection, values: list[Any], gone: list[int]) -> None:
        """Take references away from bodies of earlier transactions."""
        for row in _rows_of(db, schema.FIND_SHARES, list(self._dropped)):
            body_id, refs, size, _ = row
            if not holds(row):
                # Nobody knows who else refers to it: it stays, for ``verify`` to report.
                continue
            self._keep(body_id, refs - self._dropped[body_id], size, values, gone)

    def _keep(self, body_id: int, left: int, size: int, values: list[Any], gone: list[int]) -> None:
        """What becomes of a body with so many references left."""
        if left > 0:
            values += _share(body_id, left, size)
            return
        gone.append(body_id)
        home = (body_id >> COUNT_BITS) - body_key_of(0)
        self._sizes[home] = self._sizes.get(home, 0) - size


def _body_puts(bodies: Mapping[int, tuple[int, bytes]]) -> Iterator[Put]:
    """New bodies as puts of source 0, neighbours together."""
    first = last = enqueued = -1
    payloads: list[bytes] = []
    for body_id, (enqueued_ms, payload) in sorted(bodies.items()):
        if body_id != last + 1 or enqueued_ms != enqueued or not payloads:
            if payloads:
                yield Put(first >> COUNT_BITS, first & COUNT_MAX, enqueued, payloads)
            first, enqueued, payloads = body_id, enqueued_ms, []
        payloads.append(payload)
        last = body_id
    if payloads:
        yield Put(first >> COUNT_BITS, first & COUNT_MAX, enqueued, payloads)


def _share(body_id: int, refs: int, size: int) -> tuple[int, int, int, int]:
    return body_id, refs, size, numbers_sum((body_id, refs, size))


def holds(row: tuple[Any, ...]) -> bool:
    """Whether a row of integers verifies."""
    *numbers, check = row
    return all(type(value) is int for value in numbers) and numbers_sum(numbers) == check


def _rows_of(db: apsw.Connection, statement: schema.Rows, ids: list[int]) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(ids), schema.ROWS_PER_STATEMENT):
        part = ids[start : start + schema.ROWS_PER_STATEMENT]
        yield from list(db.execute(statement.texts[len(part)], part))


def delete(db: apsw.Connection, changes: Changes, removed: Sequence[tuple[int, int, int]]) -> int:
    """Delete copies, and note what they referred to; returns how many they were."""
    ranges, singles = table_rows.removals(removed)
    without = [copy_id for copy_id in singles if changes.is_packed(copy_id)]
    if without:
        changes.take(without)
        singles = sorted(set(singles).difference(without))
    number = changes.removed(_rows_of(db, schema.DELETE_COPIES, singles))
    for first_id, last_id in ranges:
        without = changes.within(first_id, last_id)
        changes.take(without)
        if len(without) <= last_id - first_id:
            number += changes.removed(delete_range(db, (first_id, last_id)))
    return number


def unpack_all(db: apsw.Connection, changes: Changes) -> int:
    """Give every packed copy a row of its own, without anything else; returns how many they were."""
    values = changes.unpack(changes.packed_bodies())
    table_rows.run(db, schema.INSERT_ORDINARY, values)
    changes.write(db)
    return len(values) // schema.INSERT_ORDINARY.width


def parted(
    removed: list[tuple[int, int, int]], homes: Mapping[int, int]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """What is removed of sources without copies, and of sources with them."""
    if not homes:
        return removed, []
    copies = [entry for entry in removed if entry[0] in homes]
    return ([entry for entry in removed if entry[0] not in homes] if copies else removed), copies


def delete_run(db: apsw.Connection, changes: Changes, bounds: tuple[int, int]) -> int:
    """Delete a run of messages, copies or not; returns how many they were."""
    if changes.are_copies(bounds[0]):
        return changes.removed(delete_range(db, bounds))
    db.execute(schema.DELETE_RANGE, bounds)
    return db.changes()


def delete_sources(db: apsw.Connection, keys: Sequence[int], limit: int) -> int:
    """Delete up to ``limit`` rows of all sources of a fragment, copies before bodies; returns how many they were.

    When that was everything, the sources themselves are deleted with what belongs to them.
    """
    deleted = 0
    for key in [*keys, *map(body_key_of, keys)]:
        db.execute(schema.DELETE_SLICE, (*table_rows.ids(key, 0, COUNT_MAX), limit - deleted))
        deleted += db.changes()
    if deleted < limit:
        for key in keys:
            history_rows.delete(db, key, 0, COUNT_MAX)
            forget_shares(db, key)
            db.execute(schema.DELETE_SOURCE, (key,))
    return deleted


def delete_range(db: apsw.Connection, bounds: tuple[int, int]) -> Iterator[tuple[Any, ...]]:
    """Delete copies by a range of ids, inclusive, and tell of them."""
    return iter(list(db.execute(schema.DELETE_RANGE + schema.RETURNING, bounds)))


def delete_slice(db: apsw.Connection, bounds: tuple[int, int], limit: int) -> Iterator[tuple[Any, ...]]:
    """Delete the first copies of a range of ids, and tell of them."""
    return iter(list(db.execute(schema.DELETE_SLICE + schema.RETURNING, (*bounds, limit))))


def totals(db: apsw.Connection, homes: Mapping[int, int], path: str) -> dict[int, int]:
    """What the copies of each fragment take up, by the key of its source 0."""
    found: dict[int, int] = {}
    ids = [body_key_of(home) << COUNT_BITS for home in sorted(set(homes.values())) if home]
    for row in _rows_of(db, schema.FIND_SHARES, ids):
        if not holds(row):
            raise StoreFailed(f"{path}: the size of a topic is damaged (its checksum does not hold); restore the file")
        if row[2]:
            found[(row[0] >> COUNT_BITS) - body_key_of(0)] = row[2]
    return found


def forget_shares(db: apsw.Connection, source_key: int) -> None:
    """An entity is gone with everything that it had: so are the references to its bodies."""
    db.execute(schema.DELETE_SHARES, bounds_of(source_key))


def bounds_of(home: int) -> tuple[int, int]:
    """First and last id of the bodies of a fragment."""
    return body_key_of(home) << COUNT_BITS, body_key_of(home) << COUNT_BITS | COUNT_MAX


def read(
    db: apsw.Connection,
    quarantine: dict[int, str],
    homes: Mapping[int, int],
    source_key: int,
    state: int | None,
    first_count: int,
    limit: int,
) -> list[StoredMessage]:
    """Return the messages of a source, copies with their bodies; of one state or (None) of all, as ``load`` does."""
    home = homes.get(source_key)
    if home is None:
        return _page(db, quarantine, source_key, state, first_count, limit)
    return CopyReader(db, quarantine, source_key, home).read(state, first_count, limit)


def _page(
    db: apsw.Connection, quarantine: dict[int, str], source_key: int, state: int | None, first_count: int, limit: int
) -> list[StoredMessage]:
    first_id, last_id = source_key << COUNT_BITS | first_count, source_key << COUNT_BITS | COUNT_MAX
    reader = table_rows.MessageReader(db, quarantine, last_id, limit)
    if state is not None:
        return reader.read(schema.SCAN, schema.SCAN_IDS, (state, first_id, last_id))
    query = schema.LOAD_FEW if limit <= schema.FEW_ROWS else schema.LOAD_MANY
    return reader.read(query, schema.LOAD_IDS, (first_id,))


class CopyReader:
    """Reads the copies of one source, with their bodies.

    Args:
        db: The connection.
        quarantine: Id to fault; copies that cannot be read are added.
        source_key: The source.
        home: Source 0 of its fragment.
    """

    __slots__ = ("_bodies", "_db", "_home", "_quarantine", "_source_key")

    def __init__(self, db: apsw.Connection, quarantine: dict[int, str], source_key: int, home: int) -> None:
        self._db = db
        self._quarantine = quarantine
        self._source_key = source_key
        self._home = home
        self._bodies: dict[int, bytes] = {}

    def read(self, state: int | None, first_count: int, limit: int) -> list[StoredMessage]:
        """Return messages from a count on, of one state or (None) of all; ends early as ``load`` does."""
        found: list[StoredMessage] = []
        size = 0
        while len(found) < limit:
            wanted = limit - len(found)
            page = _page(self._db, self._quarantine, self._source_key, state, first_count, wanted)
            is_last = is_end(page, wanted)
            for index, message in enumerate(page):
                if self._complete(message, page, index):
                    found.append(message)
                    size += len(message.payload)
                    if size >= READ_BYTES_MAX:
                        return found
            if is_last:
                break
            first_count = page[-1].count + 1
        return found

    def _complete(self, message: StoredMessage, page: list[StoredMessage], index: int) -> bool:
        """Take the prefix off and put the body in; False when that cannot be read."""
        (prefix,) = PREFIX.unpack_from(message.payload) if len(message.payload) >= PREFIX_BYTES else (0,)
        message.origin = prefix & COUNT_MAX
        if not prefix & APART:
            message.payload = message.payload[PREFIX_BYTES:]
            return True
        if message.origin not in self._bodies:
            self._fetch(page, index)
        body = self._bodies.get(message.origin)
        if body is None:
            row_id = self._source_key << COUNT_BITS | message.count
            self._quarantine[row_id] = "body: the copies share one that cannot be read"
            return False
        message.payload = body
        return True

    def _fetch(self, page: list[StoredMessage], index: int) -> None:
        """Read the bodies of this copy and of those behind it, as far as one answer goes."""
        wanted: list[int] = []
        for message in page[index:]:
            if len(wanted) == _BODIES_AT_ONCE:
                break
            if len(message.payload) == PREFIX_BYTES:
                (prefix,) = PREFIX.unpack(message.payload)
                if prefix & APART and prefix & COUNT_MAX not in wanted:
                    wanted.append(prefix & COUNT_MAX)
        self._bodies = {}
        for part in (wanted, wanted[:1]):
            # What is cut short by its bytes is asked for again; the first is what is needed now.
            if wanted[0] not in self._bodies:
                ids = [body_key_of(self._home) << COUNT_BITS | count for count in part]
                reader = table_rows.MessageReader(self._db, self._quarantine, max(ids), len(ids))
                texts = schema.LOAD_BODIES.texts[len(ids)], schema.LOAD_BODY_IDS.texts[len(ids)]
                for body in reader.read(*texts, tuple(ids)):
                    self._bodies[body.count] = body.payload


# What can be wrong between the copies of a topic's messages and the bodies that they share (``shared_bodies.py``).


def faults(db: apsw.Connection, homes: Mapping[int, int]) -> list[str]:
    """Return what is wrong between copies and bodies, in words; reads all of them."""
    problems: list[str] = []
    found: dict[int, int] = {}
    sums: dict[int, int] = {}
    for source_key, home in homes.items():
        for row_id, whole, size in db.execute(
            "SELECT id, iif(octet_length(payload) = 8, CAST(payload AS BLOB), NULL), octet_length(payload)"
            " FROM messages WHERE id BETWEEN ? AND ?",
            (source_key << COUNT_BITS, source_key << COUNT_BITS | COUNT_MAX),
        ):
            (prefix,) = PREFIX.unpack(whole) if whole is not None else (0,)
            if prefix & APART:
                body_id = body_key_of(home) << COUNT_BITS | prefix & COUNT_MAX
                found[body_id] = found.get(body_id, 0) + 1
            elif row_id is not None:
                sums[home] = sums.get(home, 0) + size - PREFIX_BYTES
    for home in sorted(set(homes.values()) - {0}):
        problems += _share_faults(db, home, found, sums.get(home, 0))
    problems += [f"body {split_id(body_id)[1]} of a topic has copies and is missing" for body_id in found]
    return problems


def _share_faults(db: apsw.Connection, home: int, found: dict[int, int], copies: int) -> list[str]:
    """Compare the references to a fragment's bodies with the copies that there are; takes them out of ``found``."""
    problems: list[str] = []
    bounds = bounds_of(home)
    bodies = dict(db.execute("SELECT id, octet_length(payload) FROM messages WHERE id BETWEEN ? AND ?", bounds))
    total = copies
    kept_total = 0
    for row in list(db.execute(schema.READ_SHARES, bounds)):
        body_id, refs, size, _ = row
        count = split_id(body_id)[1]
        if not holds(row):
            problems.append(f"source {home}: the references to body {count} are damaged")
        elif count == 0:
            kept_total = size
            continue
        elif bodies.get(body_id) != size or found.get(body_id) != refs:
            problems.append(f"source {home}: body {count} has {found.get(body_id, 0)} copies of {refs}, or is damaged")
        total += size
        bodies.pop(body_id, None)
        found.pop(body_id, None)
    problems += [f"source {home}: body {split_id(body_id)[1]} is referred to by nobody" for body_id in bodies]
    if not problems and total != kept_total:
        problems.append(f"source {home}: its copies have {total} bytes, noted are {kept_total}")
    return problems
