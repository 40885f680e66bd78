"""Copies of topics in a store with a journal: each commit tells what they take up, as a store without one does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from duobus.storage.interface import Put, SourceRow
from duobus.storage.journal import copy_sizes
from duobus.storage.journal.store import JournalStore
from duobus.storage.memory import MemoryStore
from duobus.storage.sqlite.copy_lookup import CopyFound
from kits.store_builders import Broker, journal_store, payloads_of

SUBSCRIPTIONS = 3


class Topic:
    """The same commits for a store with a journal and for one in memory."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = journal_store(folder)
        self.brokers = [Broker(self.store), Broker(MemoryStore(1))]
        numbers = tuple(range(SUBSCRIPTIONS + 1))
        self.sources: list[list[SourceRow]] = [broker.add(source_nos=numbers) for broker in self.brokers]
        self.alive: dict[int, set[int]] = {row.source_key: set() for row in self.sources[0][1:]}

    def commit(self) -> list[dict[int, int]]:
        """Make one commit in both; return what each was told."""
        chance = self.chance
        removed: list[tuple[int, int, int]] = []
        for key, counts in self.alive.items():
            if counts and chance.random() < 0.6:
                first = chance.choice(sorted(counts))
                removed.append((key, first, first + chance.choice((0, 0, 1, 3, 50))))
        found: dict[int, list[tuple[bytes, int]]] = {key: [] for key in self.alive}
        home = self.sources[0][0]
        origin = home.next_count
        for _ in range(chance.choice((0, 1, 1, 4))):
            payload = bytes(chance.choice((0, 8, 100, 3000)))
            wanted = chance.sample(sorted(found), chance.randrange(SUBSCRIPTIONS + 1))
            for key in wanted:
                found[key].append((payload, -origin if len(wanted) > 1 else origin))
            origin += 1
        told = []
        for broker, (own_home, *rows) in zip(self.brokers, self.sources, strict=True):
            batch = broker.batch()
            batch.removed = [(key, first, min(last, self.next_count(key) - 1)) for key, first, last in removed]
            batch.sources.append((own_home.source_key, origin, 0, b""))
            for row in rows:
                copies = found[row.source_key]
                if copies:
                    payloads, origins = [copy[0] for copy in copies], [copy[1] for copy in copies]
                    batch.puts.append(Put(row.source_key, row.next_count, 5, payloads, None, origins))
                    batch.sources.append((row.source_key, row.next_count + len(copies), 0, b""))
            broker.commit(batch)
            told.append(batch.shared)
        for key, first, last in removed:
            self.alive[key] -= set(range(first, min(last, self.next_count(key) - 1) + 1))
        for own_home, *rows in self.sources:
            own_home.next_count = origin
            for row in rows:
                copies = found[row.source_key]
                self.alive[row.source_key].update(range(row.next_count, row.next_count + len(copies)))
                row.next_count += len(copies)
        return told

    def next_count(self, key: int) -> int:
        return next(row.next_count for row in self.sources[0] if row.source_key == key)


def differing(folder: Path, seed: int) -> bool:
    """Whether a commit is told something else, or something else is there at the end."""
    topic = Topic(folder, seed)
    chance = random.Random(seed)
    try:
        for _ in range(80):
            with_journal, without = topic.commit()
            if with_journal != without:
                return True
            if chance.random() < 0.2:
                # As the thread does that brings over: some of the first.
                topic.store._bring_over(chance.randrange(len(topic.store._backlog) + 1))
        for key, counts in topic.alive.items():
            rows = [broker.store.load(key, 1, 1 << 20) for broker in topic.brokers]
            if payloads_of(rows[0]) != payloads_of(rows[1]) or {row.count for row in rows[0]} != counts:
                return True
        return bool(topic.store.verify())
    finally:
        topic.store.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_commit_is_told_what_a_store_without_a_journal_tells(tmp_path: Path, seed: int) -> None:
    assert not differing(tmp_path, seed)


def test_copies_that_come_and_go_in_the_journal_reach_sqlite_neither_as_rows_nor_as_bodies(tmp_path: Path) -> None:
    topic = Topic(tmp_path, 1)
    store, broker = topic.store, topic.brokers[0]
    home, *rows = topic.sources[0]
    before = store.commits
    for number in range(1, 20):
        batch = broker.batch()
        for row in rows:
            batch.puts.append(Put(row.source_key, number, 5, [b"x" * 500], None, [-number]))
            batch.sources.append((row.source_key, number + 1, 0, b""))
            batch.removed.append((row.source_key, number - 1, number - 1))
        batch.sources.append((home.source_key, number + 1, 0, b""))
        broker.commit(batch)
        # The sum stays what it is, from the first message on.
        assert batch.shared == ({home.source_key: 500} if number == 1 else {})
    assert store.commits == before
    store.bring_over()
    assert store.commits == before + 1
    assert store.usage().rows == SUBSCRIPTIONS + 1
    store.close()


def forgetful(store: JournalStore, _spans: list[tuple[int, int, int]]) -> list[CopyFound]:
    """A planted bug: SQLite is not asked."""
    return []


def hasty(sizes: copy_sizes.CopySizes) -> None:
    """A planted bug: what SQLite does not have yet is forgotten, too."""
    sizes._copies.clear()
    sizes._bodies.clear()


@pytest.mark.parametrize(
    ("kind", "name", "planted"),
    [
        (JournalStore, "copies_in", forgetful),
        (copy_sizes.CopySizes, "_forget_brought", hasty),
    ],
)
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, planted: object
) -> None:
    monkeypatch.setattr(kind, name, planted)
    assert any(differing(tmp_path / str(seed), seed) for seed in range(6))
