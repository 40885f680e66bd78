"""Listeners: sockets, and which of TLS, AMQP and HTTP the first bytes are.

The very first byte is looked at and left in the socket (``MSG_PEEK``), so that nothing but public asyncio interfaces
is needed for TLS behind it. Plain or after TLS, a ``ProtocolSwitch`` then decides between AMQP and HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from duobus.gateway.protocol_switch import ProtocolFactory, ProtocolSwitch
from duobus.gateway.socket_transport import SocketTransport, watches
from duobus.gateway.tls_engine import TlsBuffers
from duobus.gateway.tls_transport import TlsTransport
from duobus.telemetry.logs import Log

#: First byte of a TLS record that carries a handshake.
TLS_HANDSHAKE = 0x16
#: A connection that says nothing is dropped.
FIRST_BYTE_TIMEOUT_S = 10.0
TLS_HANDSHAKE_TIMEOUT_S = 5.0
BACKLOG = 1024
#: Between two connections that a listener takes: what a flood of them costs is spread, and others are served meanwhile.
ACCEPT_REST_S = 0.001
#: After accepting has failed.
ACCEPT_AGAIN_S = 0.1
#: Connections that have not shown what they are yet; when there are more, the oldest is closed.
SILENT_MAX = 1000

#: Bytes that lie in a socket unsent before it takes no more, until its peer has shown that it reads: what the kernel
#: buffers otherwise are megabytes, which somebody had to make first. What is sent and not acknowledged does not count.
UNSENT_BYTES = 1 << 16

#: Gives the context for a new connection.
TlsSource = Callable[[], ssl.SSLContext]


class Listener:
    """One listening socket, and what its connections become.

    Attributes:
        port: The port that was got.
    """

    def __init__(
        self,
        name: str,
        protocol: ProtocolFactory,
        tls: TlsSource | None,
        log: Log,
        *,
        http: ProtocolFactory | None = None,
    ) -> None:
        """Make a listener.

        Args:
            name: For the log.
            protocol: Makes the protocol of a connection, plain or behind TLS alike.
            tls: Certificates, asked for each connection; without them a TLS client is dropped.
            log: Where failures go.
            http: Makes that of a connection that speaks HTTP; without it none is told apart.
        """
        self.name = name
        self.port = 0
        self._protocol = protocol
        self._tls = tls
        self._log = log
        self._sockets: list[socket.socket] = []
        # When the last connection was taken.
        self._accepted = 0.0
        # Dicts, for the oldest comes first.
        self._silent: dict[asyncio.Task[None], None] = {}
        self._undetermined: dict[ProtocolSwitch, None] = {}
        self._http = http
        self._buffers = TlsBuffers()

    async def open(self, host: str, port: int) -> None:
        """Listen on all addresses of ``host``; with port 0 on one port that the system picks.

        Raises:
            OSError: The address or port cannot be had.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, proto, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address[0], self.port or port, *address[2:]))
                sock.listen(BACKLOG)
            except OSError:
                sock.close()
                await self.close()
                raise
            self.port = sock.getsockname()[1]
            self._sockets.append(sock)
        for sock in self._sockets:
            loop.add_reader(sock, self._accept, sock)

    async def close(self) -> None:
        """Stop accepting; connections that were handed over live on."""
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)
            sock.close()
        self._sockets = []
        tasks = list(self._silent)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for switch in list(self._undetermined):
            switch.abort()

    def _accept(self, listening: socket.socket) -> None:
        """Take one connection, and what comes close behind a little later."""
        loop = asyncio.get_running_loop()
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Out of descriptors, most often: wait a little instead of spinning; links that exist go on.
            self._log.warning("accept failed", listener=self.name, error=str(error))
            self._rest(listening, ACCEPT_AGAIN_S)
            return
        now = loop.time()
        if now - self._accepted < ACCEPT_REST_S:
            self._rest(listening, ACCEPT_REST_S)
        self._accepted = now
        if len(self._silent) + len(self._undetermined) >= SILENT_MAX:
            self._drop_oldest()
        task = loop.create_task(self._hand_over(sock))
        self._silent[task] = None
        task.add_done_callback(self._forget)

    def _drop_oldest(self) -> None:
        """Close the connection that has said nothing for longest.

        A host that holds many connections does not shut other hosts out.

        Of those that have said nothing at all, or of those that have said too little, whichever are more.
        """
        if len(self._silent) >= len(self._undetermined):
            task = next(iter(self._silent))
            del self._silent[task]
            task.cancel()
        else:
            switch = next(iter(self._undetermined))
            del self._undetermined[switch]
            switch.abort()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._silent.pop(task, None)

    def _rest(self, listening: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(seconds, self._accept_again, listening)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _hand_over(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            # What follows costs as much again, and by then there is most often something to look at.
            await asyncio.sleep(ACCEPT_REST_S)
            try:
                first = _peek(sock)
            except BlockingIOError:
                async with asyncio.timeout(FIRST_BYTE_TIMEOUT_S):
                    first = await _first_byte(sock)
            if first is None or (first == TLS_HANDSHAKE and self._tls is None):
                sock.close()
                return
            if first == TLS_HANDSHAKE:
                assert self._tls is not None
                await self._shake_hands(sock, self._tls())
            else:
                await _feed(sock, self._make())
        except (OSError, TimeoutError) as error:
            # ssl.SSLError is an OSError. The other side's fault, and its loss.
            self._log.debug("connection dropped", listener=self.name, error=str(error))
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise

    async def _shake_hands(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """Start TLS on a connection; the protocol behind it is made when the handshake is done."""
        transport = TlsTransport(context, self._buffers, self._make())
        try:
            await _feed(sock, transport)
            async with asyncio.timeout(TLS_HANDSHAKE_TIMEOUT_S):
                await transport.opened
        except BaseException:
            transport.opened.cancel()
            transport.abort()
            raise

    def _make(self) -> asyncio.Protocol:
        if self._http is None:
            return self._protocol()
        return ProtocolSwitch(self._protocol, self._http, self._undetermined)


async def _feed(sock: socket.socket, protocol: asyncio.BaseProtocol) -> None:
    """Have a protocol fed from a connection, by the quickest transport that the loop has."""
    loop = asyncio.get_running_loop()
    if watches(loop):
        SocketTransport(loop, sock, protocol)
    else:
        await loop.connect_accepted_socket(lambda: protocol, sock)


def _peek(sock: socket.socket) -> int | None:
    """The first byte without taking it, or None when the peer closed."""
    data = sock.recv(1, socket.MSG_PEEK)
    return data[0] if data else None


async def _first_byte(sock: socket.socket) -> int | None:
    """The same as soon as there is one."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(sock, _set_done, readable)
    try:
        await readable
    finally:
        loop.remove_reader(sock)
    return _peek(sock)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
