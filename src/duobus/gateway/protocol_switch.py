"""Telling AMQP from HTTP by the first bytes of a connection, plain or after TLS, so that one port can serve both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

#: A connection says what it wants within this time: the protocol's first bytes, for HTTP the whole head of the first
#: request, however slowly it drips.
FIRST_BYTES_S: Final = 10.0
#: A head of more bytes is handed on as it is; the HTTP server goes on counting bytes and time (``rest/head_limit``).
HEAD_BYTES_MAX: Final = 65_536

IN_DOUBT: Final = 0
AMQP: Final = 1
HTTP: Final = 2

_START_SIZE = 4
_HEAD_END = b"\r\n\r\n"
#: Methods of HTTP, cut to the length that distinguishes them from everything else.
_METHODS = frozenset((b"GET ", b"PUT ", b"POST", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC"))
_STARTS = (*_METHODS, b"AMQP")

ProtocolFactory = Callable[[], asyncio.Protocol]


def protocol_of(data: bytes) -> int:
    """Return AMQP, HTTP, or IN_DOUBT while more bytes are needed.

    What is neither goes to AMQP, whose engine answers with the header that it supports and closes (AMQP 1.0 part 2,
    2.2).
    """
    start = bytes(data[:_START_SIZE])
    if start in _METHODS:
        return HTTP if _HEAD_END in data or len(data) >= HEAD_BYTES_MAX else IN_DOUBT
    if len(start) < _START_SIZE and any(known.startswith(start) for known in _STARTS):
        return IN_DOUBT
    return AMQP


class ProtocolSwitch(asyncio.Protocol):
    """The protocol of a connection until its first bytes show what it is.

    Args:
        amqp: Makes the protocol of an AMQP connection.
        http: Makes that of an HTTP connection.
        undetermined: The connections whose protocol is not known yet, so that they can be counted and ended.
    """

    __slots__ = ("_amqp", "_data", "_http", "_timer", "_transport", "_undetermined")

    def __init__(self, amqp: ProtocolFactory, http: ProtocolFactory, undetermined: dict[ProtocolSwitch, None]) -> None:
        self._amqp = amqp
        self._http = http
        self._undetermined = undetermined
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._undetermined[self] = None
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTES_S, self.abort)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol: once it is clear what this is, hand all of it over."""
        begin = len(self._data)
        self._data += data
        if begin >= _START_SIZE and len(self._data) < HEAD_BYTES_MAX:
            # HTTP, then. Only what is new is searched: a head may drip byte by byte.
            is_whole = self._data.find(_HEAD_END, begin - len(_HEAD_END) + 1) >= 0
            kind = HTTP if is_whole else IN_DOUBT
        else:
            kind = protocol_of(bytes(self._data))
        transport = self._transport
        if kind == IN_DOUBT or transport is None:
            return
        self._leave()
        protocol = self._amqp() if kind == AMQP else self._http()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(bytes(self._data))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._leave()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        self._undetermined.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
