"""ServerConnection: the shell of a connection that this server makes to another one.

The engine, the transport, one write in a turn of the loop, and one end: what the connection is for, its subclasses say
(``proxy/upstream.py`` for links of clients, ``forwarding/connections.py`` for messages that are forwarded).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import Any, Final

from duobus.amqp import Connection, ConnectionSettings

#: How long a server may take to accept a connection, in seconds.
CONNECT_S: Final = 5.0
#: A connection between two servers that is silent for twice as long is lost: neither a client nor the locks of one may
#: wait for as long as a client's own connection is believed in.
IDLE_MS: Final = 3_000
FRAME_SIZE: Final = 65_536


class ServerConnection(asyncio.Protocol):
    """One connection to another server.

    Attributes:
        is_gone: It has ended, or was never made.

    Args:
        monotonic_ms: The time that heartbeats go by.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic_ms: Callable[[], int], settings: ConnectionSettings
    ) -> None:
        self.is_gone = False
        self._loop = loop
        self._monotonic_ms = monotonic_ms
        self._engine = Connection(settings, acceptor=False)
        self._transport: asyncio.Transport | None = None
        self._write_scheduled = False

    # -- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        if self.is_gone:
            transport.abort()
            return
        self._transport = transport
        self._engine.open(self._monotonic_ms())
        self._opened()
        self.write_soon()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._handle_all(self._engine.receive(data, self._monotonic_ms()))
        while self._engine.is_cut:
            self._handle_all(self._engine.receive(b"", self._monotonic_ms()))
        self._received()
        self.write_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.fail("the connection to it has ended")

    # -- bytes --------------------------------------------------------------------------------------------------

    def write_soon(self) -> None:
        """Write at the end of the turn what there is by then."""
        if not self._write_scheduled and not self.is_gone:
            self._write_scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._write_scheduled = False
        if self._transport is None or self.is_gone:
            return
        while output := self._engine.take_output():
            self._transport.write(output)
            self._wrote()
        self._engine.take_reopened()

    def fail(self, text: str) -> None:
        """The connection has ended, and ``text`` says why; only the first call counts."""
        if self.is_gone:
            return
        self.is_gone = True
        self._failed(text)
        if self._transport is not None:
            self._transport.abort()

    def _handle_all(self, events: list[Any]) -> None:
        for event in events:
            self._handle(event)

    # -- to be said by the subclass -----------------------------------------------------------------------------

    def _opened(self) -> None:
        """The connection is made: begin sessions and attach links."""

    def _handle(self, event: Any) -> None:
        """The other server has said something."""
        raise NotImplementedError

    def _received(self) -> None:
        """What came in one read is handled."""

    def _wrote(self) -> None:
        """Some output is handed to the transport."""

    def _failed(self, text: str) -> None:
        """The connection is gone: tell those who use it."""
        raise NotImplementedError


async def connect(connection: ServerConnection, address: str, context: SSLContext | None) -> None:
    """Connect to a server at ``host:port``, over TLS where there is a context.

    Raises:
        OSError: The server cannot be reached; an SSLCertVerificationError when its certificate is not trusted.
    """
    host, _, port = address.rpartition(":")
    await asyncio.get_running_loop().create_connection(
        lambda: connection,
        host.strip("[]"),
        int(port),
        ssl=context,
        server_hostname=host if context else None,
    )
