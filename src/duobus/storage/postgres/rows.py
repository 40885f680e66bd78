"""Rows of the PostgreSQL store: the statements and the binary rows of a commit, and what was read, verified.

No Python step per plain message beyond those of ``map``: the heads of all rows of a put are packed in one go, and
laid between the payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from struct import Struct
from typing import Final

from duobus.storage.checksums import body_sum, body_sums, numbers_sum, state_sum
from duobus.storage.interface import COUNT_BITS, CommitBatch, FragmentRow, Put, SourceRow
from duobus.storage.postgres import schema
from duobus.storage.sqlite.rows import change_values, record_sum, removals, source_values
from duobus.storage.sqlite.shared_bodies import APART, PREFIX, body_key_of

#: What the checksum of the store's own row begins with: the migration that gave it its present columns.
_META_FORM: Final = 1
#: What comes before and after the rows of a binary COPY.
_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_FIELDS: Final = 9
_EIGHT: Final = b"\0\0\0\x08"
_NULL: Final = b"\xff\xff\xff\xff"
_BEGIN: Final = _FIELDS.to_bytes(2, "big") + _EIGHT
_ZERO: Final = _EIGHT + bytes(8)
#: Head of a plain row: id, the rest up to its checksum, the checksum, three times NULL, length of the payload.
_ORDINARY: Final = Struct(">6sq40sq12si").pack
_NUMBER: Final = Struct(">q").pack
_LENGTH: Final = Struct(">i").pack
#: Payloads of a put that are joined to one piece; larger ones are handed on as they are.
_COMBINED_BYTES_MAX: Final = 4 << 20
#: Records of the catalog that one statement writes.
_RECORDS_PER_STATEMENT: Final = 500


class PostgresMeta:
    """The store's own row: what it has given out and how far it has come.

    Attributes:
        revision: Grows with every transaction; whoever does not know the present one owns the store no more.
        rows: Of messages; counted by the server and not part of the checksum.
    """

    __slots__ = (
        "broker_ms",
        "generation",
        "last_commit_no",
        "next_fragment_key",
        "next_source_key",
        "revision",
        "rows",
        "store_id",
    )

    def __init__(
        self,
        store_id: int,
        generation: int = 0,
        revision: int = 0,
        last_commit_no: int = 0,
        broker_ms: int = 0,
        next_fragment_key: int = 1,
        next_source_key: int = 1,
        rows: int = 0,
    ) -> None:
        self.store_id = store_id
        self.generation = generation
        self.revision = revision
        self.last_commit_no = last_commit_no
        self.broker_ms = broker_ms
        self.next_fragment_key = next_fragment_key
        self.next_source_key = next_source_key
        self.rows = rows

    def advanced(
        self,
        generation: int | None = None,
        last_commit_no: int | None = None,
        broker_ms: int | None = None,
        next_keys: tuple[int, int] | None = None,
    ) -> PostgresMeta:
        """What a transaction makes of it: the next revision, and what else is given; ``rows`` is the server's answer.

        Args:
            generation: None, here and below: as it was.
            last_commit_no: See ``generation``.
            broker_ms: See ``generation``.
            next_keys: The next fragment key and the next source key.
        """
        return PostgresMeta(
            self.store_id,
            self.generation if generation is None else generation,
            self.revision + 1,
            self.last_commit_no if last_commit_no is None else last_commit_no,
            self.broker_ms if broker_ms is None else broker_ms,
            *((self.next_fragment_key, self.next_source_key) if next_keys is None else next_keys),
        )

    def numbers(self) -> tuple[int, ...]:
        """The columns under the checksum, in the order of ``postgres_schema.META_COLUMNS``."""
        return (
            self.store_id,
            self.generation,
            self.revision,
            self.last_commit_no,
            self.broker_ms,
            self.next_fragment_key,
            self.next_source_key,
        )

    def check_sum(self) -> int:
        """The row's checksum."""
        return numbers_sum((_META_FORM, *self.numbers()))


# -- statements ------------------------------------------------------------------------------------------------------


def integers(values: Iterable[int]) -> str:
    """An array of integers in a statement."""
    return f"'{{{','.join(map(str, values))}}}'"


def blobs(values: Iterable[bytes | None]) -> str:
    """An array of blobs in a statement: hexadecimal digits, so that nothing has to be escaped."""
    return f"'{{{','.join('NULL' if value is None else _hex(value) for value in values)}}}'"


def _hex(value: bytes) -> str:
    return f'"\\\\x{value.hex()}"'


def blob(value: bytes) -> str:
    """A blob in a statement."""
    return f"'\\x{value.hex()}'"


def advance(old: PostgresMeta, new: PostgresMeta, change: str) -> str:
    """The last statement of a transaction, whose answer is the number of rows; ``change``: by how much it changes."""
    return (
        f"SELECT advance({old.generation},{old.revision},{new.generation},{new.last_commit_no},{new.broker_ms},"
        f"{new.next_fragment_key},{new.next_source_key},{new.check_sum()},{change})"
    )


def epochs(known: Sequence[tuple[int, int]]) -> str:
    """Refuse the transaction unless all of these are as they are said to be."""
    return f"SELECT demand_epochs({integers(row[0] for row in known)},{integers(row[1] for row in known)})"


def fragment_values(row: FragmentRow, epoch: int) -> tuple[int, ...]:
    """A fragment's row with its checksum."""
    numbers = (row.fragment_key, row.entity_id, row.fragment_no, epoch)
    return (*numbers, numbers_sum(numbers))


def insert_source(row: SourceRow) -> str:
    """Write a new source."""
    numbers = (row.source_key, row.fragment_key, row.source_no, row.next_count, row.highest_delivered)
    check = numbers_sum(numbers, row.counters)
    return f"INSERT INTO sources VALUES ({','.join(map(str, numbers))},{blob(row.counters)},{check})"


def removal(removed: Sequence[tuple[int, int, int]]) -> str:
    """How many rows go when these counts of sources without copies are removed: a call, to be put into a statement."""
    ranges, singles = removals(removed)
    return (
        f"remove({integers(first for first, _ in ranges)},{integers(last for _, last in ranges)},{integers(singles)})"
    )


def copy_removal(removed: Sequence[tuple[int, int, int]]) -> str:
    """The same for sources with copies, whose bodies may go with them."""
    ranges, singles = removals(removed)
    spans = ranges + [(single, single) for single in singles]
    return f"remove_copies({integers(first for first, _ in spans)},{integers(last for _, last in spans)})"


def forget_ids(source_key: int, first_count: int, last_count: int) -> str:
    """Delete blocks of a duplicate history."""
    base = source_key << COUNT_BITS
    return f"DELETE FROM histories WHERE id BETWEEN {base | first_count} AND {base | last_count}"


def write_sources(changed: Sequence[tuple[int, int, int, bytes]], sources: Mapping[int, SourceRow]) -> list[str]:
    """Write rows of sources as ``CommitBatch.sources`` has them; nothing when there are none."""
    flat = source_values(changed, sources)
    if not flat:
        return []
    keys, nexts, delivered, counters, sums = (flat[column::5] for column in range(5))
    numbers = f"{integers(keys)},{integers(nexts)},{integers(delivered)}"
    return [f"SELECT write_sources({numbers},{blobs(counters)},{integers(sums)})"]


def statements(batch: CommitBatch, sources: Mapping[int, SourceRow]) -> list[str]:
    """What a commit changes beside messages that come and go."""
    texts = []
    flat = change_values(batch.changes)
    if flat:
        ids, states, deliveries, all_metadata, sums = (flat[column::5] for column in range(5))
        numbers = f"{integers(ids)},{integers(states)},{integers(deliveries)}"
        texts.append(f"SELECT write_states({numbers},{blobs(all_metadata)},{integers(sums)})")
    texts += write_sources(batch.sources, sources)
    for block in batch.histories:
        row = (block.source_key << COUNT_BITS | block.first_count, block.at_ms)
        check = numbers_sum(row, block.ids)
        texts.append(f"INSERT INTO histories VALUES ({row[0]},{row[1]},{blob(block.ids)},{check})")
    texts += [forget_ids(source_key, 0, last_count) for source_key, last_count in batch.outdated]
    for store_id, generation in batch.forgotten:
        texts.append(f"DELETE FROM tombstones WHERE store_id = {store_id} AND generation = {generation}")
    for t in batch.tombstones:
        tombstone = (t.store_id, t.generation, t.commit_no, t.source_key, t.first_count, t.last_count)
        texts.append(
            "INSERT INTO tombstones(store_id, generation, commit_no, source_key, first_count, last_count, row_sum)"
            f" VALUES ({','.join(map(str, (*tombstone, numbers_sum(tombstone))))})"
        )
    return texts


# -- new messages ----------------------------------------------------------------------------------------------------


class NewRows:
    """The rows of new messages for one COPY.

    Args:
        homes: See ``shared_bodies.topic_keys_of``.

    Attributes:
        number: How many rows.
        sizes: Key of source 0 of a fragment to the bytes that its new copies take up.
    """

    __slots__ = ("_bodies", "_homes", "_pieces", "number", "sizes")

    def __init__(self, homes: Mapping[int, int]) -> None:
        self._homes = homes
        self._pieces: list[bytes] = [_SIGNATURE]
        self._bodies: set[int] = set()
        self.number = 0
        self.sizes: dict[int, int] = {}

    def add(self, puts: Sequence[Put]) -> None:
        """Take puts over."""
        for put in puts:
            self.number += len(put.payloads)
            home = self._homes.get(put.source_key)
            if home is not None:
                self._add_copies(put, home)
            elif put.all_metadata or put.equal_metadata is not None:
                self._add_mixed(put)
            elif put.payloads:
                self._add_plain(put)

    def pieces(self) -> list[bytes]:
        """The data of the COPY."""
        return [*self._pieces, _TRAILER]

    def _add_plain(self, put: Put) -> None:
        first_id = put.source_key << COUNT_BITS | put.first_count
        payloads = put.payloads
        number = len(payloads)
        middle = _EIGHT + _NUMBER(put.enqueued_ms) + _ZERO + _ZERO + _EIGHT
        sums = body_sums(first_id, put.enqueued_ms, payloads)
        ids = range(first_id, first_id + number)
        lengths = list(map(len, payloads))
        flat: list[bytes] = [b""] * (2 * number)
        flat[0::2] = map(_ORDINARY, repeat(_BEGIN), ids, repeat(middle), sums, repeat(_NULL * 3), lengths)
        flat[1::2] = payloads
        if sum(lengths) > _COMBINED_BYTES_MAX:
            self._pieces += flat
        else:
            self._pieces.append(b"".join(flat))

    def _add_mixed(self, put: Put) -> None:
        first_id = put.source_key << COUNT_BITS | put.first_count
        for index, payload in enumerate(put.payloads):
            self._add_row(first_id + index, put.enqueued_ms, put.metadata_of(index), None, payload)

    def _add_copies(self, put: Put, home: int) -> None:
        first_id = put.source_key << COUNT_BITS | put.first_count
        size = 0
        origins = put.origins or [0] * len(put.payloads)
        for index, (payload, origin) in enumerate(zip(put.payloads, origins, strict=True)):
            row = (first_id + index, put.enqueued_ms, put.metadata_of(index))
            if origin >= 0:
                self._add_row(*row, None, PREFIX.pack(origin) + payload)
                size += len(payload)
                continue
            body_id = body_key_of(home) << COUNT_BITS | -origin
            self._add_row(*row, body_id, PREFIX.pack(APART | -origin))
            if body_id not in self._bodies:
                self._bodies.add(body_id)
                self._add_row(body_id, put.enqueued_ms, None, None, payload)
                self.number += 1
                size += len(payload)
        self.sizes[home] = self.sizes.get(home, 0) + size

    def _add_row(
        self,
        row_id: int,
        enqueued_ms: int,
        with_metadata: tuple[int, int, bytes | None] | None,
        body_id: int | None,
        payload: bytes,
    ) -> None:
        state, deliveries, metadata = with_metadata or (0, 0, None)
        check = None if with_metadata is None else state_sum(row_id, state, deliveries, metadata)
        head = b"".join(
            (
                _BEGIN + _NUMBER(row_id),
                *(
                    _EIGHT + _NUMBER(n)
                    for n in (enqueued_ms, state, deliveries, body_sum(row_id, enqueued_ms, payload))
                ),
                *(_NULL if n is None else _EIGHT + _NUMBER(n) for n in (check, body_id)),
                _NULL if metadata is None else _LENGTH(len(metadata)) + metadata,
                _LENGTH(len(payload)),
            )
        )
        self._pieces += (head, payload)


def write_records(revision: int, changes: Mapping[str, bytes | None]) -> Iterator[str]:
    """Statements that write and delete what a store keeps of its catalog's rows; texts travel as hexadecimal digits."""
    yield schema.CREATE_RECORDS
    written = [
        f"({_name(name)}, {revision}, '\\x{text.hex()}'::bytea, {record_sum(name, revision, text)})"
        for name, text in changes.items()
        if text is not None
    ]
    gone = [_name(name) for name, text in changes.items() if text is None]
    for start in range(0, len(written), _RECORDS_PER_STATEMENT):
        yield schema.WRITE_RECORDS.format(", ".join(written[start : start + _RECORDS_PER_STATEMENT]))
    for start in range(0, len(gone), _RECORDS_PER_STATEMENT):
        yield schema.DELETE_RECORDS.format(", ".join(gone[start : start + _RECORDS_PER_STATEMENT]))


def _name(name: str) -> str:
    return f"convert_from('\\x{name.encode().hex()}', 'UTF8')"
