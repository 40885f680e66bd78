"""The event loop of all connections of a program that uses threads, and bodies that a thread hands to that loop.

All connections live in one event loop, which runs in a thread of its own; a call waits for what that loop does. Reading
of many sockets and time-outs are asyncio's work this way, and there is one client of HTTP and not two.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

_T = TypeVar("_T")


class BackgroundLoop:
    """An event loop in a thread, which begins with the first call and ends with the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started()).result()

    def run_with_body(
        self, send: Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, _T]], body: Iterable[bytes]
    ) -> _T:
        """Run a coroutine that sends a body, and make the pieces of the body in this thread meanwhile."""
        pipe = _Pipe()
        sending = self.run(_begun(send(pipe.pieces())))
        try:
            for piece in body:
                if not self.run(pipe.put(piece, sending)):
                    break
            else:
                self.run(pipe.put(None, sending))
        except BaseException:
            self.run(_cancelled(sending))
            raise
        return self.run(_result(sending))

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="duobus relay", daemon=True).start()
            return self._loop


class _Pipe:
    """Pieces of a body on their way from a thread into the loop, one at a time: the thread waits for the network."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._closed = asyncio.Event()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The pieces, for the request that sends them."""
        try:
            while (piece := await self._queue.get()) is not None:
                yield piece
        finally:
            self._closed.set()

    async def put(self, piece: bytes | None, sending: asyncio.Task[Any]) -> bool:
        """Hand on a piece, or the end; tell whether anybody has taken it or still may."""
        putting = asyncio.ensure_future(self._queue.put(piece))
        closed = asyncio.ensure_future(self._closed.wait())
        # A request that has its answer may still be sending; one that failed is not.
        waited: set[asyncio.Future[Any]] = {putting, closed}
        if not sending.done():
            waited.add(sending)
        while not putting.done() and not closed.done() and not _has_failed(sending):
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            waited.discard(sending)
        is_taken = putting.done()
        for each in (putting, closed):
            each.cancel()
        return is_taken


def _has_failed(sending: asyncio.Task[Any]) -> bool:
    return sending.done() and (sending.cancelled() or sending.exception() is not None)


async def _begun(sending: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    return asyncio.ensure_future(sending)


async def _result(sending: asyncio.Task[_T]) -> _T:
    return await sending


async def _cancelled(sending: asyncio.Task[Any]) -> None:
    sending.cancel()
    await asyncio.wait([sending])


loop: Final = BackgroundLoop()
