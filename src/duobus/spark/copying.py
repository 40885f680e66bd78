"""A copy of a received message, to be sent again as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from azure.servicebus.amqp import AmqpAnnotatedMessage

#: What a sender may give beside the message; the rest of the annotations is the broker's.
_KEPT: Final = (b"x-opt-partition-key", b"x-opt-via-partition-key")
#: Properties that a broker adds to dead letters.
_ADDED: Final = (b"DeadLetterReason", b"DeadLetterErrorDescription")


def copy_of(message: Any) -> AmqpAnnotatedMessage:
    """Return a message with the same body, properties, session, key and time to live."""
    from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader

    raw = message.raw_amqp_message
    kind = raw.body_type.value
    if kind == "data":
        body: dict[str, Any] = {"data_body": list(raw.body)}
    elif kind == "value":
        body = {"value_body": raw.body}
    else:
        body = {"sequence_body": list(raw.body)}
    ttl = None if raw.header is None else raw.header.time_to_live
    return AmqpAnnotatedMessage(
        **body,
        header=AmqpMessageHeader(durable=True, time_to_live=ttl),
        properties=raw.properties,
        annotations={name: value for name, value in (raw.annotations or {}).items() if name in _KEPT},
        application_properties={
            name: value for name, value in (raw.application_properties or {}).items() if name not in _ADDED
        },
    )
