"""An ASGI application behind a relay: lifespan, HTTP and WebSocket scopes (ASGI 3.0).

The application sees paths without that of the hybrid connection. Bodies go piece by piece both ways: the application
reads what the sender has sent so far, and waits while the sender reads slowly. A short answer that is complete at once
goes over the control channel of the listener, every other one over a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

from duobus.model.relay.headers import combined
from duobus.model.relay.limits import CHANNEL_BODY_BYTES_MAX, CLOSE_ERROR, CLOSE_NORMAL
from duobus.relay.aio.bodies import Answer, StreamedRequest, StreamedResponse
from duobus.relay.aio.listener import PendingConnection
from duobus.relay.aio.sender import RelayConnection
from duobus.relay.errors import RelayError, StreamClosed
from duobus.relay.http import RelayResponse

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

_log = logging.getLogger("duobus.relay")
#: An application that has begun to answer has so long to complete its answer; one that goes on is streamed.
FLUSH_S: Final = 0.05
_VERSION: Final = {"version": "3.0", "spec_version": "2.4"}


class LifespanFailed(Exception):
    """The application said that it cannot start, or not stop; the text is its own."""


class AsgiService:
    """Hands requests and connections of listeners to an ASGI application.

    Give ``on_stream`` and ``on_connection`` to a ``RelayListener`` or a ``PairListener``. ``async with`` runs the
    application's lifespan.

    Args:
        application: The application.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        #: Requests that the application works on, those that are answered and not yet over included.
        self._running: set[asyncio.Task[None]] = set()
        self._state: dict[str, Any] = {}
        self._lifespan: asyncio.Task[None] | None = None
        self._to_lifespan: asyncio.Queue[Message] = asyncio.Queue()
        self._from_lifespan: asyncio.Queue[Message] = asyncio.Queue()

    # -- lifespan -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        scope: Message = {"type": "lifespan", "asgi": _VERSION, "state": self._state}
        self._lifespan = asyncio.create_task(self._run_lifespan(scope), name="duobus relay lifespan")
        await self._tell_lifespan("lifespan.startup")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._tell_lifespan("lifespan.shutdown")
        if self._lifespan is not None:
            self._lifespan.cancel()
            await asyncio.gather(self._lifespan, return_exceptions=True)

    async def _run_lifespan(self, scope: Message) -> None:
        try:
            await self._application(scope, self._to_lifespan.get, self._from_lifespan.put)
        except Exception as error:  # noqa: BLE001 - an application without a lifespan raises here (ASGI)
            _log.debug("the application has no lifespan: %r", error)

    async def _tell_lifespan(self, what: str) -> None:
        if self._lifespan is None or self._lifespan.done():
            return
        await self._to_lifespan.put({"type": what})
        answer = asyncio.create_task(self._from_lifespan.get())
        await asyncio.wait([answer, self._lifespan], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
        elif answer.result()["type"] == f"{what}.failed":
            raise LifespanFailed(str(answer.result().get("message", "")) or f"the application failed at {what}")

    # -- HTTP ---------------------------------------------------------------------------------------------------

    async def on_stream(self, asked: StreamedRequest) -> Answer:
        """Have a request answered by the application."""
        exchange = _HttpExchange(asked)
        scope = {
            **self._scope("http", asked.path, asked.query, asked.headers),
            "method": asked.method,
            "client": None if asked.remote is None else (asked.remote.address, asked.remote.port),
        }
        task = asyncio.create_task(self._run_http(scope, exchange), name="duobus relay application")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await exchange.answer()
        except BaseException:
            task.cancel()
            raise

    async def _run_http(self, scope: Message, exchange: _HttpExchange) -> None:
        error: Exception | None = None
        try:
            await self._application(scope, exchange.receive, exchange.send)
        except Exception as raised:  # noqa: BLE001 - the application's own
            error = raised
        if error is not None and exchange.is_complete:
            _log.error("the application raised after its answer", exc_info=error)
        exchange.end(error)

    # -- WebSocket ----------------------------------------------------------------------------------------------

    async def on_connection(self, pending: PendingConnection) -> None:
        """Hand a connection to the application."""
        exchange = _SocketExchange(pending)
        remote = pending.offer.remote
        scope = {
            **self._scope("websocket", pending.path, pending.query, pending.headers),
            "subprotocols": list(pending.protocols),
            "client": None if remote is None else (remote.address, remote.port),
        }
        try:
            await self._application(scope, exchange.receive, exchange.send)
        except Exception:
            await exchange.end(CLOSE_ERROR)
            raise
        await exchange.end(CLOSE_NORMAL)

    def _scope(self, kind: str, path: str, query: str, headers: Mapping[str, str]) -> dict[str, Any]:
        return {
            "type": kind,
            "asgi": _VERSION,
            "http_version": "1.1",
            "scheme": "https" if kind == "http" else "wss",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
                for name, value in headers.items()
            ],
            "server": None,
            "state": self._state.copy(),
        }


class _HttpExchange:
    """One request and its answer."""

    def __init__(self, asked: StreamedRequest) -> None:
        self._asked = asked
        self._is_read = False
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: deque[bytes] = deque()
        self._size = 0
        #: Whether the application has given all of its answer.
        self.is_complete = False
        self._is_ended = False
        self._is_closed = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._over = asyncio.Event()

    # -- for the application ----------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        if self._is_read:
            await self._over.wait()
            return {"type": "http.disconnect"}
        body = self._asked.body
        try:
            piece = await body.receive_piece()
        except RelayError:
            self._is_read = True
            self._close()
            return {"type": "http.disconnect"}
        self._is_read = body.whole is not None or not piece
        return {"type": "http.request", "body": piece, "more_body": not self._is_read}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = int(message["status"])
            self._headers = combined(
                (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
                for name, value in message.get("headers", ())
            )
        elif message["type"] == "http.response.body":
            piece = bytes(message.get("body", b""))
            if piece:
                self._pieces.append(piece)
                self._size += len(piece)
            if not message.get("more_body", False):
                self.is_complete = True
                self._over.set()
        self._changed.set()
        while self._size > CHANNEL_BODY_BYTES_MAX and not self.is_complete and not self._is_closed:
            self._taken.clear()
            await self._taken.wait()
        if self._is_closed:
            # As the specification has it for a client that has gone.
            raise OSError("the sender is gone")

    def end(self, error: Exception | None) -> None:
        """The application has returned, or raised."""
        self._is_ended = True
        self._error = error
        self._over.set()
        self._changed.set()

    # -- for the listener -------------------------------------------------------------------------------------------

    async def answer(self) -> Answer:
        """The answer: as a whole where it is short and complete at once, else piece by piece."""
        while not self._status and not self._is_ended:
            await self._change()
        try:
            async with asyncio.timeout(FLUSH_S):
                while not (self.is_complete or self._is_ended or self._size > CHANNEL_BODY_BYTES_MAX):
                    await self._change()
        except TimeoutError:
            pass
        if self._error is not None and not self.is_complete:
            raise self._error
        if not self._status:
            return RelayResponse(500, body=b"The application gave no answer.")
        if self.is_complete:
            return RelayResponse(self._status, self._headers, b"".join(self._pieces))
        return StreamedResponse(self._status, self._headers, self._streamed(), on_close=self._closed)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _streamed(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._size -= len(piece)
                self._taken.set()
                yield piece
            if self.is_complete:
                return
            if self._is_ended:
                raise self._error or RuntimeError("the application ended before its answer did")
            await self._change()

    async def _closed(self) -> None:
        self._close()

    def _close(self) -> None:
        """Nobody reads the answer any more."""
        self._is_closed = not self.is_complete
        self._over.set()
        self._taken.set()


class _SocketExchange:
    """One WebSocket connection."""

    def __init__(self, pending: PendingConnection) -> None:
        self._pending = pending
        self._connection: RelayConnection | None = None
        self._is_told = False
        self._is_over = False

    async def receive(self) -> Message:
        if not self._is_told:
            self._is_told = True
            return {"type": "websocket.connect"}
        if self._connection is None:
            return {"type": "websocket.disconnect", "code": 1006, "reason": ""}
        try:
            message = await self._connection.receive()
        except StreamClosed as error:
            return {"type": "websocket.disconnect", "code": error.code, "reason": error.reason}
        if message is None:
            return {"type": "websocket.disconnect", "code": self._connection.close_code or CLOSE_NORMAL, "reason": ""}
        kind = "text" if isinstance(message, str) else "bytes"
        return {"type": "websocket.receive", kind: message}

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            self._connection = await self._pending.accept(message.get("subprotocol"))
        elif kind == "websocket.send" and self._connection is not None:
            text, data = message.get("text"), message.get("bytes")
            try:
                await self._connection.send(bytes(data or b"") if text is None else str(text))
            except RelayError as error:
                # As the specification has it for a connection that has ended.
                raise OSError(str(error)) from error
        elif kind == "websocket.close":
            await self.end(int(message.get("code", CLOSE_NORMAL)), str(message.get("reason") or ""))

    async def end(self, code: int, reason: str = "") -> None:
        """Close or reject what is open."""
        if self._is_over:
            return
        self._is_over = True
        if self._connection is not None:
            await self._connection.close(code, reason)
        else:
            await self._pending.reject(403, reason or "The application did not accept the connection.")
