"""What a PostgreSQL store reads back: every row is verified before it goes further."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from duobus.errors import StoreFailed
from duobus.storage import interface
from duobus.storage.catalog_identity import NOBODYS, Belonging
from duobus.storage.catalog_records import Kept
from duobus.storage.checksums import message_row_fault, numbers_sum
from duobus.storage.interface import COUNT_BITS, COUNT_MAX, IdBlock, Put, StoredMessage
from duobus.storage.postgres import schema
from duobus.storage.postgres.rows import PostgresMeta
from duobus.storage.postgres.schema import COLUMNS
from duobus.storage.postgres.session import PostgresSession
from duobus.storage.sqlite.rows import record_sum
from duobus.storage.sqlite.shared_bodies import APART, PREFIX, PREFIX_BYTES


def meta_of(rows: list[tuple[Any, ...]], place: str) -> PostgresMeta:
    """The store's own row, verified."""
    if len(rows) == 1:
        *numbers, check, number = rows[0]
        meta = PostgresMeta(*numbers)
        meta.rows = number
        if meta.check_sum() == check:
            return meta
    raise StoreFailed(f"{place}: the store's own row is missing or damaged; restore it from a backup")


def verified(rows: list[tuple[Any, ...]], place: str, what: str) -> Iterator[tuple[Any, ...]]:
    """Rows of integers (and at most one blob, last) without their checksum, which must hold."""
    for *values, check in rows:
        blob = values[-1] if isinstance(values[-1], bytes) else b""
        numbers = values[:-1] if isinstance(values[-1], bytes) else values
        if numbers_sum(numbers, blob) != check:
            raise StoreFailed(
                f"{place}: {what} is damaged (its checksum does not hold): {values[0]!r}; restore it from a backup"
            )
        yield tuple(values)


def belonging_of(link: PostgresSession, place: str) -> Belonging:
    """Which catalog the store belongs to, verified."""
    if not link.rows(schema.HAS_BELONGING)[0][0]:
        return NOBODYS
    found = verified(link.rows(schema.READ_BELONGING), place, "the row that names the catalog")
    return next((Belonging(*row) for row in found), NOBODYS)


def records_in(link: PostgresSession, place: str) -> dict[str, Kept]:
    """What the store keeps of its catalog's rows, verified."""
    if not link.rows(schema.HAS_RECORDS)[0][0]:
        return {}
    found: dict[str, Kept] = {}
    for name, revision, text, check in link.rows(schema.READ_RECORDS):
        if record_sum(name, revision, text) != check:
            raise StoreFailed(
                f"{place}: a record of the catalog is damaged (its checksum does not hold): {name!r}; restore the store"
                " from a backup"
            )
        found[name] = Kept(revision, text)
    return found


def read(
    link: PostgresSession,
    quarantine: dict[int, str],
    homes: Mapping[int, int],
    source_key: int,
    state: int | None,
    first_count: int,
    limit: int,
) -> list[StoredMessage]:
    """Return the messages of a source, copies with their bodies; of one state or (None) of all, as ``load`` does."""
    are_copies = source_key in homes
    take = copy_of if are_copies else message_of
    if state is None:
        query = schema.LOAD_COPIES if are_copies else schema.LOAD
    else:
        query = schema.SCAN_COPIES if are_copies else schema.SCAN
    found: list[StoredMessage] = []
    size = 0
    first_id, last_id = source_key << COUNT_BITS | first_count, source_key << COUNT_BITS | COUNT_MAX
    bytes_max = interface.READ_BYTES_MAX
    while len(found) < limit and size < bytes_max and first_id <= last_id:
        more = () if state is None else (state,)
        rows = link.rows(query, first_id, last_id, limit - len(found), bytes_max - size, *more)
        if not rows:
            break
        # Those that are damaged don't count, and the next page takes their place.
        good = [message for row in rows if (message := take(row, quarantine)) is not None]
        found += good
        size += sum(len(message.payload) for message in good)
        first_id = rows[-1][0] + 1
    return found


def read_ids(
    link: PostgresSession, quarantine: dict[int, str], source_key: int, first_count: int, limit: int
) -> list[IdBlock]:
    """Return blocks of a duplicate history that verify, ascending; the others go to the quarantine."""
    blocks: list[IdBlock] = []
    first_id, last_id = source_key << COUNT_BITS | first_count, source_key << COUNT_BITS | COUNT_MAX
    while len(blocks) < limit and first_id <= last_id:
        rows = link.rows(schema.LOAD_HISTORIES, first_id, last_id, limit - len(blocks))
        if not rows:
            break
        for row_id, at_ms, ids, check in rows:
            if numbers_sum((row_id, at_ms), ids) == check:
                blocks.append(IdBlock(source_key, row_id & COUNT_MAX, at_ms, ids))
            else:
                quarantine[row_id] = "duplicate history: the checksum does not hold"
        first_id = rows[-1][0] + 1
    return blocks


def message_of(row: tuple[Any, ...], quarantine: dict[int, str]) -> StoredMessage | None:
    """The message of a row of a source without copies; None when it does not verify, which is noted."""
    fault = message_row_fault(row)
    if fault is not None:
        quarantine[row[0]] = fault
        return None
    message_id, enqueued_ms, state, deliveries, metadata, payload, _, _ = row
    return StoredMessage(message_id & COUNT_MAX, enqueued_ms, state, deliveries, payload, metadata)


def copy_of(row: tuple[Any, ...], quarantine: dict[int, str]) -> StoredMessage | None:
    """The same for a copy, whose row has that of its body behind it, if there is one."""
    message = message_of(row[:COLUMNS], quarantine)
    if message is None:
        return None
    (prefix,) = PREFIX.unpack_from(message.payload) if len(message.payload) >= PREFIX_BYTES else (0,)
    message.origin = prefix & COUNT_MAX
    if not prefix & APART:
        message.payload = message.payload[PREFIX_BYTES:]
        return message
    body = row[COLUMNS + 1 :]
    # What the row names is what deletes a body with its last copy: it has to agree with what the copy is.
    if body[0] is None or body[0] & COUNT_MAX != message.origin or message_row_fault(body) is not None:
        quarantine[row[0]] = "body: the copies share one that cannot be read"
        return None
    message.payload = body[5]
    return message


# Which sources have rows, and in which states other than 0, so that nobody asks the server for what is not there.
#
# A recovery looks for a dozen states in every source, and most sources have no row at all: over a network that would be
# a round trip each. The states are read when the store is opened, in one query, and grow with what is written; a state
# whose last row has gone stays until the store is opened again, and costs a query that finds nothing.

#: Each state that the index has, found by a step from one to the next; then, for each source, whether it has a row.
READ_STATES: Final = (
    "WITH RECURSIVE t(state) AS ((SELECT state FROM messages WHERE state <> 0 ORDER BY state LIMIT 1) UNION ALL"
    " SELECT (SELECT m.state FROM messages m WHERE m.state <> 0 AND m.state > t.state ORDER BY m.state LIMIT 1)"
    " FROM t WHERE t.state IS NOT NULL)"
    " SELECT s.source_key, t.state FROM t, sources s WHERE t.state IS NOT NULL AND EXISTS ("
    "SELECT 1 FROM messages m WHERE m.state <> 0 AND m.state = t.state"
    f" AND m.id BETWEEN s.source_key << {COUNT_BITS} AND (s.source_key << {COUNT_BITS} | {COUNT_MAX}))"
    # Behind them, as state 0, each source that has a row of whatever state.
    " UNION ALL SELECT s.source_key, 0 FROM sources s WHERE EXISTS (SELECT 1 FROM messages m"
    f" WHERE m.id BETWEEN s.source_key << {COUNT_BITS} AND (s.source_key << {COUNT_BITS} | {COUNT_MAX}))"
)


class States:
    """The states that rows of a source may have; 0 stands for rows of any.

    Args:
        found: (source key, state) of rows that exist.
    """

    __slots__ = ("_known",)

    def __init__(self, found: Iterable[tuple[int, int]] = ()) -> None:
        self._known = set(found)

    def may_have(self, source_key: int, state: int) -> bool:
        """Whether a source may have rows of a state."""
        return (source_key, state) in self._known

    def among(self, states: Collection[int]) -> set[tuple[int, int]]:
        """(source key, state) of all that may have rows of these states."""
        return {known for known in self._known if known[1] in states}

    def note(self, puts: Sequence[Put], changes: Sequence[tuple[int, int, int, int, bytes | None]]) -> None:
        """Take in what a commit is about to write."""
        for put in puts:
            self._known.add((put.source_key, 0))
            if put.all_metadata:
                self._known.update(
                    (put.source_key, with_metadata[0])
                    for with_metadata in put.all_metadata.values()
                    if with_metadata[0]
                )
        self._known.update((row[0], row[2]) for row in changes if row[2])

    def forget(self, source_keys: Collection[int]) -> None:
        """Take in that sources are gone; their keys are never used again."""
        self._known = {known for known in self._known if known[0] not in source_keys}
