"""Copying a fragment to another messaging store while its entity is in use (decision 0025).

The rows are copied through the commits of the other store, in the order of their counts, and what changes meanwhile is
brought up to date (``copy_tracker.py``); each row that was written is read back, and at the end both stores are
compared. Who decides where the fragment is, and when, does so in ``move.py``, or between servers in ``cluster/moves``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from duobus.broker.fragment_moves.copy_tracker import ROWS_AT_ONCE, CopyTracker, Found, SourceCopyTracker, puts_of, same
from duobus.storage.interface import CommitBatch, FragmentRow, IdBlock, SourceRow, StoredMessage, is_end

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import FragmentPlan
    from duobus.fragment.fragment import Fragment
    from duobus.storage.interface import MessagingStore

#: Rows that change in one round of copying: fewer than that are left for the moment in which nobody uses the fragment.
ROUND_SMALL: Final = 200
#: Rounds after which that moment comes however many rows change, so that a move ends under any load.
ROUNDS_MAX: Final = 20
#: Blocks of message ids that one commit gets.
BLOCKS_AT_ONCE: Final = 200
#: Messages that one transaction deletes where the fragment was: some 30 ms.
DROP_SLICE: Final = 5_000
#: Rows read at least, of each of many sources.
_PAGE_MIN: Final = 20


class MoveAborted(Exception):
    """The move cannot go on; the text says why."""


class CopyTarget(Protocol):
    """The messaging store that gets the copy of a fragment, at this server or at another one.

    Every method may raise StoreUnavailable or MoveAborted: the copy is over, and goes when its move is cleared up.
    """

    def demand(self) -> None:
        """Raise MoveAborted unless the store is as it was when the move began."""

    async def begin(
        self, entity_id: int, fragment_no: int, source_nos: list[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        """Make an empty fragment, in place of whatever an earlier move has left of it."""

    async def write(self, row: FragmentRow, fill: Callable[[CommitBatch], None]) -> dict[int, int]:
        """Have what ``fill`` adds written with a commit; returns ``CommitBatch.shared``."""

    async def load(self, row: FragmentRow, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        """See ``MessagingStore.load``."""

    async def load_ids(self, row: FragmentRow, source_key: int, first_count: int, limit: int) -> list[IdBlock]:
        """See ``MessagingStore.load_ids``."""


class LocalTarget:
    """A messaging store of this server; see CopyTarget."""

    def __init__(self, broker: MessageBroker) -> None:
        self.broker = broker
        self._life = broker.lifecycle.life

    def demand(self) -> None:
        """See CopyTarget."""
        demand_alive(self.broker, self._life)

    async def begin(
        self, entity_id: int, fragment_no: int, source_nos: list[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        """See CopyTarget."""
        store = self.broker.store
        await drop_rows(self.broker, entity_id, fragment_no)
        # The store works in order: a server that ends the move from here on has the new rows deleted as well.
        self.demand()
        return await self.broker.use(lambda: store.add_fragment(entity_id, fragment_no, source_nos))

    async def write(self, row: FragmentRow, fill: Callable[[CommitBatch], None]) -> dict[int, int]:
        """See CopyTarget."""

        def fenced(commit: CommitBatch) -> None:
            commit.epochs.append((row.fragment_key, row.epoch))
            fill(commit)

        return (await self.broker.commit_loop.add_writes(fenced)).shared

    async def load(self, row: FragmentRow, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        """See CopyTarget."""
        del row
        store = self.broker.store
        return await self.broker.use(lambda: store.load(source_key, first_count, limit))

    async def load_ids(self, row: FragmentRow, source_key: int, first_count: int, limit: int) -> list[IdBlock]:
        """See CopyTarget."""
        del row
        store = self.broker.store
        return await self.broker.use(lambda: store.load_ids(source_key, first_count, limit))


class FragmentCopy:
    """One fragment on its way.

    Args:
        plan: Of the fragment.
        target: The store that gets it.
        demand: Raises MoveAborted when the move is to end: the entity is gone, or the server stops.

    Attributes:
        messages: Rows that the other store has got so far.
    """

    def __init__(self, plan: FragmentPlan, target: CopyTarget, demand: Callable[[], None]) -> None:
        self.messages = 0
        self._plan = plan
        self._handle: FragmentHandle = plan.handle
        self._origin: MessageBroker = plan.handle.broker
        self._life = self._origin.lifecycle.life
        self._copied_to = target
        self._demand_on = demand
        self._tracker = CopyTracker({})
        self._row = FragmentRow(0, 0, 0, 0)
        self._shared = 0

    # -- while others use it ------------------------------------------------------------------------------------

    def note(self, commit: CommitBatch) -> None:
        """The store that has the fragment is about to write this."""
        self._tracker.note(commit)

    async def prepare(self) -> None:
        """Make an empty fragment in the other store.

        Raises: as ``copy_rows``.
        """
        fragment = self.present()
        numbers = sorted(fragment.sources)
        self._row, rows = await self._copied_to.begin(self._handle.entity_id, self._handle.number, numbers)
        keys = {row.source_no: row.source_key for row in rows}
        sources = (SourceCopyTracker(no, fragment.sources[no].source_key, keys[no]) for no in numbers)
        self._tracker = CopyTracker({source.source_key: source for source in sources})
        self._demand()

    async def copy_rows(self) -> None:
        """Copy until little is left, then look whether both stores have the same.

        Raises:
            MoveAborted, StoreFailed, ServiceBusError: It cannot be copied.
        """
        await self.advance()
        for source in self._tracker.sources.values():
            await self._compare(source)

    async def advance(self) -> None:
        """Copy until little is left; raises as ``copy_rows``."""
        for _ in range(ROUNDS_MAX):
            before = self.messages
            await self._round()
            if self.messages - before < ROUND_SMALL:
                break

    async def _round(self) -> None:
        tracker = self._tracker
        tracker.begin_round()
        while True:
            for source in list(tracker.wanting()):
                await self._read(source)
            rows = tracker.take()
            if not rows:
                break
            await self._write(rows)
            if tracker.left >= ROWS_AT_ONCE:
                await self._catch_up()
        await self._catch_up()
        for source in tracker.sources.values():
            await self._copy_ids(source)

    async def _read(self, source: SourceCopyTracker) -> None:
        self._demand()
        number = max(_PAGE_MIN, ROWS_AT_ONCE // len(self._tracker.sources))
        start = source.begin_read()
        rows = await self._load(source.source_key, start, number)
        source.end_read(start, rows, is_end=is_end(rows, number))

    async def _load(self, key: int, first: int, limit: int) -> list[StoredMessage]:
        store = self._origin.store
        return await self._origin.use(lambda: store.load(key, first, limit))

    async def _write(self, rows: list[Found]) -> None:
        tracker = self._tracker
        origins = tracker.origins_of(rows)
        puts = puts_of(rows, origins)
        touched = [(source.target_key, source.next_count, 0, b"") for source in tracker.wrote(rows, origins)]

        def fill(commit: CommitBatch) -> None:
            commit.puts += puts
            commit.sources += touched

        await self._add_writes(fill)
        self.messages += len(rows)
        await self._read_back(rows)

    async def _add_writes(self, fill: Callable[[CommitBatch], None]) -> None:
        shared = await self._copied_to.write(self._row, fill)
        for source in self._tracker.sources.values():
            if not source.source_no:
                self._shared = shared.get(source.target_key, self._shared)

    async def _read_back(self, rows: Iterable[Found]) -> None:
        """Every row that was written has to come back as it is, its checksums verified."""
        wanted: dict[int, dict[int, StoredMessage]] = {}
        for source, row in rows:
            wanted.setdefault(source.target_key, {})[row.count] = row
        for key, by_count in wanted.items():
            found = await self._written(key, sorted(by_count))
            for count, row in by_count.items():
                if count not in found or not same(found[count], row):
                    raise MoveAborted(f"message {count} was not read back as it was written to the other store")

    async def _written(self, key: int, counts: list[int]) -> dict[int, StoredMessage]:
        """What the other store has of these counts, which ascend; neighbours are read together."""
        found: dict[int, StoredMessage] = {}
        for first, last in _runs(counts):
            found |= await self._load_range(key, first, last)
        return found

    async def _catch_up(self) -> None:
        """Bring up to date what has changed of what the other store has."""
        for source in self._tracker.sources.values():
            self._demand()
            pending = source.take_pending()
            wanted = sorted(pending.changed | pending.late)
            if pending.removed:
                await self._add_writes(
                    partial(_remove, [(source.target_key, first, last) for first, last in pending.removed])
                )
            for start in range(0, len(wanted), ROWS_AT_ONCE):
                await self._refresh(source, wanted[start : start + ROWS_AT_ONCE], pending.late)

    async def _refresh(self, source: SourceCopyTracker, counts: list[int], late: set[int]) -> None:
        store = self._origin.store
        found = await self._origin.use(lambda: _load_counts(store, source.source_key, counts))
        for count, row in found.items():
            row.deliveries = max(row.deliveries, source.deliveries.get(count, 0))
        rows: list[Found] = [(source, row) for _, row in sorted(found.items())]
        # What their bodies are shared by went before them.
        new = [entry for entry in rows if entry[1].count in late]
        puts = puts_of(new, [row.origin for _, row in new])
        touched = [(other.target_key, other.next_count, 0, b"") for other in self._tracker.wrote(new, [])]
        changes = [
            (source.target_key, row.count, row.state, row.deliveries, row.metadata)
            for _, row in rows
            if row.count not in late
        ]

        def fill(commit: CommitBatch) -> None:
            commit.puts += puts
            commit.changes += changes
            commit.sources += touched

        if rows:
            await self._add_writes(fill)
            await self._read_back(rows)

    async def _copy_ids(self, source: SourceCopyTracker) -> None:
        """Copy what duplicate detection remembers."""
        while True:
            self._demand()
            load = partial(self._origin.store.load_ids, source.source_key, source.blocks_to, BLOCKS_AT_ONCE)
            blocks = await self._origin.use(load)
            if not blocks:
                return
            await self._add_writes(partial(_remember, source.target_key, blocks))
            there = await self._copied_to.load_ids(self._row, source.target_key, blocks[0].first_count, len(blocks))
            if _told(there) != _told(blocks):
                raise MoveAborted("the memory of duplicate detection was not read back as it was written")
            source.blocks_to = blocks[-1].first_count + 1

    async def _compare(self, source: SourceCopyTracker) -> None:
        """Look whether both stores have the same rows, but for those of which a change is noted."""
        first = 1
        while first < source.copied_to:
            self._demand()
            ours = await self._load(source.source_key, first, ROWS_AT_ONCE)
            last = source.copied_to - 1 if is_end(ours, ROWS_AT_ONCE) else min(ours[-1].count, source.copied_to - 1)
            theirs = await self._load_range(source.target_key, first, last)
            here = {row.count: row for row in ours if row.count <= last}
            for count in here.keys() | theirs.keys():
                one, other = here.get(count), theirs.get(count)
                if (one is None or other is None or not same(one, other)) and not source.noted.touches(count):
                    raise MoveAborted(f"message {count} is not the same in both stores")
            first = last + 1
            if self._tracker.left >= ROWS_AT_ONCE:
                # Between two pages, so that what is noted stays little under any load.
                await self._catch_up()

    async def _load_range(self, key: int, first: int, last: int) -> dict[int, StoredMessage]:
        found: dict[int, StoredMessage] = {}
        while first <= last:
            rows = await self._copied_to.load(self._row, key, first, min(ROWS_AT_ONCE, last - first + 1))
            found |= {row.count: row for row in rows if row.count <= last}
            if is_end(rows, min(ROWS_AT_ONCE, last - first + 1)):
                break
            first = rows[-1].count + 1
        return found

    # -- while nobody does --------------------------------------------------------------------------------------

    async def finish(self, fragment: Fragment) -> None:
        """Copy what is left. Calls of a store are done in order, so all commits of the fragment are behind us then."""
        tracker, origin = self._tracker, self._origin
        await origin.use(lambda: None)
        scratch = CommitBatch(0, origin.now_ms())
        for source in fragment.sources.values():
            fragment.touch(source, scratch, len(source.touched))
        for key, count, _, deliveries, _ in scratch.changes:
            tracker.sources[key].deliveries[count] = deliveries
            tracker.sources[key].noted.changed.add(count)
        await self._round()
        keys = tracker.sources.keys()
        damaged = sum(key in keys for key, _ in origin.quarantined)
        if damaged:
            raise MoveAborted(
                f"{damaged} of its messages are damaged and cannot be read, so it cannot be moved whole. Receive or "
                "purge what is left of it, or give the store up (duobus store replace)"
            )
        rows = [self._moved(one, fragment) for one in tracker.sources.values()]

        def fill(commit: CommitBatch) -> None:
            commit.sources += [(one.source_key, one.next_count, one.highest_delivered, one.counters) for one in rows]
            commit.outdated += [(one.target_key, one.outdated) for one in tracker.sources.values() if one.outdated]

        await self._add_writes(fill)

    def _moved(self, one: SourceCopyTracker, fragment: Fragment) -> SourceRow:
        source = fragment.sources[one.source_no]
        numbers = (source.next_count, source.highest_delivered, source.counters())
        return SourceRow(one.target_key, self._row.fragment_key, one.source_no, *numbers)

    # -- demands ------------------------------------------------------------------------------------------------

    def _demand(self) -> None:
        """Raise MoveAborted unless everything is as it was when the move began."""
        demand_alive(self._origin, self._life)
        self._copied_to.demand()
        self._demand_on()

    def present(self) -> Fragment:
        """The fragment as it is before anybody is kept from it."""
        self._demand()
        fragment = self._handle.fragment
        if fragment is None:
            raise MoveAborted("the fragment is away")
        sources = {source.source_key for source in fragment.sources.values()}
        if self._tracker.sources and sources != self._tracker.sources.keys():
            raise MoveAborted("a subscription was created or deleted meanwhile")
        return fragment


def _remove(ranges: list[tuple[int, int, int]], commit: CommitBatch) -> None:
    commit.removed += ranges


def _remember(key: int, blocks: list[IdBlock], commit: CommitBatch) -> None:
    commit.histories += [IdBlock(key, block.first_count, block.at_ms, block.ids) for block in blocks]


def _told(blocks: list[IdBlock]) -> list[tuple[int, int, bytes]]:
    return [(block.first_count, block.at_ms, block.ids) for block in blocks]


def _runs(counts: list[int]) -> list[tuple[int, int]]:
    """Ascending counts as ranges, inclusive."""
    found: list[tuple[int, int]] = []
    for count in counts:
        if found and found[-1][1] + 1 == count:
            found[-1] = found[-1][0], count
        else:
            found.append((count, count))
    return found


def _load_counts(store: MessagingStore, key: int, counts: list[int]) -> dict[int, StoredMessage]:
    """The rows that there are of these counts, which ascend; neighbours are read together."""
    found: dict[int, StoredMessage] = {}
    for start, last in _runs(counts):
        first = start
        while first <= last:
            rows = store.load(key, first, last - first + 1)
            found |= {row.count: row for row in rows if row.count <= last}
            if is_end(rows, last - first + 1):
                break
            first = rows[-1].count + 1
    return found


def demand_alive(broker: MessageBroker, life: int) -> None:
    """Raise MoveAborted unless a store is still in the life in which the move began."""
    if broker.lifecycle.life != life or broker.state != "open":
        raise MoveAborted(f"messaging store {broker.store_id} failed meanwhile ({broker.last_error})")


async def drop_rows(broker: MessageBroker, entity_id: int, fragment_no: int) -> None:
    """Delete what a store has of a fragment, in slices between which others have their turn."""
    store = broker.store
    while await broker.use(partial(store.drop_fragment, entity_id, fragment_no, DROP_SLICE)):
        pass
