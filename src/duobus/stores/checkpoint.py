"""CheckpointThread: brings a store's log home beside the commits, not inside them.

SQLite's own automatic checkpoint runs inside a commit: send p99 of 33 to 39 ms against a median of 5 ms. A
passive one every 50 ms on a connection of its own brings p99 to 1.0-2.8 ms, but never lets the log restart
while commits go on, and it grew to 186 MB (reference/performance.md 3, observation 5). So there are two steps:

    commits   ──────────────────────────────┬─ finish ─┬──────────   the writer's thread
    log       ▁▂▃▄▅▆▇█ over the limit        │          ▁▂▃ restarts
    aside     ──passive───passive──passive──┘                        this thread

The passive passes copy nearly everything. When the log is over its limit, the writer is asked to copy the
small rest between two commits: with nothing left to copy, the next commit starts the log from its beginning.
No step takes SQLite's write lock, so none can make a commit wait for a lock.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

from duobus.errors import StoreFailed
from duobus.stores.writer import Writer

#: Seconds between looks: reference/performance.md measured 50 ms.
INTERVAL_S = 0.05
#: Bytes at which the log is made to restart: a quarter of a second of traffic at 100,000 messages of 1 KiB/s.
LOG_LIMIT_BYTES = 32 * 1024 * 1024
#: The rest that the writer should be asked to copy at most, so that a commit waits for little.
_REST_BYTES = 1024 * 1024
_PASSES_MAX = 4
_STOP_TIMEOUT_S = 10.0


class Checkpointed(Protocol):
    """A store with a log, as far as it matters here; see SqliteStore."""

    commits: int

    def checkpoint_aside(self) -> tuple[int, int]:
        """Copy what can be copied; return bytes in the log and bytes left to copy."""

    def checkpoint(self) -> None:
        """Copy the rest, on the writer's thread."""


class CheckpointThread:
    """A thread that keeps the log of one store short.

    Args:
        store: Its ``checkpoint_aside`` is called here, its ``checkpoint`` through ``writer``.
        writer: The owner of the store.
        loop: Where ``writer`` is to be called.
        interval_s: Seconds between looks.
        log_limit_bytes: Length from which on the log is made to restart.

    Attributes:
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
            if in_log < self._log_limit_bytes:
                return
            passes = 1
            while left > _REST_BYTES and passes < _PASSES_MAX:
                in_log, left = self._store.checkpoint_aside()
                passes += 1
        except StoreFailed:
            # The store remembers, and says so to its writer with the next call; that is where it is handled.
            return
        if not self._is_asked:
            self._is_asked = True
            self._loop.call_soon_threadsafe(self._writer.submit, self._store.checkpoint, self._finished)

    def _finished(self, _result: None, _error: BaseException | None) -> None:
        # An error closed the store and comes back with the writer's next call, so nothing is lost here.
        self._is_asked = False

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self.look()
            except RuntimeError:
                # The loop is closed: nobody commits any more.
                return
