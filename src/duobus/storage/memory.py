"""MemoryStore: the messaging store in dictionaries; the reference behaviour of the contract.

For ephemeral namespaces and for tests. What was committed survives ``close`` and ``open`` of the same
object, and nothing survives the object.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from duobus.errors import StoreFailed
from duobus.storage.commit_checks import check_batch, check_run_owner
from duobus.storage.interface import (
    READ_BYTES_MAX,
    SOURCE_KEY_MAX,
    CommitBatch,
    FragmentRow,
    IdBlock,
    MessagingStore,
    PlainColumns,
    Put,
    SourceRow,
    StoreContents,
    StoredMessage,
    StoreUsage,
    Tombstone,
    columns_of,
)


class MemoryStore(MessagingStore):
    """A messaging store without a disk.

    Args:
        store_id: The catalog's id of this store.
    """

    def __init__(self, store_id: int = 1) -> None:
        self._store_id = store_id
        self._is_open = False
        self._generation = 0
        self._last_commit_no = 0
        self._broker_ms = 0
        self._next_fragment_key = 1
        self._next_source_key = 1
        self._fragments: dict[int, FragmentRow] = {}
        self._sources: dict[int, SourceRow] = {}
        self._tombstones: list[Tombstone] = []
        self._body_keys: dict[int, _SourceRows] = {}
        self._bodies = SharedBodies()

    def open(self) -> StoreContents:
        """Return what was committed so far."""
        if self._is_open:
            raise StoreFailed("the store is open already")
        self._is_open = True
        return StoreContents(
            self._generation,
            self._last_commit_no,
            self._broker_ms,
            [copy_of_fragment(row) for row in self._fragments.values()],
            [copy_of_source(row) for row in self._sources.values()],
            list(self._tombstones),
            {key: size for key, size in self._bodies.totals.items() if size},
        )

    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """Raise generation and epochs, delete the runs of ``deletions``."""
        self._demand_open()
        runs = list(deletions)
        for run in runs:
            check_run_owner(self._store_id, run.store_id)
        for run in runs:
            self._remove(run.source_key, run.first_count, run.last_count)
            body_key = self._body_keys.get(run.source_key)
            if body_key is not None:
                body_key.forget_ids(run.first_count, run.last_count)
        for source_key, counted in (counters or {}).items():
            self._sources[source_key].counters = counted
        self._generation += 1
        for fragment in self._fragments.values():
            fragment.epoch += 1
        return self._generation

    def add_fragment(
        self, entity_id: int, fragment_no: int, source_nos: Sequence[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        """Create a fragment and those of its sources that are missing."""
        self._demand_open()
        fragment = find_fragment(self._fragments.values(), entity_id, fragment_no)
        known = {s.source_no: s for s in self._sources.values() if fragment and s.fragment_key == fragment.fragment_key}
        missing = [number for number in dict.fromkeys(source_nos) if number not in known]
        demand_first(known, missing)
        if self._next_source_key + len(missing) - 1 > SOURCE_KEY_MAX:
            raise StoreFailed(f"the store has given out all of its {SOURCE_KEY_MAX} source keys; add another store")
        if fragment is None:
            fragment = FragmentRow(self._next_fragment_key, entity_id, fragment_no, 1)
            self._fragments[fragment.fragment_key] = fragment
            self._next_fragment_key += 1
        for number in missing:
            source = SourceRow(self._next_source_key, fragment.fragment_key, number)
            self._sources[source.source_key] = known[number] = source
            self._body_keys[source.source_key] = _SourceRows()
            self._next_source_key += 1
        self._bodies.note_sources(self._sources)
        return copy_of_fragment(fragment), [copy_of_source(known[number]) for number in source_nos]

    def find_fragment(self, entity_id: int, fragment_no: int) -> tuple[FragmentRow, list[SourceRow], int] | None:
        """Return a fragment with its sources."""
        self._demand_open()
        return fragment_with_sources(self._fragments, self._sources, self._bodies.totals, entity_id, fragment_no)

    def relabel_fragment(self, entity_id: int, fragment_no: int, becomes: int, epoch: int) -> None:
        """Give a fragment to another entity number."""
        self._demand_open()
        fragment = find_fragment(self._fragments.values(), entity_id, fragment_no)
        if fragment is not None:
            fragment.entity_id, fragment.epoch = becomes, max(fragment.epoch, epoch)

    def drop_entity(self, entity_id: int) -> None:
        """Forget every fragment, source and message of an entity."""
        self._demand_open()
        gone = {key for key, row in self._fragments.items() if row.entity_id == entity_id}
        for key in gone:
            del self._fragments[key]
        for key in [key for key, row in self._sources.items() if row.fragment_key in gone]:
            del self._sources[key]
            del self._body_keys[key]
            self._bodies.forget(key)
        self._bodies.note_sources(self._sources)

    def drop_fragment(self, entity_id: int, fragment_no: int, limit: int) -> bool:
        """Forget up to ``limit`` messages of a fragment, then the fragment."""
        self._demand_open()
        fragment = find_fragment(self._fragments.values(), entity_id, fragment_no)
        if fragment is None:
            return False
        keys = [key for key, row in self._sources.items() if row.fragment_key == fragment.fragment_key]
        for key in keys:
            counts = heapq.nsmallest(limit, self._body_keys[key].rows)
            for count in counts:
                self._remove(key, count, count)
            limit -= len(counts)
        if limit <= 0:
            return True
        for key in keys:
            del self._sources[key]
            del self._body_keys[key]
            self._bodies.forget(key)
        del self._fragments[fragment.fragment_key]
        self._bodies.note_sources(self._sources)
        return False

    def drop_source(self, entity_id: int, source_no: int, limit: int) -> bool:
        """Forget up to ``limit`` messages of a source, then the source."""
        self._demand_open()
        gone = {key for key, row in self._fragments.items() if row.entity_id == entity_id}
        keys = [k for k, row in self._sources.items() if row.fragment_key in gone and row.source_no == source_no]
        for key in keys:
            counts = heapq.nsmallest(limit, self._body_keys[key].rows)
            for count in counts:
                self._remove(key, count, count)
            limit -= len(counts)
        if not keys or limit <= 0:
            return bool(keys)
        for key in keys:
            del self._sources[key]
            del self._body_keys[key]
        self._bodies.note_sources(self._sources)
        return False

    def commit(self, batch: CommitBatch) -> None:
        """Take over all of ``batch`` or refuse all of it; everything that can fail comes before the first change."""
        self._demand_open()
        try:
            check_batch(batch, self._last_commit_no, self._fragments, self._sources)
            self._demand_free(batch)
        except StoreFailed:
            self._is_open = False
            raise
        before = dict(self._bodies.totals)
        for put in batch.puts:
            self._body_keys[put.source_key].add(put)
            self._bodies.add(put)
        for source_key, count, state, deliveries, metadata in batch.changes:
            body_key = self._body_keys.get(source_key)
            if body_key is not None:
                body_key.change(count, state, deliveries, metadata)
        for source_key, first_count, last_count in batch.removed:
            self._remove(source_key, first_count, last_count)
        for source_key, next_count, highest_delivered, counters in batch.sources:
            source = self._sources[source_key]
            source.next_count, source.highest_delivered, source.counters = next_count, highest_delivered, counters
        for block in batch.histories:
            self._body_keys[block.source_key].histories[block.first_count] = (block.at_ms, block.ids)
        for source_key, last_count in batch.outdated:
            self._body_keys[source_key].forget_ids(0, last_count)
        forgotten = set(batch.forgotten)
        self._tombstones = [t for t in self._tombstones if (t.store_id, t.generation) not in forgotten]
        self._tombstones.extend(batch.tombstones)
        batch.shared = {key: size for key, size in self._bodies.totals.items() if before.get(key, 0) != size}
        self._last_commit_no = batch.commit_no
        self._broker_ms = max(self._broker_ms, batch.broker_ms)

    def _demand_free(self, batch: CommitBatch) -> None:
        """Refuse to put messages where others are, as the key of a table does."""
        for put in batch.puts:
            counts = range(put.first_count, put.first_count + len(put.payloads))
            if put.is_reserved and not self._body_keys[put.source_key].rows.keys().isdisjoint(counts):
                raise StoreFailed(f"source {put.source_key}: count {put.first_count} has a message already")

    def load(self, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        """Return messages by count."""
        self._demand_open()
        body_key = self._body_keys.get(source_key)
        return [] if body_key is None else body_key.load(first_count, limit)

    def load_columns(self, source_key: int, first_count: int, limit: int) -> list[PlainColumns]:
        """Return the plain messages with which ``load`` would begin."""
        body_key = self._body_keys.get(source_key) if self._is_open else None
        return [] if body_key is None else columns_of(first_count, body_key.load(first_count, limit))

    def scan(self, source_key: int, state: int, first_count: int, limit: int) -> list[StoredMessage]:
        """Return messages of one state other than 0."""
        self._demand_open()
        body_key = self._body_keys.get(source_key)
        return [] if body_key is None else body_key.scan(state, first_count, limit)

    def occupied(self, states: Collection[int]) -> set[tuple[int, int]]:
        """Return which states of which sources have rows."""
        self._demand_open()
        return {(key, state) for key, rows in self._body_keys.items() for state in rows.states() if state in states}

    def load_ids(self, source_key: int, first_count: int, limit: int) -> list[IdBlock]:
        """Return blocks of a duplicate history."""
        self._demand_open()
        body_key = self._body_keys.get(source_key)
        if body_key is None:
            return []
        counts = heapq.nsmallest(limit, (count for count in body_key.histories if count >= first_count))
        return [IdBlock(source_key, count, *body_key.histories[count]) for count in counts]

    def quarantined(self) -> list[tuple[int, int, str]]:
        """Return nothing: memory is not checksummed."""
        return []

    def usage(self) -> StoreUsage:
        """Return the rows held; the bytes are those of the payloads."""
        self._demand_open()
        body_keys = self._body_keys.values()
        rows = sum(len(body_key.rows) for body_key in body_keys) + len(self._bodies.shared)
        size = sum(body_key.size for body_key in body_keys) + sum(size for _, size in self._bodies.shared.values())
        return StoreUsage(rows, size, None)

    def checkpoint(self) -> None:
        """Do nothing: there is no log."""
        self._demand_open()

    def probe(self) -> None:
        """Do nothing but notice that the store is closed."""
        self._demand_open()

    def close(self) -> None:
        """Refuse every call until the next ``open``."""
        self._is_open = False

    def _demand_open(self) -> None:
        if not self._is_open:
            raise StoreFailed("the store is not open")

    def _remove(self, source_key: int, first_count: int, last_count: int) -> None:
        body_key = self._body_keys.get(source_key)
        if body_key is not None:
            for row in body_key.remove(first_count, last_count):
                self._bodies.remove(source_key, row)


class SharedBodies:
    """What copies of topics' messages have in common, counted as the contract says.

    Attributes:
        totals: ``StoreContents.shared``.
        shared: (key of source 0, count) to copies and bytes of a body that several share.
    """

    def __init__(self) -> None:
        self.totals: dict[int, int] = {}
        self.shared: dict[tuple[int, int], tuple[int, int]] = {}
        self._homes: dict[int, int] = {}

    def note_sources(self, sources: dict[int, SourceRow]) -> None:
        """The store has these sources now."""
        homes = {row.fragment_key: row.source_key for row in sources.values() if row.source_no == 0}
        self._homes = {row.source_key: homes.get(row.fragment_key, 0) for row in sources.values() if row.source_no}

    def add(self, put: Put) -> None:
        """Count new messages, if they lie in a source that is not 0."""
        home = self._homes.get(put.source_key, 0)
        if not home:
            return
        for payload, origin in zip(put.payloads, put.origins or [0] * len(put.payloads), strict=True):
            refs, size = self.shared.get((home, -origin), (0, len(payload)))
            if refs == 0:
                self.totals[home] = self.totals.get(home, 0) + size
            if origin < 0:
                self.shared[home, -origin] = (refs + 1, size)

    def remove(self, source_key: int, row: StoredMessage) -> None:
        """Count a message no more."""
        home = self._homes.get(source_key, 0)
        if not home:
            return
        refs, size = self.shared.get((home, -row.origin), (1, len(row.payload)))
        if row.origin < 0 and refs > 1:
            self.shared[home, -row.origin] = (refs - 1, size)
            return
        self.shared.pop((home, -row.origin), None)
        self.totals[home] -= size

    def forget(self, source_key: int) -> None:
        """A source is gone with all of its fragment."""
        self.totals.pop(source_key, None)
        for key in [key for key in self.shared if key[0] == source_key]:
            del self.shared[key]


class _SourceRows:
    """The messages of one source."""

    __slots__ = ("exceptional", "highest", "histories", "rows", "size")

    def __init__(self) -> None:
        self.rows: dict[int, StoredMessage] = {}
        self.highest = 0
        self.exceptional: set[int] = set()
        self.histories: dict[int, tuple[int, bytes]] = {}
        self.size = 0

    def add(self, put: Put) -> None:
        count = put.first_count
        origins = put.origins or [0] * len(put.payloads)
        for payload, origin in zip(put.payloads, origins, strict=True):
            self.rows[count] = StoredMessage(count, put.enqueued_ms, 0, 0, payload, None, origin)
            self.size += len(payload) if origin >= 0 else 0
            count += 1
        self.highest = max(self.highest, count - 1)
        for index in range(len(put.payloads)):
            with_metadata = put.metadata_of(index)
            if with_metadata is not None:
                self.change(put.first_count + index, *with_metadata)

    def change(self, count: int, state: int, deliveries: int, metadata: bytes | None) -> None:
        old = self.rows.get(count)
        if old is None:
            return
        self.rows[count] = StoredMessage(count, old.enqueued_ms, state, deliveries, old.payload, metadata, old.origin)
        if state:
            self.exceptional.add(count)
        else:
            self.exceptional.discard(count)

    def remove(self, first_count: int, last_count: int) -> list[StoredMessage]:
        if last_count - first_count < len(self.rows):
            counts = [count for count in range(first_count, last_count + 1) if count in self.rows]
        else:
            counts = [count for count in self.rows if first_count <= count <= last_count]
        gone = [self.rows.pop(count) for count in counts]
        for row in gone:
            self.size -= len(row.payload) if row.origin >= 0 else 0
            self.exceptional.discard(row.count)
        return gone

    def forget_ids(self, first_count: int, last_count: int) -> None:
        # Blocks are kept in the order of their counts: those that are outdated stand in front.
        gone = []
        for count in self.histories:
            if count > last_count:
                break
            if count >= first_count:
                gone.append(count)
        for count in gone:
            del self.histories[count]

    def load(self, first_count: int, limit: int) -> list[StoredMessage]:
        last = self.highest
        if last - first_count > 2 * len(self.rows):
            counts = heapq.nsmallest(limit, (count for count in self.rows if count >= first_count))
        else:
            counts = []
            for count in range(first_count, last + 1):
                if len(counts) >= limit:
                    break
                if count in self.rows:
                    counts.append(count)
        return self._copies(counts)

    def scan(self, state: int, first_count: int, limit: int) -> list[StoredMessage]:
        counts = (count for count in self.exceptional if count >= first_count and self.rows[count].state == state)
        return self._copies(heapq.nsmallest(limit, counts))

    def states(self) -> set[int]:
        return {self.rows[count].state for count in self.exceptional}

    def _copies(self, counts: Iterable[int]) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        size = 0
        for count in counts:
            if size >= READ_BYTES_MAX:
                break
            found.append(copy_of_message(self.rows[count]))
            size += len(found[-1].payload)
        return found


def demand_first(known: Collection[int], missing: Collection[int]) -> None:
    """Refuse to make sources of a fragment before its source 0; see ``MessagingStore.add_fragment``."""
    if missing and 0 not in known and 0 not in missing:
        raise ValueError(f"a fragment's source 0 comes first, before {sorted(missing)}")


def find_fragment(rows: Iterable[FragmentRow], entity_id: int, fragment_no: int) -> FragmentRow | None:
    """Return the fragment with this number of this entity, or None."""
    return next((row for row in rows if row.entity_id == entity_id and row.fragment_no == fragment_no), None)


def fragment_with_sources(
    fragments: Mapping[int, FragmentRow],
    sources: Mapping[int, SourceRow],
    shared: Mapping[int, int],
    entity_id: int,
    fragment_no: int,
) -> tuple[FragmentRow, list[SourceRow], int] | None:
    """What a store answers to ``find_fragment``, in rows of the caller's own."""
    row = find_fragment(fragments.values(), entity_id, fragment_no)
    if row is None:
        return None
    own = [copy_of_source(one) for one in sources.values() if one.fragment_key == row.fragment_key]
    return copy_of_fragment(row), own, next((shared.get(one.source_key, 0) for one in own if not one.source_no), 0)


def copy_of_fragment(row: FragmentRow) -> FragmentRow:
    """Return a row of the caller's own: what it does to it must not reach the store."""
    return FragmentRow(row.fragment_key, row.entity_id, row.fragment_no, row.epoch)


def copy_of_source(row: SourceRow) -> SourceRow:
    """Return a row of the caller's own: what it does to it must not reach the store."""
    return SourceRow(
        row.source_key, row.fragment_key, row.source_no, row.next_count, row.highest_delivered, row.counters
    )


def copy_of_message(row: StoredMessage) -> StoredMessage:
    """Return a row of the caller's own: what it does to it must not reach the store."""
    return StoredMessage(
        row.count, row.enqueued_ms, row.state, row.deliveries, row.payload, row.metadata, abs(row.origin)
    )
