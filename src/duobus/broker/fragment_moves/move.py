"""Moving a fragment to another messaging store while its entity is in use (decision 0025).

The intent is in the catalog. The rows are copied through the commits of the other store, in the order of their counts,
and what changes meanwhile is brought up to date (``copy_tracker.py``); each row that was written is read back, and at
the end both stores are compared. Then the fragment is taken out of its message broker for the moment that the last rows
take, the catalog says where it is from now on, and it is recovered there as after a restart: numbers go on, locks are
lost. Whatever fails before the catalog has said so undoes the move; after that only the old rows are to be deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from duobus.broker.fragment_moves.copy_tracker import ROWS_AT_ONCE, CopyTracker, Found, SourceCopyTracker, puts_of, same
from duobus.errors import ServiceBusError, StoreFailed
from duobus.storage.interface import CommitBatch, FragmentRow, IdBlock, SourceRow, StoredMessage, is_end

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import FragmentPlan
    from duobus.fragment.fragment import Fragment
    from duobus.storage.catalog.interface import Catalog
    from duobus.storage.catalog_rows import MoveRow
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
#: How often a catalog is asked that has failed when it was to say where the fragment is, and the pause in between.
_ASK_S: Final = 1.0


class MoveAborted(Exception):
    """The move cannot go on; the text says why."""


class FragmentMove:
    """One move.

    Args:
        catalog: Where it is recorded.
        move: What is recorded there.
        plan: Of the fragment.
        target: The message broker that gets it.
        demand: Raises MoveGivenUp when the move is to end: the entity is gone, or the server stops.
        moved: Called when the fragment is there.

    Attributes:
        messages: Rows that the other store has got so far.
        held_s: For how long nobody could use the fragment.
        has_switched: It is in the other store, for good.
        is_unknown: The catalog was lost when it was to say where the fragment is; it says so at the next start.
    """

    def __init__(
        self,
        catalog: Catalog,
        move: MoveRow,
        plan: FragmentPlan,
        target: MessageBroker,
        demand: Callable[[], None],
        moved: Callable[[], None],
    ) -> None:
        self.messages = 0
        self.held_s = 0.0
        self.has_switched = False
        self.is_unknown = False
        self._catalog = catalog
        self._move = move
        self._plan = plan
        self._handle: FragmentHandle = plan.handle
        self._origin: MessageBroker = plan.handle.broker
        self._target = target
        self._lives = (self._origin.lifecycle.life, target.lifecycle.life)
        self._demand_on = demand
        self._moved_in = moved
        self._tracker = CopyTracker({})
        self._row = FragmentRow(0, 0, 0, 0)
        self._shared = 0

    async def run(self) -> None:
        """Move it.

        Raises:
            MoveGivenUp, StoreFailed, ServiceBusError: It was not moved, and is where it was.
        """
        for broker in (self._target, self._origin):
            # Whether it could give the fragment up: there is no entity 0.
            await broker.use(partial(broker.store.drop_fragment, 0, 0, 1))
        self._catalog.begin_move(self._move)
        try:
            await self._prepare()
            self._origin.commit_loop.watches.append(self._tracker.note)
            try:
                await self._copy()
                await self._hand_over()
            finally:
                self._origin.commit_loop.watches.remove(self._tracker.note)
        except BaseException:
            if not self.has_switched and not self.is_unknown:
                await clear_up(self._catalog, self._move, (self._target,))
            raise
        await clear_up(self._catalog, self._move, (self._origin,))

    # -- while others use it ------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        fragment = self._fragment()
        target, move = self._target, self._move
        await _drop(target, move)
        numbers = sorted(fragment.sources)
        store = target.store
        self._row, rows = await target.use(lambda: store.add_fragment(move.entity_id, move.fragment_no, numbers))
        keys = {row.source_no: row.source_key for row in rows}
        sources = (SourceCopyTracker(no, fragment.sources[no].source_key, keys[no]) for no in numbers)
        self._tracker = CopyTracker({source.source_key: source for source in sources})
        self._demand()

    async def _copy(self) -> None:
        """Copy until little is left, then look whether both stores have the same."""
        for _ in range(ROUNDS_MAX):
            before = self.messages
            await self._round()
            if self.messages - before < ROUND_SMALL:
                break
        for source in self._tracker.sources.values():
            await self._compare(source)

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
        rows = await self._load(self._origin, source.source_key, start, number)
        source.end_read(start, rows, is_end=is_end(rows, number))

    async def _load(self, broker: MessageBroker, key: int, first: int, limit: int) -> list[StoredMessage]:
        store = broker.store
        return await broker.use(lambda: store.load(key, first, limit))

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
        def fenced(commit: CommitBatch) -> None:
            commit.epochs.append((self._row.fragment_key, self._row.epoch))
            fill(commit)

        commit = await self._target.commit_loop.add_writes(fenced)
        for source in self._tracker.sources.values():
            if not source.source_no:
                self._shared = commit.shared.get(source.target_key, self._shared)

    async def _read_back(self, rows: Iterable[Found]) -> None:
        """Every row that was written has to come back as it is, its checksums verified."""
        wanted: dict[int, dict[int, StoredMessage]] = {}
        for source, row in rows:
            wanted.setdefault(source.target_key, {})[row.count] = row
        store = self._target.store
        for key, by_count in wanted.items():
            found = await self._target.use(partial(_load_counts, store, key, sorted(by_count)))
            for count, row in by_count.items():
                if count not in found or not same(found[count], row):
                    raise MoveAborted(f"message {count} was not read back as it was written to the other store")

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
            load = partial(self._target.store.load_ids, source.target_key, blocks[0].first_count, len(blocks))
            if _told(await self._target.use(load)) != _told(blocks):
                raise MoveAborted("the memory of duplicate detection was not read back as it was written")
            source.blocks_to = blocks[-1].first_count + 1

    async def _compare(self, source: SourceCopyTracker) -> None:
        """Look whether both stores have the same rows, but for those of which a change is noted."""
        first = 1
        while first < source.copied_to:
            self._demand()
            ours = await self._load(self._origin, source.source_key, first, ROWS_AT_ONCE)
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
            rows = await self._load(self._target, key, first, ROWS_AT_ONCE)
            found |= {row.count: row for row in rows if row.count <= last}
            if is_end(rows, ROWS_AT_ONCE):
                break
            first = rows[-1].count + 1
        return found

    # -- while nobody does --------------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        fragment = self._fragment()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        handle = self._handle
        parked = self._origin.host.export_fragment(self._plan)
        try:
            await self._finish(fragment)
            self._demand()
            await self._switch()
            handle.move_to(self._target)
            rows = [self._moved(one, fragment) for one in self._tracker.sources.values()]
            await self._target.host.import_fragment(self._plan, self._row, rows, self._shared)
            self._moved_in()
        except BaseException:
            if not self.has_switched and not self.is_unknown:
                await self._give_back(fragment)
            raise
        finally:
            self.held_s = loop.time() - began_s
            for run in parked:
                handle.submit(run)

    def _moved(self, one: SourceCopyTracker, fragment: Fragment) -> SourceRow:
        source = fragment.sources[one.source_no]
        numbers = (source.next_count, source.highest_delivered, source.counters())
        return SourceRow(one.target_key, self._row.fragment_key, one.source_no, *numbers)

    async def _finish(self, fragment: Fragment) -> None:
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

    async def _switch(self) -> None:
        """Have the catalog say where it is. While the catalog cannot tell, nobody may use it anywhere."""
        move = self._move
        try:
            self._catalog.switch_move(move)
        except StoreFailed:
            self.is_unknown = True
            while self.is_unknown:
                self._demand_on()
                await asyncio.sleep(_ASK_S)
                with suppress(StoreFailed):
                    self.has_switched = store_of(self._catalog, move) == move.to_store
                    self.is_unknown = False
            if not self.has_switched:
                raise
        self.has_switched = True

    async def _give_back(self, fragment: Fragment) -> None:
        """It stays where it was, as after a restart of its store."""
        origin, handle = self._origin, self._handle
        if origin.lifecycle.life != self._lives[0] or origin.state != "open":
            origin.host.restore_fragment(self._plan)
            return
        row = FragmentRow(fragment.fragment_key, handle.entity_id, handle.number, fragment.epoch)
        rows = [
            SourceRow(
                one.source_key, row.fragment_key, one.source_no, one.next_count, one.highest_delivered, one.counters()
            )
            for one in fragment.sources.values()
        ]
        stored = 0 if fragment.topic is None else fragment.topic.stored
        await origin.host.import_fragment(self._plan, row, rows, stored)

    # -- demands ------------------------------------------------------------------------------------------------

    def _demand(self) -> None:
        """Raise MoveGivenUp unless everything is as it was when the move began."""
        for broker, life in zip((self._origin, self._target), self._lives, strict=True):
            if broker.lifecycle.life != life or broker.state != "open":
                raise MoveAborted(f"messaging store {broker.store_id} failed meanwhile ({broker.last_error})")
        self._demand_on()

    def _fragment(self) -> Fragment:
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


def _load_counts(store: MessagingStore, key: int, counts: list[int]) -> dict[int, StoredMessage]:
    """The rows that there are of these counts, which ascend; neighbours are read together."""
    found: dict[int, StoredMessage] = {}
    at = 0
    while at < len(counts):
        end = at + 1
        while end < len(counts) and counts[end] == counts[end - 1] + 1:
            end += 1
        first, last = counts[at], counts[end - 1]
        while first <= last:
            rows = store.load(key, first, last - first + 1)
            found |= {row.count: row for row in rows if row.count <= last}
            if is_end(rows, last - first + 1):
                break
            first = rows[-1].count + 1
        at = end
    return found


def store_of(catalog: Catalog, move: MoveRow) -> int | None:
    """The store that has a fragment, by the catalog; None when its entity is gone."""
    for entity in catalog.read().entities:
        for slot in entity.slots if entity.entity_id == move.entity_id else ():
            if slot.fragment_no == move.fragment_no:
                return slot.store_id
    return None


async def _drop(broker: MessageBroker, move: MoveRow) -> None:
    store = broker.store
    while await broker.use(lambda: store.drop_fragment(move.entity_id, move.fragment_no, DROP_SLICE)):
        pass


async def clear_up(catalog: Catalog, move: MoveRow, brokers: Iterable[MessageBroker]) -> bool:
    """Delete what the stores of these message brokers have of a fragment that is not theirs, and forget the move.

    Returns:
        Whether that was done; else it stays recorded, and is done when the stores are there.
    """
    try:
        for broker in brokers:
            await _drop(broker, move)
        catalog.end_move(move)
    except (StoreFailed, ServiceBusError):
        return False
    return True
