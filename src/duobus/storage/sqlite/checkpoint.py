"""CheckpointThread: brings a store's log home beside the commits, not inside them.

SQLite's own automatic checkpoint runs inside a commit: send p99 of 33 to 39 ms against a median of 5 ms. A
passive one every 50 ms on a connection of its own brings p99 to 1.0-2.8 ms, but never lets the log restart
while commits go on, and it grew to 186 MB (observation 5). So there are two steps:

    commits   ──────────────────────────────┬─ finish ─┬──────────   the writer's thread
    log       ▁▂▃▄▅▆▇█ over the limit        │          ▁▂▃ restarts
    aside     ──passive───passive──passive──┘                        this thread

The passive passes copy nearly everything, and sync the database. When the log is over its limit, the writer is asked
to copy the small rest between two commits: with nothing left to copy, the next commit starts the log from its
beginning. No step takes SQLite's write lock, so none can make a commit wait for a lock.

Passes have to sync for themselves: SQLite does so only when a pass reaches the end of the log, which none does while
commits go on. Without that the writer's step synced all of the 32 MiB that the passes had copied: up to 45 ms, for
which every client of the store waited (decision 0060).

Where a store has a journal, its commits do not wait for SQLite, and what brings them over to SQLite may take a tenth of
a second. Whoever waits for that must not be the thread that commits, so there this thread takes the second step itself.

Each pass syncs, which delays the commits of all stores of a disk. So the thread looks less often where little is
written: four stores that share a load are then copied as often as one that has all of it. It also sees to it that the
log is laid out ahead (``log_space.py``).
"""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

from duobus.errors import StoreFailed
from duobus.storage.sqlite import log_space as log_room
from duobus.storage.writers import Writer

#: Seconds between looks while much is written (decision 0027).
INTERVAL_S = 0.05
#: So many times as long while little is; a burst that comes then must not make the log much longer than its limit.
_SLOWER_MAX = 4
#: What a pass should copy at least.
_PASS_BYTES = 4 * 1024 * 1024
#: Bytes at which the log is made to restart: a quarter of a second of traffic at 100,000 messages of 1 KiB/s.
LOG_LIMIT_BYTES = 32 * 1024 * 1024
#: The rest that the writer should be asked to copy at most, so that a commit waits for little.
_REST_BYTES = 1024 * 1024
_PASSES_MAX = 4
#: A lock that is given back and taken again at once is seldom had by another thread.
_BETWEEN_PIECES_S = 0.001
_STOP_TIMEOUT_S = 10.0


class Checkpointed(Protocol):
    """A store with a log, as far as it matters here; see SqliteStore.

    Attributes:
        any_thread: Whether ``checkpoint`` and ``make_room`` may be called by any thread, or by the writer's alone.
    """

    any_thread: bool

    @property
    def commits(self) -> int:
        """Transactions committed, in this life and others."""

    def checkpoint_aside(self) -> tuple[int, int]:
        """Copy what can be copied; return bytes in the log and bytes left to copy."""

    def checkpoint(self) -> None:
        """Copy the rest."""

    def make_room(self, length: int) -> bool:
        """Lay a piece of the log out; return whether there is more to do."""


class CheckpointThread:
    """A thread that keeps the log of one store short.

    Args:
        store: Its ``checkpoint_aside`` is called here, its ``checkpoint`` through ``writer`` unless any thread may.
        writer: The owner of the store.
        loop: Where ``writer`` is to be called.
        interval_s: Seconds between looks while much is written.
        log_limit_bytes: Length from which on the log is made to restart.

    Attributes:
        wait_s: Seconds until the next look.
        is_resting: Do nothing: a backup reads the log, so it could not restart, and looking at all of it again and
            again takes longer the longer it gets.
    """

    def __init__(
        self,
        store: Checkpointed,
        writer: Writer,
        loop: asyncio.AbstractEventLoop,
        *,
        interval_s: float = INTERVAL_S,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        self._store = store
        self._writer = writer
        self._loop = loop
        self._interval_s = interval_s
        self._log_limit_bytes = log_limit_bytes
        self._seen_commits = store.commits
        self._is_asked = False
        self.wait_s = interval_s
        # Of the log at the last look; and how long its file was to be then.
        self._in_log = 0
        self._length = 0
        self._is_extending = False
        self.is_resting = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=False)

    def start(self) -> None:
        """Begin; call once."""
        self._thread.start()

    def stop(self) -> bool:
        """End; return whether the thread has ended within ten seconds. To be called before the writer is stopped."""
        self._stopped.set()
        if self._thread.ident is None:
            return True
        self._thread.join(_STOP_TIMEOUT_S)
        return not self._thread.is_alive()

    def look(self) -> None:
        """Do one round, if there were commits since the last."""
        if self.is_resting or self._store.commits == self._seen_commits:
            return
        self._seen_commits = self._store.commits
        try:
            in_log, left = self._store.checkpoint_aside()
            self._note(in_log)
            if in_log < self._log_limit_bytes:
                return
            passes = 1
            while left > _REST_BYTES and passes < _PASSES_MAX:
                in_log, left = self._store.checkpoint_aside()
                passes += 1
            if self._store.any_thread:
                self._store.checkpoint()
                return
        except StoreFailed:
            # The store remembers, and says so to its writer with the next call; that is where it is handled.
            return
        if not self._is_asked:
            self._is_asked = True
            self._loop.call_soon_threadsafe(self._writer.submit, self._store.checkpoint, self._finished)

    def _note(self, in_log: int) -> None:
        """Set the pace, and see that there is room."""
        grown = in_log - self._in_log
        if grown < 0:
            # It has begun anew, and the store perhaps, too: then its file is short again.
            grown, self._length = in_log, 0
        self._in_log = in_log
        slower = self.wait_s * _PASS_BYTES / max(grown, 1)
        self.wait_s = min(max(slower, self._interval_s), self._interval_s * _SLOWER_MAX)
        length = log_room.wanted(in_log)
        if length > self._length and not self._is_extending:
            self._length = length
            if self._store.any_thread:
                # A piece at a time, so that others may use the store between two.
                while self._store.make_room(length) and not self._stopped.wait(_BETWEEN_PIECES_S):
                    pass
            else:
                self._is_extending = True
                self._loop.call_soon_threadsafe(self._extend)

    def _extend(self) -> None:
        self._writer.submit(lambda: self._store.make_room(self._length), self._extended)

    def _extended(self, is_more: bool | None, _error: BaseException | None) -> None:
        # A piece at a time, so that commits come between.
        if is_more and not self._stopped.is_set():
            self._extend()
        else:
            self._is_extending = False

    def _finished(self, _result: None, _error: BaseException | None) -> None:
        # An error closed the store and comes back with the writer's next call, so nothing is lost here.
        self._is_asked = False

    def _run(self) -> None:
        while not self._stopped.wait(self.wait_s):
            try:
                self.look()
            except RuntimeError:
                # The loop is closed: nobody commits any more.
                return
