"""What a simulated disk holds: the state that processes see, and the one that survives a loss of power.

They differ by the operations that were not synced. What the contract of storage/interface.py forbids
(reusing a count, committing out of turn) raises ContractBroken here, before anything is changed.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from duobus.storage.catalog_identity import NOBODYS

if TYPE_CHECKING:
    from duobus.storage.interface import CommitBatch

#: Faults of one durable operation. ``REFUSED``: it raises and nothing was stored. ``AMBIGUOUS``: it raises and
#: everything was stored. ``SYNC_FAILED``: it raises; what was written is in memory only, and whether the reopened
#: store still has it is drawn. ``SLOW``: it takes long.
REFUSED = "refused"
AMBIGUOUS = "ambiguous"
SYNC_FAILED = "sync-failed"
SLOW = "slow"
FAULTS = (REFUSED, AMBIGUOUS, SYNC_FAILED, SLOW)

# (enqueued_ms, state, deliveries, payload, special, origin as in Put)
_Row = tuple[int, int, int, bytes, bytes | None, int]


class ContractBroken(AssertionError):
    """The caller did what the contract of storage/interface.py forbids: a bug of the broker, not a fault."""


class DiskFaults:
    """What goes wrong with one disk, drawn from its seed or planned by call.

    Attributes:
        chances: Fault to probability per durable operation.
        planned: Number of the durable operation (from 1) to fault; for injection at every index (L10).
        open_refused: Probability that ``open`` raises.
        slow_s: Shortest and longest delay of a SLOW operation, virtual seconds.
    """

    __slots__ = ("chances", "open_refused", "planned", "slow_s")

    def __init__(
        self,
        chances: dict[str, float] | None = None,
        planned: dict[int, str] | None = None,
        open_refused: float = 0.0,
        slow_s: tuple[float, float] = (0.5, 5.0),
    ) -> None:
        self.chances = chances or {}
        self.planned = planned or {}
        self.open_refused = open_refused
        self.slow_s = slow_s

    def calm(self) -> None:
        """End every fault: the second phase of a simulation begins."""
        self.chances = {}
        self.planned = {}
        self.open_refused = 0.0


class DiskState:
    """Everything a store holds, as plain values."""

    def __init__(self) -> None:
        self.generation = 0
        self.last_commit_no = 0
        self.broker_ms = 0
        self.next_fragment_key = 1
        self.next_source_key = 1
        self.fragments: dict[int, tuple[int, int, int]] = {}  # key -> entity_id, fragment_no, epoch
        self.sources: dict[int, tuple[int, int, int, int, bytes]] = {}  # key -> fragment, no, next, highest, counters
        self.messages: dict[int, dict[int, _Row]] = {}  # source_key -> count -> row
        self.histories: dict[int, dict[int, tuple[int, bytes]]] = {}  # source_key -> first count -> time, ids
        self.tombstones: list[tuple[int, int, int, int, int, int]] = []
        self.belonging = NOBODYS


class Disk:
    """What stays when a process or a machine dies; shared by all lives of a store.

    Args:
        seed: Decides faults and what survives them.
        faults: What goes wrong; none when omitted.
        lies_about_sync: Planted bug: operations return before they are durable, until the next checkpoint
            (what SQLite does with synchronous=NORMAL).

    Attributes:
        operations: Durable operations asked for so far.
        lost: Operations acknowledged or not that losses of power have forgotten so far.
    """

    def __init__(self, seed: int | str = 0, faults: DiskFaults | None = None, *, lies_about_sync: bool = False) -> None:
        self.random = random.Random(f"disk:{seed}")
        self.faults = faults or DiskFaults()
        self.lies_about_sync = lies_about_sync
        self.operations = 0
        self.lost = 0
        self.rotten: set[tuple[int, int]] = set()
        self.owner: object | None = None
        self.seen = DiskState()
        self._durable = DiskState()
        self._unsynced: list[Callable[[DiskState], None]] = []

    def kill(self) -> Disk:
        """The process died; what it wrote is still seen, and the next life may open the disk."""
        self.owner = None
        return self

    def power_cut(self) -> Disk:
        """The machine died: of what was not synced, a drawn number of operations from the first on survives."""
        survivors = self.random.randint(0, len(self._unsynced))
        self.lost += len(self._unsynced) - survivors
        for operation in self._unsynced[:survivors]:
            operation(self._durable)
        self._forget_unsynced()
        return self.kill()

    def held(self) -> DiskState:
        """What processes see on it, as plain values."""
        return self.seen

    def rot(self, source_key: int, count: int) -> None:
        """Flip a bit in a message's row (fault class B): reads leave it out and report it."""
        self.rotten.add((source_key, count))

    def write(self, operation: Callable[[DiskState], None]) -> None:
        """Apply an operation to what processes see."""
        operation(self.seen)
        self._unsynced.append(operation)

    def sync(self) -> None:
        """Make everything written so far durable."""
        for operation in self._unsynced:
            operation(self._durable)
        self._unsynced.clear()

    def settle_failed_sync(self) -> None:
        """Decide what became of writes whose sync failed; called when the store is opened again."""
        if not self.lies_about_sync:
            if self.random.random() < 0.5:
                self.sync()
            else:
                self._forget_unsynced()

    def _forget_unsynced(self) -> None:
        self._unsynced.clear()
        self.seen = pickle.loads(pickle.dumps(self._durable))


def find_fragment(state: DiskState, entity_id: int, fragment_no: int) -> int | None:
    """Return the key of a fragment, None when there is none."""
    for key, row in state.fragments.items():
        if row[:2] == (entity_id, fragment_no):
            return key
    return None


def examine(state: DiskState, batch: CommitBatch) -> None:
    """Raise ContractBroken when the batch is none that a right broker can send; nothing is changed."""
    if batch.commit_no != state.last_commit_no + 1:
        raise ContractBroken(f"commit {batch.commit_no} after {state.last_commit_no}")
    if batch.broker_ms < state.broker_ms:
        raise ContractBroken("broker time went back")
    guarded = {fragment_key for fragment_key, _ in batch.epochs}
    for source_key, next_count, highest, _ in batch.sources:
        _require_source(state, source_key, guarded)
        if next_count < state.sources[source_key][2] or highest < state.sources[source_key][3]:
            raise ContractBroken(f"the counters of source {source_key} went back")
    new = _examine_puts(state, batch, guarded)
    for source_key, count, *_ in batch.changes:
        _require_source(state, source_key, guarded)
        if (source_key, count) not in new and count not in state.messages[source_key]:
            raise ContractBroken(f"message {count} of source {source_key} is changed but does not exist")
    for source_key, _, _ in batch.removed:
        _require_source(state, source_key, guarded)
    _examine_histories(state, batch, guarded, new)


def _examine_histories(state: DiskState, batch: CommitBatch, guarded: set[int], new: set[tuple[int, int]]) -> None:
    for block in batch.histories:
        fragment_key, _, next_count, *_ = state.sources[block.source_key]
        is_topic = sum(row[0] == fragment_key for row in state.sources.values()) > 1
        # Of a topic's messages only the copies are put, in other sources, or none at all.
        # Ids of reserved messages lie under a count of their own.
        is_known = block.first_count >= next_count and (is_topic or any(put.is_reserved for put in batch.puts))
        # What a move brings along may be of messages that are gone; it comes without any of them.
        is_known = is_known or all(put.source_key != block.source_key for put in batch.puts)
        if (block.source_key, block.first_count) not in new and not is_known:
            raise ContractBroken(f"ids of message {block.first_count} of source {block.source_key}, which is not put")
    for source_key, _ in batch.outdated:
        _require_source(state, source_key, guarded)


def _examine_puts(state: DiskState, batch: CommitBatch, guarded: set[int]) -> set[tuple[int, int]]:
    """Return (source_key, count) of every new message; all are unused and behind the next_count committed."""
    reaches = {row[0]: row[1] for row in batch.sources}
    new: set[tuple[int, int]] = set()
    for put in batch.puts:
        _require_source(state, put.source_key, guarded)
        end = put.first_count + len(put.payloads)
        rows = state.messages[put.source_key]
        is_used = put.first_count < state.sources[put.source_key][2] and not put.is_reserved
        is_used = is_used or not rows.keys().isdisjoint(range(put.first_count, end))
        if is_used or end > reaches.get(put.source_key, 0):
            raise ContractBroken(f"{put.first_count} to {end - 1} of source {put.source_key}: used, or not counted")
        keys = {(put.source_key, count) for count in range(put.first_count, end)}
        if new & keys:
            raise ContractBroken(f"{put.first_count} to {end - 1} of source {put.source_key}: put twice")
        new |= keys
    return new


def _require_source(state: DiskState, source_key: int, guarded: set[int]) -> None:
    if source_key not in state.sources:
        raise ContractBroken(f"no source {source_key}")
    if state.sources[source_key][0] not in guarded:
        raise ContractBroken(f"the epoch of source {source_key}'s fragment is not named in the commit")


def apply_batch(state: DiskState, batch: CommitBatch) -> None:
    """Write a batch that was examined: new messages, then changes, then removals."""
    state.last_commit_no = batch.commit_no
    state.broker_ms = batch.broker_ms
    for put in batch.puts:
        rows = state.messages[put.source_key]
        origins = put.origins or [0] * len(put.payloads)
        for index, payload in enumerate(put.payloads):
            kind, deliveries, metadata = put.metadata_of(index) or (0, 0, None)
            rows[put.first_count + index] = (put.enqueued_ms, kind, deliveries, payload, metadata, origins[index])
    for source_key, count, kind, deliveries, metadata in batch.changes:
        enqueued_ms, _, _, payload, _, origin = state.messages[source_key][count]
        state.messages[source_key][count] = (enqueued_ms, kind, deliveries, payload, metadata, origin)
    remove_runs(state, batch.removed)
    for source_key, next_count, highest, counters in batch.sources:
        fragment_key, source_no, *_ = state.sources[source_key]
        state.sources[source_key] = (fragment_key, source_no, next_count, highest, counters)
    for block in batch.histories:
        state.histories.setdefault(block.source_key, {})[block.first_count] = (block.at_ms, block.ids)
    forget_ids(state, [(source_key, 0, last) for source_key, last in batch.outdated])
    for tombstone in batch.tombstones:
        run = (tombstone.source_key, tombstone.first_count, tombstone.last_count)
        state.tombstones.append((tombstone.store_id, tombstone.generation, tombstone.commit_no, *run))
    forgotten = set(batch.forgotten)
    state.tombstones = [row for row in state.tombstones if row[:2] not in forgotten]


def shared_bytes(state: DiskState) -> dict[int, int]:
    """``StoreContents.shared``, by looking at everything."""
    homes = {row[0]: key for key, row in state.sources.items() if row[1] == 0}
    sizes: dict[int, dict[tuple[int, int], int]] = {}
    for source_key, (fragment_key, source_no, *_) in state.sources.items():
        home = homes.get(fragment_key)
        if source_no == 0 or home is None:
            continue
        found = sizes.setdefault(home, {})
        for count, (_, _, _, payload, _, origin) in state.messages[source_key].items():
            found[(0, origin) if origin < 0 else (source_key, count)] = len(payload)
    return {home: sum(found.values()) for home, found in sizes.items()}


def remove_runs(state: DiskState, runs: Iterable[tuple[int, int, int]]) -> None:
    """Delete runs of messages: (source_key, first_count, last_count), inclusive."""
    for source_key, first, last in runs:
        rows = state.messages.get(source_key, {})
        # Whichever is shorter: a run may span everything ever sent, or one message of many.
        counts = range(first, last + 1) if last - first < len(rows) else [c for c in rows if first <= c <= last]
        for count in counts:
            rows.pop(count, None)


def forget_ids(state: DiskState, runs: Iterable[tuple[int, int, int]]) -> None:
    """Delete blocks of duplicate histories: (source_key, first_count, last_count), inclusive."""
    for source_key, first, last in runs:
        blocks = state.histories.get(source_key, {})
        for count in [c for c in blocks if first <= c <= last]:
            del blocks[count]
