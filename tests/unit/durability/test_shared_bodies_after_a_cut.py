"""Whenever the power is cut, a body that copies share is there for all of its copies, and none is left without any."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch, Put
from duobus.storage.sqlite.file import StoreOptions
from duobus.storage.sqlite.store import SqliteStore
from simulation.parts.virtual_disk import VirtualDisk

PATH = "/virtual/topic.db"
SUBSCRIPTIONS = (1, 2, 3)
COMMITS = 12


def commit(store: SqliteStore, number: int, epoch: int) -> None:
    """Publish two messages to everybody, and settle those before them, one subscription at a time."""
    home, *copies = sorted(store._sources.values(), key=lambda row: row.source_no)
    batch = CommitBatch(store._meta.last_commit_no + 1, number)
    batch.epochs = [(home.fragment_key, epoch)]
    first = home.next_count
    batch.sources = [(home.source_key, first + 2, 0, b"")]
    for row in copies:
        payloads = [b"%d" % first * 300, b"%d" % (first + 1) * 300]
        batch.puts.append(Put(row.source_key, row.next_count, number, payloads, None, [-first, -first - 1]))
        batch.sources.append((row.source_key, row.next_count + 2, 0, b""))
    gone = copies[number % len(copies)]
    batch.removed = [(gone.source_key, 1, gone.next_count - 1)]
    store.commit(batch)


def life(disk: VirtualDisk, *, must_exist: bool) -> None:
    """Open the store, find it whole, and work until that is done or the power is gone."""
    store = SqliteStore(PATH, 1, must_exist=must_exist, options=StoreOptions(vfs=disk.name))
    try:
        store.open()
        assert store.verify() == []
        store.begin_generation([])
        fragment, _ = store.add_fragment(1, 0, [0, *SUBSCRIPTIONS])
        for number in range(COMMITS):
            commit(store, number, fragment.epoch)
        while store.drop_source(1, 3, 4):
            pass
        assert store.verify() == []
    finally:
        store.close()


@pytest.mark.parametrize("seed", range(4))
def test_no_cut_parts_copies_and_bodies(seed: int) -> None:
    disk = VirtualDisk(f"whole-{seed}")
    life(disk, must_exist=False)
    total = disk.operations
    disk.unregister()
    dice = random.Random(seed)
    for cut_at in sorted(dice.sample(range(1, total), 25)):
        disk = VirtualDisk(f"cut-{seed}-{cut_at}")
        disk.cut_at = cut_at
        with suppress(StoreFailed):
            life(disk, must_exist=False)
        disk.lose_power(dice)
        # Whatever is there now has to be whole, and to go on.
        life(disk, must_exist=False)
        disk.unregister()
