"""Builders shared by the tests of the stores."""

from __future__ import annotations

from typing import Any

from duobus.storage.interface import (
    CommitBatch,
    FragmentRow,
    MessagingStore,
    Put,
    SourceRow,
    StoreContents,
    StoredMessage,
    Tombstone,
)
from duobus.storage.journal.store import JournalStore
from duobus.storage.sqlite.file import StoreOptions
from duobus.storage.sqlite.store import SqliteStore

#: Tests that don't cut the power need no fsync; those that do say so.
FAST = StoreOptions(unsafe_no_sync=True)


class Broker:
    """The least that a message broker does with a store: numbers commits, knows epochs and counts."""

    def __init__(self, store: MessagingStore) -> None:
        self.store = store
        self.contents: StoreContents
        self.commit_no = 0
        self.fragments: dict[int, FragmentRow] = {}
        self.sources: dict[int, SourceRow] = {}
        self.open()

    def open(self, deletions: tuple[Tombstone, ...] = ()) -> None:
        self.contents = self.store.open()
        self.generation = self.store.begin_generation(deletions)
        self.commit_no = self.contents.last_commit_no
        self.fragments = {row.fragment_key: row for row in self.contents.fragments}
        for fragment in self.fragments.values():
            fragment.epoch += 1
        self.sources = {row.source_key: row for row in self.contents.sources}

    def reopen(self, deletions: tuple[Tombstone, ...] = ()) -> None:
        self.store.close()
        self.open(deletions)

    def add(self, entity_id: int = 1, fragment_no: int = 0, source_nos: tuple[int, ...] = (0,)) -> list[SourceRow]:
        fragment, sources = self.store.add_fragment(entity_id, fragment_no, source_nos)
        self.fragments[fragment.fragment_key] = fragment
        for source in sources:
            self.sources.setdefault(source.source_key, source)
        return [self.sources[source.source_key] for source in sources]

    def batch(self) -> CommitBatch:
        """Return an empty batch that carries every epoch."""
        batch = CommitBatch(self.commit_no + 1, 1_000 + self.commit_no)
        batch.epochs = [(row.fragment_key, row.epoch) for row in self.fragments.values()]
        return batch

    def put(
        self,
        batch: CommitBatch,
        source: SourceRow,
        payloads: list[bytes],
        all_metadata: dict[int, tuple[int, int, bytes | None]] | None = None,
    ) -> Put:
        """Add messages at the source's next counts; the source advances when the batch is committed."""
        put = Put(source.source_key, source.next_count, 1_700_000_000_000 + source.next_count, payloads, all_metadata)
        source.next_count += len(payloads)
        batch.puts.append(put)
        batch.sources.append((source.source_key, source.next_count, source.highest_delivered, source.counters))
        return put

    def commit(self, batch: CommitBatch) -> None:
        self.store.commit(batch)
        self.commit_no = batch.commit_no

    def send(self, source: SourceRow, payloads: list[bytes], **kwargs: Any) -> None:
        """Commit new messages by themselves."""
        batch = self.batch()
        self.put(batch, source, payloads, **kwargs)
        self.commit(batch)

    def remove(self, *ranges: tuple[int, int, int]) -> None:
        batch = self.batch()
        batch.removed = list(ranges)
        self.commit(batch)

    def change(self, *changes: tuple[int, int, int, int, bytes | None]) -> None:
        batch = self.batch()
        batch.changes = list(changes)
        self.commit(batch)


def as_tuples(messages: list[StoredMessage]) -> list[tuple[int, int, int, int, bytes, bytes | None]]:
    """Return messages as plain values, to be compared."""
    return [(m.count, m.enqueued_ms, m.state, m.deliveries, m.payload, m.metadata) for m in messages]


def payloads_of(messages: list[StoredMessage]) -> list[bytes]:
    return [message.payload for message in messages]


def sqlite_store(folder: Any, **options: Any) -> SqliteStore:
    """Return a store in ``folder`` that does not wait for the disk."""
    return SqliteStore(str(folder / "store" / "f0.db"), 1, options=StoreOptions(unsafe_no_sync=True, **options))


def journal_store(folder: Any, **options: Any) -> JournalStore:
    """Return a store with a journal in ``folder``, whose commits are brought over when the test says so."""
    return JournalStore(
        str(folder / "store" / "f0.db"),
        1,
        options=StoreOptions(unsafe_no_sync=True, **options),
        brings_over=False,
        segment_bytes=64 << 10,
    )
