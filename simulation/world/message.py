"""What simulated clients send, and how they read what comes."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from duobus.codec import Symbol, Timestamp, build_message, decode, header_section
from duobus.codec.sections import HEADER, find_section

if TYPE_CHECKING:
    from duobus.amqp import Link
    from simulation.history import events as h

PING: Final = "application/vnd.ms-servicebus-ping"


class Received:
    """A delivery that a client holds."""

    __slots__ = ("delivery_id", "event", "link")

    def __init__(self, link: Link, delivery_id: int, event: h.Delivery) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.event = event


class Message:
    """A message to send."""

    __slots__ = ("body", "key", "ping", "scheduled_ms", "ttl_ms", "uid")

    def __init__(self, uid: str, body: bytes, key: str | None = None) -> None:
        self.uid = uid
        self.body = b"uid=" + uid.encode() + b";" + body
        self.key = key
        self.ping = False
        self.ttl_ms: int | None = None
        self.scheduled_ms: int | None = None

    def encode(self) -> bytes:
        """The message as an SDK would write it."""
        return build_message(
            self.properties(),
            None if self.ping else {"uid": self.uid},
            data=b"" if self.ping else self.body,
            header=header_section(durable=True, ttl_ms=self.ttl_ms) if self.ttl_ms else b"",
            annotations=self.annotations() or None,
        )

    def properties(self) -> list[Any]:
        """The fields of the properties section."""
        return [self.uid, None, None, None, None, None, Symbol(PING)] if self.ping else [self.uid]

    def annotations(self) -> dict[Any, Any]:
        """The message annotations."""
        annotations: dict[Any, Any] = {}
        if self.key is not None:
            annotations[Symbol("x-opt-partition-key")] = self.key
        if self.scheduled_ms is not None:
            annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(self.scheduled_ms)
        return annotations


def key_of(message: Message) -> dict[Any, Any] | None:
    """The annotations of a batch transfer: those that place its first message."""
    return {Symbol("x-opt-partition-key"): message.key} if message.key is not None else None


def digest(body: bytes) -> bytes:
    """What the history keeps of a body."""
    return sha256(body).digest()[:8]


def body_of(bare: bytes) -> bytes:
    """The bytes of a message's data section."""
    start, value, _ = find_section(bare, 0x75)
    return b"" if start == value else bytes(decode(bare, value)[0])


def delivery_count(payload: bytes) -> int:
    """How often a message was delivered before."""
    start, value, _ = find_section(payload, HEADER)
    fields = decode(payload, value)[0] if start != value else []
    return int(fields[4] or 0) if len(fields) > 4 else 0
