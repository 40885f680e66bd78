"""The bound on HTTP connections: one more is told to come again, and closed.

What each may hold is bounded by the head of a request (``app``), the buffers of its stream, and the room that all
bodies share (``bodies``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from duobus.gateway.rest.atom.xml.documents import ERROR_TYPE, error_body
from duobus.gateway.rest.error_responses import RETRY_AFTER_S

#: HTTP connections at a time, over all ports; AMQP's are counted by namespace (Quotas).
HTTP_CONNECTIONS_MAX: Final = 10_000

_TEXT: Final = "SubCode=50004. Server Busy. The server has too many HTTP connections. Use those you have."


class CountedServer(Protocol):
    """Whoever knows the open connections: aiohttp's server."""

    @property
    def connections(self) -> Sequence[asyncio.Protocol]:
        """Those that are open."""

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of one more."""


class _Refusing(asyncio.Protocol):
    """Answers 503 whatever is asked for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        body = error_body(503, _TEXT).encode()
        head = (
            f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {ERROR_TYPE}\r\nContent-Length: {len(body)}\r\n"
            f"Retry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.close()


def bounded(server: CountedServer, limit: int = HTTP_CONNECTIONS_MAX) -> Callable[[], asyncio.Protocol]:
    """Return the factory of a server's protocols that lets in ``limit`` at a time."""

    def make() -> asyncio.Protocol:
        return server() if len(server.connections) < limit else _Refusing()

    return make
