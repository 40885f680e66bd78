"""One end of a WebSocket at the relay: the handshake's answer, frames in and out, and the closing handshake.

aiohttp has read the handshake and hands over all bytes that follow; nothing is queued here but what the transport
holds, and the receiver pauses reading when the bytes cannot go on.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from aiohttp import web

from duobus.gateway.relay.refusals import RelayRefusal
from duobus.model.relay.frames import (
    BINARY,
    CLOSE,
    NO_CODE,
    PING,
    PONG,
    TEXT,
    Control,
    FrameDecoder,
    FrameError,
    Piece,
    accept_key,
    close_payload,
    frame,
    head,
    read_close,
)
from duobus.model.relay.limits import BODY_AHEAD_BYTES, CLOSE_ABNORMAL, CLOSE_S

#: The version of the protocol (RFC 6455, 4.1).
VERSION: Final = "13"


class Receiver(Protocol):
    """What is told of a WebSocket."""

    def received(self, piece: Piece) -> None:
        """Part of a message has come."""

    def ponged(self) -> None:
        """A pong has come, or a ping."""

    def ended(self, code: int, reason: str) -> None:
        """The peer has closed, or is gone (CLOSE_ABNORMAL); called once, and not for an end of one's own."""


class Upgraded(web.StreamResponse):
    """What the handler of an upgraded connection returns: everything was written already."""

    def __init__(self) -> None:
        super().__init__(status=101)
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> Any:
        """Write nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing."""


def demand_handshake(request: web.Request) -> None:
    """Raise RelayRefusal unless the request asks for a WebSocket."""
    headers = request.headers
    is_upgrade = headers.get("Upgrade", "").strip().lower() == "websocket" and request._message.upgrade
    if request.method != "GET" or not is_upgrade or not headers.get("Sec-WebSocket-Key"):
        raise RelayRefusal(400, "This address takes WebSockets: ask for an upgrade.")
    if headers.get("Sec-WebSocket-Version", VERSION).strip() != VERSION:
        raise RelayRefusal(400, f"The relay speaks version {VERSION} of WebSockets.")


class WebSocketEnd:
    """One upgraded connection.

    Args:
        request: The handshake.
    """

    __slots__ = ("_closing", "_decoder", "_draining", "_is_over", "_protocol", "_receiver", "_sent_close", "_transport",
                 "finished", "received_bytes", "sent_bytes", "sent_pieces")  # fmt: skip

    def __init__(self, request: web.Request) -> None:
        loop = asyncio.get_running_loop()
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        self._protocol = request.protocol
        self._transport = transport
        self._receiver: Receiver | None = None
        self._decoder = FrameDecoder()
        self._draining: asyncio.Task[None] | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._sent_close = False
        self._is_over = False
        #: Done when the connection is to be given back.
        self.finished: asyncio.Future[None] = loop.create_future()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.sent_pieces = 0

    def open(self, request: web.Request, receiver: Receiver, sub_protocol: str | None) -> Upgraded:
        """Answer the handshake and begin to read."""
        lines = [
            "HTTP/1.1 101 Switching Protocols",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accept_key(request.headers['Sec-WebSocket-Key'].strip())}",
        ]
        if sub_protocol:
            lines.append(f"Sec-WebSocket-Protocol: {sub_protocol}")
        self._receiver = receiver
        self._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "replace"))
        self._protocol.keep_alive(False)
        # aiohttp hands all further bytes to whatever has this parser's two methods.
        self._protocol.set_parser(self)  # type: ignore[arg-type]
        return Upgraded()

    # -- reading ----------------------------------------------------------------------------------------------------

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes of the peer; see aiohttp's parsers."""
        if self._is_over:
            return False, b""
        self.received_bytes += len(data)
        try:
            for event in self._decoder.feed(data):
                if isinstance(event, Piece):
                    if not self._sent_close and self._receiver is not None:
                        self._receiver.received(event)
                else:
                    self._control(event)
                if self._is_over:
                    break
        except FrameError as error:
            self._tell(CLOSE_ABNORMAL, "")
            self.close(error.code, str(error))
        return False, b""

    def feed_eof(self) -> None:
        """The connection is gone; see aiohttp's parsers."""
        self._end()
        self._tell(CLOSE_ABNORMAL, "")

    def _control(self, event: Control) -> None:
        if event.opcode == CLOSE:
            code, reason = read_close(event.data)
            self._tell(code, reason)
            self._write_close(code if code != NO_CODE else 0, "")
            self._end()
            return
        if event.opcode == PING and not self.is_full and not self._sent_close:
            self._write(frame(PONG, event.data))
        if self._receiver is not None:
            self._receiver.ponged()

    def _tell(self, code: int, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended(code, reason)

    # -- back pressure ----------------------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """What the peer has not taken yet."""
        return self._transport.get_write_buffer_size()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be sent until the peer has read."""
        return self.unsent_bytes > BODY_AHEAD_BYTES

    def pause(self) -> None:
        """Read no more."""
        if not self._is_over:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading."""
        if not self._is_over:
            self._transport.resume_reading()

    def hold(self, source: WebSocketEnd) -> None:
        """Read no more of ``source`` until this end's peer has taken what is unsent."""
        if self._draining is None and not self._is_over:
            source.pause()
            self._draining = asyncio.get_running_loop().create_task(self._drain(source), name="relay-drain")

    async def _drain(self, source: WebSocketEnd) -> None:
        try:
            await self.drained()
        finally:
            self._draining = None
            source.resume()

    async def drained(self) -> None:
        """Return when the peer has taken most of what was unsent, or is gone."""
        try:
            await self._protocol._drain_helper()
        except ConnectionError:
            return

    # -- writing ----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether messages can still be sent."""
        return not (self._is_over or self._sent_close or self._transport.is_closing())

    def send_text(self, text: str) -> None:
        """Send a whole text message."""
        self._write(frame(TEXT, text.encode()))

    def send_with_body(self, text: str, body: bytes) -> None:
        """Send a text message and the binary message that belongs to it, as one write."""
        self._write(frame(TEXT, text.encode()), frame(BINARY, body))

    def send_piece(self, piece: Piece) -> None:
        """Send part of a message as a frame of its own."""
        self.sent_pieces += 1
        self._write(head(piece.opcode if piece.is_first else 0, len(piece.data), is_last=piece.is_last), piece.data)

    def ping(self) -> None:
        """Ask whether the peer is there."""
        self._write(frame(PING, b""))

    def _write(self, first: bytes, second: bytes = b"") -> None:
        if not self.is_open:
            return
        self.sent_bytes += len(first) + len(second)
        # No ``writelines``: with it asyncio forgets to say that its buffer is full in Python 3.12.0 to 3.12.8, 3.13.0
        # and 3.13.1 (CVE-2024-12254).
        self._transport.write(first + second if second else first)

    def close(self, code: int, reason: str = "") -> None:
        """Close with a code, and drop the connection if the peer does not answer in time; it is told nothing more."""
        self._receiver = None
        if self._is_over or self._sent_close:
            return
        self._write_close(code, reason)
        self._closing = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)
        self.resume()

    def _write_close(self, code: int, reason: str) -> None:
        if not self._sent_close and not self._transport.is_closing():
            self._transport.write(frame(CLOSE, close_payload(code, reason)))
        self._sent_close = True

    def abort(self) -> None:
        """Drop the connection at once."""
        self._receiver = None
        self._transport.abort()
        self._end()

    def _end(self) -> None:
        self._is_over = True
        if self._closing is not None:
            self._closing.cancel()
        if self._draining is not None:
            self._draining.cancel()
        if not self.finished.done():
            self.finished.set_result(None)
