"""Real SQLite over a disk that forgets: the power is cut, and a sync refused, at every single operation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch, Put
from duobus.storage.sqlite.file import StoreOptions
from duobus.storage.sqlite.store import SqliteStore
from simulation.parts.virtual_disk import VirtualDisk

PATH = "/virtual/f0.db"


class Load:
    """Commits batches and remembers what was acknowledged and what was tried."""

    def __init__(self, disk: VirtualDisk, *, is_unsafe: bool = False) -> None:
        self.disk = disk
        self.options = StoreOptions(unsafe_no_sync=is_unsafe, vfs=disk.name)
        self.has_existed = False
        #: (last commit number, next count, last count removed): acknowledged, and last tried.
        self.acknowledged = (0, 1, 0)
        self.tried = (0, 1, 0)

    def run(self, commits: int) -> None:
        """Open the store, check it, and commit until that is done or the disk fails."""
        store = SqliteStore(PATH, 1, must_exist=self.has_existed, options=self.options)
        try:
            contents = store.open()
            store.begin_generation([])
            fragment, (source,) = store.add_fragment(1, 0, [0])
            self.has_existed = True
            now = (contents.last_commit_no, source.next_count, int(source.counters or b"0"))
            assert now in (self.acknowledged, self.tried), "a commit was lost, or is there in part"
            self.acknowledged = now
            counts = [message.count for message in store.load(source.source_key, 1, 10_000)]
            assert counts == list(range(now[2] + 1, now[1]))
            assert store.verify() == []
            for _ in range(commits):
                self.commit(store, fragment.fragment_key, fragment.epoch, source.source_key)
        finally:
            store.close()

    def commit(self, store: SqliteStore, fragment_key: int, epoch: int, source_key: int) -> None:
        commit_no, next_count, removed_to = self.acknowledged
        batch = CommitBatch(commit_no + 1, commit_no)
        batch.epochs = [(fragment_key, epoch)]
        n = 1 + commit_no % 7
        batch.puts = [Put(source_key, next_count, 1, [b"%d" % i * 300 for i in range(n)])]
        batch.removed = [(source_key, removed_to + 1, next_count - 5)]
        removed_to = max(removed_to, next_count - 5)
        batch.sources = [(source_key, next_count + n, 0, b"%d" % removed_to)]
        self.tried = (commit_no + 1, next_count + n, removed_to)
        store.commit(batch)
        self.acknowledged = self.tried
        if commit_no % 5 == 4:
            store.checkpoint()


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Iterator[VirtualDisk]:
    made = VirtualDisk(f"disk-{request.node.name}")
    yield made
    made.unregister()


def operations_of(disk: VirtualDisk, commits: int) -> tuple[int, int]:
    """Return the operations and syncs of a load that nothing disturbs."""
    Load(disk).run(commits)
    counted = disk.operations, disk.syncs
    disk.files.clear()
    disk.operations = disk.syncs = 0
    return counted


@pytest.mark.slow
def test_a_power_cut_at_any_operation_loses_nothing_acknowledged(disk: VirtualDisk) -> None:
    operations, _ = operations_of(disk, 12)
    assert operations > 100
    for cut_at in range(1, operations + 1):
        for seed in range(3):
            disk.files.clear()
            disk.operations, disk.cut_at = 0, cut_at
            load, dice = Load(disk), random.Random(cut_at * 10 + seed)
            # The last operations belong to the close, which does not report them.
            with suppress(StoreFailed):
                load.run(12)
            disk.lose_power(dice)
            load.run(4)


def test_a_store_that_does_not_sync_is_found_out(disk: VirtualDisk) -> None:
    losses = 0
    for seed in range(20):
        disk.files.clear()
        disk.operations = 0
        load, dice = Load(disk, is_unsafe=True), random.Random(seed)
        load.run(1)
        disk.operations, disk.cut_at = 0, 30
        with pytest.raises(StoreFailed):
            load.run(30)
        disk.lose_power(dice)
        try:
            load.run(1)
        except AssertionError:
            losses += 1
    assert losses > 5


@pytest.mark.slow
@pytest.mark.parametrize("cut_at", [25, 40, 55])
def test_after_a_refused_sync_a_reopened_store_can_be_trusted_again(disk: VirtualDisk, cut_at: int) -> None:
    _, syncs = operations_of(disk, 12)
    assert syncs > 12
    failures = 0
    for refused in range(1, syncs + 1):
        disk.files.clear()
        disk.syncs, disk.refuse_sync = 0, refused
        load = Load(disk)
        try:
            load.run(12)
        except StoreFailed:
            failures += 1
        # The machine stays up: what the refused sync should have written is readable, and not on the disk.
        disk.operations, disk.cut_at = 0, cut_at
        with suppress(StoreFailed):
            load.run(6)
        disk.lose_power(random.Random(refused))
        load.run(2)
    # Those of the close at the end are not reported.
    assert failures >= syncs - 4


def test_nothing_is_written_after_a_sync_was_refused(disk: VirtualDisk) -> None:
    store = SqliteStore(PATH, 1, options=StoreOptions(vfs=disk.name))
    store.open()
    disk.refuse_sync = disk.syncs + 1
    with pytest.raises(StoreFailed, match="could not probe: the disk refused to read, write or sync"):
        store.probe()
    operations = disk.operations
    for call in (store.probe, store.checkpoint, lambda: store.commit(CommitBatch(1, 1)), store.usage):
        with pytest.raises(StoreFailed, match="could not probe"):
            call()
    store.close()
    assert disk.operations == operations
