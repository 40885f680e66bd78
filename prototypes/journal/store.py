"""JournalStore: a SqliteStore whose commits are appends to a journal, brought to SQLite by a thread of its own.

For measurements, and to try the parts in ``duobus.storage.journal`` together: what a kill leaves is replayed at the next
start. Decision 0059 lists what a store of the product needs beyond this.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from duobus.storage.commit_checks import check_batch
from duobus.clock import Entropy
from duobus.storage.interface import CommitBatch, SourceRow, StoreContents
from duobus.storage.journal.merge import merged
from duobus.storage.journal.replay import Position, missing_commits
from duobus.storage.journal.segments import Segments
from duobus.storage.memory import copy_of_source
from duobus.storage.sqlite.store import SqliteStore

SEGMENTS = 6
#: A commit reaches SQLite when it is so old, or when so many bytes wait.
AGE_S = float(os.environ.get("JOURNAL_AGE_S", "0.2"))
BYTES = int(os.environ.get("JOURNAL_BYTES", str(24 << 20)))
STEP_S = float(os.environ.get("JOURNAL_STEP_S", "0.1"))

#: A commit with so many bytes, while less is removed than put, is SQLite's.
DIRECT = int(os.environ.get("JOURNAL_DIRECT", str(128 << 10)))


class JournalStore(SqliteStore):
    """See the top of this module."""

    def open(self) -> StoreContents:
        """Open as SQLite does, with a journal beside it."""
        contents = super().open()
        found = Segments.read(self._path)
        position = Position(self._store_id, contents.generation, contents.last_commit_no)
        missing = missing_commits(self._path, found, position)
        self.replayed = len(missing)
        if missing:
            SqliteStore._commit(self, merged(missing))
            super().close()
            contents = super().open()
        self._turn = threading.RLock()
        self._is_applying = False
        self._waiting: deque[tuple[float, int, CommitBatch]] = deque()
        self._bytes = 0
        self._appended_no = contents.last_commit_no
        self._ahead_of_sqlite: dict[int, SourceRow] = {k: copy_of_source(v) for k, v in self._sources.items()}
        self._journal = Segments(self._path, self._store_id, Entropy().token, SEGMENTS)
        self._journal.begin(max((segment.header.sequence for segment in found), default=0))
        self._bell = threading.Event()
        self._ends = False
        self.applied = self.transactions = 0
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
        if not self._journal.append(batch, self._meta.generation):
            with self._turn:
                self._apply(len(self._waiting), batch)
            self._note(batch)
            return
        size = sum([sum(map(len, put.payloads)) for put in batch.puts]) + 200
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
                    self._journal.prepare()
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
            whole = another
        else:
            whole = merged(first, [batch for _, _, batch in known[number:]])
        self._is_applying = True
        try:
            SqliteStore._commit(self, whole)
        finally:
            self._is_applying = False
        for _ in range(number):
            self._bytes -= self._waiting.popleft()[1]
        self._journal.release(first[-1].commit_no)
        self.applied += sum(len(put.payloads) for put in whole.puts)
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
            self._journal.close()
            if os.environ.get("JOURNAL_REPORT"):
                print(f"journal: {self.transactions} transactions, {self.applied} applied, {self.direct} direct", flush=True)
        super().close()
