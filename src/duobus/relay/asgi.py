"""An ASGI application behind a relay: lifespan, HTTP and WebSocket scopes (ASGI 3.0).

The application sees paths without that of the hybrid connection. An answer that the application streams is gathered and
sent when it is complete, because one answer is one message of the relay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

from duobus.model.relay.headers import combined
from duobus.model.relay.limits import CLOSE_ERROR, CLOSE_NORMAL
from duobus.relay.aio.listener import PendingConnection
from duobus.relay.aio.sender import RelayConnection
from duobus.relay.errors import RelayError, StreamClosed
from duobus.relay.http import BODY_BYTES_MAX, RelayRequest, RelayResponse

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

_log = logging.getLogger("duobus.relay")
_CHUNK_BYTES: Final = 64 << 10
_VERSION: Final = {"version": "3.0", "spec_version": "2.4"}


class LifespanFailed(Exception):
    """The application said that it cannot start, or not stop; the text is its own."""


class AsgiService:
    """Hands requests and connections of listeners to an ASGI application.

    Give ``on_request`` and ``on_connection`` to a ``RelayListener`` or a ``PairListener``. ``async with`` runs the
    application's lifespan.

    Args:
        application: The application.
        body_max: Largest answer, in bytes.
    """

    def __init__(self, application: Application, *, body_max: int = BODY_BYTES_MAX) -> None:
        self._application = application
        self._body_max = body_max
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

    async def on_request(self, asked: RelayRequest) -> RelayResponse:
        """Have a request answered by the application."""
        exchange = _HttpExchange(asked.body, self._body_max)
        scope = {
            **self._scope("http", asked.path, asked.query, asked.headers),
            "method": asked.method,
            "client": None if asked.remote is None else (asked.remote.address, asked.remote.port),
        }
        await self._application(scope, exchange.receive, exchange.send)
        return exchange.answer()

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

    def __init__(self, body: bytes, body_max: int) -> None:
        self._body = body
        self._sent = 0
        self._is_asked = False
        self._body_max = body_max
        self._status = 0
        self._headers: dict[str, str] = {}
        self._content = bytearray()
        self._complete = asyncio.Event()

    async def receive(self) -> Message:
        if self._is_asked and self._sent >= len(self._body):
            await self._complete.wait()
            return {"type": "http.disconnect"}
        self._is_asked = True
        chunk = self._body[self._sent : self._sent + _CHUNK_BYTES]
        self._sent += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": self._sent < len(self._body)}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = int(message["status"])
            self._headers = combined(
                (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
                for name, value in message.get("headers", ())
            )
        elif message["type"] == "http.response.body":
            self._content += message.get("body", b"")
            if len(self._content) > self._body_max:
                raise ValueError(f"the answer has more than {self._body_max} bytes")
            if not message.get("more_body", False):
                self._complete.set()

    def answer(self) -> RelayResponse:
        if not self._status:
            return RelayResponse(500, body=b"The application gave no answer.")
        return RelayResponse(self._status, self._headers, bytes(self._content))


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
