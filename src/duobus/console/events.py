"""Server-sent events: what is live on a page.

A page that opens a stream gets events until the page closes the stream, the source ends, or the session ends. Between
the source and a browser that reads slowly is a bounded queue; when the queue is full, the oldest event is dropped, and
the page is told how many were.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from aiohttp import web

from duobus.console.namespace.failures import NamespaceError

if TYPE_CHECKING:
    from duobus.console.visits import Visit

#: Events that wait for a browser.
QUEUED_MAX: Final = 500
#: After so many seconds without an event a comment is sent, so that nothing between takes the stream for dead.
_HEARTBEAT_S: Final = 15.0
#: After how many milliseconds a browser comes back when the stream was cut.
_RETRY_MS: Final = 3_000


class Event(NamedTuple):
    """One event.

    Attributes:
        name: The page's script hands it on as an event of this name, at the element that opened the stream. The name
            ``html`` is the script's own: its data has ``target`` (a selector), ``swap`` (as of htmx) and ``html``.
        data: What is sent as JSON.
    """

    name: str
    data: Any


class _Queue:
    """Events between a source and a browser, bounded."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=QUEUED_MAX)
        self._dropped = 0
        self._is_ended = False
        self._changed = asyncio.Event()

    def put(self, event: Event) -> None:
        self._dropped += len(self._events) == QUEUED_MAX
        self._events.append(event)
        self._changed.set()

    def end(self) -> None:
        self._is_ended = True
        self._changed.set()

    async def take(self) -> list[Event] | None:
        """What there is, after waiting for it; an empty list when a heartbeat is due, None at the end."""
        if not self._events and not self._is_ended:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._changed.wait()
        found = list(self._events)
        self._events.clear()
        if self._dropped:
            found.insert(0, Event("dropped", {"count": self._dropped}))
            self._dropped = 0
        return None if not found and self._is_ended else found


async def stream_events(visit: Visit, source: AsyncIterator[Event]) -> web.StreamResponse:
    """Answer a request with the events of a source, which is cancelled when the page goes.

    An error of the namespace ends the stream with an event ``failed`` that tells the error.
    """
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(visit.request)
    queue = _Queue()
    reader = asyncio.ensure_future(_read(source, queue))
    ender = asyncio.ensure_future(_end(visit, queue))
    try:
        await response.write(f"retry: {_RETRY_MS}\n\n".encode())
        while (events := await queue.take()) is not None:
            await response.write(b"".join(map(_encoded, events)) or b":\n\n")
            if visit.session.ended.is_set():
                break
    except ConnectionError:
        # The page was closed.
        pass
    finally:
        for task in (reader, ender):
            task.cancel()
        await asyncio.gather(reader, ender, return_exceptions=True)
    return response


async def _read(source: AsyncIterator[Event], queue: _Queue) -> None:
    try:
        async for event in source:
            queue.put(event)
    except NamespaceError as error:
        queue.put(Event("failed", {"status": error.status, "text": error.text, "trackingId": error.tracking_id}))
    finally:
        queue.end()


async def _end(visit: Visit, queue: _Queue) -> None:
    await visit.session.ended.wait()
    queue.put(Event("ended", {}))
    queue.end()


def _encoded(event: Event) -> bytes:
    # JSON has no line breaks, so that one line of data is enough.
    return b"event: " + event.name.encode() + b"\ndata: " + msgspec.json.encode(event.data) + b"\n\n"
