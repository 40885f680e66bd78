"""WebSockets and HTTP requests of one endpoint, for threads: the counterpart of ``duobus.relay.aio.connections``.

Both modules are written by hand. A call here waits for what the event loop in the background does.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from duobus.model.relay.limits import CLOSE_NORMAL
from duobus.relay.aio import connections as asynchronous
from duobus.relay.background_loop import loop
from duobus.relay.http import BODY_BYTES_MAX, RelayResponse
from duobus.relay.sync.message_sockets import MessageSocket


class WebSocket:
    """One open WebSocket; the attributes are those of the counterpart."""

    def __init__(self, socket: asynchronous.WebSocket) -> None:
        self._socket = socket
        self.endpoint = socket.endpoint
        self.protocol = socket.protocol

    @property
    def close_code(self) -> int | None:
        """The code with which the connection ended; None while it is open."""
        return self._socket.close_code

    @property
    def close_reason(self) -> str:
        """The text beside the code."""
        return self._socket.close_reason

    def receive(self) -> str | bytes | None:
        """Return the next message; None when the connection has ended, by ``close`` in another thread, too."""
        return loop.run(self._socket.receive())

    def send(self, *messages: str | bytes) -> None:
        """Send messages, one directly behind the other; see the counterpart."""
        loop.run(self._socket.send(*messages))

    def close(self, code: int = CLOSE_NORMAL, reason: str = "") -> None:
        """Close the connection; do nothing if it has ended."""
        loop.run(self._socket.close(code, reason))


class AnswerStream:
    """The head of an answer, and its body as it comes; see the counterpart."""

    def __init__(self, answer: asynchronous.AnswerStream) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers = answer.headers
        self.reason = answer.reason
        self.endpoint = answer.endpoint

    def receive_piece(self) -> bytes:
        """Return the next piece of the body; nothing at its end."""
        return loop.run(self._answer.receive_piece())

    def close(self) -> None:
        """Give the connection back."""
        loop.run(self._answer.close())


class Connections:
    """The connections to one endpoint; see the counterpart.

    Args:
        tls: Which certificates are trusted, and which one is shown.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._connections = asynchronous.Connections(tls)

    def close(self) -> None:
        """Close all connections."""
        loop.run(self._connections.close())

    def open(
        self,
        address: str,
        headers: Mapping[str, str],
        endpoint: str,
        *,
        limit_s: float,
        protocols: Sequence[str] = (),
        message_max: int = BODY_BYTES_MAX,
    ) -> WebSocket:
        """Open a WebSocket; see the counterpart."""
        opened = self._connections.open(
            address, headers, endpoint, limit_s=limit_s, protocols=protocols, message_max=message_max
        )
        return WebSocket(loop.run(opened))

    def open_messages(self, address: str, endpoint: str, *, limit_s: float) -> MessageSocket:
        """Open a WebSocket over which a request or an answer goes piece by piece; see the counterpart."""
        return MessageSocket(loop.run(self._connections.open_messages(address, endpoint, limit_s=limit_s)))

    def stream(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes],
        endpoint: str,
        *,
        limit_s: float,
        connect_s: float,
        pause_s: float,
    ) -> AnswerStream:
        """Send a request; return the answer when its head is there; see the counterpart."""

        def send(content: bytes | AsyncIterable[bytes]) -> Coroutine[Any, Any, asynchronous.AnswerStream]:
            return self._connections.stream(
                *(method, address, headers, content, endpoint), limit_s=limit_s, connect_s=connect_s, pause_s=pause_s
            )

        return AnswerStream(loop.run(send(body)) if isinstance(body, bytes) else loop.run_with_body(send, body))

    def request(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes],
        endpoint: str,
        *,
        limit_s: float,
        connect_s: float,
        body_max: int = BODY_BYTES_MAX,
    ) -> RelayResponse:
        """Send a request; see the counterpart."""

        def send(content: bytes | AsyncIterable[bytes]) -> Coroutine[Any, Any, RelayResponse]:
            return self._connections.request(
                *(method, address, headers, content, endpoint), limit_s=limit_s, connect_s=connect_s, body_max=body_max
            )

        return loop.run(send(body)) if isinstance(body, bytes) else loop.run_with_body(send, body)
