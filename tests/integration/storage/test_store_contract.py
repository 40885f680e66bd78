"""The contract of stores/interface.py, for every store."""

from __future__ import annotations

import pytest

from duobus.errors import StoreFailed, StoreStale
from duobus.fragment.message import SCHEDULED
from duobus.storage import interface, memory
from duobus.storage.interface import COUNT_MAX, CommitBatch, MessagingStore, Put, SourceRow, Tombstone
from duobus.storage.sqlite import rows
from kits.store_builders import Broker, as_tuples, payloads_of


def test_a_new_store_holds_nothing_at_all(store: MessagingStore) -> None:
    contents = store.open()
    assert (contents.generation, contents.last_commit_no, contents.broker_ms) == (0, 0, 0)
    assert (contents.fragments, contents.sources, contents.tombstones) == ([], [], [])
    assert store.usage().rows == 0


def test_committed_messages_come_back_in_order_after_reopening(broker: Broker) -> None:
    (source,) = broker.add()
    payloads = [b"m%d" % i for i in range(137)]
    broker.send(source, payloads)
    broker.reopen()
    read = broker.store.load(source.source_key, 1, 1000)
    assert payloads_of(read) == payloads
    assert [message.count for message in read] == list(range(1, 138))
    assert {message.enqueued_ms for message in read} == {1_700_000_000_001}
    assert broker.store.usage().rows == 137


def test_load_starts_at_the_count_and_stops_at_the_limit(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"%d" % i for i in range(1, 11)])
    assert payloads_of(broker.store.load(source.source_key, 4, 3)) == [b"4", b"5", b"6"]
    assert broker.store.load(source.source_key, 11, 3) == []
    assert broker.store.load(source.source_key, 1, 0) == []


def test_sources_do_not_see_each_others_messages(broker: Broker) -> None:
    first, second = broker.add(source_nos=(0, 1))
    batch = broker.batch()
    broker.put(batch, first, [b"a1", b"a2"])
    broker.put(batch, second, [b"b1"])
    broker.commit(batch)
    assert payloads_of(broker.store.load(first.source_key, 1, 10)) == [b"a1", b"a2"]
    assert payloads_of(broker.store.load(second.source_key, 1, 10)) == [b"b1"]


def test_an_unknown_source_reads_as_an_empty_one(broker: Broker) -> None:
    assert broker.store.load(77, 1, 10) == []
    assert broker.store.scan(77, 1, 1, 10) == []


def test_several_puts_of_one_source_join_one_commit(broker: Broker) -> None:
    (source,) = broker.add()
    batch = broker.batch()
    first = broker.put(batch, source, [b"a"] * 60)
    second = broker.put(batch, source, [b"b"] * 7)
    broker.commit(batch)
    read = broker.store.load(source.source_key, 1, 100)
    assert [m.enqueued_ms for m in read] == [first.enqueued_ms] * 60 + [second.enqueued_ms] * 7


@pytest.mark.parametrize("payload", [b"", b"\0", b"x" * 300_000])
def test_a_payload_of_any_size_stays_as_it_was(broker: Broker, payload: bytes) -> None:
    (source,) = broker.add()
    broker.send(source, [payload])
    broker.reopen()
    assert payloads_of(broker.store.load(source.source_key, 1, 1)) == [payload]


def test_special_messages_keep_state_deliveries_and_special(broker: Broker) -> None:
    (source,) = broker.add()
    all_metadata = {1: (3, 2, b"why"), 2: (0, 4, None), 3: (0, 0, b""), 4: (2, 0, None)}
    broker.send(source, [b"p%d" % i for i in range(6)], all_metadata=all_metadata)
    broker.reopen()
    read = [(m.state, m.deliveries, m.metadata) for m in broker.store.load(source.source_key, 1, 10)]
    assert read == [(0, 0, None), (3, 2, b"why"), (0, 4, None), (0, 0, b""), (2, 0, None), (0, 0, None)]


def test_messages_that_all_have_a_special_and_nothing_else_keep_it(broker: Broker) -> None:
    (source,) = broker.add()
    batch = broker.batch()
    put = broker.put(batch, source, [b"p%d" % i for i in range(130)])
    put.equal_metadata = [b"session %d" % (i % 7) for i in range(130)]
    broker.commit(batch)
    broker.change((source.source_key, 2, 4, 1, b"session 1 and more"))
    broker.reopen()
    read = [(m.payload, m.state, m.deliveries, m.metadata) for m in broker.store.load(source.source_key, 1, 200)]
    expected = [(b"p%d" % i, 0, 0, b"session %d" % (i % 7)) for i in range(130)]
    expected[1] = (b"p1", 4, 1, b"session 1 and more")
    assert read == expected
    assert broker.store.quarantined() == []


def test_scan_finds_the_messages_of_one_state_only(broker: Broker) -> None:
    (source, other) = broker.add(source_nos=(0, 1))
    batch = broker.batch()
    broker.put(batch, source, [b"%d" % i for i in range(9)], {i: (i % 3, 1, None) for i in range(9)})
    broker.put(batch, other, [b"other"], {0: (2, 0, None)})
    broker.commit(batch)
    assert [m.count for m in broker.store.scan(source.source_key, 2, 1, 10)] == [3, 6, 9]
    assert [m.count for m in broker.store.scan(source.source_key, 2, 4, 1)] == [6]
    assert broker.store.scan(source.source_key, 4, 1, 10) == []


def test_a_change_replaces_state_deliveries_and_special(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a", b"b", b"c"], all_metadata={1: (1, 0, b"later")})
    key = source.source_key
    broker.change((key, 1, 4, 7, b"dead"), (key, 2, 0, 0, None))
    broker.reopen()
    read = [(m.state, m.deliveries, m.metadata) for m in broker.store.load(key, 1, 10)]
    assert read == [(4, 7, b"dead"), (0, 0, None), (0, 0, None)]
    assert payloads_of(broker.store.scan(key, 4, 1, 10)) == [b"a"]
    assert broker.store.scan(key, 1, 1, 10) == []


def test_the_last_change_of_a_message_in_a_commit_counts(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    key = source.source_key
    broker.change((key, 1, 4, 7, b"dead"), (key, 1, 2, 1, None))
    assert [(m.state, m.deliveries, m.metadata) for m in broker.store.load(key, 1, 10)] == [(2, 1, None)]


def test_a_change_of_a_missing_message_changes_nothing(broker: Broker) -> None:
    (source,) = broker.add()
    broker.change((source.source_key, 5, 1, 1, None), (99, 5, 1, 1, None))
    assert broker.store.load(source.source_key, 1, 10) == []
    assert broker.store.usage().rows == 0


def test_changes_of_many_messages_fit_in_one_commit(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"x"] * 123)
    broker.change(*[(source.source_key, count, 2, count, b"s%d" % count) for count in range(1, 124)])
    read = broker.store.scan(source.source_key, 2, 1, 1000)
    assert [(m.deliveries, m.metadata) for m in read] == [(count, b"s%d" % count) for count in range(1, 124)]


@pytest.mark.parametrize(
    "ranges",
    [
        [(1, 100)],
        [(1, 1), (2, 2), (3, 3)],
        [(count, count) for count in range(1, 101, 2)],
        [(5, 4)],
        [(90, 100_000), (1, 3)],
        [(10, 30), (20, 40), (41, 45)],
        [(1, COUNT_MAX)],
    ],
)
def test_removed_ranges_are_gone_and_nothing_else_is(broker: Broker, ranges: list[tuple[int, int]]) -> None:
    source, other = broker.add(source_nos=(0, 1))
    batch = broker.batch()
    broker.put(batch, source, [b"x"] * 100)
    broker.put(batch, other, [b"y"] * 100)
    broker.commit(batch)
    broker.remove(*[(source.source_key, first, last) for first, last in ranges])
    left = [count for count in range(1, 101) if not any(first <= count <= last for first, last in ranges)]
    assert [m.count for m in broker.store.load(source.source_key, 1, 1000)] == left
    assert len(broker.store.load(other.source_key, 1, 1000)) == 100
    assert broker.store.usage().rows == 100 + len(left)


def test_messages_far_apart_are_still_read_in_order(broker: Broker) -> None:
    (source,) = broker.add()
    source.next_count = 10
    broker.send(source, [b"a", b"b"])
    source.next_count = (1 << 32) - 1
    broker.send(source, [b"c", b"d", b"e"])
    source.next_count = COUNT_MAX - 1
    broker.send(source, [b"f"])
    broker.reopen()
    assert payloads_of(broker.store.load(source.source_key, 1, 10)) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert payloads_of(broker.store.load(source.source_key, 12, 2)) == [b"c", b"d"]


def test_next_count_survives_the_removal_of_everything(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"x"] * 5)
    broker.remove((source.source_key, 1, 5))
    broker.reopen()
    assert broker.contents.sources[0].next_count == 6


def test_a_count_that_was_used_is_refused(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"x"] * 5)
    source.next_count = 5
    batch = broker.batch()
    broker.put(batch, source, [b"again", b"and on"])
    with pytest.raises(StoreFailed, match="count 5 was used before"):
        broker.commit(batch)


def test_a_next_count_that_goes_back_is_refused(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"x"] * 5)
    batch = broker.batch()
    batch.sources.append((source.source_key, 3, 0, b""))
    with pytest.raises(StoreFailed, match="never reused"):
        broker.commit(batch)


def test_messages_without_their_source_row_are_refused(broker: Broker) -> None:
    (source,) = broker.add()
    batch = broker.batch()
    batch.puts.append(Put(source.source_key, 1, 5, [b"x"]))
    with pytest.raises(StoreFailed, match="without a new next count"):
        broker.commit(batch)


def test_a_count_beyond_the_last_one_is_refused(broker: Broker) -> None:
    (source,) = broker.add()
    source.next_count = COUNT_MAX
    batch = broker.batch()
    broker.put(batch, source, [b"x", b"y"])
    with pytest.raises(StoreFailed, match="past the last one"):
        broker.commit(batch)


def test_counters_and_highest_delivered_come_back(broker: Broker) -> None:
    (source,) = broker.add()
    batch = broker.batch()
    batch.sources.append((source.source_key, 1, 9, b"\0counters"))
    broker.commit(batch)
    broker.reopen()
    (row,) = broker.contents.sources
    assert (row.next_count, row.highest_delivered, row.counters) == (1, 9, b"\0counters")


def test_a_refused_commit_leaves_nothing_of_itself(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"kept"])
    batch = broker.batch()
    broker.put(batch, source, [b"lost"])
    batch.removed.append((source.source_key, 1, 1))
    batch.changes.append((source.source_key, 1, 3, 3, None))
    batch.epochs[0] = (batch.epochs[0][0], batch.epochs[0][1] + 1)
    with pytest.raises(StoreStale):
        broker.commit(batch)
    broker.reopen()
    assert as_tuples(broker.store.load(1, 1, 10)) == [(1, 1_700_000_000_001, 0, 0, b"kept", None)]
    assert broker.contents.last_commit_no == 1
    assert broker.contents.sources[0].next_count == 2


def test_after_a_failure_only_close_and_open_are_legal(broker: Broker) -> None:
    (source,) = broker.add()
    with pytest.raises(StoreFailed):
        broker.store.commit(CommitBatch(0, 0))
    for call in (broker.store.probe, broker.store.checkpoint, lambda: broker.store.load(source.source_key, 1, 1)):
        with pytest.raises(StoreFailed):
            call()
    broker.reopen()
    broker.send(source, [b"works again"])


@pytest.mark.parametrize("commit_no", [0, 1, 2])
def test_a_commit_number_that_does_not_grow_is_refused(broker: Broker, commit_no: int) -> None:
    broker.commit(broker.batch())
    broker.commit(broker.batch())
    with pytest.raises(StoreFailed, match="numbers only grow"):
        broker.store.commit(CommitBatch(commit_no, 0))


def test_the_last_commit_number_and_time_come_back(broker: Broker) -> None:
    late = CommitBatch(41, 5_000)
    broker.commit(late)
    early = CommitBatch(42, 4_000)
    broker.commit(early)
    broker.reopen()
    assert (broker.contents.last_commit_no, broker.contents.broker_ms) == (42, 5_000)


def test_every_generation_raises_every_epoch_by_one(broker: Broker) -> None:
    broker.add(1, 0)
    broker.add(1, 1)
    assert broker.generation == 1
    broker.reopen()
    assert broker.generation == 2
    broker.reopen()
    assert [row.epoch for row in broker.contents.fragments] == [3, 3]
    assert broker.contents.generation == 2


def test_a_commit_of_an_old_epoch_is_stale(broker: Broker) -> None:
    (source,) = broker.add()
    old = broker.batch()
    old.epochs = [(key, epoch) for key, epoch in old.epochs]
    broker.reopen()
    broker.put(old, source, [b"late"])
    with pytest.raises(StoreStale):
        broker.store.commit(old)


def test_a_write_without_its_fragments_epoch_is_stale(broker: Broker) -> None:
    (source,) = broker.add()
    batch = broker.batch()
    broker.put(batch, source, [b"x"])
    batch.epochs = []
    with pytest.raises(StoreStale, match="carries no epoch"):
        broker.store.commit(batch)


def test_a_fragment_that_exists_is_returned_as_it_is(broker: Broker) -> None:
    (source,) = broker.add(7, 3, (0,))
    broker.send(source, [b"x"])
    fragment, sources = broker.store.add_fragment(7, 3, (0, 1))
    assert (fragment.fragment_key, fragment.entity_id, fragment.fragment_no, fragment.epoch) == (1, 7, 3, 1)
    assert [(row.source_no, row.next_count) for row in sources] == [(0, 2), (1, 1)]
    again, same = broker.store.add_fragment(7, 3, (1, 0))
    assert again.fragment_key == 1
    assert [row.source_key for row in same] == [sources[1].source_key, sources[0].source_key]


def test_a_dropped_entity_is_gone_and_its_keys_are_not_reused(broker: Broker) -> None:
    first = broker.add(1, 0, (0, 1))
    (other,) = broker.add(2, 0)
    batch = broker.batch()
    for source in (*first, other):
        broker.put(batch, source, [b"x"] * 30)
    broker.commit(batch)
    broker.store.drop_entity(1)
    broker.store.drop_entity(55)
    assert broker.store.usage().rows == 30
    broker.reopen()
    assert [row.entity_id for row in broker.contents.fragments] == [2]
    assert [row.source_key for row in broker.contents.sources] == [other.source_key]
    assert broker.store.load(first[0].source_key, 1, 10) == []
    (new,) = broker.add(1, 0)
    assert new.source_key == other.source_key + 1
    assert new.fragment_key == other.fragment_key + 1


def test_a_fragment_is_dropped_in_slices_and_the_others_of_its_entity_stay(broker: Broker) -> None:
    (gone,), (kept,) = broker.add(fragment_no=0), broker.add(fragment_no=4)
    broker.send(gone, [b"x"] * 5)
    broker.send(kept, [b"y"])
    assert broker.store.drop_fragment(1, 0, 3)
    assert not broker.store.drop_fragment(1, 0, 3)
    assert not broker.store.drop_fragment(1, 0, 3)
    assert not broker.store.drop_fragment(7, 0, 3)
    broker.reopen()
    assert [row.fragment_no for row in broker.contents.fragments] == [4]
    assert [row.source_key for row in broker.contents.sources] == [kept.source_key]
    assert payloads_of(broker.store.load(kept.source_key, 1, 9)) == [b"y"]
    assert broker.store.usage().rows == 1


def test_a_fragment_that_was_dropped_comes_back_under_a_new_key_and_empty(broker: Broker) -> None:
    (old,) = broker.add()
    broker.send(old, [b"x"])
    assert not broker.store.drop_fragment(1, 0, 100)
    (new,) = broker.add()
    assert new.source_key != old.source_key
    assert broker.store.load(new.source_key, 1, 9) == []


def test_a_commit_for_a_dropped_entity_is_stale(broker: Broker) -> None:
    (source,) = broker.add()
    batch = broker.batch()
    broker.put(batch, source, [b"x"])
    broker.store.drop_entity(1)
    with pytest.raises(StoreStale):
        broker.store.commit(batch)


def test_tombstones_are_kept_until_they_are_buried(broker: Broker) -> None:
    batch = broker.batch()
    batch.tombstones = [Tombstone(2, 5, 70, 3, 10, 19), Tombstone(2, 6, 71, 3, 20, 20), Tombstone(3, 5, 1, 1, 1, 1)]
    broker.commit(batch)
    broker.reopen()
    kept = [
        (t.store_id, t.generation, t.commit_no, t.source_key, t.first_count, t.last_count)
        for t in _tombstones_of(broker)
    ]
    assert kept == [(2, 5, 70, 3, 10, 19), (2, 6, 71, 3, 20, 20), (3, 5, 1, 1, 1, 1)]
    batch = broker.batch()
    batch.forgotten = [(2, 5), (9, 9)]
    broker.commit(batch)
    broker.reopen()
    assert [(t.store_id, t.generation) for t in _tombstones_of(broker)] == [(2, 6), (3, 5)]


def _tombstones_of(broker: Broker) -> list[Tombstone]:
    return broker.contents.tombstones


def test_a_generation_begins_with_the_deletion_of_ambiguous_runs(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"%d" % i for i in range(1, 11)])
    broker.reopen((Tombstone(1, 1, 1, source.source_key, 4, 8),))
    assert [m.count for m in broker.store.load(source.source_key, 1, 20)] == [1, 2, 3, 9, 10]
    assert broker.store.usage().rows == 5


def test_what_sources_count_without_ambiguous_runs_is_written_with_their_deletion(broker: Broker) -> None:
    source, other = broker.add(source_nos=(0, 1))
    broker.send(source, [b"a", b"b"])
    broker.store.close()
    broker.store.open()
    broker.store.begin_generation([Tombstone(1, 1, 1, source.source_key, 2, 2)], {source.source_key: b"one"})
    broker.reopen()
    found = {row.source_key: row for row in broker.contents.sources}
    assert (found[source.source_key].counters, found[source.source_key].next_count) == (b"one", 3)
    assert found[other.source_key].counters == other.counters


def test_a_tombstone_of_another_store_deletes_nothing_here(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"kept"])
    broker.store.close()
    broker.store.open()
    with pytest.raises(StoreFailed, match="tombstone of store 2"):
        broker.store.begin_generation([Tombstone(2, 1, 1, source.source_key, 1, 1)])
    broker.reopen()
    assert len(broker.store.load(source.source_key, 1, 1)) == 1


def test_rows_handed_out_belong_to_the_caller(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"x"])
    message = broker.store.load(source.source_key, 1, 1)[0]
    message.payload = b"mine"
    source.next_count = 500
    broker.reopen()
    assert broker.contents.sources[0].next_count == 2
    assert payloads_of(broker.store.load(source.source_key, 1, 1)) == [b"x"]


def test_a_probe_and_a_checkpoint_change_no_message(broker: Broker) -> None:
    (source,) = broker.add()
    broker.send(source, [b"x"])
    broker.store.probe()
    broker.store.checkpoint()
    broker.reopen()
    assert broker.contents.last_commit_no == 1
    assert payloads_of(broker.store.load(source.source_key, 1, 5)) == [b"x"]


def test_a_store_that_is_not_open_refuses_everything(store: MessagingStore) -> None:
    calls = [
        store.probe,
        store.checkpoint,
        store.usage,
        lambda: store.commit(CommitBatch(1, 1)),
        lambda: store.load(1, 1, 1),
        lambda: store.scan(1, 1, 1, 1),
        lambda: store.begin_generation([]),
        lambda: store.add_fragment(1, 0, [0]),
        lambda: store.drop_entity(1),
    ]
    for call in calls:
        with pytest.raises(StoreFailed, match="not open"):
            call()


def test_opening_twice_is_refused_and_closing_twice_is_not(store: MessagingStore) -> None:
    store.open()
    with pytest.raises(StoreFailed, match="open already"):
        store.open()
    store.close()
    store.close()
    store.open()


def test_a_read_ends_with_the_message_that_makes_it_large(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (interface, memory, rows):
        monkeypatch.setattr(module, "READ_BYTES_MAX", 1000)
    (source,) = broker.add()
    sizes = [400, 599, 1, 2000, 0, 10]
    broker.send(source, [bytes(size) for size in sizes], all_metadata=dict.fromkeys(range(6), (2, 0, None)))
    for read in (lambda first: broker.store.load(1, first, 10), lambda first: broker.store.scan(1, 2, first, 10)):
        pages = [read(1), read(4), read(5)]
        assert [[m.count for m in page] for page in pages] == [[1, 2, 3], [4], [5, 6]]
        assert [interface.is_end(page, 10) for page in pages] == [False, False, True]
    assert not interface.is_end(broker.store.load(1, 1, 2), 2)


def reserved(broker: Broker, source: SourceRow, first_count: int) -> CommitBatch:
    """A commit that puts a scheduled message at a count of before."""
    batch = broker.batch()
    broker.put(batch, source, [])
    put = Put(source.source_key, first_count, 1_700_000_000_000, [b"reserved"], {0: (SCHEDULED, 0, None)})
    put.is_reserved = True
    batch.puts = [put]
    return batch


def test_counts_that_were_used_up_take_their_messages_later(broker: Broker) -> None:
    (source,) = broker.add()
    source.next_count = 4
    broker.send(source, [b"behind"])
    broker.commit(reserved(broker, source, 2))
    broker.reopen()
    assert [row.count for row in broker.store.load(source.source_key, 1, 10)] == [2, 4]
    assert broker.contents.sources[0].next_count == 5


@pytest.mark.parametrize("first_count", [4, 5])
def test_a_reserved_count_that_has_a_message_or_was_never_used_up_is_refused(broker: Broker, first_count: int) -> None:
    (source,) = broker.add()
    source.next_count = 4
    broker.send(source, [b"there"])
    with pytest.raises(StoreFailed):
        broker.commit(reserved(broker, source, first_count))
