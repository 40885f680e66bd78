"""AMQP over WebSocket: a transport for the same Peer that serves TCP (AMQP 1.0 WebSocket binding).

A message of the WebSocket is a piece of the byte stream and nothing else: frames may be split over messages, and many
may be in one. Unlike a TCP connection, one of these has a task, the HTTP handler that reads; a second one
lives while there is output.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WSCloseCode, WSMsgType, web

from duobus.telemetry.bounded_log import BoundedLog
from duobus.telemetry.logs import Log

#: The .NET SDK adds the slash; ``%24`` for the dollar sign is undone before paths are compared.
PATHS = ("/$servicebus/websocket", "/$servicebus/websocket/")
#: That of the SDKs, and that of generic clients such as rhea and Proton.
SUB_PROTOCOLS = ("AMQPWSB10", "amqp")
#: The largest message that is taken; clients put one frame of at most 64 KiB, or a few, into one.
MESSAGE_BYTES_MAX = 1 << 20
#: The largest message that is sent: some clients refuse more than 4 MiB, and large ones delay pongs.
CHUNK_BYTES = 256 << 10
#: How long the peer gets to answer a close; less than a stopping server waits for all peers.
CLOSE_TIMEOUT_S = 2.0
#: Any origin is fine.
ANY_ORIGIN = "*"
#: A host name or address that is told in the log.
_HOST = re.compile(r"[a-z0-9._-]{1,255}")


class WebSocketTransport(asyncio.Transport):
    """What a Peer sees of its WebSocket.

    Args:
        socket: The prepared WebSocket.
        below: The transport of the HTTP connection.
        protocol: Whom to feed.
    """

    def __init__(self, socket: web.WebSocketResponse, below: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._socket = socket
        self._below = below
        self._protocol: asyncio.BaseProtocol = protocol
        self._feed = protocol.data_received
        self._loop = asyncio.get_running_loop()
        self._output: deque[bytes] = deque()
        self._output_bytes = 0
        self._high, self._low = 1 << 16, 1 << 14
        self._is_full = False
        self._is_closing = False
        # Done when reading may go on; None while it may.
        self._resumed: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Feed the protocol until either side has ended the connection."""
        self._protocol.connection_made(self)
        try:
            await self._read()
            if self._is_closing and self._writing is not None:
                # The close is ours: its output and its handshake, both bounded.
                await asyncio.wait([self._writing])
        finally:
            self._is_closing = True
            if self._writing is not None:
                self._writing.cancel()
            self._output.clear()
            self._protocol.connection_lost(None)

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            while self._resumed is not None:
                await self._resumed
            if message.type is WSMsgType.BINARY:
                if not self._is_closing:
                    self._feed(message.data)
            elif message.type is WSMsgType.TEXT:
                await self._socket.close(code=WSCloseCode.UNSUPPORTED_DATA, message=b"AMQP needs binary messages.")
                return
            else:
                # Closed by either side, or broken: aiohttp has answered already.
                return

    # -- reading ------------------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        """See asyncio.ReadTransport."""
        return self._resumed is None and not self._is_closing

    def pause_reading(self) -> None:
        """Take no further message; aiohttp stops reading the socket once it holds 128 KiB that nobody took."""
        if self._resumed is None and not self._is_closing:
            self._resumed = self._loop.create_future()

    def resume_reading(self) -> None:
        """See asyncio.ReadTransport."""
        if self._resumed is not None:
            self._resumed.set_result(None)
            self._resumed = None

    # -- writing ------------------------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio.WriteTransport."""
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport."""
        return self._output_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes as messages, in order, as fast as the peer reads; the limits say when there are too many."""
        if self._is_closing or not data:
            return
        self._output.append(bytes(data))
        self._output_bytes += len(data)
        self._write_soon()
        if not self._is_full and self._output_bytes > self._high:
            self._is_full = True
            self._protocol.pause_writing()

    def _write_soon(self) -> None:
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._output:
                data = self._output.popleft()
                for pos in range(0, len(data), CHUNK_BYTES):
                    # Waits for the socket whenever 64 KiB are under way.
                    await self._socket.send_bytes(data[pos : pos + CHUNK_BYTES])
                self._output_bytes -= len(data)
                if self._is_full and self._output_bytes <= self._low:
                    self._is_full = False
                    self._protocol.resume_writing()
            if self._is_closing:
                await self._socket.close()
        except ConnectionError:
            # The peer is gone; the reading side ends as soon as it looks.
            self.abort()
        finally:
            self._writing = None

    # -- the end ------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return self._is_closing

    def close(self) -> None:
        """Write what is left, then close the WebSocket and the connection."""
        if not self._is_closing:
            self._is_closing = True
            self.resume_reading()
            self._write_soon()

    def abort(self) -> None:
        """Drop the connection; output that is not written is lost."""
        self._is_closing = True
        self._output.clear()
        self.resume_reading()
        self._below.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.BaseTransport: of the connection below."""
        return self._below.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio.BaseTransport."""
        return self._protocol


class WebSocketServer:
    """What HTTP requests for PATHS become; ``serve`` is the handler.

    Args:
        protocol: Makes the protocol of an AMQP connection.
        hosts: Names under which browsers may have loaded the page that connects; ANY_ORIGIN for all.
        log: Where refusals go.
    """

    def __init__(self, protocol: Callable[[], asyncio.Protocol], hosts: Iterable[str], log: Log) -> None:
        self._protocol = protocol
        self._hosts = frozenset(host.strip("[]").lower() for host in hosts)
        self._log = BoundedLog(log, lambda: int(asyncio.get_running_loop().time() * 1000))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Upgrade and serve until the connection ends; refuse in clear words what is not for this server."""
        below = request.transport
        if below is None:
            raise ConnectionResetError("the client is gone")
        if not self._allows(request.headers.get("Origin"), below):
            self._log.info("websocket refused", origin=_host_of(request.headers["Origin"]))
            raise web.HTTPForbidden(
                text="This origin may not connect. Allow it with the server's option --websocket-origin."
            )
        asked = request.headers.get("Sec-WebSocket-Protocol", "")
        if not any(name.strip() in SUB_PROTOCOLS for name in asked.split(",")):
            raise web.HTTPBadRequest(
                text="This path takes AMQP over WebSocket: ask for an upgrade with the sub-protocol AMQPWSB10 or amqp."
            )
        socket = web.WebSocketResponse(
            timeout=CLOSE_TIMEOUT_S, protocols=SUB_PROTOCOLS, compress=False, max_msg_size=MESSAGE_BYTES_MAX
        )
        await socket.prepare(request)
        await WebSocketTransport(socket, below, self._protocol()).run()
        return socket

    def _allows(self, origin: str | None, below: asyncio.Transport) -> bool:
        """Whether the page that connects, if it is one, is ours.

        The Host header is no proof: a page can have its own name point to this machine. An address is one, if it is
        that of this connection.
        """
        if origin is None or ANY_ORIGIN in self._hosts:
            return True
        try:
            host = (urlsplit(origin).hostname or "").lower()
        except ValueError:
            return False
        return host in self._hosts or _is_address(host, below.get_extra_info("sockname"))


def _host_of(origin: str) -> str:
    """The host of an origin, for the operator who may want to allow it; nothing else of what was sent."""
    try:
        host = urlsplit(origin).hostname
    except ValueError:
        host = None
    return host if host is not None and _HOST.fullmatch(host) else "?"


def _is_address(host: str, socket_name: Any) -> bool:
    try:
        return ip_address(host) == ip_address(str(socket_name[0]))
    except (ValueError, TypeError, IndexError):
        return False
