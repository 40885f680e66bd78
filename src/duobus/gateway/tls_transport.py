"""TlsTransport: what a protocol sees of its TLS connection, on top of a plain transport.

That is a ``SocketTransport`` in a server's loop, and asyncio's own in any other.

asyncio has such a transport itself, which reads 16 KiB at a time (its buffer belongs to one connection, so it cannot be
large), writes what it encrypts in more copies, and hands short pieces on. This one reads as much at once as a plain
connection does, into a buffer that all connections share (decision 0061).

How much waits for a socket is the plain transport's matter: what is written is encrypted at once, so its limits and
its signals serve both.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from typing import Any, Final, cast

from duobus.gateway.tls_engine import PIECE_BYTES, TlsBuffers, TlsEngine

#: How long what was written, and the goodbyes of both sides, may take after a close.
SHUTDOWN_TIMEOUT_S: Final = 30.0

#: The protocol of a connection that is lost.
_NOBODY: Final = asyncio.Protocol()


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """One connection: a protocol for the plain transport below, a transport for the protocol above.

    Args:
        context: Certificates and settings.
        buffers: Those of the event loop.
        protocol: Whom to feed once the handshake is done.

    Attributes:
        opened: Done when the handshake is, or has failed.
    """

    __slots__ = ("_below", "_buffers", "_engine", "_failure", "_is_closing", "_protocol", "_timer", "opened")

    def __init__(self, context: ssl.SSLContext, buffers: TlsBuffers, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._engine = TlsEngine(context, buffers)
        self._buffers = buffers
        self._protocol = protocol
        self._below: asyncio.Transport | None = None
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- the side of the socket ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        assert isinstance(transport, asyncio.Transport)
        self._below = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol: what is put there is used up before anybody else's turn."""
        received = self._buffers.received
        return received if self._engine.is_open else received[:PIECE_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        data = self._buffers.received[:nbytes]
        below = self._below
        assert below is not None
        if self._is_closing:
            self._go_on_closing(below, data)
            return
        engine = self._engine
        try:
            if engine.is_open:
                plain = engine.receive(data)
            else:
                below.write(engine.shake_hands(data))
                if not engine.is_open:
                    return
                self._open()
                # What has come with the end of the handshake.
                plain = engine.receive(b"")
            output = engine.take_output()
        except ssl.SSLError as error:
            self._fail(below, error)
            return
        if output:
            below.write(output)
        if plain and not self._is_closing:
            self._protocol.data_received(plain)
        if engine.has_ended and not self._is_closing:
            self._protocol.eof_received()
            self.close()

    def eof_received(self) -> bool:
        """See asyncio.BaseProtocol: the connection ends without the goodbye of TLS, as many do."""
        if not self._engine.is_open:
            self._fail_handshake(ConnectionResetError("the connection ended within the handshake"))
        elif not self._is_closing:
            self._protocol.eof_received()
        self._start_timer()
        # The plain transport sends what is left and closes.
        self._is_closing = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._below = None
        # The protocol holds this object: without the way back, neither waits for the collector.
        protocol, self._protocol = self._protocol, _NOBODY
        reason = self._failure or exc
        if self._engine.is_open:
            protocol.connection_lost(reason)
        else:
            self._fail_handshake(reason or ConnectionResetError("the connection was lost within the handshake"))

    def pause_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        if self._engine.is_open:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        if self._engine.is_open:
            self._protocol.resume_writing()

    def _open(self) -> None:
        self._protocol.connection_made(self)
        if not self.opened.done():
            self.opened.set_result(None)

    def _fail(self, below: asyncio.Transport, error: ssl.SSLError) -> None:
        """End the connection, and say why if there is room for an alert."""
        self._failure = error
        self._is_closing = True
        with contextlib.suppress(ssl.SSLError):
            below.write(self._engine.take_output())
        if self._engine.is_open:
            below.abort()
        else:
            self._fail_handshake(error)
            self._start_timer()
            below.close()

    def _fail_handshake(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SHUTDOWN_TIMEOUT_S, self.abort)

    def _go_on_closing(self, below: asyncio.Transport, data: memoryview) -> None:
        """Look for the goodbye of the other side in what comes after a close; nothing of that is handed on."""
        engine = self._engine
        if not engine.is_open or below.is_closing():
            return
        try:
            engine.receive(data)
        except ssl.SSLError:
            below.close()
            return
        if engine.has_ended:
            below.close()

    # -- the side of the protocol -------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.BaseTransport: what TLS knows, and of the connection below."""
        tls = self._engine.ssl_object
        if name == "ssl_object":
            return tls
        if name == "sslcontext":
            return tls.context
        if name == "peercert":
            return tls.getpeercert()
        if name == "cipher":
            return tls.cipher()
        return default if self._below is None else self._below.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio.BaseTransport."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio.BaseTransport."""
        return self._protocol

    def is_reading(self) -> bool:
        """See asyncio.ReadTransport."""
        return not self._is_closing and self._below is not None and self._below.is_reading()

    def pause_reading(self) -> None:
        """See asyncio.ReadTransport."""
        if not self._is_closing and self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """See asyncio.ReadTransport."""
        if self._below is not None:
            self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio.WriteTransport."""
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport."""
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio.WriteTransport."""
        return (0, 0) if self._below is None else self._below.get_write_buffer_limits()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio.WriteTransport: encrypt at once, and send all of it with one call."""
        if self._is_closing or self._below is None or not data:
            return
        # No ``writelines``: see CVE-2024-12254 for asyncio's. Ours joins, too; a single record is not copied by that.
        self._below.write(b"".join(self._engine.encrypt(data)))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """See asyncio.WriteTransport."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """See asyncio.WriteTransport: a side that has said goodbye gets no more either, as with asyncio's own."""
        return False

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return self._is_closing

    def close(self) -> None:
        """Send what is left and say goodbye; the connection ends when the other side does, or after its time."""
        below = self._below
        if self._is_closing or below is None:
            return
        self._is_closing = True
        self._start_timer()
        below.write(self._engine.end())
        if self._engine.has_ended:
            below.close()
        else:
            # Its goodbye is to be heard.
            below.resume_reading()

    def abort(self) -> None:
        """See asyncio.BaseTransport."""
        self._is_closing = True
        if self._below is not None:
            self._below.abort()
