"""A WebSocket whose binary message goes piece by piece: the rendezvous over which a listener gets an HTTP request.

aiohttp makes the connection, and its own WebSockets hold whole messages. Here aiohttp hands over all bytes that follow
the handshake. Nothing is gathered: reading pauses while pieces wait, and writing waits while the relay reads slowly.
The counterpart for threads has the same names.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import aiohttp

from duobus.clock import Entropy
from duobus.model.relay.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    NO_CODE,
    PING,
    PONG,
    TEXT,
    Control,
    FrameDecoder,
    FrameError,
    Piece,
    close_payload,
    masked_frame,
    read_close,
)
from duobus.model.relay.limits import (
    BODY_AHEAD_BYTES,
    CLOSE_ABNORMAL,
    CLOSE_NORMAL,
    CLOSE_S,
    MESSAGE_BYTES_MAX,
)
from duobus.relay.errors import ConnectionDropped

#: A relay that says nothing for so long is asked by a ping whether it is there, and given up after as long again.
HEARTBEAT_S: Final = 30.0
#: A relay that takes nothing at all for so long is given up.
STALLED_S: Final = 60.0


class MessageSocket:
    """One open WebSocket that carries a text message and a binary message each way.

    Attributes:
        endpoint: Host and path.
    """

    def __init__(self, answer: aiohttp.ClientResponse, endpoint: str, entropy: Entropy) -> None:
        connection = answer.connection
        if connection is None or connection.transport is None or connection.protocol is None:
            raise ConnectionDropped("the connection ended with its handshake", endpoint)
        self.endpoint = endpoint
        self._answer = answer
        self._entropy = entropy
        self._transport = connection.transport
        self._protocol = connection.protocol
        self._decoder = FrameDecoder(is_of_client=False)
        self._text = bytearray()
        self._texts: deque[str] = deque()
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_whole = False
        self._is_paused = False
        self._is_discarding = False
        self._has_sent_close = False
        #: Why nothing more comes; None while the connection is open.
        self._end: str | None = None
        self._changed = asyncio.Event()
        self._protocol.read_timeout = None
        self._protocol.set_parser(self, None)

    # -- what the connection brings (the two methods that aiohttp calls) ---------------------------------------------

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes of the relay."""
        if self._end is not None:
            return False, b""
        try:
            for event in self._decoder.feed(data):
                if isinstance(event, Piece):
                    self._take(event)
                else:
                    self._control(event)
        except FrameError as error:
            self._close(error.code, str(error))
            self._ended(str(error))
        self._changed.set()
        return False, b""

    def feed_eof(self) -> None:
        """The connection is gone."""
        self._ended("the connection broke")
        self._changed.set()

    def _take(self, piece: Piece) -> None:
        if piece.opcode == TEXT:
            self._text += piece.data
            if len(self._text) > MESSAGE_BYTES_MAX:
                raise FrameError(1009, "The message is too long.")
            if piece.is_last:
                self._texts.append(self._text.decode("utf-8", "replace"))
                self._text.clear()
            return
        self._is_whole = self._is_whole or piece.is_last
        if not piece.data or self._is_discarding:
            return
        self._pieces.append(piece.data)
        self._size += len(piece.data)
        if self._size > BODY_AHEAD_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_reading()

    def _control(self, event: Control) -> None:
        if event.opcode == PING:
            self._write(PONG, event.data)
        elif event.opcode == CLOSE:
            code, reason = read_close(event.data)
            self._close(CLOSE_NORMAL if code == NO_CODE else code, "")
            self._ended(f"the relay closed it with {code}: {reason or 'no reason'}")

    def _ended(self, why: str) -> None:
        self._end = self._end or why

    # -- reading ----------------------------------------------------------------------------------------------------

    async def receive_text(self) -> str | None:
        """Return the text message; None when the connection has ended without one."""
        while not self._texts:
            if self._end is not None:
                return None
            await self._more()
        return self._texts.popleft()

    async def receive_piece(self) -> bytes:
        """Return the next piece of the binary message; nothing at its end.

        Raises:
            ConnectionDropped: The connection ended before the message did.
        """
        while not self._pieces:
            if self._is_discarding:
                # What has come since is dropped: the rest of the message must not look like its end.
                raise ConnectionDropped("the connection is done with", self.endpoint)
            if self._is_whole:
                return b""
            if self._end is not None:
                raise ConnectionDropped(f"the body broke off: {self._end}", self.endpoint)
            await self._more()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._go_on()
        return data

    def _go_on(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._protocol.resume_reading()

    async def _more(self) -> None:
        """Wait until something comes; ask the relay after a while whether it is there."""
        is_asked = False
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._changed.wait()
                return
            except TimeoutError:
                if is_asked:
                    self._ended("the relay is silent")
                    return
                is_asked = True
                self._write(PING, b"")

    # -- writing ----------------------------------------------------------------------------------------------------

    async def send_text(self, text: str) -> None:
        """Send the text message.

        Raises:
            ConnectionDropped: The connection has ended.
        """
        self._demand_open()
        self._write(TEXT, text.encode())
        await self._drained()

    async def send_piece(self, data: bytes, *, is_first: bool, is_last: bool) -> None:
        """Send a piece of the binary message; wait while the relay reads slowly.

        Raises:
            ConnectionDropped: The connection has ended.
        """
        opcode = BINARY if is_first else CONTINUATION
        for pos in range(0, len(data) or 1, BODY_AHEAD_BYTES):
            self._demand_open()
            part = data[pos : pos + BODY_AHEAD_BYTES]
            self._write(opcode, part, is_last=is_last and pos + len(part) >= len(data))
            opcode = CONTINUATION
            await self._drained()

    def _demand_open(self) -> None:
        if self._end is not None or self._transport.is_closing():
            raise ConnectionDropped(f"the connection has ended: {self._end or 'it is closed'}", self.endpoint)

    def _write(self, opcode: int, data: bytes, *, is_last: bool = True) -> None:
        if not self._has_sent_close and not self._transport.is_closing():
            self._transport.write(masked_frame(opcode, data, self._entropy.token(4), is_last=is_last))

    async def _drained(self) -> None:
        while self._protocol.writing_paused:
            left = self._transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(STALLED_S):
                    await self._protocol._drain_helper()
            except TimeoutError:
                if self._transport.get_write_buffer_size() >= left:
                    self._transport.abort()
                    raise ConnectionDropped("the relay takes nothing any more", self.endpoint) from None
            except (ConnectionError, aiohttp.ClientError) as error:
                raise ConnectionDropped(f"the connection has ended: {error}", self.endpoint) from error

    # -- the end ----------------------------------------------------------------------------------------------------

    async def finish(self, seconds: float) -> None:
        """Wait until the relay has taken everything and closes, and close then, at the latest after so many seconds."""
        self._is_discarding = True
        self._pieces.clear()
        self._size = 0
        self._go_on()
        try:
            async with asyncio.timeout(seconds):
                while self._end is None:
                    await self._more()
        except TimeoutError:
            pass
        await self.close()

    async def close(self, code: int = CLOSE_NORMAL, reason: str = "") -> None:
        """Close the connection; do nothing if it has ended."""
        if self._end is None:
            self._is_discarding = True
            self._close(code, reason)
            self._go_on()
            try:
                async with asyncio.timeout(CLOSE_S):
                    while self._end is None:
                        await self._more()
            except TimeoutError:
                pass
            self._ended("it is closed")
        self._answer.close()

    def _close(self, code: int, reason: str) -> None:
        if code != CLOSE_ABNORMAL:
            self._write(CLOSE, close_payload(code, reason))
        self._has_sent_close = True
