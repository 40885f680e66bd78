"""Crew: the threads of the stores that share a disk. One of them works, from store to store, as long as each is quick.

With a thread each, four stores under load are four threads that ask for the interpreter at every statement, beside the
loop's: each commit takes longer, and the disk has one sync at a time for the most part all the same. So one thread, the
*leader*, takes a call of a store, then one of the next that has any; while there is more it does not even sleep, and
the outcomes of several come to the loop in one turn.

No store waits for another's disk, though: a call that takes SLOW_S has lost the lead, and another thread goes on with
what waits; there are as many as stores. A store that was so slow is apart for APART_S: its calls are not the leader's,
so that a disk which hangs now and then costs the others that one wait, and nothing from then on (I9).

    leader    ─ store 1 ─ store 3 ─ store 2 ───────────────────── (SLOW_S) ┄┄┄┄┄ back: waits to be needed
    another                                 (store 4, store 1 wait)  ─ store 4 ─ store 1 ─ ...
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from duobus.errors import StoreFailed
from duobus.storage.writers import STOP_TIMEOUT_S, Outcome, Writer, outcome_of

T = TypeVar("T")
_Done = Callable[[Any, BaseException | None], None]

#: A call that takes longer does not hold up other stores. A commit takes 0.2 to 1 ms, a large one 5 to 10; on a
#: machine that is busy all of them take longer, and more threads would make that worse.
SLOW_S: Final = 0.02
#: For so long after a slow call a store is apart.
APART_S: Final = 10.0


class CrewWriter(Writer):
    """The writer of one store; made by ``Crew.writer``."""

    __slots__ = ("_crew", "apart_until_s", "drained", "is_stopped", "is_taken", "jobs")

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.jobs: deque[tuple[Callable[[], Any], _Done]] = deque()
        # A thread is at it, or it stands in the line of those that wait for one.
        self.is_taken = False
        #: Until then it is served beside the leader.
        self.apart_until_s = 0.0
        self.is_stopped = False
        self.drained = threading.Event()

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """See ``Writer.submit``."""
        self._crew.submit(self, call, done)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """See ``Writer.stop``; blocks for at most ``timeout_s`` seconds."""
        self._crew.stop(self)
        return self.drained.wait(timeout_s)


class _Worker:
    """A thread of a crew.

    Attributes:
        bell: True for work, False for the end.
        began_s: When the call under way began.
    """

    __slots__ = ("began_s", "bell")

    def __init__(self) -> None:
        self.bell: SimpleQueue[bool] = SimpleQueue()
        self.began_s = 0.0


class Crew:
    """Runs the calls of several stores, those of each in order.

    Args:
        loop: Where outcomes are announced.
        name: Of the threads, for the reader of a stack dump.
        slow_s: How long a call may take while others wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "stores", slow_s: float = SLOW_S) -> None:
        self._loop = loop
        self._name = name
        self._slow_s = slow_s
        # Held for a few steps each time, never while a call runs.
        self._lock = threading.Lock()
        self._writers: list[CrewWriter] = []
        #: Stores with calls that no thread is at.
        self._line: deque[CrewWriter] = deque()
        self._leader: _Worker | None = None
        #: Threads that sleep; the one that worked last is woken first.
        self._idle: list[_Worker] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._outcomes: deque[tuple[_Done, Outcome]] = deque()
        self._is_told = False

    def writer(self) -> CrewWriter:
        """Return the writer of one more store."""
        writer = CrewWriter(self)
        self._writers.append(writer)
        return writer

    # -- in the loop's thread -----------------------------------------------------------------------------------

    def submit(self, writer: CrewWriter, call: Callable[[], Any], done: _Done) -> None:
        """Take a call of a store."""
        if writer.is_stopped:
            self._loop.call_soon(done, None, StoreFailed("the store's writer has been stopped"))
            return
        with self._lock:
            writer.jobs.append((call, done))
            if writer.is_taken:
                return
            writer.is_taken = True
            self._line.append(writer)
            self._see_to_line()
        self._watch()

    def _watch(self) -> None:
        """Have somebody look, while anything waits."""
        if self._timer is None and self._line:
            self._timer = self._loop.call_later(self._slow_s, self._look)

    def _look(self) -> None:
        """Look whether what waits has to wait for a slow call."""
        self._timer = None
        with self._lock:
            self._see_to_line()
        self._watch()

    def _announce(self) -> None:
        self._is_told = False
        outcomes = self._outcomes
        while outcomes:
            done, (result, error) = outcomes.popleft()
            try:
                done(result, error)
            except Exception as fault:  # noqa: BLE001 - a fault of ours must not keep the others' outcomes back
                self._loop.call_exception_handler({"message": "announcing what a store did failed", "exception": fault})

    # -- in any thread, with the lock ---------------------------------------------------------------------------

    def _see_to_line(self) -> None:
        """Have a thread take the line if there is one, and nobody leads or the leader is slow."""
        if not self._line:
            return
        leader = self._leader
        if leader is not None and self._loop.time() - leader.began_s < self._slow_s:
            return
        if self._idle:
            self._leader = worker = self._idle.pop()
        else:
            # Each of the others is at a store, and there are more stores than those.
            self._leader = worker = _Worker()
            self._number += 1
            # Not a daemon: the interpreter must not leave in the middle of a commit that a client waits for.
            name = f"{self._name}-{self._number}"
            threading.Thread(target=self._run, args=(worker,), name=name, daemon=False).start()
        worker.began_s = self._loop.time()
        worker.bell.put(True)

    def stop(self, writer: CrewWriter) -> None:
        """Take nothing more for a store; its threads end with the last store."""
        with self._lock:
            writer.is_stopped = True
            if not writer.is_taken:
                writer.drained.set()
            self._end_if_over()

    def _end_if_over(self) -> None:
        if all(writer.drained.is_set() for writer in self._writers):
            while self._idle:
                self._idle.pop().bell.put(False)

    # -- in a thread of the crew --------------------------------------------------------------------------------

    def _run(self, worker: _Worker) -> None:
        while worker.bell.get():
            writer: CrewWriter | None = None
            while (writer := self._next(worker, writer)) is not None:
                call, done = writer.jobs.popleft()
                self._tell(done, outcome_of(call))
                # While it waits for the next call, this thread must not hold what the last one wrote or read.
                del call, done

    def _next(self, worker: _Worker, last: CrewWriter | None) -> CrewWriter | None:
        """Return the store to be served next, after ``last``; None when there is nothing to do for this thread."""
        with self._lock:
            now_s = self._loop.time()
            if last is not None:
                self._served(last, is_slow=now_s - worker.began_s >= self._slow_s, now_s=now_s)
            writer = self._taken(worker, now_s)
            if writer is None:
                self._idle.append(worker)
                self._end_if_over()
        if self._line and self._timer is None:
            # What waits was put there in this thread: the loop's has to hear of it, should the leader be slow.
            self._call_soon(self._watch)
        return writer

    def _served(self, writer: CrewWriter, *, is_slow: bool, now_s: float) -> None:
        if is_slow:
            writer.apart_until_s = now_s + APART_S
        if writer.jobs:
            self._line.append(writer)
            return
        writer.is_taken = False
        if writer.is_stopped:
            writer.drained.set()

    def _taken(self, worker: _Worker, now_s: float) -> CrewWriter | None:
        """Take the first of the line for a thread, if it leads or nobody who is quick does."""
        leader = self._leader
        leads = leader is None or leader is worker or now_s - leader.began_s >= self._slow_s
        if not self._line or not leads:
            if leader is worker:
                self._leader = None
            return None
        self._leader = worker
        worker.began_s = now_s
        writer = self._line.popleft()
        if now_s < writer.apart_until_s:
            self._leader = None
            self._see_to_line()
        return writer

    def _tell(self, done: _Done, outcome: Outcome) -> None:
        self._outcomes.append((done, outcome))
        if not self._is_told:
            self._is_told = True
            if not self._call_soon(self._announce):
                self._is_told = False

    def _call_soon(self, call: Callable[[], None]) -> bool:
        """Call in the loop; False when it is closed: nobody is left to be told, but what waits has to be written."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return False
        return True
