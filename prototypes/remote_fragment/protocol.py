"""What a front and an owner say to each other about fragments: arrays of messages in MessagePack, behind their length.

The *front* is the server that a client is connected to; the *owner* is the server that has the store of a fragment.
A front asks (``Send``, ``Settle``, ``Take``, ``Unlock``), and the owner answers with the number of the request
(``Answer``, ``Delivered``). The owner says by itself what is available in a fragment (``Told``). Everything that one
turn of the event loop has to say goes into one frame.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

import msgspec

from duobus import errors
from duobus.errors import ServiceBusError
from duobus.model.metadata import MessageMetadata

#: Both sides must have the same version. A product would need more than that: see README.md.
VERSION: Final = 1
_LENGTH: Final = struct.Struct(">I")

#: The catalog's id of the shard, and the number of the fragment.
FragmentKey = tuple[int, int]


class Hello(msgspec.Struct, array_like=True, tag=0):
    """The first message of either side."""

    version: int


class Send(msgspec.Struct, array_like=True, tag=1):
    """Store messages in a fragment. ``is_atomic``: all of them or none."""

    number: int
    fragment: FragmentKey
    payloads: list[bytes]
    metadata: dict[int, MessageMetadata] | None
    is_atomic: bool
    is_ping: bool


class Settle(msgspec.Struct, array_like=True, tag=2):
    """Settle locked messages. ``properties``: an encoded AMQP map."""

    number: int
    fragment: FragmentKey
    prefix: bytes
    outcome: int
    ranges: list[tuple[int, int]]
    has_detail: bool = False
    properties: bytes | None = None
    reason: str | None = None
    description: str | None = None


class Take(msgspec.Struct, array_like=True, tag=3):
    """Give up to ``credit`` messages of a sub-queue, locked or (``is_removing``) removed."""

    number: int
    fragment: FragmentKey
    sub_queue: int
    credit: int
    is_removing: bool


class Unlock(msgspec.Struct, array_like=True, tag=4):
    """Give locked messages back; no answer comes."""

    fragment: FragmentKey
    prefix: bytes
    ranges: list[tuple[int, int]]
    is_counted: bool


class Told(msgspec.Struct, array_like=True, tag=5):
    """How many messages each sub-queue of a fragment has for somebody; None while the fragment's store is away."""

    fragment: FragmentKey
    available: list[int] | None


class Answer(msgspec.Struct, array_like=True, tag=6):
    """The answer to Send and Settle. ``error``: the class and the text; ``lost``: locks that were not held."""

    number: int
    error: tuple[str, str] | None = None
    lost: list[int] = []


class Delivered(msgspec.Struct, array_like=True, tag=7):
    """The answer to Take, in columns; a column is None where every message has the default."""

    number: int
    available: int
    prefix: bytes
    first_lock: int
    until_ms: int
    counts: list[int]
    enqueued: list[int]
    payloads: list[bytes]
    deliveries: list[int] | None
    states: list[int] | None
    metadata: list[MessageMetadata | None] | None


Message = Hello | Send | Settle | Take | Unlock | Told | Answer | Delivered

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Message])
_ERRORS: Final = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ServiceBusError)
}


def error_as_pair(error: ServiceBusError | None) -> tuple[str, str] | None:
    """An error for the other side."""
    return None if error is None else (type(error).__name__, str(error))


def error_of(pair: tuple[str, str] | None) -> ServiceBusError | None:
    """The error that the other side means; what this side does not know may be tried again."""
    return None if pair is None else _ERRORS.get(pair[0], errors.ServerBusy)(pair[1])


class FramedConnection(asyncio.Protocol):
    """A connection that carries messages, one frame for each turn of the event loop.

    Attributes:
        is_gone: The connection has ended, or was never made.
    """

    def __init__(self) -> None:
        self.is_gone = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._unsaid: list[Message] = []

    def say(self, message: Message) -> None:
        """Write a message at the end of this turn of the loop."""
        if not self._unsaid:
            self._loop.call_soon(self._write)
        self._unsaid.append(message)

    def _write(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        if self._transport is not None and not self.is_gone:
            frame = _ENCODER.encode(unsaid)
            self._transport.write(_LENGTH.pack(len(frame)) + frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.say(Hello(VERSION))

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        unread = self._unread
        unread += data
        start = 0
        while len(unread) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(unread, start)
            end = start + _LENGTH.size + length
            if len(unread) < end:
                break
            for message in _DECODER.decode(bytes(memoryview(unread)[start + _LENGTH.size : end])):
                self.heard(message)
            start = end
        del unread[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        del exc
        if not self.is_gone:
            self.is_gone = True
            self.lost()

    def abort(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    def heard(self, message: Any) -> None:
        """Act upon a message of the other side."""
        raise NotImplementedError

    def lost(self) -> None:
        """Act upon the end of the connection."""
        raise NotImplementedError
