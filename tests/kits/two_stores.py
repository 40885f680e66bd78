"""A machine that gives every call to two stores and compares the answers; the store in memory is the reference."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch, MessagingStore, Put, SourceRow, StoreContents, Tombstone
from duobus.storage.memory import MemoryStore
from duobus.storage.postgres.store import PostgresStore
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import as_tuples, sqlite_store

COUNTS = st.integers(1, 40)
SPECIAL = st.tuples(st.integers(0, 3), st.integers(0, 3), st.none() | st.binary(max_size=3))
PAYLOADS = st.lists(st.binary(max_size=5), min_size=1, max_size=8)


def describe(contents: StoreContents) -> tuple[object, ...]:
    return (
        (contents.generation, contents.last_commit_no, contents.broker_ms),
        sorted((f.fragment_key, f.entity_id, f.fragment_no, f.epoch) for f in contents.fragments),
        sorted(describe_source(s) for s in contents.sources),
        [(t.store_id, t.generation, t.commit_no, t.source_key, t.first_count) for t in contents.tombstones],
        sorted(contents.shared.items()),
    )


def describe_source(row: SourceRow) -> tuple[int, int, int, int, int, bytes]:
    return row.source_key, row.fragment_key, row.source_no, row.next_count, row.highest_delivered, row.counters


class TwoStores(RuleBasedStateMachine):
    """Gives every call to both and compares what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stores: list[MessagingStore] = [MemoryStore(1), self.make_other()]
        self.commit_no = 0

    def make_other(self) -> MessagingStore:
        return sqlite_store(self.folder)

    @initialize()
    def begin(self) -> None:
        self.reopen(deletions=[])

    @rule(deletions=st.lists(st.tuples(st.integers(1, 6), COUNTS, COUNTS), max_size=2))
    def reopen(self, deletions: list[tuple[int, int, int]]) -> None:
        runs = [Tombstone(1, 1, 1, *run) for run in deletions]
        for store in self.stores:
            store.close()
        left, right = (store.open() for store in self.stores)
        assert describe(left) == describe(right)
        assert len({store.begin_generation(runs) for store in self.stores}) == 1
        self.epochs = [(row.fragment_key, row.epoch + 1) for row in left.fragments]
        self.sources = {row.source_key: row for row in left.sources}
        self.owners = {row.fragment_key: row.entity_id for row in left.fragments}

    @rule(entity=st.integers(1, 3), fragment=st.integers(0, 1), numbers=st.lists(st.integers(0, 2), max_size=3))
    def add(self, entity: int, fragment: int, numbers: list[int]) -> None:
        # A fragment begins with source 0.
        answers = [store.add_fragment(entity, fragment, [0, *numbers]) for store in self.stores]
        (left, left_sources), (right, right_sources) = answers
        assert (left.fragment_key, left.epoch) == (right.fragment_key, right.epoch)
        assert [describe_source(s) for s in left_sources] == [describe_source(s) for s in right_sources]
        if left.fragment_key not in dict(self.epochs):
            self.epochs.append((left.fragment_key, left.epoch))
            self.owners[left.fragment_key] = entity
        for source in left_sources:
            self.sources.setdefault(source.source_key, source)

    @rule(entity=st.integers(1, 3))
    def drop(self, entity: int) -> None:
        for store in self.stores:
            store.drop_entity(entity)
        self.epochs = [(key, epoch) for key, epoch in self.epochs if self.owners[key] != entity]
        self.sources = {k: s for k, s in self.sources.items() if self.owners[s.fragment_key] != entity}

    @precondition(lambda self: self.sources)
    @rule(
        data=st.data(),
        puts=st.lists(st.tuples(PAYLOADS, st.dictionaries(st.integers(0, 7), SPECIAL, max_size=3)), max_size=3),
        removed=st.lists(st.tuples(st.integers(1, 6), COUNTS, COUNTS), max_size=4),
        changes=st.lists(st.tuples(st.integers(1, 6), COUNTS, SPECIAL), max_size=4),
        is_stale=st.sampled_from([False] * 9 + [True]),
    )
    def commit(
        self,
        data: st.DataObject,
        puts: list[tuple[list[bytes], dict[int, tuple[int, int, bytes | None]]]],
        removed: list[tuple[int, int, int]],
        changes: list[tuple[int, int, tuple[int, int, bytes | None]]],
        is_stale: bool,
    ) -> None:
        batch = CommitBatch(self.commit_no + 1, self.commit_no * 3 % 7)
        batch.epochs = [(key, epoch + is_stale) for key, epoch in self.epochs]
        ends: dict[int, int] = {}
        for payloads, all_metadata in puts:
            key = data.draw(st.sampled_from(sorted(self.sources)))
            first = ends.get(key, self.sources[key].next_count)
            known = {i: metadata for i, metadata in all_metadata.items() if i < len(payloads)}
            batch.puts.append(Put(key, first, 7, payloads, known or None))
            ends[key] = first + len(payloads)
        batch.sources = [(key, end, end // 2, b"c%d" % end) for key, end in ends.items()]
        batch.removed, batch.changes = removed, [(key, count, *rest) for key, count, rest in changes]
        outcomes = {self.outcome(store, batch) for store in self.stores}
        assert len(outcomes) == 1
        if outcomes.pop().startswith("ok"):
            self.commit_no += 1
            for key, end in ends.items():
                self.sources[key].next_count = end
        else:
            self.reopen(deletions=[])

    @precondition(lambda self: any(row.source_no for row in self.sources.values()))
    @rule(data=st.data(), payloads=PAYLOADS)
    def publish(self, data: st.DataObject, payloads: list[bytes]) -> None:
        """Copies of the same messages in some of a fragment's sources, or in one alone."""
        homes = {row.fragment_key: row for row in self.sources.values() if row.source_no == 0}
        rows = [row for row in self.sources.values() if row.source_no and row.fragment_key in homes]
        if not rows:
            return
        home = homes[data.draw(st.sampled_from(sorted({row.fragment_key for row in rows})))]
        rows = [row for row in rows if row.fragment_key == home.fragment_key]
        targets = data.draw(st.lists(st.sampled_from(rows), min_size=1, unique=True))
        batch = CommitBatch(self.commit_no + 1, self.commit_no)
        batch.epochs = list(self.epochs)
        first, sign = home.next_count, -1 if len(targets) > 1 else 1
        ends = {home.source_key: first + len(payloads)}
        for row in targets:
            origins = [sign * (first + index) for index in range(len(payloads))]
            batch.puts.append(Put(row.source_key, row.next_count, 7, payloads, None, origins))
            ends[row.source_key] = row.next_count + len(payloads)
        batch.sources = [(key, end, 0, b"") for key, end in ends.items()]
        (outcome,) = {self.outcome(store, batch) for store in self.stores}
        assert outcome.startswith("ok")
        self.commit_no += 1
        for key, end in ends.items():
            self.sources[key].next_count = end

    @rule(entity=st.integers(1, 3), number=st.integers(1, 2), limit=st.integers(1, 5))
    def drop_source(self, entity: int, number: int, limit: int) -> None:
        left, right = (store.drop_source(entity, number, limit) for store in self.stores)
        assert left == right
        if not left:
            gone = [k for k, s in self.sources.items() if self.owners[s.fragment_key] == entity]
            self.sources = {k: s for k, s in self.sources.items() if k not in gone or s.source_no != number}

    def outcome(self, store: MessagingStore, batch: CommitBatch) -> str:
        try:
            store.commit(batch)
        except StoreFailed as error:
            return f"{type(error).__name__}: {error}"
        return f"ok {sorted(batch.shared.items())}"

    @invariant()
    def both_hold_the_same_messages(self) -> None:
        left, right = self.stores
        assert left.usage().rows == right.usage().rows
        assert isinstance(right, SqliteStore | PostgresStore)
        assert right.verify() == []
        for key in self.sources:
            assert as_tuples(left.load(key, 1, 1000)) == as_tuples(right.load(key, 1, 1000))
            assert as_tuples(left.load(key, 9, 4)) == as_tuples(right.load(key, 9, 4))
            for state in (1, 2):
                assert as_tuples(left.scan(key, state, 2, 5)) == as_tuples(right.scan(key, state, 2, 5))

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)
