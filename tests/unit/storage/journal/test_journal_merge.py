"""Merged commits leave in a store what the commits leave one after the other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from duobus.storage.interface import CommitBatch, IdBlock, MessagingStore, Put, Tombstone
from duobus.storage.journal import merge
from duobus.storage.journal.format import CommitRecord, batch_of, body_of
from duobus.storage.journal.merge import merged
from duobus.storage.memory import MemoryStore
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import FAST, Broker

SOURCES = (1, 2)


class Traffic:
    """Commits at random over two sources, each as a broker may make it."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._commit_no = 0
        self._next = dict.fromkeys(SOURCES, 1)
        self._alive: dict[int, list[int]] = {key: [] for key in SOURCES}
        self._blocks: dict[int, list[int]] = {key: [] for key in SOURCES}
        self._reserved: list[tuple[int, int]] = []
        self._tombstones: list[tuple[int, int]] = []

    def commit(self) -> CommitBatch:
        """Return the next commit."""
        chance = self._chance
        self._commit_no += 1
        batch = CommitBatch(self._commit_no, 1_000 + self._commit_no)
        batch.epochs = [(1, 2)]
        touched = chance.sample(SOURCES, chance.randrange(1, 3))
        for key in touched:
            for _ in range(chance.randrange(3)):
                self._remove(batch, key)
            for count in chance.sample(self._alive[key], min(len(self._alive[key]), chance.randrange(3))):
                metadata = chance.choice((None, b"changed", b""))
                batch.changes.append((key, count, chance.randrange(3), chance.randrange(4), metadata))
            for _ in range(chance.randrange(3)):
                self._put(batch, key)
        self._note(batch, touched[0])
        batch.sources = [(key, self._next[key], self._next[key] - 1, b"%d" % self._commit_no) for key in touched]
        return batch

    def _remove(self, batch: CommitBatch, key: int) -> None:
        if not self._alive[key]:
            return
        first = self._chance.choice(self._alive[key])
        last = first + self._chance.choice((0, 0, 1, 5, 40))
        last = min(last, self._next[key] - 1)
        batch.removed.append((key, first, last))
        self._alive[key] = [count for count in self._alive[key] if not first <= count <= last]

    def _put(self, batch: CommitBatch, key: int) -> None:
        chance = self._chance
        first, number = self._next[key], chance.choice((1, 2, 9, 30))
        self._next[key] += number
        if chance.random() < 0.2:
            # Used up now, for a message that a later commit puts.
            self._reserved.append((key, self._next[key]))
            self._next[key] += 1
        payloads = [b"%d-%d" % (key, first + index) for index in range(number)]
        put = Put(key, first, 1_000 + first, payloads)
        kind = chance.randrange(4)
        if kind == 1:
            some = chance.sample(range(number), min(number, 2))
            put.all_metadata = {index: (chance.randrange(3), 1, b"some") for index in some}
        elif kind == 2:
            put.equal_metadata = [b"equal-%d" % index for index in range(number)]
        batch.puts.append(put)
        self._alive[key] += range(first, first + number)

    def _note(self, batch: CommitBatch, key: int) -> None:
        chance = self._chance
        own = [found for found in self._reserved if found[0] == key]
        if own and chance.random() < 0.5:
            self._reserved.remove(own[0])
            late = Put(*own[0], 77, [b"late-%d" % own[0][1]])
            late.is_reserved = True
            batch.puts.append(late)
            self._alive[key].append(own[0][1])
        new = [put.first_count for put in batch.puts if put.source_key == key and not put.is_reserved]
        if new and chance.random() < 0.4:
            batch.histories.append(IdBlock(key, new[0], 5, b"ids-%d" % new[0]))
            self._blocks[key].append(new[0])
        if self._blocks[key] and chance.random() < 0.2:
            batch.outdated.append((key, self._blocks[key][0]))
        if self._tombstones and chance.random() < 0.3:
            batch.forgotten.append(self._tombstones.pop(0))
        if chance.random() < 0.3:
            batch.tombstones.append(Tombstone(9, self._commit_no // 3, 1, 4, self._commit_no, self._commit_no))
            self._tombstones.append((9, self._commit_no // 3))


def opened(store: MessagingStore) -> MessagingStore:
    """A store with one fragment and its two sources."""
    Broker(store).add(source_nos=(0, 1))
    (fragment,) = {row.fragment_key: row for row in (store.add_fragment(1, 0, (0, 1))[0],)}.values()
    assert fragment.fragment_key == 1
    return store


def everything(store: MessagingStore) -> list[Any]:
    """What a store holds, after it was opened again."""
    store.close()
    contents = store.open()
    found: list[Any] = [contents.last_commit_no, contents.broker_ms]
    found += sorted((row.source_key, row.next_count, row.highest_delivered, row.counters) for row in contents.sources)
    found += sorted((t.store_id, t.generation, t.first_count) for t in contents.tombstones)
    for key in SOURCES:
        found += [
            (m.count, m.enqueued_ms, m.state, m.deliveries, m.payload, m.metadata) for m in store.load(key, 1, 10_000)
        ]
        found += [(block.first_count, block.ids) for block in store.load_ids(key, 1, 10_000)]
    return found


def epoch_of(store: MessagingStore) -> int:
    """The epoch that commits have to carry."""
    return store.add_fragment(1, 0, (0, 1))[0].epoch


def differing(folder: Path, seed: int) -> bool:
    """Whether commits that were merged by windows, with all later ones known, leave something else."""
    chance = random.Random(seed)
    one_by_one, by_windows = opened(MemoryStore(1)), opened(SqliteStore(str(folder / f"{seed}.db"), 1, options=FAST))
    traffic = Traffic(seed)
    commits = [traffic.commit() for _ in range(30)]
    for batch in commits:
        batch.epochs = [(1, epoch_of(one_by_one))]
        one_by_one.commit(batch_of(CommitRecord(1, batch.commit_no, body_of(batch))))
    start = 0
    while start < len(commits):
        end = start + chance.randrange(1, 12)
        by_windows.commit(merged(commits[start:end], commits[end : end + chance.randrange(12)]))
        start = end
    result = everything(one_by_one) != everything(by_windows)
    by_windows.close()
    return result


@pytest.mark.parametrize("seed", range(30))
def test_merged_commits_leave_what_the_commits_leave(tmp_path: Path, seed: int) -> None:
    assert not differing(tmp_path, seed)


def test_what_is_removed_by_then_never_reaches_the_store() -> None:
    first, second, third = CommitBatch(1, 5), CommitBatch(2, 9), CommitBatch(3, 7)
    first.puts = [Put(1, 1, 5, [b"a", b"b", b"c", b"d"])]
    second.removed = [(1, 2, 2), (1, 4, 4)]
    second.changes = [(1, 1, 1, 0, None), (1, 3, 1, 0, None)]
    third.removed = [(1, 1, 1)]
    found = merged([first, second], [third])
    assert [(put.first_count, put.payloads) for put in found.puts] == [(3, [b"c"])]
    assert found.removed == []
    assert found.changes == [(1, 3, 1, 0, None)]
    assert (found.commit_no, found.broker_ms) == (2, 9)


def test_what_the_store_has_is_removed_although_a_range_holds_new_messages_too() -> None:
    first, second = CommitBatch(1, 5), CommitBatch(2, 5)
    first.puts = [Put(1, 10, 5, [b"a", b"b"])]
    second.removed = [(1, 5, 15)]
    assert merged([first, second]).removed == [(1, 5, 9), (1, 12, 15)]
    assert merged([first, second]).puts == []


def test_a_range_that_was_removed_before_a_reserved_message_came_leaves_it_there() -> None:
    first, second, third = CommitBatch(1, 5), CommitBatch(2, 5), CommitBatch(3, 5)
    first.removed = [(1, 1, 9)]
    late = Put(1, 5, 5, [b"late"])
    late.is_reserved = True
    second.puts = [late]
    second.changes = [(1, 5, 1, 0, None)]
    found = merged([first, second], [third])
    assert [put.first_count for put in found.puts] == [5]
    assert (found.removed, found.changes) == ([(1, 1, 4), (1, 6, 9)], second.changes)
    third.removed = [(1, 5, 5)]
    assert merged([first, second], [third]).puts == []


# -- planted bugs -----------------------------------------------------------------------------------------------------


def misplaced_piece(put: Put, first: int, end: int) -> Put:
    """A planted bug: what was cut keeps the metadata of the messages before it."""
    piece = Put(put.source_key, first, put.enqueued_ms, put.payloads[first - put.first_count :][: end - first + 1])
    piece.is_reserved = put.is_reserved
    if put.all_metadata is not None:
        piece.all_metadata = {index: row for index, row in put.all_metadata.items() if index <= end - first}
    if put.equal_metadata is not None:
        piece.equal_metadata = put.equal_metadata[: end - first + 1]
    return piece


@pytest.mark.parametrize("name", ["_add_notes", "_without", "_piece", "_by_source"])
def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    planted: dict[str, Any] = {
        # A tombstone that was forgotten comes back.
        "_add_notes": lambda result, batches: [
            setattr(result, column, [row for batch in batches for row in getattr(batch, column)])
            for column in ("tombstones", "forgotten", "histories", "outdated")
        ],
        # What was removed reaches the store, and stays.
        "_without": lambda span, taken: [] if taken and taken[0][0] <= span[0] <= taken[0][1] else [span],
        "_piece": misplaced_piece,
        # What earlier commits removed is forgotten.
        "_by_source": lambda batches: {key: [(first, end)] for b in batches for key, first, end in b.removed},
    }
    monkeypatch.setattr(merge, name, planted[name])
    assert any(differing(tmp_path, seed) for seed in range(40))
