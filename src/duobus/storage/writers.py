"""Who calls a messaging store: a thread, or the loop itself: for a store in memory, and in simulation after a delay.

A hand-over to a thread costs one queue entry in and one ``call_soon_threadsafe`` out, per commit and never per message.
At the end stands how these threads and the event loop take turns at the interpreter.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from duobus.errors import StoreFailed

T = TypeVar("T")
_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]
#: Of a call: its result, or the error that it raised.
Outcome = tuple[Any, BaseException | None]

#: How long ``stop`` waits for the thread, in seconds: an fsync on a sick disk may take longer than a shutdown can.
STOP_TIMEOUT_S = 10.0


class Writer(Protocol):
    """Runs a store's blocking calls in order; ``done`` gets (result, None) or (None, error), on the loop."""

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run ``call`` behind those submitted before."""


class StoppableWriter(ABC):
    """Runs blocking calls one after the other, in the order in which they were submitted."""

    @abstractmethod
    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run ``call``, then ``done(result, None)`` or ``done(None, error)`` in the loop.

        Called in the loop's thread; never blocks and never calls ``done`` before it returns. After ``stop`` the
        call is not run and ``done`` gets StoreFailed.
        """

    @abstractmethod
    def stop(self) -> bool:
        """Let what was submitted finish, take nothing more; return whether all of it has finished."""


class StoreWriter(StoppableWriter):
    """One thread that owns one store.

    Args:
        loop: Where results are announced.
        name: Of the thread, for the reader of a stack dump.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "store") -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # Not a daemon: the interpreter must not leave in the middle of a commit that a client waits for.
        self._thread = threading.Thread(target=self._run, name=name, daemon=False)
        self._is_started = False
        self._is_stopped = False

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """See ``StoppableWriter.submit``; the first call starts the thread."""
        if self._is_stopped:
            self._loop.call_soon(done, None, StoreFailed("the store's writer has been stopped"))
            return
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        self._jobs.put((call, done))

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """See ``StoppableWriter.stop``; blocks for at most ``timeout_s`` seconds."""
        if not self._is_stopped:
            self._is_stopped = True
            self._jobs.put(None)
        if not self._is_started:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        get, announce = self._jobs.get, self._loop.call_soon_threadsafe
        while (job := get()) is not None:
            call, done = job
            result, error = outcome_of(call)
            try:
                announce(done, result, error)
            except RuntimeError:
                # The loop is closed, nobody is left to be told; what is queued still has to be written.
                continue
            finally:
                # While it waits for the next job, this thread must not hold what the last one wrote or read.
                del job, call, done, result, error


class InlineWriter(StoppableWriter):
    """The twin for simulation: runs each call in the loop, ``delay`` seconds of (virtual) time after the one before.

    Args:
        loop: Whose clock counts and whose thread calls the store.
        delay: Seconds that every call takes, 0 or more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, delay: float = 0.0) -> None:
        self._loop = loop
        self._delay = delay
        self._jobs: deque[_Job] = deque()
        self._is_stopped = False

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """See ``StoppableWriter.submit``."""
        if self._is_stopped:
            self._loop.call_soon(done, None, StoreFailed("the store's writer has been stopped"))
            return
        self._jobs.append((call, done))
        if len(self._jobs) == 1:
            self._loop.call_later(self._delay, self._run_first)

    def stop(self) -> bool:
        """See ``StoppableWriter.stop``; what waits is run by the loop."""
        self._is_stopped = True
        return not self._jobs

    def _run_first(self) -> None:
        call, done = self._jobs[0]
        result, error = outcome_of(call)
        self._jobs.popleft()
        if self._jobs:
            self._loop.call_later(self._delay, self._run_first)
        done(result, error)


class LoopWriter(StoppableWriter):
    """Runs the calls of a store without a disk, which cannot hang, in the loop itself: no thread has to be woken.

    Args:
        loop: Where calls are run and results are announced.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting = 0
        self._is_stopped = False

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """See ``StoppableWriter.submit``; the loop keeps the order."""
        if self._is_stopped:
            self._loop.call_soon(done, None, StoreFailed("the store's writer has been stopped"))
            return
        self._waiting += 1
        self._loop.call_soon(self._run, call, done)

    def stop(self) -> bool:
        """See ``StoppableWriter.stop``; what waits is run by the loop."""
        self._is_stopped = True
        return not self._waiting

    def _run(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._waiting -= 1
        done(*outcome_of(call))


def outcome_of(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Call, and return the result or the error."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - not swallowed: it is the result that the submitter gets
        return None, error


# The switch interval of the interpreter: how long a thread that computes keeps it while another waits (decision 0039).
#
# It is one setting for all threads of the process, so only a server changes it (``set_switch_interval``); where the
# broker is part of somebody else's program, and in the simulation, which has one thread, it stays as it is.

#: The event loop and the store threads hand the interpreter to each other often: at the default of 5 ms a thread
#: that computes stops a store's commit for that long at every statement (decision 0039).
TURN_S: Final = 0.0002
#: While a commit of many pieces is prepared and written. Each turn costs some microseconds to hand over, so that small
#: commits are slower with it (A100 by a seventh).
SHORT_TURN_S: Final = 0.00002
#: Pieces of a commit's removals from which on it has much to do in Python: holders of sessions settle single messages.
PIECES_MIN: Final = 100


class _ShortSwitchInterval:
    def __enter__(self) -> None:
        sys.setswitchinterval(SHORT_TURN_S)

    def __exit__(self, *_: object) -> None:
        sys.setswitchinterval(TURN_S)


_SHORT: Final = _ShortSwitchInterval()
_AS_IT_IS: Final = nullcontext()


def set_switch_interval() -> None:
    """Set the turns of this process, which is a server."""
    sys.setswitchinterval(TURN_S)


def short_switch_interval() -> AbstractContextManager[None]:
    """The turns in which a server's event loop and the thread that commits compute while much is committed."""
    return _SHORT if round(sys.getswitchinterval() / TURN_S, 3) == 1 else _AS_IT_IS
