"""The model of a store and its disk: what survives which fault, and what a broker may not do."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from duobus.errors import StoreFailed, StoreStale
from duobus.storage.interface import CommitBatch, MessagingStore, Put, Tombstone
from simulation.world.loop import SimulationLoop, UnhandledFailure
from simulation.world.network import SimulatedNetwork
from simulation.world.stores import (
    AMBIGUOUS,
    FAULTS,
    REFUSED,
    SLOW,
    SYNC_FAILED,
    ContractBroken,
    CrashingStore,
    Disk,
    DiskFaults,
    SimulatedWriter,
)

FRAGMENT = 1
SOURCE = 1


def ready(disk: Disk) -> CrashingStore:
    """A store of a new life, begun and with one fragment."""
    store = CrashingStore(disk)
    store.open()
    store.begin_generation([])
    store.add_fragment(7, 0, [0])
    return store


def batch_of(number: int, *payloads: bytes, epoch: int = 1, first: int | None = None) -> CommitBatch:
    """One message per commit unless told otherwise: count and commit number agree."""
    batch = CommitBatch(number, 1000 + number)
    batch.epochs.append((FRAGMENT, epoch))
    start = number if first is None else first
    batch.puts.append(Put(SOURCE, start, 1000, list(payloads or (b"m%d" % number,))))
    batch.sources.append((SOURCE, start + len(payloads or (b"",)), 0, b"c"))
    return batch


def counts(disk: Disk) -> list[int]:
    """What a later life finds."""
    store = CrashingStore(disk.kill())
    store.open()
    found = [message.count for message in store.load(SOURCE, 1, 1000)]
    store.close()
    return found


def test_a_committed_batch_survives_kill_and_power_cut() -> None:
    disk = Disk()
    store = ready(disk)
    store.commit(batch_of(1, b"a", b"b"))
    disk.kill()
    assert counts(disk) == [1, 2]
    assert counts(disk.power_cut()) == [1, 2]
    assert disk.lost == 0


def test_open_tells_everything_but_the_messages() -> None:
    disk = Disk()
    store = ready(disk)
    batch = batch_of(1)
    batch.tombstones.append(Tombstone(3, 1, 9, 4, 10, 12))
    store.commit(batch)
    store.close()
    contents = CrashingStore(disk).open()
    assert (contents.generation, contents.last_commit_no, contents.broker_ms) == (1, 1, 1001)
    assert [(f.fragment_key, f.entity_id, f.fragment_no, f.epoch) for f in contents.fragments] == [(1, 7, 0, 1)]
    assert [(s.source_key, s.next_count, s.counters) for s in contents.sources] == [(1, 2, b"c")]
    assert [(t.store_id, t.commit_no, t.first_count, t.last_count) for t in contents.tombstones] == [(3, 9, 10, 12)]


def test_changes_removals_and_scans_show_the_new_state() -> None:
    disk = Disk()
    store = ready(disk)
    first = batch_of(1, b"a", b"b", b"c")
    first.puts[0].all_metadata = {1: (2, 0, b"later")}
    store.commit(first)
    second = CommitBatch(2, 1002)
    second.epochs.append((FRAGMENT, 1))
    second.changes.append((SOURCE, 3, 1, 4, b"why"))
    second.removed.append((SOURCE, 1, 1))
    store.commit(second)
    assert [(m.count, m.state, m.deliveries, m.metadata) for m in store.load(SOURCE, 1, 10)] == [
        (2, 2, 0, b"later"),
        (3, 1, 4, b"why"),
    ]
    assert [m.payload for m in store.scan(SOURCE, 1, 1, 10)] == [b"c"]
    assert [m.count for m in store.load(SOURCE, 1, 1)] == [2]
    usage = store.usage()
    assert (usage.rows, usage.bytes_used) == (2, 2)


def test_a_new_generation_raises_epochs_and_deletes_runs() -> None:
    disk = Disk()
    store = ready(disk)
    store.commit(batch_of(1, b"a", b"b", b"c"))
    store.close()
    store.open()
    assert store.begin_generation([Tombstone(1, 1, 1, SOURCE, 2, 3)]) == 2
    assert [m.count for m in store.load(SOURCE, 1, 10)] == [1]
    with pytest.raises(StoreStale):
        store.commit(batch_of(2, epoch=1, first=4))
    store.close()
    assert store.open().fragments[0].epoch == 2


def test_buried_tombstones_are_gone_for_good() -> None:
    disk = Disk()
    store = ready(disk)
    first = batch_of(1)
    first.tombstones += [Tombstone(3, 1, 9, 4, 10, 12), Tombstone(3, 2, 9, 4, 10, 12)]
    store.commit(first)
    second = batch_of(2)
    second.forgotten.append((3, 1))
    store.commit(second)
    store.close()
    assert [tombstone.generation for tombstone in store.open().tombstones] == [2]


def test_adding_a_fragment_twice_returns_the_same() -> None:
    store = ready(Disk())
    again, sources = store.add_fragment(7, 0, [0, 1])
    assert again.fragment_key == FRAGMENT
    assert [(s.source_key, s.source_no) for s in sources] == [(1, 0), (2, 1)]
    store.drop_entity(7)
    store.drop_entity(7)
    fresh, _ = store.add_fragment(7, 0, [0])
    assert fresh.fragment_key == 2


@pytest.mark.parametrize(("fault", "survives"), [(REFUSED, {False}), (AMBIGUOUS, {True}), (SYNC_FAILED, {True, False})])
def test_each_failure_leaves_on_disk_what_its_name_says(fault: str, survives: set[bool]) -> None:
    outcomes = set()
    for seed in range(30):
        disk = Disk(seed, DiskFaults(planned={4: fault}))
        store = ready(disk)
        store.commit(batch_of(1))
        with pytest.raises(StoreFailed):
            store.commit(batch_of(2))
        with pytest.raises(StoreFailed, match="not reopened"):
            store.probe()
        store.close()
        outcomes.add(counts(disk) == [1, 2])
        assert counts(disk)[0] == 1
    assert outcomes == survives


def test_a_failed_sync_followed_by_a_power_cut_keeps_all_or_nothing_of_the_commit() -> None:
    found = set()
    for seed in range(30):
        disk = Disk(seed, DiskFaults(planned={3: SYNC_FAILED}))
        store = ready(disk)
        with pytest.raises(StoreFailed):
            store.commit(batch_of(1, b"a", b"b", b"c"))
        found.add(tuple(counts(disk.power_cut())))
    assert found == {(), (1, 2, 3)}


def test_a_lying_disk_loses_acknowledged_commits_in_a_power_cut_only() -> None:
    lost = 0
    for seed in range(20):
        disk = Disk(seed, lies_about_sync=True)
        store = ready(disk)
        store.checkpoint()
        for number in range(1, 6):
            store.commit(batch_of(number))
        disk.kill()
        assert counts(disk) == [1, 2, 3, 4, 5]
        left = counts(disk.power_cut())
        assert left == list(range(1, len(left) + 1))
        assert disk.lost == 5 - len(left)
        lost += disk.lost
    assert lost > 0


def test_an_old_life_cannot_touch_the_disk_any_more() -> None:
    disk = Disk()
    old = ready(disk)
    with pytest.raises(StoreFailed, match="locked"):
        CrashingStore(disk).open()
    disk.kill()
    new = CrashingStore(disk)
    new.open()
    with pytest.raises(StoreFailed, match="another process"):
        old.commit(batch_of(1))
    old.close()
    assert new.load(SOURCE, 1, 10) == []


def test_rotten_rows_are_left_out_and_reported_once() -> None:
    disk = Disk()
    store = ready(disk)
    store.commit(batch_of(1, b"a", b"b", b"c"))
    disk.rot(SOURCE, 2)
    assert [m.count for m in store.load(SOURCE, 1, 10)] == [1, 3]
    store.load(SOURCE, 1, 10)
    assert store.quarantined() == [(SOURCE, 2, "checksum does not hold")]


def test_the_disk_keeps_its_own_copy_of_a_batch() -> None:
    disk = Disk()
    store = ready(disk)
    payloads = [b"a", b"b"]
    batch = batch_of(1, *payloads)
    batch.puts[0].payloads = payloads
    store.commit(batch)
    payloads.clear()
    assert [m.payload for m in store.load(SOURCE, 1, 10)] == [b"a", b"b"]


def _spoil_number(batch: CommitBatch) -> None:
    batch.commit_no = 3


def _spoil_time(batch: CommitBatch) -> None:
    batch.broker_ms = 5


def _spoil_reuse(batch: CommitBatch) -> None:
    batch.puts[0].first_count = 1


def _spoil_next_count(batch: CommitBatch) -> None:
    batch.sources.clear()


def _spoil_counters(batch: CommitBatch) -> None:
    batch.sources[0] = (SOURCE, 1, 0, b"")
    batch.puts.clear()


def _spoil_twice(batch: CommitBatch) -> None:
    batch.puts.append(batch.puts[0])


def _spoil_change(batch: CommitBatch) -> None:
    batch.changes.append((SOURCE, 77, 1, 0, None))


def _spoil_source(batch: CommitBatch) -> None:
    batch.removed.append((99, 1, 1))


def _spoil_epochs(batch: CommitBatch) -> None:
    batch.epochs.clear()


@pytest.mark.parametrize(
    "spoil",
    [
        _spoil_number,
        _spoil_time,
        _spoil_reuse,
        _spoil_next_count,
        _spoil_counters,
        _spoil_twice,
        _spoil_change,
        _spoil_source,
        _spoil_epochs,
    ],
)
def test_a_batch_that_no_right_broker_sends_is_refused_whole(spoil: Callable[[CommitBatch], None]) -> None:
    disk = Disk()
    store = ready(disk)
    store.commit(batch_of(1))
    batch = batch_of(2)
    spoil(batch)
    with pytest.raises(ContractBroken):
        store.commit(batch)
    assert counts(disk) == [1]


def test_calls_out_of_turn_break_the_contract() -> None:
    disk = Disk()
    store = CrashingStore(disk)
    calls: list[Callable[[MessagingStore], object]] = [
        lambda s: s.load(1, 1, 1),
        lambda s: s.probe(),
        lambda s: s.checkpoint(),
    ]
    for call in calls:
        with pytest.raises(ContractBroken, match="not open"):
            call(store)
    store.open()
    with pytest.raises(ContractBroken, match="open twice"):
        store.open()
    with pytest.raises(ContractBroken, match="before begin_generation"):
        store.commit(batch_of(1))
    store.begin_generation([])
    with pytest.raises(ContractBroken, match="once per open"):
        store.begin_generation([])
    with pytest.raises(ContractBroken, match="other than 0"):
        store.scan(1, 0, 1, 1)


def test_chances_of_the_same_seed_repeat_and_calm_ends_them() -> None:
    def run() -> list[int]:
        disk = Disk(3)
        store = ready(disk)
        disk.faults.chances = {REFUSED: 0.3, AMBIGUOUS: 0.3}
        disk.faults.open_refused = 0.2
        failed = []
        for attempt in range(40):
            try:
                store.probe()
            except StoreFailed:
                failed.append(attempt)
                store.close()
                disk.faults.open_refused = 0.0
                store.open()
        disk.faults.calm()
        for _ in range(40):
            store.probe()
        return failed

    assert run() == run()
    assert 5 < len(run()) < 35
    assert set(FAULTS) == {REFUSED, AMBIGUOUS, SYNC_FAILED, SLOW}


def test_a_disk_may_refuse_to_open() -> None:
    disk = Disk(0, DiskFaults(open_refused=1.0))
    with pytest.raises(StoreFailed, match="cannot be opened"):
        CrashingStore(disk).open()
    disk.faults.calm()
    CrashingStore(disk).open()


def test_the_writer_runs_calls_in_order_and_later() -> None:
    loop = SimulationLoop()
    store = ready(Disk())
    writer = SimulatedWriter(loop, store, random.Random(1))
    log: list[object] = []
    for number in range(1, 4):
        writer.submit(
            lambda n=number: (log.append(f"call {n}"), n)[1],  # type: ignore[misc]
            lambda result, error: log.append((result, error)),
        )
    assert log == []
    writer.stop()
    loop.advance(1)
    assert log == ["call 1", (1, None), "call 2", (2, None), "call 3", (3, None)]
    with pytest.raises(RuntimeError, match="stopped"):
        writer.submit(store.probe, lambda result, error: None)
    loop.close()


def test_a_failed_call_is_handed_to_whoever_submitted() -> None:
    loop = SimulationLoop()
    disk = Disk(0, DiskFaults(planned={3: REFUSED}))
    store = ready(disk)
    errors: list[BaseException | None] = []
    SimulatedWriter(loop, store, random.Random(1)).submit(store.probe, lambda result, error: errors.append(error))
    loop.advance(1)
    assert isinstance(errors[0], StoreFailed)
    loop.close()


def test_a_broken_contract_fails_the_whole_simulation() -> None:
    loop = SimulationLoop()
    store = ready(Disk())
    writer = SimulatedWriter(loop, store, random.Random(1))
    writer.submit(lambda: store.commit(batch_of(5)), lambda result, error: None)
    with pytest.raises(UnhandledFailure, match="contract"):
        loop.advance(1)
    loop.close()


def test_a_slow_disk_delays_the_call_and_what_follows() -> None:
    loop = SimulationLoop()
    store = ready(Disk(0, DiskFaults(planned={3: SLOW}, slow_s=(2.0, 3.0))))
    writer = SimulatedWriter(loop, store, random.Random(1))
    times: list[float] = []
    for _ in range(2):
        writer.submit(store.probe, lambda result, error: times.append(loop.time()))
    loop.advance(10)
    assert 2.0 < times[0] < times[1] < 3.1
    loop.close()


def test_a_kill_falls_before_the_call_or_between_call_and_answer() -> None:
    outcomes = set()
    for seed in range(40):
        loop = SimulationLoop(seed)
        node = SimulatedNetwork(loop, seed).node("broker")
        node.start()
        disk = Disk(seed)
        store = ready(disk)
        answered: list[int] = []

        def work(loop: SimulationLoop = loop, store: CrashingStore = store, answered: list[int] = answered) -> None:
            writer = SimulatedWriter(loop, store, random.Random(1), (1.0, 1.0))
            writer.submit(lambda: store.commit(batch_of(1)), lambda result, error: answered.append(1))

        node.call(work)
        loop.advance(random.Random(seed).uniform(0, 1.5))
        node.kill()
        loop.advance(10)
        outcomes.add((bool(counts(disk)), bool(answered)))
        loop.close()
    assert outcomes == {(False, False), (True, False), (True, True)}


def test_a_killed_writer_forgets_its_queue() -> None:
    loop = SimulationLoop()
    store = ready(Disk())
    writer = SimulatedWriter(loop, store, random.Random(1))
    log: list[object] = []
    writer.submit(lambda: log.append("call"), lambda result, error: log.append("done"))
    writer.kill()
    loop.advance(1)
    assert log == []
    loop.close()
