"""What tests of event loops and of the writers of stores wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from duobus.storage.writer_pool import PooledWriter

#: How long a test waits for what comes at once.
TURN_LIMIT_S = 20.0


async def turned_until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()

    def look() -> None:
        if is_so():
            seen.set()
        else:
            loop.call_later(0.001, look)

    look()
    await asyncio.wait_for(seen.wait(), TURN_LIMIT_S)


def submitted(writer: PooledWriter, call: Callable[[], Any], size: int | None = None) -> asyncio.Future[Any]:
    """Submit a call, a commit if it has a ``size``; the future gets what comes of it."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any, error: BaseException | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    writer.submit(call, done, size)
    return future


async def stopped(*writers: PooledWriter) -> list[bool]:
    """Stop the writers of stores; return whether all that was submitted to each has been run."""
    loop = asyncio.get_running_loop()
    return [await loop.run_in_executor(None, writer.stop) for writer in writers]
