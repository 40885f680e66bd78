"""A received message in the form in which it can be sent again: as its sender sent it, without the broker's values."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from duobus.spark.body_encoder import is_text, sequence_sections, value_section
from duobus.spark.connection import Place, namespace_of
from duobus.spark.sink.body_decoder import sequences_of, value_of
from duobus.spark.sink.destinations import may_detect_duplicates

#: What brokers write into annotations and properties.
_ANNOTATIONS: Final = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
        "x-opt-scheduled-enqueue-time",
    }
)
_PROPERTIES: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})
#: The SDK looks for these as bytes.
_TRACES: Final = frozenset({"traceparent", "tracestate", "Diagnostic-Id"})


def resendable(message: Any, message_id: str | None, added: dict[str, Any]) -> AmqpAnnotatedMessage:
    """Return a message of the SDK that is sent as its sender sent it.

    Args:
        message: The received message.
        message_id: The new id; None to keep the message's own id.
        added: Application properties to add, unless the message has them.
    """
    raw = message.raw_amqp_message
    properties = AmqpMessageProperties()
    for name, value in raw.properties.items() if raw.properties else ():
        setattr(properties, name, _text(value) if isinstance(value, bytes) and name != "user_id" else value)
    # The SDK writes both anew from the time to live.
    properties.creation_time = properties.absolute_expiry_time = None
    if message_id is not None:
        properties.message_id = message_id
    header = AmqpMessageHeader()
    if raw.header is not None:
        header.time_to_live, header.priority = raw.header.time_to_live, raw.header.priority
        header.durable = raw.header.durable
    users: dict[Any, Any] = {}
    for key, value in (raw.application_properties or {}).items():
        name = _text(key)
        if name not in _PROPERTIES:
            users[name.encode() if name in _TRACES else name] = _value(value)
    annotations = {_text(key): _value(value) for key, value in (raw.annotations or {}).items()}
    copy = AmqpAnnotatedMessage(
        application_properties={**added, **users} or None,
        annotations={name: value for name, value in annotations.items() if name not in _ANNOTATIONS} or None,
        **_body(raw),
    )
    copy.header, copy.properties = header, properties
    return copy


def _body(raw: Any) -> dict[str, Any]:
    if raw.body_type is AmqpMessageBodyType.DATA:
        return {"data_body": list(raw.body)}
    # By way of the encoding, which takes bytes that are UTF-8 for text: the SDK hands both out alike.
    if raw.body_type is AmqpMessageBodyType.SEQUENCE:
        return {"sequence_body": sequences_of(sequence_sections(raw.body))}
    return {"value_body": value_of(value_section(raw.body))}


def _value(value: Any) -> Any:
    descriptor = getattr(value, "descriptor", None)
    if descriptor is not None and isinstance(value, int):
        symbol = {"TYPE": "SYMBOL", "VALUE": _text(descriptor)}
        return {"TYPE": "DESCRIBED", "VALUE": (symbol, {"TYPE": "LONG", "VALUE": int(value)})}
    if isinstance(value, bytes):
        return value.decode() if is_text(value) else {"TYPE": "BINARY", "VALUE": value}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"TYPE": "LONG", "VALUE": value}
    return value


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# Under which id a message is made active again, so that neither its past nor a second attempt harms it.
#
# A queue that detects duplicates remembers the id of the original: a copy with the same id would be dropped, and then
# the original removed. There the copy gets an id made of where the original lay, which is the same when a process that
# was killed between sending and removing is followed by another: the second copy is dropped then. Elsewhere it keeps
# its id, and such a kill delivers it twice.

#: Property with the id that the sender gave.
ORIGINAL_ID: Final = "x-duobus-original-message-id"


def reactivated_id(namespace: str, entity: str, number: int, enqueued_ms: int) -> str:
    """The id of a copy: the same each time, and different from all ids of senders."""
    place = hashlib.sha256(f"{namespace}/{entity}/{enqueued_ms}".encode()).hexdigest()[:32]
    return f"reactivated/{place}/{number}"


class Reactivation:
    """Makes the copies for one queue.

    Args:
        place: The namespace of the queue.
        entity: The queue.
    """

    def __init__(self, place: Place, entity: str) -> None:
        self._namespace = namespace_of(place)
        self._entity = entity
        self._renames = may_detect_duplicates(place, entity)

    def copy(self, message: Any) -> Any:
        """Return the message that is sent in the place of a received message."""
        if not self._renames:
            return resendable(message, None, {})
        enqueued = message.enqueued_time_utc
        enqueued_ms = 0 if enqueued is None else round(enqueued.timestamp() * 1000)
        new = reactivated_id(self._namespace, self._entity, message.sequence_number or 0, enqueued_ms)
        return resendable(message, new, {} if message.message_id is None else {ORIGINAL_ID: str(message.message_id)})
