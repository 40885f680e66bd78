"""Stores with a journal on a disk that loses power, tears writes, loses sectors and refuses syncs; from one seed.

A real ``JournalStore`` over the real SQLite takes commits, one after the other, on a disk in memory
(``virtual_disk.py``): messages, changes and removals, copies of a topic's messages, ids for duplicate detection,
tombstones. Passes that bring commits over, checkpoints and reads come in between. The process is killed or the power
cut at any operation of the disk: inside of a commit, of a pass, of the laying out of a segment, of an opening. Of what
was not synced then, each write is on the disk or is not, or some of its sectors are. Now and then a sync is refused, or
there is no room for more of the journal, or somebody damages the journal while nobody has it open.

After each opening the store holds what the commits that were answered have left, with or without the one whose answer
nobody had: nothing is lost (I1), altered or there again (I17). A store that nobody damaged is never refused (I31). A
damaged one holds everything, or is refused by name; then the damage is undone, and everything is there.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, NamedTuple
from unittest import mock

from duobus.clock import Clock
from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch, IdBlock, Put, StoreContents, Tombstone
from duobus.storage.journal import format as journal_format
from duobus.storage.journal import merge
from duobus.storage.journal import store as journal_store
from duobus.storage.journal.backlog import AGE_MS, REST_MS
from duobus.storage.journal.files import JournalFiles
from duobus.storage.journal.format import (
    HEADERS_AT,
    RECORD_HEADER_BYTES,
    RECORDS_AT,
    CommitRecord,
    SegmentContents,
    segment_header,
)
from duobus.storage.journal.replay import Position, missing_commits
from duobus.storage.journal.segments import Segments
from duobus.storage.journal.store import JournalStore
from duobus.storage.sqlite.file import StoreOptions
from duobus.storage.sqlite.store import SqliteStore
from simulation.parts.virtual_disk import SECTOR, VirtualDisk, VirtualFiles
from simulation.world.disk import DiskState, apply_batch, examine, forget_ids, remove_runs, shared_bytes

LIVES: Final = (2, 6)
STEPS: Final = (4, 40)
#: A few commits fill a segment, so that segments are used again.
SEGMENT_BYTES: Final = 12 << 10
#: In one seed of so many files begin shorter and grow.
_GROWING: Final = 5
_PATH: Final = "store-1.db"
_STORE: Final = 1
#: Operations of the disk until a kill: a commit has two, an opening some sixty.
_SOON: Final = (1, 70)
_SIZES: Final = (0, 10, 100, 300, 300, 2_000, 9_000)
#: Longer than a segment.
_HUGE: Final = 40_000


class _HandClock(Clock):
    """Time that goes on when the scenario says so."""

    def __init__(self) -> None:
        self.ms = 1_000

    def monotonic_ms(self) -> int:
        return self.ms


class _Over(Exception):
    """Something was found; there is no point in going on."""


class _Damage(NamedTuple):
    """What somebody did to a file, and what it held before."""

    name: str
    before: bytes
    #: The commit behind which no record has a header any more: what is hurt may pass for a torn tail. None: none such.
    ends_at: int | None


def _columns(state: DiskState) -> dict[str, Any]:
    """Everything that a store has to hold, to be compared."""
    return {
        "commit": state.last_commit_no,
        "time": state.broker_ms,
        "sources": sorted((key, *row[2:]) for key, row in state.sources.items()),
        "tombstones": sorted(state.tombstones),
        "messages": {
            (key, count): (*row[:5], abs(row[5])) for key, rows in state.messages.items() for count, row in rows.items()
        },
        "ids": {(key, count): row for key, rows in state.histories.items() for count, row in rows.items()},
        "sizes": {home: size for home, size in shared_bytes(state).items() if size},
    }


def _columns_found(contents: StoreContents, store: JournalStore) -> dict[str, Any]:
    """The same of a store that was opened."""
    keys = [row.source_key for row in contents.sources]
    return {
        "commit": contents.last_commit_no,
        "time": contents.broker_ms,
        "sources": sorted((r.source_key, r.next_count, r.highest_delivered, r.counters) for r in contents.sources),
        "tombstones": sorted(tuple(getattr(row, name) for name in _TOMBSTONE) for row in contents.tombstones),
        "messages": {
            (key, m.count): (m.enqueued_ms, m.state, m.deliveries, m.payload, m.metadata, m.origin)
            for key in keys
            for m in store.load(key, 1, 1 << 20)
        },
        "ids": {(key, b.first_count): (b.at_ms, b.ids) for key in keys for b in store.load_ids(key, 0, 1 << 20)},
        "sizes": {home: size for home, size in contents.shared.items() if size},
    }


_TOMBSTONE: Final = ("store_id", "generation", "commit_no", "source_key", "first_count", "last_count")


def _without_removed(state: DiskState, later: DiskState, found: Mapping[tuple[int, int], Any]) -> DiskState:
    """A state without the messages that are not there and that a later one does not have."""
    left = copy.copy(state)
    left.messages = {
        key: {n: row for n, row in rows.items() if (key, n) in found or n in later.messages[key]}
        for key, rows in state.messages.items()
    }
    return left


def _apparent_end(contents: SegmentContents, changed: list[int]) -> int | None:
    """The commit before the first that is hurt, if no header is whole behind that one; None: another one is."""
    first, end = changed[0], changed[-1]
    at, hurt = RECORDS_AT, 0
    for found in contents.records:
        behind = at + RECORD_HEADER_BYTES + len(found.body)
        if hurt and (end < at or first >= at + RECORD_HEADER_BYTES):
            return None
        if not hurt and first < behind and end >= at:
            hurt = found.commit_no
        at = behind
    return hurt - 1 if hurt else None


class _Run:
    """One seed."""

    def __init__(self, seed: int, disk: VirtualDisk) -> None:
        self.rng = random.Random(f"journals:{seed}")
        self._first_bytes = SEGMENT_BYTES if seed % _GROWING else SEGMENT_BYTES * 3 // 4
        self.disk = disk
        self.files = VirtualFiles(disk)
        self.clock = _HandClock()
        self.wrong: list[str] = []
        self.store = self._made(must_exist=False)
        self.epochs: list[tuple[int, int]] = []
        #: What the commits that were answered have left, by the last of them; and those with the one in doubt.
        self.state = DiskState()
        self.states: dict[int, DiskState] = {}
        self.doubtful: DiskState | None = None
        self.damage: _Damage | None = None
        self._stones = 0

    def _made(self, *, must_exist: bool = True) -> JournalStore:
        return JournalStore(
            _PATH,
            _STORE,
            must_exist=must_exist,
            options=StoreOptions(vfs=self.disk.name),
            salt=self.rng.randbytes,
            clock=self.clock,
            brings_over=False,
            segment_bytes=SEGMENT_BYTES,
            first_bytes=self._first_bytes,
            files=self.files,
        )

    # -- lives ----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """All lives, each ended by an opening."""
        with suppress(_Over):
            self._make()
            for _ in range(self.rng.randint(*LIVES)):
                self._live()
                self._die()
        self.disk.cut_at = 0
        self.store.close()

    def _make(self) -> None:
        """A queue and a topic with two subscriptions, in the first life of all."""
        self.store.open()
        self.store.begin_generation(())
        for entity_id, numbers in ((1, (0,)), (2, (0, 1, 2))):
            fragment, sources = self.store.add_fragment(entity_id, 0, numbers)
            self.epochs.append((fragment.fragment_key, fragment.epoch))
            self.state.fragments[fragment.fragment_key] = (entity_id, 0, fragment.epoch)
            for row in sources:
                self.state.sources[row.source_key] = (row.fragment_key, row.source_no, row.next_count, 0, b"")
                self.state.messages[row.source_key] = {}
        self.states = {0: self.state}

    def _live(self) -> None:
        rng = self.rng
        steps = rng.randint(*STEPS)
        dies_at = rng.randrange(steps)
        for step in range(steps):
            if step == dies_at and rng.random() < 0.8 and not self.disk.is_off:
                # The power may have gone in a step before, in which nobody was told: such an error is kept.
                self.disk.cut_at = self.disk.operations + rng.randint(*_SOON)
            elif rng.random() < 0.05:
                self.files.is_full = not self.files.is_full
            elif rng.random() < 0.01:
                self.disk.refuse_sync = self.disk.syncs + rng.randint(1, 6)
            try:
                self._step()
            except StoreFailed as error:
                if self.disk.is_off:
                    return
                if not self.disk.has_refused:
                    self._found(f"I31: the store fails though nothing was done to it: {error}")
                # As the supervisor of a store does. The power stays on until the store is open: what SQLite's log got
                # without a sync is readable, and passes for synced while it is copied home.
                self.disk.cut_at = None
                self.store.close()
                self._open()

    def _die(self) -> None:
        """The process is killed, the power cut, or the store closed in order; and it is opened again."""
        rng, disk = self.rng, self.disk
        if rng.random() < 0.15:
            self.store.close()
        if not disk.is_off:
            # Nothing that a dying process still does reaches the disk.
            disk.cut_at = disk.operations
        self.store.close()
        if rng.random() < 0.7:
            disk.lose_power(rng)
        disk.come_back()
        self.store = self._made()
        if rng.random() < 0.2:
            self._hurt()
        if rng.random() < 0.2:
            disk.cut_at = disk.operations + rng.randint(*_SOON)
        self._open()

    def _open(self) -> None:
        """Open the store, however often it takes, and look whether everything is there."""
        while True:
            try:
                contents = self.store.open()
                found = _columns_found(contents, self.store)
                faults = self.store.verify()
                self._judge(found, faults)
                self._begin(contents)
            except StoreFailed as error:
                self.store.close()
                if self.disk.is_off:
                    if self.rng.random() < 0.7:
                        self.disk.lose_power(self.rng)
                    self.disk.come_back()
                elif self.damage is not None:
                    if _PATH not in str(error):
                        self._found(f"a refusal does not name the store: {error}")
                    self._undo()
                elif not self.disk.has_refused:
                    self._found(f"I31: the store was left alone and is refused: {error}")
                self.disk.come_back()
                self.store = self._made()
                continue
            self.damage = None
            return

    def _judge(self, found: dict[str, Any], faults: list[str]) -> None:
        """Take what was found for what there is, if it may be so."""
        allowed = [self.state, *([] if self.doubtful is None else [self.doubtful])]
        if self.damage is not None and self.damage.ends_at is not None:
            # SQLite may have some of what is hurt, and lacks what later commits had removed by then.
            for commit_no, state in self.states.items():
                if commit_no >= self.damage.ends_at:
                    allowed += [state, _without_removed(state, self.state, found["messages"])]
        for state in allowed:
            if _columns(state) == found:
                if faults:
                    self._found(f"I1: what is stored does not belong together: {faults[0]}")
                self.state, self.doubtful = state, None
                self.states = {state.last_commit_no: state}
                return
        expected = _columns(self.state if self.doubtful is None else self.doubtful)
        answered = _columns(self.state)
        gone = [key for key in answered["messages"] if key not in found["messages"] and key in expected["messages"]]
        back = [key for key in found["messages"] if key not in answered["messages"] and key not in expected["messages"]]
        if gone:
            self._found(f"I1: message {gone[0]} was acknowledged and is gone")
        if back:
            self._found(f"I17: message {back[0]} was completed and is there")
        column = next((name for name in answered if found[name] not in (answered[name], expected[name])), "commit")
        self._found(f"I1: the {column} of the store is not what was acknowledged")

    def _begin(self, contents: StoreContents) -> None:
        """Begin a generation, now and then without a run that was sent elsewhere."""
        runs: list[Tombstone] = []
        after = copy.deepcopy(self.state)
        if self.rng.random() < 0.1:
            key = self.rng.choice(sorted(after.messages))
            counts = sorted(after.messages[key])
            if counts:
                run = (key, self.rng.choice(counts), counts[-1])
                runs.append(Tombstone(_STORE, contents.generation, contents.last_commit_no, *run))
                remove_runs(after, [run])
                forget_ids(after, [run])
        self.doubtful = after
        self.store.begin_generation(runs)
        self.state, self.doubtful = after, None
        self.states = {after.last_commit_no: after}
        self.epochs = [(row.fragment_key, row.epoch + 1) for row in contents.fragments]

    def _found(self, what: str) -> None:
        self.wrong.append(what)
        raise _Over

    # -- somebody at the files ------------------------------------------------------------------------------------

    def _hurt(self) -> None:
        """Flip a bit of a record, or lose a sector, of a segment in which there are some; nobody has the store open."""
        found = []
        for name in self.files.names(_PATH):
            contents = None
            with suppress(journal_format.JournalDamaged):
                contents = journal_format.read_segment(self.files.read(name))
            if contents is not None and contents.records:
                found.append((contents.header.sequence, name, contents))
        if not found:
            return
        newest = max(found)[0]
        sequence, name, contents = self.rng.choice(found)
        file = self.disk.files[name]
        before = bytes(file.readable)
        at = self.rng.randrange(RECORDS_AT, contents.end)
        if self.rng.random() < 0.5:
            file.write(at, bytes([before[at] ^ 1 << self.rng.randrange(8)]))
        else:
            start = max(RECORDS_AT, at - at % SECTOR)
            file.write(start, bytes(min(SECTOR, contents.end - start)))
        file.sync()
        changed = [at for at, (old, new) in enumerate(zip(before, file.readable, strict=True)) if old != new]
        ends_at = _apparent_end(contents, changed) if sequence == newest and changed else None
        self.damage = _Damage(name, before, ends_at)

    def _undo(self) -> None:
        """Put back what was there, as the refusal asks for."""
        assert self.damage is not None
        file = self.disk.files[self.damage.name]
        file.write(0, self.damage.before)
        file.sync()
        self.damage = None

    # -- steps ----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """One thing that a broker or the thread beside it does."""
        rng, store = self.rng, self.store
        what = rng.choices(("commit", "pass", "all", "checkpoint", "read"), (12, 5, 1, 2, 1))[0]
        if what == "commit":
            self._commit()
        elif what == "pass":
            self.clock.ms += rng.choice((0, AGE_MS, REST_MS, 2 * REST_MS))
            store.bring_over_due()
        elif what == "all":
            store.bring_over()
        elif what == "checkpoint":
            store.checkpoint()
        else:
            key = rng.choice(sorted(self.state.sources))
            counts = [message.count for message in store.load(key, 1, 1 << 20)]
            if counts != sorted(self.state.messages[key]):
                self._found(f"I1: source {key} has other messages than were acknowledged")

    def _commit(self) -> None:
        rng = self.rng
        self.clock.ms += rng.choice((0, 10, AGE_MS // 3))
        batch = CommitBatch(self.state.last_commit_no + 1, self.state.broker_ms + rng.randint(0, 5))
        batch.epochs = self.epochs
        self._add_removals(batch)
        self._add_changes(batch)
        if rng.random() < 0.7:
            self._add_messages(batch)
        if rng.random() < 0.4:
            self._add_copies(batch)
        self._add_notes(batch)
        after = copy.deepcopy(self.state)
        examine(after, batch)
        apply_batch(after, batch)
        sizes = {home: size for home, size in shared_bytes(self.state).items() if size}
        self.doubtful = after
        self.store.commit(batch)
        self.state, self.doubtful = after, None
        self.states[after.last_commit_no] = after
        expected = shared_bytes(after)
        told = {**sizes, **batch.shared}
        if {key: size for key, size in told.items() if size} != {key: size for key, size in expected.items() if size}:
            self._found(f"I33: the topic is told {told} bytes and has {expected}")

    def _payload(self) -> bytes:
        size = _HUGE if self.rng.random() < 0.01 else self.rng.choice(_SIZES)
        return self.rng.randbytes(size)

    def _add_messages(self, batch: CommitBatch) -> None:
        """Messages of the queue."""
        rng, key = self.rng, self._queue
        _, _, first, highest, _ = self.state.sources[key]
        put = Put(key, first, batch.broker_ms, [self._payload() for _ in range(rng.choice((1, 1, 2, 5)))])
        kind = rng.randrange(4)
        if kind == 1:
            put.all_metadata = {0: (rng.randrange(3), 1, b"some")}
        elif kind == 2:
            put.equal_metadata = [b"equal-%d" % index for index in range(len(put.payloads))]
        batch.puts.append(put)
        batch.sources.append((key, first + len(put.payloads), highest, b"%d" % batch.commit_no))
        if rng.random() < 0.2:
            batch.histories.append(IdBlock(key, first, batch.broker_ms, rng.randbytes(20)))

    @property
    def _queue(self) -> int:
        return min(self.state.sources)

    def _add_copies(self, batch: CommitBatch) -> None:
        """Messages of the topic, for one subscription or both, with one body."""
        rng = self.rng
        home, *subscriptions = [key for key in sorted(self.state.sources) if key != self._queue]
        rows = {key: self.state.sources[key] for key in (home, *subscriptions)}
        origin = rows[home][2]
        found: dict[int, tuple[list[bytes], list[int]]] = {key: ([], []) for key in subscriptions}
        for _ in range(rng.choice((1, 1, 3))):
            payload, wanted = self._payload(), rng.sample(subscriptions, rng.choice((0, 1, 2, 2, 2)))
            for key in wanted:
                found[key][0].append(payload)
                found[key][1].append(-origin if len(wanted) > 1 else origin)
            origin += 1
        batch.sources.append((home, origin, rows[home][3], b""))
        for key, (payloads, origins) in found.items():
            if payloads:
                first = rows[key][2]
                put = Put(key, first, batch.broker_ms, payloads, None, origins)
                if rng.random() < 0.1:
                    put.all_metadata = {0: (1, 0, b"deferred")}
                batch.puts.append(put)
                batch.sources.append((key, first + len(payloads), rows[key][3], b"%d" % batch.commit_no))

    def _add_removals(self, batch: CommitBatch) -> None:
        """Most messages live for a moment; some stay."""
        rng = self.rng
        for key, rows in self.state.messages.items():
            counts, last = sorted(rows), self.state.sources[key][2] - 1
            for _ in range(rng.choice((0, 0, 1, 2))):
                if counts:
                    first = rng.choice(counts[-6:] if rng.random() < 0.7 else counts)
                    # Now and then over counts of messages that come later.
                    over = rng.choice((0, 0, 0, 0, 0, 3))
                    batch.removed.append((key, first, min(last + over, first + rng.choice((0, 0, 1, 4, 60)))))
            if last and rng.random() < 0.02:
                batch.removed.append((key, 1, last))

    def _add_changes(self, batch: CommitBatch) -> None:
        rng = self.rng
        for key, rows in self.state.messages.items():
            left = [c for c in rows if not any(k == key and a <= c <= b for k, a, b in batch.removed)]
            if left and rng.random() < 0.2:
                metadata = rng.choice((None, b"", b"changed"))
                batch.changes.append((key, rng.choice(left), rng.randrange(3), rng.randrange(4), metadata))

    def _add_notes(self, batch: CommitBatch) -> None:
        rng = self.rng
        if rng.random() < 0.1:
            self._stones += 1
            batch.tombstones.append(Tombstone(9, self._stones, 1, 4, 5, 6))
        if self.state.tombstones and rng.random() < 0.1:
            batch.forgotten.append(self.state.tombstones[0][:2])
        blocks = sorted(self.state.histories.get(self._queue, {}))
        if blocks and rng.random() < 0.1:
            batch.outdated.append((self._queue, blocks[0]))


def run(seed: int) -> list[str]:
    """Run one seed; returns what is wrong with it, in words."""
    disk = VirtualDisk(f"journals-{seed}")
    try:
        one = _Run(seed, disk)
        one.play()
    finally:
        disk.unregister()
    return one.wrong


# -- planted bugs -----------------------------------------------------------------------------------------------


class _WithoutSync(VirtualFiles):
    def sync(self, file: int) -> None:
        pass


@contextmanager
def answered_before_the_sync() -> Iterator[None]:
    """A commit is answered when its record is written, and synced by the next one."""
    append = Segments.append

    def unsynced(self: Segments, *arguments: Any) -> bool:
        files: JournalFiles = self._files
        lazy = copy.copy(files)
        lazy.__class__ = _WithoutSync
        # What has to be laid out or begun first is synced all the same.
        self.prepare()
        self._files = lazy
        try:
            return append(self, *arguments)
        finally:
            self._files = files

    with mock.patch.object(Segments, "append", unsynced):
        yield


@contextmanager
def segment_used_too_early() -> Iterator[None]:
    """A segment is free as soon as another one is written, whatever SQLite has of it."""
    append = Segments.append

    def freed(self: Segments, *arguments: Any) -> bool:
        is_written = append(self, *arguments)
        self.release(1 << 60)
        return is_written

    with mock.patch.object(Segments, "append", freed):
        yield


@contextmanager
def replayed_twice() -> Iterator[None]:
    """What SQLite has already is brought over once more."""
    missing = missing_commits

    def again(name: str, segments: list[SegmentContents], position: Position) -> list[CommitBatch]:
        known = {found.commit_no for segment in segments for found in segment.records}
        start = position.commit_no
        while start in known:
            start -= 1
        return missing(name, segments, position._replace(commit_no=start))

    with mock.patch.object(journal_store, "missing_commits", again):
        yield


@contextmanager
def sums_not_checked() -> Iterator[None]:
    """A record is taken as it is read."""

    def unchecked(data: bytes, at: int, mark: bytes) -> CommitRecord | None:
        if at + RECORD_HEADER_BYTES > len(data) or data[at : at + len(mark)] != mark:
            return None
        _, _, length, generation, commit_no, _ = journal_format._RECORD.unpack_from(data, at)
        first = at + RECORD_HEADER_BYTES
        return CommitRecord(generation, commit_no, data[first : first + length])

    with mock.patch.object(journal_format, "_record_at", unchecked):
        yield


@contextmanager
def damage_taken_for_a_torn_tail() -> Iterator[None]:
    """A journal ends where a record is not whole, whatever comes behind it."""
    with mock.patch.object(journal_format, "_is_begun_behind", return_value=False):
        yield


@contextmanager
def tombstone_forgotten() -> Iterator[None]:
    """What is replayed or brought over leaves tombstones out."""
    notes = merge._add_notes

    def without(result: CommitBatch, batches: list[CommitBatch]) -> None:
        notes(result, batches)
        result.tombstones = []

    with mock.patch.object(merge, "_add_notes", without):
        yield


@contextmanager
def transaction_taken_for_synced() -> Iterator[None]:
    """A segment is used again when SQLite has committed what it holds, and has not synced."""
    commit = SqliteStore.commit

    def unsynced(self: SqliteStore, batch: CommitBatch) -> None:
        db = self._demand_open()
        db.execute("PRAGMA synchronous=NORMAL")
        commit(self, batch)
        db.execute("PRAGMA synchronous=FULL")

    with mock.patch.object(SqliteStore, "commit", unsynced):
        yield


@contextmanager
def headers_synced_together() -> Iterator[None]:
    """Both copies of a segment's header may be torn at once."""

    def begun(self: Segments, segment: Any) -> Any:
        self._sequence += 1
        header = journal_format.SegmentHeader(self._store_id, self._sequence, segment.size, self._salt(8))
        segment.header, segment.end, segment.last_no = header, RECORDS_AT, 0
        for at in HEADERS_AT:
            self._files.write(segment.fd, (segment_header(header),), at)
        return segment

    with mock.patch.object(Segments, "_begun", begun):
        yield


@contextmanager
def removals_forgotten() -> Iterator[None]:
    """What a commit removes stays in SQLite, where that is not among the commits that are brought over."""
    without = merge._without
    with mock.patch.object(merge, "_without", lambda span, taken: without(span, taken) if taken else iter(())):
        yield


BUGS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    "answered-before-the-sync": answered_before_the_sync,
    "segment-used-too-early": segment_used_too_early,
    "replayed-twice": replayed_twice,
    "sums-not-checked": sums_not_checked,
    "damage-taken-for-a-torn-tail": damage_taken_for_a_torn_tail,
    "tombstone-forgotten": tombstone_forgotten,
    "transaction-taken-for-synced": transaction_taken_for_synced,
    "headers-synced-together": headers_synced_together,
    "removals-forgotten": removals_forgotten,
}
