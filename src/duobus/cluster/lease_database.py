"""One database with leases: its table, and the thread that asks it, so that no table waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from duobus.storage.catalog.leases import LeaseTable
from duobus.storage.writers import StoppableWriter, Writer

T = TypeVar("T")


class LeaseDatabase:
    """The table of one database.

    Attributes:
        name: What it is called among the others; see ``StoreLeases.databases``.
        table: Its table.
        fault: Why it was not reached last; None: it was.
        beating: What asks it time and again.
    """

    def __init__(self, name: str, table: LeaseTable, thread: StoppableWriter, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.table = table
        self.fault: str | None = "it was not asked yet"
        self.beating: asyncio.Task[None] | None = None
        self._thread = thread
        self._loop = loop

    def call(self, call: Callable[[LeaseTable], T]) -> asyncio.Future[T]:
        """Do something with the table, in its thread."""
        return submitted(self._loop, self._thread, lambda: call(self.table))

    async def close(self) -> None:
        """End the session and the thread."""
        self._thread.submit(self.table.close, lambda _result, _error: None)
        await self._loop.run_in_executor(None, self._thread.stop)


def submitted(loop: asyncio.AbstractEventLoop, thread: Writer, call: Callable[[], T]) -> asyncio.Future[T]:
    """Have a thread do something, and return the future of its result."""
    future: asyncio.Future[T] = loop.create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    thread.submit(call, done)
    return future
