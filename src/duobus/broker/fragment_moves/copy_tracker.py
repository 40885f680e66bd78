"""CopyTracker: what is still to be copied of a fragment that clients use meanwhile. Pure: no store is called here.

A fragment is copied in order of count while commits go on. Whatever they change of that which the copy has passed is
noted when the commit is handed to the store, and brought up to date afterwards: so nothing has to stand still for
longer than the last few rows take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from duobus.storage.interface import COUNT_MAX, CommitBatch, Put, StoredMessage

#: Rows, and bytes, that one commit of the other store gets: a part of a commit, so that others have room in it.
ROWS_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 1 << 20
#: Bytes that wait for the copies of the same messages in other sources, so that their bodies are stored once.
BUFFER_BYTES_MAX: Final = 64 << 20

#: A row that is to be written, and the source that it belongs to.
Found = tuple["SourceCopyTracker", StoredMessage]


class Pending:
    """What has changed of rows that the other store has already.

    Attributes:
        changed: Counts whose row is another one now.
        late: Counts that have a row now, although the copy has passed them without: they were reserved.
        removed: Ranges, inclusive.
    """

    __slots__ = ("changed", "late", "removed")

    def __init__(self) -> None:
        self.changed: set[int] = set()
        self.late: set[int] = set()
        self.removed: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.changed) + len(self.late) + len(self.removed)

    def touches(self, count: int) -> bool:
        """Whether a row may be another one by now."""
        return (
            count in self.changed or count in self.late or any(first <= count <= last for first, last in self.removed)
        )


class SourceCopyTracker:
    """One source on its way.

    Attributes:
        source_no: Its number in the fragment.
        source_key: Its key in the store that has it, ``target_key``: in the other one.
        read_to: The first count that was not read; MAX while a read is under way.
        buffer: Read, and not handed over yet.
        is_ended: There was nothing behind ``read_to`` when it was read last.
        blocks_to: The first count of the block of message ids that comes next.
        outdated: Blocks up to this count are to be deleted.
        deliveries: Counts of deliveries that no commit has written, by count.
        next_count: What the other store takes for the first count that is not used.
    """

    __slots__ = (
        "blocks_to",
        "buffer",
        "deliveries",
        "is_ended",
        "next_count",
        "noted",
        "outdated",
        "read_to",
        "source_key",
        "source_no",
        "target_key",
    )

    def __init__(self, source_no: int, source_key: int, target_key: int) -> None:
        self.source_no = source_no
        self.source_key = source_key
        self.target_key = target_key
        self.read_to = 1
        self.buffer: deque[StoredMessage] = deque()
        self.is_ended = False
        self.blocks_to = 0
        self.outdated = 0
        self.next_count = 1
        self.deliveries: dict[int, int] = {}
        self.noted = Pending()

    @property
    def copied_to(self) -> int:
        """The first count that the other store does not have yet."""
        return self.buffer[0].count if self.buffer else self.read_to

    def note_put(self, put: Put) -> None:
        """New rows are about to be written."""
        last = put.first_count + len(put.payloads) - 1
        self.noted.late.update(range(put.first_count, min(last, self.read_to - 1) + 1))

    def note_removal(self, first: int, last: int) -> None:
        """Rows are about to be removed."""
        if first < self.read_to:
            self.noted.removed.append((first, last))

    def begin_read(self) -> int:
        """A page is about to be read: from which count on."""
        start, self.read_to = self.read_to, COUNT_MAX + 1
        return start

    def end_read(self, start: int, rows: Sequence[StoredMessage], *, is_end: bool) -> None:
        """It has been read; what was noted of later rows is no matter, for they will be read as they are then."""
        self.read_to = rows[-1].count + 1 if rows else start
        self.is_ended = is_end
        self.buffer.extend(rows)
        noted = self.noted
        noted.changed = {count for count in noted.changed if count < self.read_to}
        noted.late = {count for count in noted.late if count < self.read_to}
        noted.removed = [found for found in noted.removed if found[0] < self.read_to]

    def take_pending(self) -> Pending:
        """Give away what was noted of rows that the other store has; the rest is noted on."""
        taken, end = Pending(), self.copied_to
        taken.changed = {count for count in self.noted.changed if count < end}
        taken.late = {count for count in self.noted.late if count < end}
        taken.removed = [found for found in self.noted.removed if found[0] < end]
        self.noted.changed -= taken.changed
        self.noted.late -= taken.late
        self.noted.removed = [found for found in self.noted.removed if found[1] >= end]
        return taken


class CopyTracker:
    """A whole fragment on its way.

    Attributes:
        sources: By the key that each has in the store that it leaves.
        shared_to: Bodies of messages up to this count of source 0 may be in the other store, shared by copies.
    """

    __slots__ = ("shared_to", "sources")

    def __init__(self, sources: Mapping[int, SourceCopyTracker]) -> None:
        self.sources = dict(sources)
        self.shared_to = 0

    def note(self, commit: CommitBatch) -> None:
        """The store that has the fragment is about to write this."""
        sources = self.sources
        for put in commit.puts:
            if put.source_key in sources:
                sources[put.source_key].note_put(put)
        for source_key, first, last in commit.removed:
            if source_key in sources:
                sources[source_key].note_removal(first, last)
        for source_key, count, *_ in commit.changes:
            if source_key in sources and count < sources[source_key].read_to:
                sources[source_key].noted.changed.add(count)
        for source_key, last in commit.outdated:
            if source_key in sources:
                sources[source_key].outdated = max(sources[source_key].outdated, last)

    def begin_round(self) -> None:
        """Look behind every end once more."""
        for source in self.sources.values():
            source.is_ended = False

    def wanting(self) -> Iterator[SourceCopyTracker]:
        """The sources of which a page has to be read before ``take`` can go on."""
        room = BUFFER_BYTES_MAX
        for source in self.sources.values():
            room -= sum(len(row.payload) for row in source.buffer)
        for source in self.sources.values():
            if not source.buffer and not source.is_ended and room > 0:
                yield source

    def take(self) -> list[Found]:
        """Rows for one commit: copies of a message together, each source in order of count; none when all is taken."""
        heads = [(self._rank(source), source.source_key) for source in self.sources.values() if source.buffer]
        heapify(heads)
        taken: list[Found] = []
        size = 0
        last_origin = 0
        while heads:
            origin, key = heappop(heads)
            is_full = len(taken) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE
            if taken and is_full and (origin != last_origin or not origin):
                break
            source = self.sources[key]
            row = source.buffer.popleft()
            taken.append((source, row))
            size += len(row.payload)
            last_origin = origin
            if source.buffer:
                heappush(heads, (self._rank(source), key))
            elif not source.is_ended:
                # What comes next in it may belong to the messages that the others have.
                break
        return taken

    def _rank(self, source: SourceCopyTracker) -> int:
        """What a topic keeps itself comes behind all copies: its counts are those by which they share their bodies."""
        return source.buffer[0].origin if source.source_no or len(self.sources) == 1 else COUNT_MAX

    def origins_of(self, rows: Sequence[Found]) -> list[int]:
        """As ``Put.origins``: negative for copies that come together, of messages of which no body was written yet."""
        number: dict[int, int] = {}
        for _, row in rows:
            number[row.origin] = number.get(row.origin, 0) + 1
        shared_to = self.shared_to
        return [-row.origin if row.origin > shared_to and number[row.origin] > 1 else row.origin for _, row in rows]

    def wrote(self, rows: Sequence[Found], origins: Sequence[int]) -> list[SourceCopyTracker]:
        """These rows are about to be written: the sources whose next counts go with them."""
        touched: dict[int, SourceCopyTracker] = {}
        self.shared_to = max(self.shared_to, -min(origins, default=0))
        for source, row in rows:
            source.next_count = max(source.next_count, row.count + 1)
            touched[source.source_key] = source
        for source in self.sources.values():
            if not source.source_no and len(self.sources) > 1:
                self.shared_to = max(self.shared_to, source.next_count - 1)
                source.next_count = self.shared_to + 1
                touched[source.source_key] = source
        return list(touched.values())

    @property
    def left(self) -> int:
        """How much is noted and not brought up to date."""
        return sum(len(source.noted) for source in self.sources.values())


def _is_next(put: Put, row: StoredMessage) -> bool:
    return put.first_count + len(put.payloads) == row.count and put.enqueued_ms == row.enqueued_ms


def puts_of(rows: Sequence[Found], origins: Sequence[int]) -> list[Put]:
    """Rows as they are written to the other store; neighbours of one source and time share a Put."""
    puts: list[Put] = []
    # With the lists of it that still grow.
    open_put: dict[int, tuple[Put, list[bytes], list[int] | None]] = {}
    for (source, row), origin in zip(rows, origins, strict=True):
        found = open_put.get(source.source_key)
        if found is not None and _is_next(found[0], row):
            put, payloads, put_origins = found
        else:
            payloads, put_origins = [], [] if source.source_no else None
            put = Put(source.target_key, row.count, row.enqueued_ms, payloads, {})
            open_put[source.source_key] = put, payloads, put_origins
            put.origins = put_origins
            # Their counts were used up long ago, in the other store.
            put.is_reserved = True
            puts.append(put)
        if row.state or row.deliveries or row.metadata is not None:
            assert put.all_metadata is not None
            put.all_metadata[len(payloads)] = (row.state, row.deliveries, row.metadata)
        payloads.append(row.payload)
        if put_origins is not None:
            put_origins.append(origin)
    return puts


def same(one: StoredMessage, other: StoredMessage) -> bool:
    """Whether two stores have the same message."""
    return (one.count, one.enqueued_ms, one.state, one.deliveries, one.payload, one.metadata, one.origin) == (
        other.count,
        other.enqueued_ms,
        other.state,
        other.deliveries,
        other.payload,
        other.metadata,
        other.origin,
    )
