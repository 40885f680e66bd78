"""A client of relays (Azure: Hybrid Connections), for listeners and senders; it works with Azure and duobus alike.

``duobus.relay.aio`` is for programs with asyncio, ``duobus.relay.sync`` has the same names for programs with threads.
What both share is here.
"""

from duobus.relay.endpoint import RelayEndpoint
from duobus.relay.errors import (
    ConnectFailed,
    ConnectionDropped,
    ListenerRejected,
    RelayError,
    RelayRefused,
    RelayTimeout,
    StreamClosed,
    TokenFailed,
)
from duobus.relay.http import REQUEST_ID_HEADER, RelayRequest, RelayResponse

__all__ = [
    "ConnectFailed",
    "ConnectionDropped",
    "ListenerRejected",
    "REQUEST_ID_HEADER",
    "RelayEndpoint",
    "RelayError",
    "RelayRefused",
    "RelayRequest",
    "RelayResponse",
    "RelayTimeout",
    "StreamClosed",
    "TokenFailed",
]
