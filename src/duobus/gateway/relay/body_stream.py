"""What comes over the rendezvous of an HTTP request: the listener's response and its body, piece by piece."""

from __future__ import annotations

import asyncio
from collections import deque

from duobus.gateway.relay.websocket_end import WebSocketEnd
from duobus.model.relay.frames import TEXT, Piece
from duobus.model.relay.limits import BODY_AHEAD_BYTES, MESSAGE_BYTES_MAX
from duobus.model.relay.messages import MalformedMessage, Response, to_relay


class RendezvousBroken(Exception):
    """The listener has closed the rendezvous, or has sent something else than a response."""


class BodyStream:
    """Reads a rendezvous for the handler that writes the response to the sender.

    Args:
        end: The listener's WebSocket.
    """

    __slots__ = ("_end", "_fault", "_is_paused", "_pieces", "_size", "_text", "_waiter", "is_whole", "response")

    def __init__(self, end: WebSocketEnd) -> None:
        self._end = end
        self._text = bytearray()
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._fault: str | None = None
        #: The response once it has come.
        self.response: Response | None = None
        #: Whether all of its body has come.
        self.is_whole = False

    # -- Receiver ---------------------------------------------------------------------------------------------------

    def received(self, piece: Piece) -> None:
        """See Receiver."""
        if self.is_whole or self._fault is not None:
            return
        if piece.opcode == TEXT:
            self._take_text(piece)
        elif self.response is None or not self.response.has_body:
            self._fail("a body came without its response")
        else:
            if piece.data:
                self._pieces.append(piece.data)
                self._size += len(piece.data)
            self.is_whole = piece.is_last
            if self._size > BODY_AHEAD_BYTES and not self._is_paused:
                self._is_paused = True
                self._end.pause()
        self._wake()

    def _take_text(self, piece: Piece) -> None:
        if self.response is not None:
            self._fail("a text came after the response")
            return
        self._text += piece.data
        if len(self._text) > MESSAGE_BYTES_MAX:
            self._fail("the response is too long")
        elif piece.is_last:
            try:
                found = to_relay(self._text.decode())
            except (MalformedMessage, UnicodeDecodeError) as error:
                self._fail(str(error) if isinstance(error, MalformedMessage) else "the response is not UTF-8")
                return
            self._text.clear()
            if isinstance(found, Response):
                self.response = found
                self.is_whole = not found.has_body

    def ponged(self) -> None:
        """See Receiver."""

    def ended(self, code: int, reason: str) -> None:
        """See Receiver."""
        if not self.is_whole:
            self._fail("the listener has closed the rendezvous")

    def _fail(self, text: str) -> None:
        self._fault = self._fault or text
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the reader -------------------------------------------------------------------------------------------------

    async def head(self, seconds: float) -> Response:
        """The response without its body; a listener has its time anew with each piece of the request that it gets.

        Raises:
            RendezvousBroken: None comes.
            TimeoutError: None came in time.
        """
        while self.response is None:
            sent = self._end.sent_pieces
            try:
                async with asyncio.timeout(seconds):
                    await self._more()
            except TimeoutError:
                if self._end.sent_pieces == sent:
                    raise
        return self.response

    async def next(self, seconds: float) -> bytes:
        """The next part of the body; empty at its end.

        Raises:
            RendezvousBroken: The rest does not come.
            TimeoutError: Nothing came in time.
        """
        async with asyncio.timeout(seconds):
            while not self._pieces:
                if self.is_whole:
                    return b""
                await self._more()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._is_paused:
            self._is_paused = False
            self._end.resume()
        return data

    async def _more(self) -> None:
        if self._fault is not None:
            raise RendezvousBroken(self._fault)
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
