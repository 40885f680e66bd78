"""WebSockets and HTTP requests of one endpoint, for threads: the counterpart of ``duobus.relay.aio.connections``.

Both modules are written by hand. All connections of a program live in one event loop, which runs in a thread of its
own; a call here waits for what that loop does. Reading of many sockets and time-outs are asyncio's work this way, and
there is one client of HTTP and not two.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from duobus.model.relay.limits import CLOSE_NORMAL
from duobus.relay.aio import connections as asynchronous
from duobus.relay.http import BODY_BYTES_MAX, RelayResponse

_T = TypeVar("_T")


class _Loop:
    """The event loop of all connections, which begins with the first call and ends with the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop, and wait for it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="duobus relay", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


_loop: Final = _Loop()


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
        return _loop.run(self._socket.receive())

    def send(self, *messages: str | bytes) -> None:
        """Send messages, one directly behind the other; see the counterpart."""
        _loop.run(self._socket.send(*messages))

    def close(self, code: int = CLOSE_NORMAL, reason: str = "") -> None:
        """Close the connection; do nothing if it has ended."""
        _loop.run(self._socket.close(code, reason))


class Connections:
    """The connections to one endpoint; see the counterpart.

    Args:
        tls: Which certificates are trusted, and which one is shown.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._connections = asynchronous.Connections(tls)

    def close(self) -> None:
        """Close all connections."""
        _loop.run(self._connections.close())

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
        return WebSocket(_loop.run(opened))

    def request(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        body: bytes,
        endpoint: str,
        *,
        limit_s: float,
        connect_s: float,
        body_max: int = BODY_BYTES_MAX,
    ) -> RelayResponse:
        """Send a request; see the counterpart."""
        return _loop.run(
            self._connections.request(
                method, address, headers, body, endpoint, limit_s=limit_s, connect_s=connect_s, body_max=body_max
            )
        )
