"""MessageMetadata: everything but the payload of one message, as the fragment keeps it beside the payload.

A plain message has none. The store keeps the encoded form without looking into it (3.12: the bare message stays the
bytes that came; what is changed lies beside it as an overlay).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from duobus.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence


class TransferRoute(msgspec.Struct, array_like=True):
    """How a message got where it is, and where it goes from there; together one member, for few messages have any.

    Attributes:
        hops: How often it has been forwarded.
        to: Path of the entity for which it waits in the transfer queue of another.
        scheduled_ms: ``scheduled_ms`` of such a message: it is scheduled there, and not here.
    """

    hops: int = 0
    to: str | None = None
    scheduled_ms: int | None = None


class MessageMetadata(msgspec.Struct, array_like=True):
    """The metadata of one message; every member is None (or 0) when the message has none of it.

    The stored form is a MessagePack array in the order below. Members are only ever added at the end: a shorter
    array, written by an earlier version, reads with the defaults for the rest.

    Attributes:
        ttl_ms: Own time to live.
        scheduled_ms: When it is to be enqueued, ms since the epoch.
        partition_key: ``x-opt-partition-key`` as sent.
        via_partition_key: ``x-opt-via-partition-key`` as sent.
        session_id: Session (group) id.
        priority: Header priority, as sent.
        annotations: Other sender annotations to hand on: encoded AMQP map pairs, without the map's own header.
        annotations_count: Number of elements (keys and values) in ``annotations``.
        overlay: Encoded AMQP application-properties map, to be merged into the message's own at delivery.
        reason: Dead-letter reason.
        description: Dead-letter error description.
        enqueued_sequence_number: Sequence number it first had, when it has moved since.
        dead_letter_source: Path of the entity in which it was dead-lettered, when it has been forwarded since.
        redeliver_at_ms: Until when an abandon has put it off.
        route: Of messages that are or were forwarded, or sent via another entity.
        changes: What a rule's action changed on this copy: an encoded ``Overlay``, to be applied at delivery.
        deferred_in: Of what was deferred in a later life of its fragment than it came in: the epoch of that life. Some
            deliveries may be forgotten in between, so that the count does not tell whose deferral it is.
        durable: Header durable, as sent.
        delivery_annotations: The sender's own, to hand on: encoded AMQP map pairs, as ``annotations``.
        has_expiry: The sender gave an ``absolute-expiry-time``, which the broker's own replaces.
        claim: Of what is deferred by a claim: the id of the claim.
    """

    ttl_ms: int | None = None
    scheduled_ms: int | None = None
    partition_key: str | None = None
    via_partition_key: str | None = None
    session_id: str | None = None
    priority: int | None = None
    annotations: bytes | None = None
    annotations_count: int = 0
    overlay: bytes | None = None
    reason: str | None = None
    description: str | None = None
    enqueued_sequence_number: int | None = None
    dead_letter_source: str | None = None
    redeliver_at_ms: int | None = None
    route: TransferRoute | None = None
    changes: bytes | None = None
    deferred_in: int | None = None
    durable: bool | None = None
    delivery_annotations: bytes | None = None
    has_expiry: bool = False
    claim: str | None = None

    def encode(self) -> bytes:
        """Return the stored form; ``decode`` gives an equal object back."""
        return _ENCODER.encode(self)

    @staticmethod
    def decode(data: bytes) -> MessageMetadata:
        """Return what ``encode`` was given.

        Raises:
            InternalError: The bytes are no stored form. The store verifies checksums, so this is our own fault.
        """
        try:
            return _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InternalError(f"The stored special part of a message cannot be read: {error}") from None


class SessionMetadata(MessageMetadata, frozen=True):  # type: ignore[misc]
    """A session id and nothing else, which is all the metadata of most messages of a session.

    Messages share it, so it cannot be changed: see ``own``.
    """


class ClaimMetadata(MessageMetadata, frozen=True):  # type: ignore[misc]
    """A claim and nothing else, which is all the metadata of most messages that are claimed.

    Messages share it, so it cannot be changed: see ``own``.
    """


def own(metadata: MessageMetadata | None) -> MessageMetadata:
    """The metadata of one message alone, to be changed."""
    if metadata is None:
        return MessageMetadata()
    if type(metadata) is ClaimMetadata:
        return MessageMetadata(claim=metadata.claim, deferred_in=metadata.deferred_in)
    return MessageMetadata(session_id=metadata.session_id) if type(metadata) is SessionMetadata else metadata


def has_session_only(metadata: MessageMetadata | None) -> bool:
    """Whether a message has no metadata but, perhaps, its session."""
    return (
        metadata is None
        or type(metadata) is SessionMetadata
        or metadata == MessageMetadata(session_id=metadata.session_id)
    )


_SESSION_ID = attrgetter("session_id")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(MessageMetadata)

#: Stored forms of late: many messages have the same session.
_ENCODED_MAX = 4096
_ENCODED: dict[str | None, bytes] = {}


def encoded(metadata: MessageMetadata) -> bytes:
    """``metadata.encode()``, without making it again for each message of a session."""
    if type(metadata) is not SessionMetadata:
        return metadata.encode()
    form = _ENCODED.get(metadata.session_id)
    if form is None:
        if len(_ENCODED) >= _ENCODED_MAX:
            _ENCODED.clear()
        form = _ENCODED[metadata.session_id] = metadata.encode()
    return form


def encoded_all(all_metadata: Sequence[SessionMetadata]) -> list[bytes]:
    """``encoded`` of each."""
    forms = list(map(_ENCODED.get, map(_SESSION_ID, all_metadata)))
    known = [form for form in forms if form is not None]
    return known if len(known) == len(forms) else [encoded(metadata) for metadata in all_metadata]
