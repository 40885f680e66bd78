"""WriterPool: the threads of the stores that share a disk. One works, from store to store, as long as each is quick.

With a thread each, four stores under load are four threads that ask for the interpreter at every statement, beside the
loop's: each commit takes longer, and the disk has one sync at a time for the most part all the same. So one thread, the
*leader*, takes a call of a store, then one of the next that has any; while there is more it does not even sleep, and
the outcomes of several come to the loop in one turn.

No store waits for another's disk, though: a call that takes SLOW_S has lost the lead, and another thread goes on with
what waits; there are as many as stores. A store that was so slow is apart for APART_S: its calls are not the leader's,
so that a disk which hangs now and then costs the others that one wait, and nothing from then on (I9).

Where the loop can go on in another thread (``concurrency/spare_thread.py``), small commits are no calls of these
threads: the loop makes them itself at the end of a turn, as long as the disk is quick (decision 0078).

    leader    ─ store 1 ─ store 3 ─ store 2 ───────────────────── (SLOW_S) ┄┄┄┄┄ back: waits to be needed
    another                                 (store 4, store 1 wait)  ─ store 4 ─ store 1 ─ ...
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from selectors import EVENT_READ
from typing import Any, Final, TypeVar, cast

from duobus.errors import StoreFailed
from duobus.model.quotas import STORE_TIMEOUT_S
from duobus.storage.loop_calls import LOOP_BYTES, YIELDS_BYTES, LoopCall, LoopPace, TurnLoop
from duobus.storage.writers import STOP_TIMEOUT_S, StoppableWriter, Writer

T = TypeVar("T")
_Done = Callable[[Any, BaseException | None], None]

#: A call that takes longer does not hold up other stores. A commit takes 0.2 to 1 ms, a large one 5 to 10; on a
#: machine that is busy all of them take longer, and more threads would make that worse.
SLOW_S: Final = 0.02
#: For so long after a slow call a store is apart.
APART_S: Final = 10.0
#: How long the loop waits at most until a thread that it has woken has begun. Where a processor is free that thread is
#: there in 0.05 ms.
BEGIN_S: Final = 0.0005


class PooledWriter(StoppableWriter):
    """The writer of one store; made by ``WriterPool.writer``."""

    __slots__ = (
        "_pace",
        "_pool",
        "apart_until_s",
        "begun",
        "drained",
        "is_awaited",
        "is_running",
        "is_stopped",
        "is_taken",
        "jobs",
    )

    def __init__(self, pool: WriterPool) -> None:
        self._pool = pool
        # A thread runs a call.
        self.is_running = False
        #: Whether the loop waits until a thread has taken the next call, and by what that thread says so.
        self.is_awaited = False
        self.begun: SimpleQueue[None] = SimpleQueue()
        self.jobs: deque[tuple[Callable[[], Any], _Done]] = deque()
        # A thread is at it, or it stands in the line of those that wait for one.
        self.is_taken = False
        #: Until then it is served beside the leader.
        self.apart_until_s = 0.0
        self._pace = LoopPace()
        self.is_stopped = False
        self.drained = threading.Event()

    def submit(
        self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None], size: int | None = None
    ) -> None:
        """See ``Writer.submit``; of a commit, ``size`` is the bytes that it takes in: small ones the loop may make."""
        pool = self._pool
        if self.is_stopped:
            pool.loop.call_soon(done, None, StoreFailed("the store's writer has been stopped"))
            return
        if size is not None and pool.turn_loop is not None and self._has_loop_make(call, done, size, pool.turn_loop):
            return
        if pool.counter is None and pool.has_counter:
            pool.listen()
        with pool.lock:
            self.jobs.append((call, done))
            if not self.is_taken:
                self.is_taken = True
                pool.line.append(self)
                pool.dispatch()
        if pool.line and pool.timer is None:
            pool.watch()
        if size is not None and size >= YIELDS_BYTES:
            self.let_begin()

    def _has_loop_make(self, call: Callable[[], Any], done: _Done, size: int, loop: TurnLoop) -> bool:
        """Have the loop make a commit at the end of this turn, if that pays; return whether it will."""
        pool = self._pool
        if size >= LOOP_BYTES or self.is_taken or not loop.may_block() or pool.loop.time() < self._pace.paused_until_s:
            return False
        with pool.lock:
            self.is_taken = True

        def finish(result: Any, error: BaseException | None, took_s: float) -> None:
            is_slow = took_s >= pool.slow_s
            now_s = pool.loop.time()
            if is_slow:
                self.apart_until_s = now_s + APART_S
            self._pace.note(took_s, size, now_s, is_slow=is_slow)
            # What a thread did before comes first: a page that was read before this commit lacks what this one has put.
            if pool.outcomes:
                pool.announce()
            pool.release(self)
            done(result, error)

        def pass_on() -> None:
            # Before what has come meanwhile.
            self.jobs.appendleft((call, done))
            pool.release(self)
            if size >= YIELDS_BYTES:
                self.let_begin()

        loop.block(LoopCall(call, size, pool.loop.time, finish=finish, pass_on=pass_on))
        return True

    def let_begin(self) -> None:
        """Leave the interpreter to the thread of what was just submitted, until it runs the call; BEGIN_S at most.

        The loop has answers to write then, and would keep the interpreter until it next asks the system for something,
        while the thread could have its part of the call behind it that needs the interpreter. No disk is waited for:
        where a call is under way, or another store waits for a thread, this returns at once.
        """
        if not self.jobs or self.is_running or self._pool.line:
            return
        while not self.begun.empty():
            # Of a time when this had given up.
            self.begun.get_nowait()
        self.is_awaited = True
        if self.jobs:
            with suppress(Empty):
                self.begun.get(timeout=BEGIN_S)
        self.is_awaited = False

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """See ``Writer.stop``; blocks for at most ``timeout_s`` seconds."""
        self._pool.stop(self)
        return self.drained.wait(timeout_s)


class _Worker:
    """A thread of a writer pool.

    Attributes:
        bell: Gets the store to be served next, or None for the end.
        began_s: When the call under way began.
    """

    __slots__ = ("began_s", "bell")

    def __init__(self) -> None:
        self.bell: SimpleQueue[PooledWriter | None] = SimpleQueue()
        self.began_s = 0.0


class _EventCounter:
    """An event counter of the kernel, to which the event loop listens: one write wakes the loop, and one read there.

    ``call_soon_threadsafe`` sends a byte through a pair of sockets, which takes one more read and three times as long.

    Attributes:
        number: The file's. Whoever may still write has this object, so the number is never another file's by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, announce: Callable[[], None]) -> None:
        self._loop = loop
        self.number = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self.number)
        # A server's loop calls at once what watches a file; see ``TurnLoop.watch``.
        watch = getattr(loop, "watch", None)
        if watch is None:
            loop.add_reader(self.number, announce)
        else:
            watch(self.number, EVENT_READ, lambda _: announce())

    def close(self) -> None:
        """Listen no more; for the loop's thread."""
        unwatch = getattr(self._loop, "unwatch", self._loop.remove_reader)
        unwatch(self.number)


class WriterPool:
    """Runs the calls of several stores, those of each in order.

    Args:
        loop: Where outcomes are announced.
        name: Of the threads, for the reader of a stack dump.
        slow_s: How long a call may take while others wait.

    Attributes:
        loop: As given.
        lock: Held for a few steps each time, never while a call runs.
        line: Stores with calls that no thread is at.
        timer: Set while a store stands in line: when the pool looks whether that store waits for a slow call.
        counter: By which the threads report to the loop; None while no store has calls, and where there is none.
        has_counter: Whether there can be one.
        outcomes: What the threads have done, and the loop has not announced.
        slow_s: As given.
        turn_loop: The loop, if it can make calls of stores itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "stores", slow_s: float = SLOW_S) -> None:
        self.loop = loop
        self.lock = threading.Lock()
        self.line: deque[PooledWriter] = deque()
        self.timer: asyncio.TimerHandle | None = None
        self._name = name
        self.slow_s = slow_s
        self._writers: list[PooledWriter] = []
        self._leader: _Worker | None = None
        #: Threads that sleep; the one that worked last is woken first.
        self._idle: list[_Worker] = []
        self._number = 0
        self.turn_loop = cast("TurnLoop", loop) if hasattr(loop, "block") else None
        self.outcomes: deque[tuple[_Done, Any, BaseException | None]] = deque()
        self._is_told = False
        self.counter: _EventCounter | None = None
        self.has_counter = hasattr(os, "eventfd")

    def writer(self) -> PooledWriter:
        """Return the writer of one more store."""
        writer = PooledWriter(self)
        self._writers.append(writer)
        return writer

    # -- in the loop's thread -----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Have the loop look in a while, if a store stands in line."""
        if self.timer is None and self.line:
            self.timer = self.loop.call_later(self.slow_s, self._check_leader)

    def release(self, writer: PooledWriter) -> None:
        """The loop has made a call of a store, or will not: give what else that store has to a thread."""
        if writer.jobs and self.counter is None and self.has_counter:
            self.listen()
        with self.lock:
            if writer.jobs:
                self.line.append(writer)
                self.dispatch()
            else:
                writer.is_taken = False
                if writer.is_stopped:
                    writer.drained.set()
                    self._end_if_over()
        self.watch()

    def listen(self) -> None:
        """Have the threads report by an event counter from now on, if the loop can listen to one."""
        try:
            self.counter = _EventCounter(self.loop, self.announce)
        except NotImplementedError:
            self.has_counter = False

    def _stop_listening(self) -> None:
        """The last store has been stopped, so no thread reports; a store that has come since then keeps the counter."""
        with self.lock:
            counter = self.counter
            if counter is None or not all(writer.drained.is_set() for writer in self._writers):
                return
            self.counter = None
        counter.close()
        # What was reported and not announced yet.
        self.announce()

    def _check_leader(self) -> None:
        """Look whether what waits has to wait for a slow call."""
        self.timer = None
        with self.lock:
            self.dispatch()
        self.watch()

    def announce(self) -> None:
        """Tell of what the threads have done; called in the loop."""
        if self.counter is not None:
            try:  # noqa: SIM105 - on the path of every commit
                os.eventfd_read(self.counter.number)
            except BlockingIOError:
                # Called in another way than by a write.
                pass
        self._is_told = False
        outcomes = self.outcomes
        while outcomes:
            done, result, error = outcomes.popleft()
            try:
                done(result, error)
            except Exception as fault:  # noqa: BLE001 - a fault of ours must not keep the others' outcomes back
                self.loop.call_exception_handler({"message": "announcing what a store did failed", "exception": fault})

    # -- in any thread, with the lock ---------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Give the first stores in line to threads of their own, while nobody leads or the leader is slow."""
        while self.line:
            now_s = self.loop.time()
            leader = self._leader
            if leader is not None and now_s - leader.began_s < self.slow_s:
                return
            writer = self.line.popleft()
            worker = self._idle.pop() if self._idle else self._new_worker()
            worker.began_s = now_s
            self._leader = None if now_s < writer.apart_until_s else worker
            worker.bell.put(writer)

    def _new_worker(self) -> _Worker:
        # Each of the others is at a store, and there are more stores than those.
        worker = _Worker()
        self._number += 1
        # Not a daemon: the interpreter must not leave in the middle of a commit that a client waits for.
        name = f"{self._name}-{self._number}"
        threading.Thread(target=self._run, args=(worker,), name=name, daemon=False).start()
        return worker

    def stop(self, writer: PooledWriter) -> None:
        """Take nothing more for a store; its threads end with the last store."""
        with self.lock:
            writer.is_stopped = True
            if not writer.is_taken:
                writer.drained.set()
            self._end_if_over()

    def _end_if_over(self) -> None:
        if all(writer.drained.is_set() for writer in self._writers):
            while self._idle:
                self._idle.pop().bell.put(None)
            if self.counter is not None:
                with suppress(RuntimeError):
                    self.loop.call_soon_threadsafe(self._stop_listening)

    # -- in a thread of the writer pool --------------------------------------------------------------------------------

    def _run(self, worker: _Worker) -> None:
        while (writer := worker.bell.get()) is not None:
            next_writer: PooledWriter | None = writer
            while next_writer is not None:
                writer = next_writer
                writer.is_running = True
                call, done = writer.jobs.popleft()
                if writer.is_awaited:
                    writer.is_awaited = False
                    writer.begun.put(None)
                try:
                    self.outcomes.append((done, call(), None))
                except BaseException as error:  # noqa: BLE001 - not swallowed: it is what the submitter gets
                    self.outcomes.append((done, None, error))
                writer.is_running = False
                # While it waits for the next call, this thread must not hold what the last one wrote or read.
                del call, done
                if not self._is_told:
                    self._is_told = True
                    self._report()
                next_writer = self._next(worker, writer)

    def _report(self) -> None:
        """Have the loop announce outcomes; one that is closed has nobody to tell, and what waits is written anyway."""
        counter = self.counter
        if counter is not None:
            os.eventfd_write(counter.number, 1)
            return
        try:
            self.loop.call_soon_threadsafe(self.announce)
        except RuntimeError:
            self._is_told = False

    def _next(self, worker: _Worker, last: PooledWriter) -> PooledWriter | None:
        """Return the store to be served next, after ``last``; None when there is nothing to do for this thread."""
        with self.lock:
            now_s = self.loop.time()
            if now_s - worker.began_s >= self.slow_s:
                last.apart_until_s = now_s + APART_S
            if last.jobs:
                self.line.append(last)
            else:
                last.is_taken = False
                if last.is_stopped:
                    last.drained.set()
            writer = self._first_in_line(worker, now_s) if self.line else None
            if writer is None:
                if self._leader is worker:
                    self._leader = None
                self._idle.append(worker)
                if last.is_stopped:
                    self._end_if_over()
        if self.line and self.timer is None:
            # What waits was put there in this thread: the loop's has to hear of it, should the leader be slow.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.watch)
        return writer

    def _first_in_line(self, worker: _Worker, now_s: float) -> PooledWriter | None:
        """Take the first of the line for a thread, if it leads or nobody who is quick does."""
        leader = self._leader
        if leader is not None and leader is not worker and now_s - leader.began_s < self.slow_s:
            return None
        writer = self.line.popleft()
        worker.began_s = now_s
        self._leader = worker
        if now_s < writer.apart_until_s:
            self._leader = None
            self.dispatch()
        return writer


# Timeouts: a messaging store that does not answer in time counts as failed, although no call has raised (PE4, PE13).
#
# A stalled disk raises nothing: its thread just does not come back, for seconds or for days. A caller that waits for it
# gets StoreFailed when the timeout is over, as if the call had raised it, and what happens from there on is what
# happens after every failure: memory is discarded, keyless runs go elsewhere with a tombstone, the store is closed,
# opened and recovered as soon as its thread comes back (I27, I56). What the stalled call did then shows in the last
# commit number.
#
# Long before that the store is *late*: what could be stored elsewhere and has not been handed to its thread yet no
# longer waits for it, and a receiver that takes messages for good is served elsewhere (I29). Otherwise it would wait
# for the call under way and then for its own, twice the timeout of a store that is not given up, or many times it where
# more waits than one commit takes.

#: A call that has taken so long is late. No healthy disk does that to a commit, and it leaves most of the 5 s that a
#: send without a key may take in all (PE4), and half of the second in which a receiver gets what is elsewhere (I29).
LATE_S: Final = 0.5
#: What a commit may take from its handing over to its answer, in timeouts of the store: the time of PE4 less the
#: time that it takes to send its messages elsewhere.
COMMIT_TIMEOUTS: Final = 1.5
#: How long a refusal may wait until a store has made sure that the messages cannot appear any more: what is left of the
#: time of PE4 when a commit has had all of its timeout.
REFUSAL_S: Final = 0.5
#: How long messages are sent on from one store that failed to the next; what fails later than that is refused.
RERUN_S: Final = 5.0
#: What deletes a whole entity may have millions of rows to delete.
LONG_S: Final = 60.0
#: How long a server that is told to stop waits for a store to close.
CLOSE_S: Final = 10.0
#: For opening and recovery, which take as long as they take: nobody waits for an answer of theirs.
ENDLESS_S: Final = float("inf")


class PendingCall:
    """One call that was handed over.

    Attributes:
        done: Whom to tell; None when somebody has been told that the store stalls.
        timeout_s: How long it may take once nothing is before it.
        due_s: When it has to be answered in any case.
        is_dropped: It had not begun when the store stalled: it never will.
    """

    __slots__ = ("_call", "done", "due_s", "is_dropped", "timeout_s")

    def __init__(
        self, call: Callable[[], Any], done: Callable[[Any, BaseException | None], None], timeout_s: float
    ) -> None:
        self._call = call
        self.done: Callable[[Any, BaseException | None], None] | None = done
        self.timeout_s = timeout_s
        self.due_s = ENDLESS_S
        self.is_dropped = False

    def run(self) -> Any:
        """Do what was asked for, in the thread of the store."""
        if self.is_dropped:
            raise StoreFailed("given up before it began, because the store stalled")
        return self._call()


class StoreWatchdog:
    """A writer whose calls are given up when they take too long.

    One timer at most, however many calls there are. It stays as it is when calls are answered, for the next ones, and
    when none have come by its end there is no timer any more.

    Args:
        loop: Whose clock counts.
        writer: Runs the calls, in order; all of them come through here.
        timeout_s: How long a call may take, in seconds, unless ``submit`` says otherwise.
        late: Told once of each call that has been the first in line for LATE_S and may take longer.
        prompt: Told when such a call has come to a good end, before whoever waits for it is.

    Attributes:
        is_late: The call under way is such a one.
        is_stalled: A call was given up, and nothing has come back since.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: Writer,
        timeout_s: float = STORE_TIMEOUT_S,
        late: Callable[[], None] | None = None,
        prompt: Callable[[], None] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.is_late = False
        self.is_stalled = False
        self._late = late
        self._prompt = prompt
        self._loop = loop
        self._writer = writer
        self._pending_calls: deque[PendingCall] = deque()
        self._first_since_s = 0.0
        self._commit: PendingCall | None = None
        self._commit_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def submit(
        self,
        call: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
        timeout_s: float | None = None,
        *,
        size: int | None = None,
    ) -> None:
        """See ``Writer.submit``; ``done`` gets StoreFailed when the call is given up.

        Args:
            call: As there.
            done: As there.
            timeout_s: Of this call; None for that of the writer.
            size: Of a commit, the bytes that it takes in. With many it needs the interpreter for a while before it
                comes to its disk, and a thread is let begin with it; with few the loop may make it. It is the one
                commit under way: it is given up COMMIT_TIMEOUTS time-outs after this, too.
        """
        pending_call = PendingCall(call, done, self.timeout_s if timeout_s is None else timeout_s)
        now_s = self._loop.time()
        waiting = self._pending_calls
        if size is not None:
            self._commit, self._commit_since_s = pending_call, now_s
            if not waiting or all(other.timeout_s <= self.timeout_s for other in waiting):
                # Behind what may take longer on a healthy disk, its own timeout is all there is.
                pending_call.due_s = now_s + COMMIT_TIMEOUTS * self.timeout_s
        if not waiting:
            self._first_since_s = now_s
        waiting.append(pending_call)
        self._watch()
        writer, done = self._writer, partial(self._answered, pending_call)
        if size is not None and isinstance(writer, PooledWriter):
            writer.submit(pending_call.run, done, size)
        else:
            writer.submit(pending_call.run, done)

    def end(self) -> None:
        """Give nothing up any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.timeout_s = ENDLESS_S

    def _answered(self, pending_call: PendingCall, result: Any, error: BaseException | None) -> None:
        done = pending_call.done
        self.is_stalled = False
        if done is None:
            return
        # In order: what was not given up is the first one.
        self._pending_calls.popleft()
        if pending_call is self._commit:
            self._commit = None
        was_late, self.is_late = self.is_late, False
        if self._pending_calls:
            self._first_since_s = self._loop.time()
            self._watch()
        if was_late and error is None and self._prompt is not None:
            self._prompt()
        done(result, error)

    def _watch(self) -> None:
        """Set the timer to when something is to be done about the first call."""
        first = self._pending_calls[0]
        if first.timeout_s == ENDLESS_S:
            return
        allowed_s = first.timeout_s if self._late is None or self.is_late else min(first.timeout_s, LATE_S)
        over_s = self._first_since_s + allowed_s
        if self._commit is not None and self._commit.due_s < over_s:
            over_s = self._commit.due_s
        if self._timer is not None:
            # It was set for what came before: it looks again when it finds that it is too early.
            if self._timer.when() <= over_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(over_s, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._pending_calls or self._pending_calls[0].timeout_s == ENDLESS_S:
            return
        now_s = self._loop.time()
        due_s = ENDLESS_S if self._commit is None else self._commit.due_s
        if now_s >= min(self._first_since_s + self._pending_calls[0].timeout_s, due_s):
            self._give_up()
        elif self._late is not None and not self.is_late and now_s >= self._first_since_s + LATE_S:
            self.is_late = True
            self._late()
        if self._pending_calls:
            self._watch()

    def _give_up(self) -> None:
        self.is_late = False
        self.is_stalled = True
        pending_calls, self._pending_calls = self._pending_calls, deque()
        since_s = self._first_since_s if self._commit is None else min(self._first_since_s, self._commit_since_s)
        waited_s = self._loop.time() - since_s
        self._commit = None
        error = StoreFailed(f"the store stalls: no answer within {waited_s:.1f} seconds")
        waiting = []
        for index, pending_call in enumerate(pending_calls):
            # The first one is under way and may yet come to its end; the others never begin.
            pending_call.is_dropped = index > 0
            if pending_call.done is not None:
                waiting.append(pending_call.done)
            pending_call.done = None
        for done in waiting:
            done(None, error)
