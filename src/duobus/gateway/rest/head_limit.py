"""The bound on the head of a request: so many bytes in all, and so much time (I61, T9).

aiohttp bounds a line, a field and the number of fields, and neither their sum nor their time: a connection that nobody
has shown a token on could hold megabytes for as long as it likes. So a shell stands before each of its protocols and
counts what has come since the request last made progress: since a head was whole, or a byte of a body came. The fields
behind a chunked body are bounded with that, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from duobus.gateway.rest.atom.xml.documents import ERROR_TYPE, error_body

#: Bytes of a whole head: 64 KiB of custom properties, which is what a message may have, and their escapes.
HEAD_BYTES_MAX: Final = 131_072
#: Time for a whole head from its first byte, however slowly it drips. That of a connection's first one is counted by
#: the protocol switch before, as long as it has fewer bytes than the switch hands on at once.
HEAD_S: Final = 10.0
#: Bytes that aiohttp gets at a time: by so much a head that begins in the middle of them may be longer.
PIECE_BYTES: Final = 65_536
#: How long a client that was told so may go on sending, so that it gets to read the answer.
GOODBYE_S: Final = 1.0

_TOO_LONG: Final = (
    431,
    "Request Header Fields Too Large",
    f"SubCode=40000. Bad Request. The head of a request may have {HEAD_BYTES_MAX} bytes in all. Send fewer or shorter "
    "headers; properties of messages may stand in a batch's body instead.",
)
_TOO_SLOW: Final = (
    408,
    "Request Timeout",
    f"SubCode=40800. Request Timeout. The head of the request was not whole within {HEAD_S:g} s. Send it at once.",
)


class Arrivals(deque[Any]):
    """The requests that aiohttp has read and not begun, which also says how many there were.

    Attributes:
        number: How many have come.
        payload: The body of the last one, None before the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.payload: Any = None

    def append(self, item: Any) -> None:
        """See deque."""
        self.number += 1
        self.payload = item[1]
        super().append(item)


class HeadLimit(asyncio.Protocol):
    """The shell before the protocol of one connection.

    Args:
        inner: aiohttp's protocol.
        leaving: Where this connection is kept while its client may still read why it ends.
    """

    __slots__ = ("_arrivals", "_inner", "_is_over", "_leaving", "_since", "_timer", "_transport")

    def __init__(self, inner: web.RequestHandler, leaving: set[HeadLimit]) -> None:
        self._inner = inner
        self._leaving = leaving
        # The only place where aiohttp says that a head was whole before it does something about it.
        self._arrivals = inner._messages = Arrivals()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Bytes that came since there was progress.
        self._since = 0
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._stop_timer()
        self._transport = None
        self._leaving.discard(self)
        self._inner.connection_lost(exc)

    def eof_received(self) -> None:
        """See asyncio.Protocol."""
        self._inner.eof_received()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if len(data) <= PIECE_BYTES:
            self._feed(data)
            return
        for pos in range(0, len(data), PIECE_BYTES):
            self._feed(data[pos : pos + PIECE_BYTES])

    def _feed(self, data: bytes) -> None:
        if self._is_over:
            return
        arrivals, inner = self._arrivals, self._inner
        number, payload = arrivals.number, arrivals.payload
        size = 0 if payload is None else payload.total_bytes
        inner.data_received(data)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if (
            arrivals.number != number
            or (payload is not None and payload.total_bytes != size)
            # A WebSocket, which has limits of its own.
            or inner._payload_parser is not None
            # What has come is not looked at before earlier requests are done.
            or not transport.is_reading()
        ):
            self._since = 0
            self._stop_timer()
            return
        if not self._since and not data.strip(b"\r\n"):
            # Empty lines between requests are nothing (RFC 9112, 2.2).
            return
        self._since += len(data)
        if self._since > HEAD_BYTES_MAX:
            self._end(*_TOO_LONG)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HEAD_S, self._end, *_TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, status: int, reason: str, text: str) -> None:
        """Say why, unless an earlier request waits for its answer, and close the connection."""
        self._stop_timer()
        self._is_over = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        payload = self._arrivals.payload
        if self._arrivals or self._inner._request_in_progress or not (payload is None or payload.is_eof()):
            transport.abort()
            return
        body = error_body(status, text).encode()
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: {ERROR_TYPE}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        if transport.can_write_eof():
            transport.write_eof()
        self._leaving.add(self)
        self._timer = asyncio.get_running_loop().call_later(GOODBYE_S, self.abort)

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()


class LimitedHeads:
    """aiohttp's server, with the shell before each connection.

    Args:
        server: The server.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._leaving: set[HeadLimit] = set()

    @property
    def connections(self) -> Sequence[asyncio.Protocol]:
        """Those that are open."""
        return self._server.connections

    def __call__(self) -> HeadLimit:
        """Make the protocol of one more."""
        return HeadLimit(self._server(), self._leaving)

    def close(self) -> None:
        """Drop the connections that were told why they end; the others are the server's to close."""
        for connection in list(self._leaving):
            connection.abort()
