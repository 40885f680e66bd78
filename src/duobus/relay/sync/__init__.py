"""Listeners, senders and pairs of relays, for programs with threads."""

from duobus.relay.sync.bodies import StreamedBody, StreamedRequest, StreamedResponse
from duobus.relay.sync.duplicates import DuplicateFilter
from duobus.relay.sync.listener import PairListener, PendingConnection, RelayListener
from duobus.relay.sync.pair import RelayPair
from duobus.relay.sync.sender import RelayConnection, RelaySender, connect, request
from duobus.relay.sync.tokens import TokenSource

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
