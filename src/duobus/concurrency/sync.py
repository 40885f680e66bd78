"""Tasks, locks and signals, with threads: the counterpart of ``duobus.concurrency.aio``.

Both modules are written by hand.

A thread cannot be ended from outside. A task that is cancelled ends at the next thing that it waits for here; a call of
the SDK that it is in comes to its end before.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

from duobus.clock import Clock

T = TypeVar("T")

#: Seconds that a task which is cancelled has for what it is in. It goes on behind the scenes after that, and ends then.
END_S: Final = 30.0
#: Which kind of clients of the SDK belongs to this side.
IS_ASYNC: Final = False
SDK: Final = "azure.servicebus"
#: A call of the SDK that waits for something is asked for so long at a time: only between two of them a task ends.
WAIT_S: Final = 0.5
#: Calls of the SDK that have not returned and for which a program without asyncio no longer waits.
LEFT_MAX: Final = 100

_log = logging.getLogger("duobus.ha")
_clock = Clock()
_local = threading.local()


class Cancelled(BaseException):
    """Raised in a task that is cancelled, at whatever it waits for."""


class Signal:
    """A flag to wait for; it may be set from any thread."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._is_set = False

    def bind(self) -> None:
        """For asyncio; threads need none."""

    def set(self) -> None:
        """Wake those who wait."""
        with self._change:
            self._is_set = True
            self._change.notify_all()

    def set_from_anywhere(self) -> None:
        """Wake those who wait."""
        self.set()

    def clear(self) -> None:
        """Take the flag down."""
        with self._change:
            self._is_set = False

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set; tell whether it is."""
        task: Task | None = getattr(_local, "task", None)
        end = None if seconds is None else now() + seconds
        with self._change:
            if task is not None:
                # In this order: whoever cancels sets the flag, then looks where to wake.
                task._waits_for = self
            try:
                while not self._is_set:
                    if task is not None and task._is_cancelled:
                        raise Cancelled
                    left = None if end is None else end - now()
                    if left is not None and left <= 0:
                        return False
                    self._change.wait(left)
            finally:
                if task is not None:
                    task._waits_for = None
        return True

    def _wake(self) -> None:
        with self._change:
            self._change.notify_all()


class Task:
    """A function that runs in a thread of its own; make it with ``spawn``."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], name: str) -> None:
        self._is_cancelled = False
        self._waits_for: Signal | None = None
        self._thread = threading.Thread(target=self._run, args=(function, args), name=name, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """End it where it waits."""
        self._is_cancelled = True
        event = self._waits_for
        if event is not None:
            event._wake()

    @property
    def is_over(self) -> bool:
        """It has ended."""
        return not self._thread.is_alive()

    def ended(self) -> None:
        """Wait until it has ended, however; no longer than half a minute."""
        self._join(END_S)

    def _join(self, seconds: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        _local.task = self
        try:
            function(*args)
        except Cancelled:
            return
        except Exception:  # noqa: BLE001 - a thread has nobody else to tell
            _log.exception("%s ended", self._thread.name)


def spawn(function: Callable[..., Any], *args: Any, name: str = "duobus") -> Task:
    """Run a function beside the caller; an error of it is logged."""
    return Task(function, args, name)


def check() -> None:
    """Raise ``Cancelled`` in a task that is cancelled."""
    task: Task | None = getattr(_local, "task", None)
    if task is not None and task._is_cancelled:
        raise Cancelled


def all_ended(those: Iterable[Task], seconds: float) -> None:
    """Wait until all have ended, however; no longer than so many seconds."""
    end = now() + seconds
    for task in those:
        task._join(max(0.0, end - now()))


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Run functions side by side; return what each returned or raised."""
    answers: list[Any] = [None] * len(functions)

    def run(index: int, function: Callable[[], Any]) -> None:
        try:
            answers[index] = function()
        except Exception as error:  # noqa: BLE001 - it is the answer
            answers[index] = error

    threads = [
        threading.Thread(target=run, args=item, name="duobus together", daemon=True)
        for item in list(enumerate(functions))[1:]
    ]
    for thread in threads:
        thread.start()
    if functions:
        run(0, functions[0])
    for thread in threads:
        thread.join()
    return answers


def in_turn(*functions: Callable[[], Any]) -> list[Any]:
    """Run functions that share one object of the SDK; return what each returned or raised."""
    answers: list[Any] = []
    for function in functions:
        try:
            answers.append(function())
        except Exception as error:  # noqa: BLE001 - it is the answer
            answers.append(error)
    return answers


def result(future: futures.Future[T]) -> T:
    """Wait for what another thread does."""
    return future.result()


def sleep(seconds: float) -> None:
    """Wait."""
    Signal().wait(seconds)


def limit(seconds: float) -> AbstractContextManager[None]:
    """For asyncio: a thread cannot be ended from outside, and the SDK's own time-outs have to do."""
    return nullcontext()


class _Call:
    """A function that runs in a thread of its own, for somebody who may leave before it returns."""

    #: Calls that somebody has left and that have not returned.
    left = 0
    _change = threading.Lock()

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._is_done = self._is_left = False
        self._answer: futures.Future[Any] = futures.Future()
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="duobus call", daemon=True).start()

    def answer(self, seconds: float) -> Any:
        """What it returned or raised; TimeoutError if it did neither in time."""
        try:
            return self._answer.result(seconds)
        except futures.TimeoutError:
            with _Call._change:
                if not self._is_done and not self._is_left:
                    self._is_left = True
                    _Call.left += 1
            raise

    def _run(self) -> None:
        try:
            self._answer.set_result(self._function())
        except BaseException as error:  # noqa: BLE001 - it is the answer
            self._answer.set_exception(error)
        with _Call._change:
            self._is_done = True
            _Call.left -= self._is_left


def within(seconds: float, function: Callable[[], T]) -> T:
    """Run a function that might never return: the SDK's first read of a connection has no time-out whatever it is told.

    Raises:
        TimeoutError: It took longer. It goes on in a thread of its own, and what it works with belongs to that.
    """
    if _Call.left >= LEFT_MAX:
        raise TimeoutError(
            f"{_Call.left} calls of the SDK have not come back: a namespace takes connections and is silent."
        )
    found: T = _Call(function).answer(seconds)
    return found


def lock() -> AbstractContextManager[Any]:
    """Hold others off from what threads share; whoever has it may take it again."""
    return threading.RLock()


def now() -> float:
    """Seconds on a clock that only ever goes on."""
    return _clock.monotonic_ms() / 1000


class Room:
    """Places that are taken and left: a semaphore."""

    def __init__(self, places: int) -> None:
        self._semaphore = threading.Semaphore(places)

    def enter(self) -> None:
        """Take a place; wait while there is none."""
        self._semaphore.acquire()

    def leave(self) -> None:
        """Give a place back."""
        self._semaphore.release()
