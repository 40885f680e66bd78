"""Rows of the SQLite store: their values with checksums on the way in, and verified on the way out.

No ``for`` over messages calls the driver: values are laid out flat and bound 50 rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apsw

from duobus.errors import StoreFailed
from duobus.storage.catalog_identity import NOBODYS, Belonging
from duobus.storage.catalog_records import Kept
from duobus.storage.checksums import (
    LOW_BITS,
    LOW_MASK,
    body_base,
    body_sum,
    body_sums,
    crc32,
    message_row_fault,
    metadata_sums,
    numbers_sum,
    split_id,
    state_sum,
)
from duobus.storage.interface import (
    COUNT_BITS,
    COUNT_MAX,
    FORMAT_VERSION,
    JOURNAL_VERSION,
    READ_BYTES_MAX,
    FragmentRow,
    Put,
    SourceRow,
    StoredMessage,
    Tombstone,
)
from duobus.storage.sqlite import schema

#: Removed ranges up to this length join the list of single ids: one statement for many beats a call for each.
_SHORT_RANGE = 8
_LOWEST_ID = -(1 << 63)
#: Above what a statement of small messages holds, so that only those of large ones are prepared anew.
_KEPT_BYTES_MAX = 2 << 20


class SqliteMeta(NamedTuple):
    """The store's own row: what it has given out and how far it has come; as ``schema.META_COLUMNS``."""

    store_id: int
    generation: int = 0
    last_commit_no: int = 0
    broker_ms: int = 0
    rows: int = 0
    next_fragment_key: int = 1
    next_source_key: int = 1
    probes: int = 0

    @property
    def steps(self) -> int:
        """What every transaction raises, whatever it did; see ``log_watch.py``."""
        return self.generation + self.last_commit_no + self.probes + self.next_fragment_key + self.next_source_key


def ids(source_key: int, first_count: int, last_count: int) -> tuple[int, int]:
    """Return the first and the last id of a source's messages with these counts."""
    return source_key << COUNT_BITS | first_count, source_key << COUNT_BITS | last_count


def put_values(puts: Sequence[Put]) -> list[tuple[schema.Rows, list[Any]]]:
    """Return the statements for new messages with their flat values, which are some, checksums included."""
    ordinary: list[Any] = []
    metadata: list[Any] = []
    exceptional: list[Any] = []
    for put in puts:
        first_id = put.source_key << COUNT_BITS | put.first_count
        if put.all_metadata:
            _add_mixed(put, first_id, ordinary, exceptional)
            continue
        if put.equal_metadata is not None:
            metadata += _with_equal_metadata(put, put.equal_metadata, first_id)
            continue
        n = len(put.payloads)
        if n == 1:
            # Of many sources, a commit has one message each: the columns of one cost three times as much as its row.
            (payload,) = put.payloads
            ordinary += (first_id, put.enqueued_ms, payload, body_sum(first_id, put.enqueued_ms, payload))
            continue
        flat: list[Any] = [put.enqueued_ms] * (4 * n)
        flat[0::4] = range(first_id, first_id + n)
        flat[2::4] = put.payloads
        flat[3::4] = body_sums(first_id, put.enqueued_ms, put.payloads)
        if ordinary:
            ordinary += flat
        else:
            ordinary = flat
    values = (
        (schema.INSERT_ORDINARY, ordinary),
        (schema.INSERT_WITH_METADATA, metadata),
        (schema.INSERT_EXCEPTIONAL, exceptional),
    )
    return [(statement, flat) for statement, flat in values if flat]


def _add_mixed(put: Put, first_id: int, ordinary: list[Any], exceptional: list[Any]) -> None:
    all_metadata = put.all_metadata or {}
    for index, payload in enumerate(put.payloads):
        message_id = first_id + index
        body = body_sum(message_id, put.enqueued_ms, payload)
        if index not in all_metadata:
            ordinary += (message_id, put.enqueued_ms, payload, body)
            continue
        state, deliveries, metadata = all_metadata[index]
        check = state_sum(message_id, state, deliveries, metadata)
        exceptional += (message_id, put.enqueued_ms, state, deliveries, metadata, payload, body, check)


def _with_equal_metadata(put: Put, all_metadata: list[bytes], first_id: int) -> list[Any]:
    n = len(put.payloads)
    flat: list[Any] = [put.enqueued_ms] * (6 * n)
    flat[0::6] = range(first_id, first_id + n)
    flat[2::6] = all_metadata
    flat[3::6] = put.payloads
    flat[4::6] = body_sums(first_id, put.enqueued_ms, put.payloads)
    flat[5::6] = metadata_sums(first_id, all_metadata)
    return flat


def change_values(changes: Sequence[tuple[int, int, int, int, bytes | None]]) -> list[Any]:
    """Return the flat values of new states; the last change of a message in a commit is the one that counts."""
    latest: dict[int, tuple[int, int, bytes | None]] = {}
    for source_key, count, state, deliveries, metadata in changes:
        latest[source_key << COUNT_BITS | count] = (state, deliveries, metadata)
    flat: list[Any] = []
    for message_id, (state, deliveries, metadata) in latest.items():
        flat += (message_id, state, deliveries, metadata, state_sum(message_id, state, deliveries, metadata))
    return flat


def removals(removed: Sequence[tuple[int, int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return what is to be deleted as ranges of ids and as single ids, both in order; neighbours are joined.

    Holders of sessions settle single messages. So that there is no step for each but one, they are looked at as many
    at a time as a statement takes: those that turn out to be neighbours are a range after all.
    """
    singles: list[int] = []
    ranges: list[tuple[int, int]] = []
    for source_key, first_count, last_count in removed:
        first = source_key << COUNT_BITS | first_count
        if first_count == last_count:
            singles.append(first)
        elif last_count - first_count < _SHORT_RANGE:
            singles.extend(range(first, first + last_count - first_count + 1))
        else:
            ranges.append((first, first + last_count - first_count))
    if len(singles) > 1:
        # Nothing is removed twice. If it were, a stretch with a gap could have as many ids as one without.
        singles = _without_runs(sorted(set(singles)), ranges)
    return _merged(ranges) if len(ranges) > 1 else ranges, singles


def _without_runs(singles: list[int], ranges: list[tuple[int, int]]) -> list[int]:
    """Move stretches of consecutive ids to ``ranges``."""
    left: list[int] = []
    for start in range(0, len(singles), schema.ROWS_PER_STATEMENT):
        part = singles[start : start + schema.ROWS_PER_STATEMENT]
        last = part[-1]
        if last - part[0] == len(part) - 1 >= _SHORT_RANGE:
            ranges.append((part[0], last))
        else:
            left += part
    return left


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    ranges.sort()
    combined: list[tuple[int, int]] = []
    first, last = ranges[0]
    for start, end in ranges:
        if start <= last + 1:
            last = max(last, end)
        else:
            combined.append((first, last))
            first, last = start, end
    combined.append((first, last))
    return combined


def source_values(sources: Sequence[tuple[int, int, int, bytes]], known: Mapping[int, SourceRow]) -> list[Any]:
    """Return the flat values of sources that advance; ``known`` must have all of them."""
    flat: list[Any] = []
    for source_key, next_count, highest_delivered, counters in {row[0]: row for row in sources}.values():
        old = known[source_key]
        numbers = (source_key, old.fragment_key, old.source_no, next_count, highest_delivered)
        flat += (source_key, next_count, highest_delivered, counters, numbers_sum(numbers, counters))
    return flat


def rows_at_once(puts: Sequence[Put]) -> tuple[int, bool]:
    """Return of how many new messages a statement should be at the most, and whether it should be kept prepared.

    Each statement hands the interpreter over twice, for which its thread has to wait while the event loop computes. But
    a statement that is kept keeps a copy of what was bound last, so that large messages come in smaller ones.
    """
    size = number = 0
    for put in puts:
        size += sum(map(len, put.payloads))
        number += len(put.payloads)
    for rows in (schema.MANY_ROWS, schema.ROWS_PER_STATEMENT):
        if size * min(number, rows) <= _KEPT_BYTES_MAX * number:
            return rows, True
    return schema.ROWS_PER_STATEMENT, False


def run(
    db: apsw.Connection,
    statement: schema.Rows,
    values: list[Any],
    *,
    rows: int = schema.ROWS_PER_STATEMENT,
    is_kept: bool = True,
) -> int:
    """Run a statement over all rows of ``values``, as many at a time as it takes; return the rows changed.

    Args:
        db: The connection.
        statement: What to run.
        values: Flat.
        rows: Of one statement at the most: ``ROWS_PER_STATEMENT`` or ``MANY_ROWS``.
        is_kept: Keep the statement prepared, and with it SQLite's copy of the values.
    """
    width = statement.width
    left = len(values) // width
    changed = start = 0
    while left:
        # Nothing between the two lengths, so that few texts stand in the driver's cache of statements.
        number = rows if left >= rows else min(left, schema.ROWS_PER_STATEMENT)
        text = statement.many if number == schema.MANY_ROWS else statement.texts[number]
        end = start + width * number
        db.execute(text, values[start:end], can_cache=is_kept)
        changed += db.changes()
        left, start = left - number, end
    return changed


def insert_meta(db: apsw.Connection, meta: SqliteMeta) -> None:
    """Write the store's own row for the first time."""
    db.execute(schema.INSERT_META, (FORMAT_VERSION, *meta, numbers_sum((FORMAT_VERSION, *meta))))


def update_meta(db: apsw.Connection, old: SqliteMeta, new: SqliteMeta) -> bool:
    """Write the store's own row; False (nothing written) when the one on disk is not ``old``."""
    check = numbers_sum((FORMAT_VERSION, *new))
    db.execute(schema.UPDATE_META, (*new[1:], check, old.generation, old.last_commit_no))
    return db.changes() == 1


def read_meta(db: apsw.Connection, path: str, version: int = FORMAT_VERSION) -> SqliteMeta:
    """Return the store's own row, verified."""
    rows = list(_verified(db, schema.READ_META, path, "the store's own row"))
    if version == JOURNAL_VERSION:
        version = FORMAT_VERSION
    if len(rows) != 1 or rows[0][0] != version:
        raise StoreFailed(f"{path}: the store's own row is missing or damaged; restore the file")
    return SqliteMeta(*rows[0][1:])


def bring_forward(db: apsw.Connection, path: str) -> None:
    """Give a file that an earlier version wrote the format of this one, in one transaction; no way leads back."""
    version = int(db.pragma("user_version"))
    if version in (FORMAT_VERSION, JOURNAL_VERSION):
        return
    meta = read_meta(db, path, version)
    with db:
        if version < 2:
            db.execute(schema.CREATE_SHARES)
        db.execute(schema.CREATE_PACKED)
        check = numbers_sum((FORMAT_VERSION, *meta))
        db.execute(schema.UPDATE_FORMAT, (FORMAT_VERSION, check))
        db.execute(f"PRAGMA user_version={FORMAT_VERSION}")


def read_belonging(db: apsw.Connection, path: str) -> Belonging:
    """Return which catalog the file belongs to, verified."""
    if not db.table_exists(None, "belonging"):
        return NOBODYS
    rows = list(_verified(db, schema.READ_BELONGING, path, "the row that names the catalog"))
    return Belonging(*rows[0]) if rows else NOBODYS


def write_belonging(db: apsw.Connection, belonging: Belonging) -> None:
    """Write down which catalog the file belongs to."""
    db.execute(schema.CREATE_BELONGING)
    db.execute(schema.WRITE_BELONGING, (*belonging, numbers_sum(belonging)))


def read_records(db: apsw.Connection, path: str) -> dict[str, Kept]:
    """Return what the file keeps of its catalog's rows, verified."""
    if not db.table_exists(None, "records"):
        return {}
    found: dict[str, Kept] = {}
    for name, revision, text, check in db.execute(schema.READ_RECORDS):
        if type(name) is not str or type(revision) is not int or record_sum(name, revision, text) != check:
            raise StoreFailed(
                f"{path}: a record of the catalog is damaged (its checksum does not hold): {name!r}; restore the file"
            )
        found[name] = Kept(revision, text)
    return found


def record_sum(name: str, revision: int, text: bytes) -> int:
    """Checksum of a record."""
    return numbers_sum((revision,), name.encode() + b"\0" + text)


def write_records(db: apsw.Connection, revision: int, changes: Mapping[str, bytes | None]) -> None:
    """Write and delete records."""
    db.execute(schema.CREATE_RECORDS)
    for name, text in changes.items():
        if text is None:
            db.execute(schema.DELETE_RECORD, (name,))
        else:
            db.execute(schema.WRITE_RECORD, (name, revision, text, record_sum(name, revision, text)))


def insert_fragment(db: apsw.Connection, row: FragmentRow) -> None:
    """Write a new fragment."""
    numbers = (row.fragment_key, row.entity_id, row.fragment_no, row.epoch)
    db.execute(schema.INSERT_FRAGMENT, (*numbers, numbers_sum(numbers)))


def write_epoch(db: apsw.Connection, row: FragmentRow, epoch: int) -> None:
    """Write a fragment's new epoch; ``row`` stays as it is until the transaction is through."""
    check = numbers_sum((row.fragment_key, row.entity_id, row.fragment_no, epoch))
    db.execute(schema.UPDATE_FRAGMENT, (epoch, check, row.fragment_key))


def write_counters(db: apsw.Connection, sources: Mapping[int, SourceRow], counters: Mapping[int, bytes]) -> None:
    """Write what sources count; ``sources`` stay as they are until the transaction is through."""
    rows = [(sources[key], counted) for key, counted in counters.items()]
    changed = [(row.source_key, row.next_count, row.highest_delivered, counted) for row, counted in rows]
    run(db, schema.UPDATE_SOURCES, source_values(changed, sources))


def read_fragments(db: apsw.Connection, path: str) -> list[FragmentRow]:
    """Return all fragments, verified."""
    return [FragmentRow(*row) for row in _verified(db, schema.READ_FRAGMENTS, path, "the row of a fragment")]


def insert_source(db: apsw.Connection, row: SourceRow) -> None:
    """Write a new source."""
    numbers = (row.source_key, row.fragment_key, row.source_no, row.next_count, row.highest_delivered)
    db.execute(schema.INSERT_SOURCE, (*numbers, row.counters, numbers_sum(numbers, row.counters)))


def read_sources(db: apsw.Connection, path: str) -> list[SourceRow]:
    """Return all sources, verified."""
    return [SourceRow(*row) for row in _verified(db, schema.READ_SOURCES, path, "the row of a source")]


def insert_tombstone(db: apsw.Connection, t: Tombstone) -> None:
    """Write a tombstone."""
    numbers = (t.store_id, t.generation, t.commit_no, t.source_key, t.first_count, t.last_count)
    db.execute(schema.INSERT_TOMBSTONE, (*numbers, numbers_sum(numbers)))


def read_tombstones(db: apsw.Connection, path: str) -> list[Tombstone]:
    """Return all tombstones, oldest first, verified."""
    return [Tombstone(*row) for row in _verified(db, schema.READ_TOMBSTONES, path, "a tombstone")]


def _verified(db: apsw.Connection, query: str, path: str, what: str) -> Iterator[tuple[Any, ...]]:
    """Yield rows of integers (and at most one blob, last) without their checksum, which must hold."""
    for row in db.execute(query):
        *values, check = row
        blob = values[-1] if isinstance(values[-1], bytes) else b""
        numbers = values[:-1] if isinstance(values[-1], bytes) else values
        if not all(type(value) is int for value in numbers) or numbers_sum(numbers, blob) != check:
            raise StoreFailed(f"{path}: {what} is damaged (its checksum does not hold): {row[0]!r}; restore the file")
        yield tuple(values)


class MessageReader:
    """Reads messages, keeps those that verify, and notes the others.

    Args:
        db: The connection.
        quarantine: Id to fault; bad rows are added.
        last_id: The last id that belongs to the answer.
        limit: The most messages to return; bad rows don't count.
    """

    __slots__ = ("_db", "_last_id", "_limit", "_quarantine")

    def __init__(self, db: apsw.Connection, quarantine: dict[int, str], last_id: int, limit: int) -> None:
        self._db = db
        self._quarantine = quarantine
        self._last_id = last_id
        self._limit = limit

    def read(self, query: str, id_query: str, bindings: tuple[int, ...]) -> list[StoredMessage]:
        """Return the messages that ``query`` finds; row by row, by ``id_query``, when one of them is unreadable."""
        rows = self._db.execute(query, bindings)
        try:
            return self._collect(rows)
        except (apsw.CorruptError, UnicodeDecodeError):
            # One row's header is beyond the driver. Singly it can be told apart; if the tree itself is
            # damaged, reading the ids fails as well, and with it the store.
            return self._collect(self._singly(id_query, bindings))
        finally:
            rows.close(True)

    def _collect(self, rows: Iterator[tuple[Any, ...]]) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        size = 0
        limit, last_id = self._limit, self._last_id
        base_of: tuple[int, int] | None = None
        base = 0
        for row in rows if limit > 0 else ():
            if row[5] is None:
                row = self._with_payload(row)
            message_id, enqueued_ms, state, deliveries, metadata, payload, body, state_check = row
            holds = False
            # What ``message_row_fault`` looks at in a plain row, without its calls: a deep backlog comes this way.
            if (
                state_check is None
                and metadata is None
                and type(message_id) is type(enqueued_ms) is type(state) is type(deliveries) is int
                and state == 0 == deliveries
                and type(payload) is bytes
            ):
                if base_of != (enqueued_ms, message_id >> LOW_BITS):
                    base_of = (enqueued_ms, message_id >> LOW_BITS)
                    base = body_base(message_id, enqueued_ms)
                holds = body == crc32(payload, (base + message_id) & LOW_MASK)
            if not holds and not self._holds(row):
                continue
            # Only a row that verifies may end the source: a flipped bit can make an id look like a later one.
            if message_id > last_id:
                break
            messages.append(StoredMessage(message_id & COUNT_MAX, enqueued_ms, state, deliveries, payload, metadata))
            size += len(payload)
            if len(messages) == limit or size >= READ_BYTES_MAX:
                break
        return messages

    def count(self) -> int:
        """Return how many rows of the whole table verify; the others go to the quarantine."""
        return sum(self._holds(row) for row in self._singly(schema.LOAD_IDS, (_LOWEST_ID,)))

    def _holds(self, row: tuple[Any, ...]) -> bool:
        fault = message_row_fault(row)
        if fault is not None:
            self._quarantine[row[0]] = fault
        return fault is None

    def _with_payload(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Read what is missing in the row of a large message."""
        try:
            with self._db.blob_open("main", "messages", "payload", row[0], False) as blob:
                payload = blob.read()
        except apsw.SQLError:
            # It is no blob, or not where its id says: the row is damaged, and found to be so.
            return row
        return (*row[:5], payload, *row[6:])

    def _singly(self, id_query: str, bindings: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
        for (message_id,) in self._db.execute(id_query, bindings):
            try:
                row = self._db.execute(schema.LOAD_ONE, (message_id,)).fetchone()
                if row is not None and row[5] is None:
                    row = self._with_payload(row)
            except (apsw.CorruptError, UnicodeDecodeError):
                row = None
            if row is None:
                self._quarantine[message_id] = "body: the row cannot be read"
            else:
                yield row


def verify(db: apsw.Connection, expected_rows: int) -> list[str]:
    """Return what is wrong with the file, in words; reads all of it."""
    problems = [str(row[0]) for row in db.execute("PRAGMA integrity_check(100)") if row[0] != "ok"]
    quarantine: dict[int, str] = {}
    good = MessageReader(db, quarantine, last_id=0, limit=0).count()
    for message_id, fault in quarantine.items():
        source_key, count = split_id(message_id)
        problems.append(f"source {source_key}, message {count}: {fault}")
    if good + len(quarantine) != expected_rows:
        problems.append(f"{expected_rows} messages were stored, {good + len(quarantine)} were found")
    return problems
