"""From a message to a response: body, BrokerProperties and headers (Azure: Service Bus REST API)."""

from __future__ import annotations

import uuid
from typing import Any, Final, NamedTuple

from duobus.broker import COUNT_BITS, DEAD_LETTER, FragmentHandle, QueuedCopy, QueuedMessage, kind_of, sub_queue_of
from duobus.codec import DecodeError, Scan, application_properties, decode, scan, split_batch
from duobus.codec.sections import DATA, VALUE, find_section
from duobus.gateway.rest.runtime.broker_properties import write_header
from duobus.gateway.rest.runtime.header_values import write_date, write_properties
from duobus.model.metadata import MessageMetadata
from duobus.model.overlay import Overlay

_STATES: Final = ("Active", "Deferred", "Scheduled")
_NOTHING: Final = MessageMetadata()
#: What a body is that is neither bytes nor text: AMQP-encoded.
_ENCODED: Final = "application/octet-stream"


class Received(NamedTuple):
    """What a response is made of."""

    body: bytes
    content_type: str | None
    headers: list[tuple[str, str]]


def sequence_number(handle: FragmentHandle, message: QueuedMessage) -> int:
    """The sequence number of a message."""
    return handle.number << COUNT_BITS | message.count


def message_id_text(found: Scan) -> str | None:
    """The message id as HTTP tells it."""
    return _id_text(found.message_id)


def altered(message: QueuedMessage) -> bytes:
    """The bare message, as the rule that made the copy has changed it."""
    if message.metadata is None or message.metadata.changes is None:
        return message.payload
    return Overlay.decode(message.metadata.changes).apply_to(message.payload)


def show(
    handle: FragmentHandle,
    message: QueuedMessage,
    *,
    default_ttl_ms: int | None,
    lock_token: uuid.UUID | None = None,
    locked_until_ms: int = 0,
) -> Received:
    """Return a message as a response shows it; ``lock_token`` for one that is locked."""
    payload = altered(message)
    found = scan(payload)
    metadata = message.metadata or _NOTHING
    body, content_type = _body_of(payload, found)
    members = _members(handle, message, found, default_ttl_ms)
    if lock_token is not None:
        members["LockToken"] = str(lock_token)
        members["LockedUntilUtc"] = write_date(locked_until_ms)
    headers = [("BrokerProperties", write_header(members))]
    headers += write_properties(_properties(message, payload, metadata))
    return Received(body, content_type, headers)


def _members(handle: FragmentHandle, message: QueuedMessage, found: Scan, default_ttl_ms: int | None) -> dict[str, Any]:
    metadata = message.metadata or _NOTHING
    number = sequence_number(handle, message)
    origin = handle.number << COUNT_BITS | message.origin if isinstance(message, QueuedCopy) else number
    lives = [ttl for ttl in (default_ttl_ms, metadata.ttl_ms) if ttl is not None]
    ttl_ms = min(lives) if lives else None
    return {
        "CorrelationId": _id_text(found.correlation_id),
        "DeadLetterSource": metadata.dead_letter_source,
        "DeliveryCount": message.deliveries + 1,
        "EnqueuedSequenceNumber": metadata.enqueued_sequence_number or origin,
        "EnqueuedTimeUtc": write_date(message.enqueued_ms),
        "Label": found.subject,
        "MessageId": _id_text(found.message_id),
        "PartitionKey": metadata.partition_key,
        "ReplyTo": found.reply_to,
        "ReplyToSessionId": found.reply_to_group_id,
        "ScheduledEnqueueTimeUtc": None if metadata.scheduled_ms is None else write_date(metadata.scheduled_ms),
        "SequenceNumber": number,
        "SessionId": found.group_id,
        "State": _STATES[kind_of(message.state)],
        "TimeToLive": None if ttl_ms is None else _number(ttl_ms / 1000),
        "To": found.to,
        "ViaPartitionKey": metadata.via_partition_key,
    }


def _number(seconds: float) -> float | int:
    return int(seconds) if seconds.is_integer() else seconds


def _id_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _body_of(payload: bytes, found: Scan) -> tuple[bytes, str | None]:
    content_type = None if found.content_type is None else str(found.content_type)
    try:
        return b"".join(split_batch(payload)[1]), content_type
    except DecodeError:
        # Not data sections.
        start, value, end = find_section(payload, VALUE)
    if start != value:
        try:
            content = decode(payload, value)[0]
        except DecodeError:
            # The server steps over bodies; one that nothing but a byte count is right of is handed on as it is.
            content = None
        if isinstance(content, bytes):
            return content, content_type
        if isinstance(content, str):
            return str(content).encode(), content_type
        return payload[value:end], _ENCODED
    return payload[find_section(payload, DATA)[0] :], _ENCODED


def _properties(message: QueuedMessage, payload: bytes, metadata: MessageMetadata) -> dict[str, Any]:
    try:
        properties = application_properties(payload)
    except DecodeError:
        # Nobody has looked into them before. What cannot be told must not keep the message from being received.
        properties = {}
    if metadata.overlay is not None:
        properties.update(decode(metadata.overlay)[0])
    if sub_queue_of(message.state) == DEAD_LETTER:
        for name, text in (("DeadLetterReason", metadata.reason), ("DeadLetterErrorDescription", metadata.description)):
            if text is not None:
                properties[name] = text
    return properties
