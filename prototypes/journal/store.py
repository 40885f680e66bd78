"""JournalStore: a SqliteStore whose commits are appends to a journal, brought to SQLite by a thread of its own.

For measurements only. Nothing is replayed at the start, so whatever had not come to SQLite is lost by a kill.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from duobus.storage.commit_checks import check_batch
from duobus.storage.interface import CommitBatch, Put, SourceRow, StoreContents
from duobus.storage.memory import copy_of_source
from duobus.storage.sqlite.store import SqliteStore
from prototypes.journal.record import encoded

SEGMENT = 16 << 20
SEGMENTS = 6
#: A commit reaches SQLite when it is so old, or when so many bytes wait.
AGE_S = float(os.environ.get("JOURNAL_AGE_S", "0.2"))
BYTES = int(os.environ.get("JOURNAL_BYTES", str(24 << 20)))
STEP_S = float(os.environ.get("JOURNAL_STEP_S", "0.1"))

#: A commit with so many bytes, while less is removed than put, is SQLite's.
DIRECT = int(os.environ.get("JOURNAL_DIRECT", str(128 << 10)))


class Journal:
    """Segments laid out with zeros, written one after the other."""

    def __init__(self, path: str) -> None:
        self.fds = []
        for number in range(SEGMENTS):
            fd = os.open(f"{path}-journal{number}", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            for start in range(0, SEGMENT, 1 << 20):
                os.pwrite(fd, bytes(1 << 20), start)
            os.fsync(fd)
            self.fds.append(fd)
        self.segment = 0
        self.end = 0

    def append(self, batch: CommitBatch, generation: int) -> int:
        """Write one record durably; return its bytes."""
        pieces = encoded(batch, generation, self.segment)
        size = sum(map(len, pieces))
        if self.end + size > SEGMENT and self.end:
            self.segment, self.end = self.segment + 1, 0
        fd = self.fds[self.segment % SEGMENTS]
        os.pwritev(fd, pieces, self.end)
        os.fdatasync(fd)
        self.end += size
        return size


class JournalStore(SqliteStore):
    """See the top of this module."""

    def open(self) -> StoreContents:
        """Open as SQLite does, with a journal beside it."""
        contents = super().open()
        self._turn = threading.RLock()
        self._is_applying = False
        self._waiting: deque[tuple[float, int, CommitBatch]] = deque()
        self._bytes = 0
        self._appended_no = contents.last_commit_no
        self._ahead_of_sqlite: dict[int, SourceRow] = {k: copy_of_source(v) for k, v in self._sources.items()}
        self._journal = Journal(self._path)
        self._bell = threading.Event()
        self._ends = False
        self.skipped = self.applied = self.transactions = 0
        self.direct = 0
        self._size_lately = 0.0
        self._put_lately = self._gone_lately = 0.0
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()
        return contents

    def commit(self, batch: CommitBatch) -> None:
        """Append a record; SQLite hears of it later."""
        if self._fault is not None:
            raise self._fault
        check_batch(batch, self._appended_no, self._fragments, self._ahead_of_sqlite)
        if self._homes:
            with self._turn:
                self._settle()
                self._is_applying = True
                super().commit(batch)
                self._is_applying = False
            self._note(batch)
            return
        if self._is_direct(batch):
            # Many bytes that stay: to write them once is cheaper, and one large transaction is as good as another.
            with self._turn:
                self._apply(len(self._waiting), batch)
            self._note(batch)
            self.direct += 1
            return
        size = self._journal.append(batch, self._meta.generation)
        self._note(batch)
        self._waiting.append((time.monotonic(), size, batch))
        self._bytes += size
        if self._bytes > BYTES:
            self._bell.set()
            if self._bytes > 2 * BYTES:
                with self._turn:
                    self._apply(len(self._waiting))

    def _is_direct(self, batch: CommitBatch) -> bool:
        put = sum([len(put.payloads) for put in batch.puts])
        gone = sum([last - first + 1 for _, first, last in batch.removed])
        self._put_lately += put - self._put_lately / 16
        self._gone_lately += gone - self._gone_lately / 16
        size = sum([sum(map(len, put.payloads)) for put in batch.puts])
        self._size_lately += (size - self._size_lately) / 16
        return self._gone_lately < self._put_lately / 2 and self._size_lately >= DIRECT

    def _note(self, batch: CommitBatch) -> None:
        self._appended_no = batch.commit_no
        for source_key, next_count, highest_delivered, counters in batch.sources:
            source = self._ahead_of_sqlite[source_key]
            source.next_count, source.highest_delivered, source.counters = next_count, highest_delivered, counters

    def _run(self) -> None:
        while not self._ends:
            self._bell.wait(STEP_S)
            self._bell.clear()
            with self._turn:
                if self._db is None:
                    return
                waiting = self._waiting
                old = time.monotonic() - AGE_S
                number = 0
                size = 0
                for at, bytes_of, _ in list(waiting):
                    if at > old and self._bytes - size <= BYTES // 2:
                        break
                    number += 1
                    size += bytes_of
                try:
                    self._apply(number)
                except BaseException as error:
                    self._fault = error
                    raise

    def _apply(self, number: int, another: CommitBatch | None = None) -> None:
        """Bring the first of the waiting commits to SQLite (or all, and another), in one transaction."""
        known = list(self._waiting)
        first = [batch for _, _, batch in known[:number]]
        if another is not None:
            first.append(another)
        if not first:
            return
        if len(first) == 1 and another is not None:
            merged, skipped = another, 0
        else:
            merged, skipped = merge(first, [batch for _, _, batch in known[number:]])
        self._is_applying = True
        try:
            SqliteStore._commit(self, merged)
        finally:
            self._is_applying = False
        for _ in range(number):
            self._bytes -= self._waiting.popleft()[1]
        self.skipped += skipped
        self.applied += sum(len(put.payloads) for put in merged.puts)
        self.transactions += 1

    def _settle(self) -> None:
        with self._turn:
            while self._waiting:
                self._apply(len(self._waiting))

    @contextmanager
    def _operation(self, doing: str) -> Iterator:
        """Have SQLite know everything before anybody but the thread of this module looks."""
        if not hasattr(self, "_turn"):
            with super()._operation(doing) as db:
                yield db
            return
        with self._turn:
            if not self._is_applying and doing not in ("copy the log home", "make room in the log", "look at the files"):
                self._settle()
            with super()._operation(doing) as db:
                yield db

    def add_fragments(self, asked: Iterable) -> list:
        """As SQLite does; new sources are known to the journal."""
        answer = super().add_fragments(asked)
        self._ahead_of_sqlite = {k: copy_of_source(v) for k, v in self._sources.items()}
        return answer

    def begin_generation(self, *arguments) -> int:
        """As SQLite does."""
        found = super().begin_generation(*arguments)
        self._ahead_of_sqlite = {k: copy_of_source(v) for k, v in self._sources.items()}
        return found

    def close(self) -> None:
        """Bring everything home and close."""
        if hasattr(self, "_turn") and self._db is not None:
            self._ends = True
            self._bell.set()
            self._settle()
            if os.environ.get("JOURNAL_REPORT"):
                print(f"journal: {self.transactions} transactions, {self.applied} applied, {self.skipped} skipped, {self.direct} direct", flush=True)
        super().close()


def merge(batches: list[CommitBatch], later: list[CommitBatch]) -> tuple[CommitBatch, int]:
    """Return one batch for several, without messages that are removed in them or, durably, later; and their number."""
    last = batches[-1]
    merged = CommitBatch(last.commit_no, last.broker_ms)
    epochs: dict[int, int] = {}
    sources: dict[int, tuple[int, int, int, bytes]] = {}
    by_source: dict[int, list[Put]] = {}
    removed: dict[int, list[tuple[int, int]]] = {}
    changes: dict[tuple[int, int], tuple[int, int, bytes | None]] = {}
    for batch in batches:
        epochs.update(batch.epochs)
        for put in batch.puts:
            by_source.setdefault(put.source_key, []).append(put)
        for source_key, first, end in batch.removed:
            removed.setdefault(source_key, []).append((first, end))
        for source_key, count, *state in batch.changes:
            changes[source_key, count] = state
        for row in batch.sources:
            sources[row[0]] = row
        merged.histories += batch.histories
        merged.outdated += batch.outdated
        merged.tombstones += batch.tombstones
        merged.forgotten += batch.forgotten
    merged.epochs = list(epochs.items())
    merged.sources = list(sources.values())
    also: dict[int, list[tuple[int, int]]] = {}
    for batch in later:
        for source_key, first, end in batch.removed:
            also.setdefault(source_key, []).append((first, end))
    skipped = 0
    for source_key, puts in by_source.items():
        gone = union(removed.get(source_key, []) + also.get(source_key, []))
        starts = [first for first, _ in gone]
        for put in puts:
            if put.all_metadata or put.equal_metadata is not None or put.is_reserved:
                merged.puts.append(put)
                continue
            first, end = put.first_count, put.first_count + len(put.payloads) - 1
            at = first
            index = max(0, bisect_right(starts, first) - 1)
            while at <= end:
                while index < len(gone) and gone[index][1] < at:
                    index += 1
                if index == len(gone) or gone[index][0] > end:
                    merged.puts.append(piece(put, at, end))
                    break
                if gone[index][0] > at:
                    merged.puts.append(piece(put, at, gone[index][0] - 1))
                skipped += min(end, gone[index][1]) + 1 - max(at, gone[index][0])
                at = gone[index][1] + 1
    for source_key, ranges in removed.items():
        # What was put here and removed here was skipped above: the lowest count that is new bounds what SQLite has.
        lowest = min((put.first_count for put in by_source.get(source_key, ()) if not special(put)), default=None)
        for first, end in union(ranges):
            if lowest is not None and not any(map(special, by_source[source_key])):
                end = min(end, lowest - 1)
            if first <= end:
                merged.removed.append((source_key, first, end))
    merged.changes = [(*key, *state) for key, state in changes.items()]
    return merged, skipped


def special(put: Put) -> bool:
    """Whether a put reaches SQLite as it is."""
    return bool(put.all_metadata) or put.equal_metadata is not None or put.is_reserved


def piece(put: Put, first: int, last: int) -> Put:
    """Return a part of a put."""
    if first == put.first_count and last - first == len(put.payloads) - 1:
        return put
    start = first - put.first_count
    return Put(put.source_key, first, put.enqueued_ms, put.payloads[start : start + last - first + 1])


def union(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, neighbours joined."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found
