"""Tasks, locks and signals for client code; the twin ``duobus.concurrency.sync`` has the same names and uses threads.

The twins are generated (``make twins``), and what differs between asyncio and threads is gathered here: whatever is to
run beside the caller is given as a function with its arguments, never as a coroutine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

T = TypeVar("T")

_log = logging.getLogger("duobus.ha")

#: Which kind of clients of the SDK belongs to this side.
IS_ASYNC: Final = True
SDK: Final = "azure.servicebus.aio"
#: A call of the SDK may wait so long; it is cancelled where it waits.
WAIT_S: Final = float("inf")
#: Raised in a task that is cancelled, at whatever it waits for.
Cancelled = asyncio.CancelledError


#: Tasks that run, whether their callers hold them or not.
_RUNNING: Final[set[asyncio.Task[Any]]] = set()


class Signal:
    """A flag to wait for; it may be set from any thread, once somebody has waited for it or ``bind`` was called."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """Belong to the running loop."""
        self._loop = asyncio.get_running_loop()

    def set(self) -> None:
        """Wake those who wait; within the loop only."""
        self._event.set()

    def set_from_anywhere(self) -> None:
        """Wake those who wait, from any thread; nothing if the loop has ended."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Take the flag down."""
        self._event.clear()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set; tell whether it is."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Task:
    """A function that runs beside its caller; make it with ``spawn``."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self._task = asyncio.create_task(coroutine, name=name)
        # The loop refers to it weakly, so that the collector would take it while it waits for what nothing else holds.
        _RUNNING.add(self._task)
        self._task.add_done_callback(self._on_end)

    def cancel(self) -> None:
        """End it where it waits."""
        self._task.cancel()

    @property
    def is_over(self) -> bool:
        """Whether the task has ended."""
        return self._task.done()

    async def ended(self) -> None:
        """Wait until it has ended, however."""
        await asyncio.gather(self._task, return_exceptions=True)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        _RUNNING.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s ended", task.get_name(), exc_info=task.exception())


def spawn(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any, name: str = "duobus") -> Task:
    """Run a function beside the caller, to its end even if the caller drops the result; an error of it is logged."""
    return Task(function(*args), name)


def check() -> None:
    """Raise ``Cancelled`` in a task that is cancelled.

    asyncio does so by itself, but the SDK loses that at times: ``asyncio.wait_for`` of Python 3.11 returns the result
    when that comes in the same moment. A loop that goes on after a call of the SDK asks here.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise Cancelled


async def all_ended(those: Iterable[Task], seconds: float) -> None:
    """Wait until all have ended, however; no longer than so many seconds."""
    waited = [task._task for task in those]
    if waited:
        await asyncio.wait(waited, timeout=seconds)


async def together(*functions: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run functions side by side; return what each returned or raised."""
    return await asyncio.gather(*(function() for function in functions), return_exceptions=True)


async def in_turn(*functions: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run functions that share one object of the SDK; return what each returned or raised.

    In one event loop that is side by side; with threads it is one after the other.
    """
    return await together(*functions)


async def result(future: futures.Future[T]) -> T:
    """Wait for what another thread does. It is done whether or not this is cancelled."""
    return await asyncio.shield(asyncio.wrap_future(future))


async def sleep(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


def limit(seconds: float) -> asyncio.Timeout:
    """Raise ``TimeoutError`` in a block that takes longer."""
    return asyncio.timeout(seconds)


async def within(seconds: float, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a function that might never return.

    Raises:
        TimeoutError: It took longer; it is cancelled.
    """
    async with asyncio.timeout(seconds):
        return await function()


def lock() -> AbstractContextManager[Any]:
    """Hold others off from what tasks share; between two awaits nobody else runs, so that it is nothing here."""
    return nullcontext()


def now() -> float:
    """Seconds on a clock that only ever goes on."""
    return asyncio.get_running_loop().time()


class Room:
    """Places that are taken and left: a semaphore."""

    def __init__(self, places: int) -> None:
        self._semaphore = asyncio.Semaphore(places)

    async def enter(self) -> None:
        """Take a place; wait while there is none."""
        await self._semaphore.acquire()

    def leave(self) -> None:
        """Give a place back."""
        self._semaphore.release()
