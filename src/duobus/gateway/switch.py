"""Telling AMQP from HTTP by the first bytes of a connection, plain or after TLS, so that one port can serve both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

#: A connection says what it wants within this time: the protocol's first bytes, for HTTP the whole head of the first
#: request, however slowly it drips (reliability T9).
FIRST_BYTES_S: Final = 10.0
#: A head of more bytes is passed on as it is; the HTTP server refuses what it does not take.
HEAD_BYTES_MAX: Final = 65_536

UNDECIDED: Final = 0
AMQP: Final = 1
HTTP: Final = 2

_START_SIZE = 4
#: Methods of HTTP, cut to the length that tells them apart from everything else.
_METHODS = frozenset((b"GET ", b"PUT ", b"POST", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC"))
_STARTS = (*_METHODS, b"AMQP")

ProtocolFactory = Callable[[], asyncio.Protocol]


def protocol_of(data: bytes) -> int:
    """Return AMQP, HTTP, or UNDECIDED while more bytes are needed.

    What is neither goes to AMQP, whose engine answers with the header that it supports and closes (contract 1.2).
    """
    start = bytes(data[:_START_SIZE])
    if start in _METHODS:
        return HTTP if b"\r\n\r\n" in data or len(data) >= HEAD_BYTES_MAX else UNDECIDED
    if len(start) < _START_SIZE and any(known.startswith(start) for known in _STARTS):
        return UNDECIDED
    return AMQP


class Switch(asyncio.Protocol):
    """The protocol of a connection until its first bytes have told what it is.

    Args:
        amqp: Makes the protocol of an AMQP connection.
        http: Makes that of an HTTP connection.
        undecided: Where this connection is kept meanwhile, so that they can be counted and ended.
    """

    __slots__ = ("_amqp", "_data", "_http", "_timer", "_transport", "_undecided")

    def __init__(self, amqp: ProtocolFactory, http: ProtocolFactory, undecided: set[Switch]) -> None:
        self._amqp = amqp
        self._http = http
        self._undecided = undecided
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._undecided.add(self)
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTES_S, self.abort)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol: once it is clear what this is, hand all of it over."""
        self._data += data
        kind = protocol_of(self._data)
        transport = self._transport
        if kind == UNDECIDED or transport is None:
            return
        self._leave()
        protocol = self._amqp() if kind == AMQP else self._http()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(self._data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._leave()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        self._undecided.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
