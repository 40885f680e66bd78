"""Special: everything rare about one message, as the fragment keeps it beside the payload.

An ordinary message has none. The store keeps the encoded form without looking into it (design 2, row 8,
and 3.12: the bare message stays the bytes that came; what is changed lies beside it as an overlay).
"""

from __future__ import annotations

import msgspec

from duobus.errors import InternalError


class Special(msgspec.Struct, array_like=True):
    """What is rare about one message; every member is None (or 0) when the message has none of it.

    The stored form is a MessagePack array in the order below. Members are only ever added at the end: a shorter
    array, written by an earlier version, reads with the defaults for the rest.

    Attributes:
        ttl_ms: Own time to live.
        scheduled_ms: When it is to be enqueued, ms since the epoch.
        partition_key: ``x-opt-partition-key`` as sent.
        via_partition_key: ``x-opt-via-partition-key`` as sent.
        session_id: Session (group) id.
        priority: Header priority, when not the default of 4.
        annotations: Other sender annotations to hand on: encoded AMQP map pairs, without the map's own header.
        annotations_count: Number of elements (keys and values) in ``annotations``.
        overlay: Encoded AMQP application-properties map, to be merged into the message's own at delivery.
        reason: Dead-letter reason.
        description: Dead-letter error description.
        enqueued_sequence_number: Sequence number it first had, when it has moved since.
        dead_letter_source: Path of the entity in which it was dead-lettered, when it has been forwarded since.
        redeliver_at_ms: Until when an abandon has put it off.
        changes: What a rule's action changed on this copy: an encoded ``Overlay``, to be applied at delivery.
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
    changes: bytes | None = None

    def encode(self) -> bytes:
        """Return the stored form; ``decode`` gives an equal object back."""
        return _ENCODER.encode(self)

    @staticmethod
    def decode(data: bytes) -> Special:
        """Return what ``encode`` was given.

        Raises:
            InternalError: The bytes are no stored form. The store verifies checksums, so this is our own fault.
        """
        try:
            return _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InternalError(f"The stored special part of a message cannot be read: {error}") from None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Special)
