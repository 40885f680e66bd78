"""Listeners, senders and pairs of relays, for asyncio."""

from duobus.relay.aio.bodies import StreamedBody, StreamedRequest, StreamedResponse
from duobus.relay.aio.duplicates import DuplicateFilter
from duobus.relay.aio.listener import PairListener, PendingConnection, RelayListener
from duobus.relay.aio.pair import RelayPair
from duobus.relay.aio.sender import RelayConnection, RelaySender, connect, request
from duobus.relay.aio.tokens import TokenSource

__all__ = [
    "DuplicateFilter",
    "PairListener",
    "PendingConnection",
    "RelayConnection",
    "RelayListener",
    "RelayPair",
    "RelaySender",
    "StreamedBody",
    "StreamedRequest",
    "StreamedResponse",
    "TokenSource",
    "connect",
    "request",
]
