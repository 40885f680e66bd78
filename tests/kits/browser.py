"""Tests with a real browser: Debian's Chromium, driven by Playwright in one event loop that all of these tests share.

The loop runs in a thread of its own, where broker and console run as well: the loops of other tests end with their
tests, and a browser would not survive that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Final, TypeVar

#: Longest time that one test with a browser may take, on a machine that is busy with others.
LIMIT_S: Final = 200.0

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser-tests", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = LIMIT_S) -> T:
        """Run a coroutine there, and wait for its end.

        A ``TimeoutError`` would lose its traceback on the way out of the thread, because asyncio makes a new one of it;
        so it is raised as another error, whose cause tells where the work stood.
        """

        async def limited() -> T:
            limit = asyncio.timeout(limit_s)
            try:
                async with limit:
                    return await work
            except TimeoutError as error:
                text = f"not done within {limit_s:g} s; the lines above tell where" if limit.expired() else str(error)
                raise AssertionError(text) from error

        return asyncio.run_coroutine_threadsafe(limited(), self._loop).result()

    def stop(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


#: The loop while there is a browser; the fixture ``browser`` puts it here.
current: list[LoopThread] = []


def in_browser(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine as a test in the loop of the browser; the test asks for the fixture ``page`` or ``browser``."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        current[0].run(test(*args, **kwargs))

    return run


class Opened:
    """What ``async with`` gives, kept open between the set-up and the end of a fixture.

    Args:
        context: As ``console(...)`` of ``kits.console`` makes one.
    """

    def __init__(self, context: AbstractAsyncContextManager[Any]) -> None:
        self._context = context
        self.value = current[0].run(context.__aenter__())

    def close(self) -> None:
        """Leave the context."""
        current[0].run(self._context.__aexit__(None, None, None))
