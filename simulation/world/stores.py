"""A messaging store on a simulated disk that fails, stalls and forgets, and its writer in virtual time.

The store is a few dictionaries: obviously right, and strict. What a broker may never do to a store (commit out of
turn, go on after a failure) raises ContractBroken. Several lives of a broker share one Disk, each with a
CrashingStore of its own.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from duobus.errors import StoreFailed, StoreStale
from duobus.storage.interface import (
    CommitBatch,
    FragmentRow,
    IdBlock,
    MessagingStore,
    PlainColumns,
    SourceRow,
    StoreContents,
    StoredMessage,
    StoreUsage,
    Tombstone,
    columns_of,
)
from simulation.world.disk import (
    AMBIGUOUS,
    FAULTS,
    REFUSED,
    SLOW,
    SYNC_FAILED,
    ContractBroken,
    Disk,
    DiskFaults,
    DiskState,
    apply_batch,
    examine,
    find_fragment,
    forget_ids,
    remove_runs,
    shared_bytes,
)

if TYPE_CHECKING:
    import random

    from simulation.world.loop import SimulationLoop

__all__ = [
    "CrashingStore",
    "DrawnFaults",
    "SimulatedWriter",
    "Disk",
    "DiskFaults",
    "ContractBroken",
    "FAULTS",
    "REFUSED",
    "AMBIGUOUS",
    "SYNC_FAILED",
    "SLOW",
]

T = TypeVar("T")


class DrawnFaults:
    """What a store's disk draws of faults."""

    _disk: Disk

    def draw_delay(self) -> float:
        """Return how long the next durable operation stalls, virtual seconds; the writer asks before it calls."""
        disk = self._disk
        faults = disk.faults
        planned = faults.planned.get(disk.operations + 1)
        if planned == SLOW or (planned is None and disk.random.random() < faults.chances.get(SLOW, 0.0)):
            return disk.random.uniform(*faults.slow_s)
        return 0.0

    def draw_fault(self) -> str | None:
        """Return what goes wrong with the operation that the disk has counted last."""
        disk = self._disk
        if disk.operations in disk.faults.planned:
            return disk.faults.planned[disk.operations]
        for fault in (REFUSED, AMBIGUOUS, SYNC_FAILED):
            if fault in disk.faults.chances and disk.random.random() < disk.faults.chances[fault]:
                return fault
        return None


class CrashingStore(DrawnFaults, MessagingStore):
    """The store of one life of a broker, on a disk that outlives it.

    Methods raise ContractBroken on calls that the contract forbids.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._usable = False
        self._failed = False
        self._begun = False
        self._bad: list[tuple[int, int, str]] = []

    def _require_usable(self) -> None:
        if self._failed:
            # A call that stood in the writer's queue behind the one that failed.
            raise StoreFailed("planted: failed before, and not reopened yet")
        if not self._usable:
            raise ContractBroken("the store is not open, or failed and was not reopened")
        if self._disk.owner is not self:
            raise StoreFailed("another process owns the disk now")

    @property
    def _state(self) -> DiskState:
        """What this store holds, if it may be asked at all."""
        self._require_usable()
        return self._disk.seen

    def open(self) -> StoreContents:
        """Open the disk; refused while another life holds it, or by a drawn fault."""
        disk = self._disk
        if disk.owner not in (None, self):
            raise StoreFailed("the disk is locked by another process")
        if disk.random.random() < disk.faults.open_refused:
            raise StoreFailed("planted: the store cannot be opened")
        if self._usable:
            raise ContractBroken("open twice")
        disk.owner = self
        disk.settle_failed_sync()
        self._usable = True
        self._begun = False
        self._bad = []
        state = disk.seen
        return StoreContents(
            state.generation,
            state.last_commit_no,
            state.broker_ms,
            [FragmentRow(key, *row) for key, row in sorted(state.fragments.items())],
            [SourceRow(key, *row) for key, row in sorted(state.sources.items())],
            [Tombstone(*row) for row in state.tombstones],
            shared_bytes(state),
            state.belonging,
        )

    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """Raise generation and epochs and delete the runs of ``deletions``."""
        self._require_usable()
        if self._begun:
            raise ContractBroken("begin_generation is called once per open")
        runs = [(tombstone.source_key, tombstone.first_count, tombstone.last_count) for tombstone in deletions]

        tell = self._telling()

        def operation(state: DiskState) -> None:
            tell(state)
            state.generation += 1
            for key, (entity_id, fragment_no, epoch) in state.fragments.items():
                state.fragments[key] = (entity_id, fragment_no, epoch + 1)
            remove_runs(state, runs)
            forget_ids(state, runs)
            for source_key, counted in (counters or {}).items():
                state.sources[source_key] = (*state.sources[source_key][:4], counted)

        self._perform(operation)
        self._begun = True
        return self._state.generation

    def add_fragment(
        self, entity_id: int, fragment_no: int, source_nos: Sequence[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        """Create what does not exist yet and return all of it."""
        wanted = list(source_nos)
        tell = self._telling()

        def operation(state: DiskState) -> None:
            tell(state)
            key = find_fragment(state, entity_id, fragment_no)
            if key is None:
                key = state.next_fragment_key
                state.next_fragment_key += 1
                state.fragments[key] = (entity_id, fragment_no, 1)
            present = {row[1] for row in state.sources.values() if row[0] == key}
            for source_no in wanted:
                if source_no not in present:
                    state.sources[state.next_source_key] = (key, source_no, 1, 0, b"")
                    state.messages[state.next_source_key] = {}
                    state.next_source_key += 1

        self._perform(operation)
        state = self._state
        key = find_fragment(state, entity_id, fragment_no)
        assert key is not None
        sources = [SourceRow(s, *row) for s, row in sorted(state.sources.items()) if row[0] == key]
        return FragmentRow(key, *state.fragments[key]), sources

    def _telling(self) -> Callable[[DiskState], None]:
        """What an operation writes down of the catalog, as it is now."""
        told = None if self.mark is None else self.mark.told(self._state.belonging)

        def tell(state: DiskState) -> None:
            state.belonging = told or state.belonging

        return tell

    def find_fragment(self, entity_id: int, fragment_no: int) -> tuple[FragmentRow, list[SourceRow], int] | None:
        """Return a fragment with its sources."""
        self._require_usable()
        state = self._state
        key = find_fragment(state, entity_id, fragment_no)
        if key is None:
            return None
        sources = [SourceRow(s, *row) for s, row in sorted(state.sources.items()) if row[0] == key]
        shared = next((shared_bytes(state).get(one.source_key, 0) for one in sources if not one.source_no), 0)
        return FragmentRow(key, *state.fragments[key]), sources, shared

    def relabel_fragment(self, entity_id: int, fragment_no: int, becomes: int, epoch: int) -> None:
        """Give a fragment to another entity number."""

        def operation(state: DiskState) -> None:
            key = find_fragment(state, entity_id, fragment_no)
            if key is not None:
                state.fragments[key] = (becomes, fragment_no, max(state.fragments[key][2], epoch))

        self._perform(operation)

    def drop_entity(self, entity_id: int) -> None:
        """Delete all that belongs to an entity."""

        def operation(state: DiskState) -> None:
            for key in [k for k, row in state.fragments.items() if row[0] == entity_id]:
                del state.fragments[key]
                for source_key in [s for s, row in state.sources.items() if row[0] == key]:
                    del state.sources[source_key], state.messages[source_key]
                    state.histories.pop(source_key, None)

        self._perform(operation)

    def drop_fragment(self, entity_id: int, fragment_no: int, limit: int) -> bool:
        """Delete some messages of a fragment, or with the last of them the fragment."""
        state = self._state
        fragment = find_fragment(state, entity_id, fragment_no)
        if fragment is None:
            return False
        keys = [key for key, row in state.sources.items() if row[0] == fragment]
        found = sorted((key, count) for key in keys for count in state.messages[key])
        is_last = len(found) < limit

        def operation(target: DiskState) -> None:
            remove_runs(target, [(key, count, count) for key, count in found[:limit]])
            if is_last:
                target.fragments.pop(fragment, None)
            for key in keys if is_last else ():
                target.sources.pop(key, None)
                target.messages.pop(key, None)
                target.histories.pop(key, None)

        self._perform(operation)
        return not is_last

    def drop_source(self, entity_id: int, source_no: int, limit: int) -> bool:
        """Delete some messages of a source, or with the last of them the source."""
        state = self._state
        fragments = {key for key, row in state.fragments.items() if row[0] == entity_id}
        keys = [key for key, row in state.sources.items() if row[0] in fragments and row[1] == source_no]
        found = sorted((key, count) for key in keys for count in state.messages[key])
        is_last = len(found) < limit

        def operation(target: DiskState) -> None:
            remove_runs(target, [(key, count, count) for key, count in found[:limit]])
            for key in keys if is_last else ():
                del target.sources[key], target.messages[key]
                target.histories.pop(key, None)

        if keys:
            self._perform(operation)
        return bool(keys) and not is_last

    def commit(self, batch: CommitBatch) -> None:
        """Write the batch, or fail as the disk's faults will have it."""
        state = self._state
        if not self._begun:
            raise ContractBroken("commit before begin_generation")
        for fragment_key, epoch in batch.epochs:
            if fragment_key not in state.fragments or state.fragments[fragment_key][2] != epoch:
                self._usable = False
                raise StoreStale(f"fragment {fragment_key} is not at epoch {epoch}")
        examine(state, batch)
        # The broker may reuse its objects once commit has returned; the disk keeps its own.
        kept: CommitBatch = pickle.loads(pickle.dumps(batch))
        self._perform(lambda target: apply_batch(target, kept))
        batch.shared = shared_bytes(state) if any(row[1] for row in state.sources.values()) else {}

    def load(self, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        """Return messages of every state."""
        return self._read(source_key, first_count, limit, None)

    def load_columns(self, source_key: int, first_count: int, limit: int) -> list[PlainColumns]:
        """Return the ordinary messages with which ``load`` would begin; none of a store that is away."""
        if self._failed or not self._usable or self._disk.owner is not self:
            return []
        return columns_of(first_count, self._read(source_key, first_count, limit, None))

    def scan(self, source_key: int, state: int, first_count: int, limit: int) -> list[StoredMessage]:
        """Return messages of one state."""
        if state == 0:
            raise ContractBroken("scan is for states other than 0")
        return self._read(source_key, first_count, limit, state)

    def occupied(self, states: Collection[int]) -> set[tuple[int, int]]:
        """Return which states of which sources have rows."""
        return {
            (key, row[1]) for key, rows in self._state.messages.items() for row in rows.values() if row[1] in states
        }

    def load_ids(self, source_key: int, first_count: int, limit: int) -> list[IdBlock]:
        """Return blocks of a duplicate history."""
        blocks = self._state.histories.get(source_key, {})
        counts = sorted(count for count in blocks if count >= first_count)
        return [IdBlock(source_key, count, *blocks[count]) for count in counts[:limit]]

    def _read(self, source_key: int, first_count: int, limit: int, wanted: int | None) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        rows = self._state.messages.get(source_key, {})
        for count in sorted(rows):
            if len(found) >= limit:
                break
            enqueued_ms, state, deliveries, payload, metadata, origin = rows[count]
            if count < first_count or wanted not in (None, state):
                continue
            if (source_key, count) in self._disk.rotten:
                report = (source_key, count, "checksum does not hold")
                if report not in self._bad:
                    self._bad.append(report)
                continue
            found.append(StoredMessage(count, enqueued_ms, state, deliveries, payload, metadata, abs(origin)))
        return found

    def quarantined(self) -> list[tuple[int, int, str]]:
        """Return the rotten rows met since ``open``."""
        return list(self._bad)

    def usage(self) -> StoreUsage:
        """Return rows and payload bytes; the simulated disk has no end."""
        rows = [row for source in self._state.messages.values() for row in source.values()]
        return StoreUsage(len(rows), sum(len(row[3]) for row in rows), None)

    def checkpoint(self) -> None:
        """Sync what a lying disk has kept back."""
        self._require_usable()
        self._disk.sync()

    def probe(self) -> None:
        """Make a durable operation that changes nothing."""
        self._perform(lambda state: None)

    def close(self) -> None:
        """Give the disk back; never raises."""
        self._usable = self._failed = False
        if self._disk.owner is self:
            self._disk.owner = None

    def _perform(self, operation: Callable[[DiskState], None]) -> None:
        """Do one durable operation on the disk, with whatever fault is its turn."""
        self._require_usable()
        disk = self._disk
        disk.operations += 1
        fault = self.draw_fault()
        if fault == REFUSED:
            self._usable, self._failed = False, True
            raise StoreFailed("planted: refused before anything was stored")
        disk.write(operation)
        if fault == SYNC_FAILED:
            self._usable, self._failed = False, True
            raise StoreFailed("planted: fsync failed")
        if not disk.lies_about_sync:
            disk.sync()
        if fault == AMBIGUOUS:
            self._usable, self._failed = False, True
            raise StoreFailed("planted: failed after everything was stored")


class SimulatedWriter:
    """The thread of a store, without a thread: calls run in order, each after a virtual delay.

    Args:
        loop: Gives the time.
        store: Asked for its stalls; the calls themselves come with ``submit``.
        rng: Decides the delays.
        delay_s: Shortest and longest time of one call, virtual seconds; half of it passes before the store is
            touched, so that a kill may fall on either side.
    """

    def __init__(
        self,
        loop: SimulationLoop,
        store: DrawnFaults,
        rng: random.Random,
        delay_s: tuple[float, float] = (0.0005, 0.005),
    ) -> None:
        self._loop = loop
        self._store = store
        self._random = rng
        self._delay_s = delay_s
        self._queue: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()
        self._busy = False
        self._stopped = False
        self._life = 0

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run ``call`` after everything submitted before it, then ``done(result, error)``, both on the loop.

        Raises:
            RuntimeError: ``stop`` was called.
        """
        if self._stopped:
            raise RuntimeError("the writer was stopped")
        self._queue.append((call, done))
        if not self._busy:
            self._busy = True
            self._begin(self._life)

    def stop(self) -> None:
        """Take nothing more; what was submitted is still done."""
        self._stopped = True

    def kill(self) -> None:
        """Forget everything at once: neither calls nor ``done`` of before will run."""
        self._life += 1
        self._stopped = True
        self._queue.clear()

    def _begin(self, life: int) -> None:
        delay = self._random.uniform(*self._delay_s) / 2 + self._store.draw_delay()
        self._loop.call_later(delay, self._execute, life)

    def _execute(self, life: int) -> None:
        if life != self._life:
            return
        call, done = self._queue.popleft()
        result, failure = result_of(call, self._loop)
        delay = self._random.uniform(*self._delay_s) / 2
        self._loop.call_later(delay, self._finish, life, done, result, failure)

    def _finish(
        self,
        life: int,
        done: Callable[[Any, BaseException | None], None],
        result: Any,
        failure: BaseException | None,
    ) -> None:
        if life != self._life:
            return
        self._busy = bool(self._queue)
        if self._busy:
            self._begin(life)
        done(result, failure)


def result_of(call: Callable[[], Any], loop: SimulationLoop) -> tuple[Any, BaseException | None]:
    """What a thread's call returned, and what it raised instead."""
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - a thread's failure is handed to whoever submitted
        if isinstance(error, ContractBroken):
            # The broker will treat it like any failure; the simulation must not.
            loop.call_exception_handler({"message": "store contract broken", "exception": error})
        return None, error
