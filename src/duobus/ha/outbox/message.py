"""A message on its way to disk and back: everything that the application gave to the sender, types included.

Pure. It keeps the values that the application set, not their AMQP encoding: the SDK forgets types when it decodes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from duobus.ha import transfer

#: A message of an outbox; Service Bus takes none that is larger.
MESSAGE_BYTES_MAX: Final = 104_857_600
_PARTITION_KEY: Final = "x-opt-partition-key"


class Packed(NamedTuple):
    """A message as it is on disk.

    Attributes:
        key: Messages of one key are sent in order: session id, else partition key, else empty.
        head: Everything but data, as JSON.
        data: The data sections, one behind the other.
    """

    key: str
    head: bytes
    data: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.head) + len(self.data)


def pack(message: ServiceBusMessage | AmqpAnnotatedMessage) -> Packed:
    """Return what to write.

    Raises:
        TypeError: It holds something that AMQP does not have, or is nested too deep.
        ValueError: It is too large.
    """
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    header, properties = _items(raw.header), _items(raw.properties)
    if header.get("time_to_live"):
        # The SDK writes both anew from the time to live, which counts from the send to the namespace on.
        properties.pop("creation_time", None)
        properties.pop("absolute_expiry_time", None)
    annotations = raw.annotations or {}
    sections = list(raw.body) if raw.body_type is AmqpMessageBodyType.DATA else []
    head = transfer.dumps(
        {
            "header": header,
            "properties": properties,
            "application_properties": raw.application_properties,
            "annotations": annotations,
            "delivery_annotations": raw.delivery_annotations,
            "footer": raw.footer,
            "data": [len(section) for section in sections],
            "body_type": raw.body_type.value,
            "body": None if sections or raw.body_type is AmqpMessageBodyType.DATA else _value(raw),
        }
    )
    packed = Packed(_key(properties, annotations), head, b"".join(sections))
    if packed.size > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message has up to {MESSAGE_BYTES_MAX:,} bytes, not {packed.size:,}")
    return packed


def unpack(head: bytes, data: bytes) -> AmqpAnnotatedMessage:
    """Return the message.

    Raises:
        ValueError: These are not the bytes of one.
    """
    try:
        parts = transfer.loads(head)
        kind = AmqpMessageBodyType(parts["body_type"])
        body: Any = parts["body"]
        if kind is AmqpMessageBodyType.DATA:
            body, start = [], 0
            for length in parts["data"]:
                body.append(data[start : start + length])
                start += length
        message = AmqpAnnotatedMessage(
            footer=parts["footer"],
            application_properties=parts["application_properties"],
            annotations=parts["annotations"] or None,
            delivery_annotations=parts["delivery_annotations"],
            **{f"{kind.value}_body": body},
        )
        message.header = AmqpMessageHeader(**parts["header"])
        message.properties = AmqpMessageProperties(**parts["properties"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no message of an outbox: {error!r}") from error
    return message


def _items(section: AmqpMessageHeader | AmqpMessageProperties | None) -> dict[str, Any]:
    return {} if section is None else {name: value for name, value in section.items() if value is not None}


def _value(raw: AmqpAnnotatedMessage) -> Any:
    return [list(part) for part in raw.body] if raw.body_type is AmqpMessageBodyType.SEQUENCE else raw.body


def _key(properties: dict[str, Any], annotations: dict[Any, Any]) -> str:
    for found in (
        properties.get("group_id"),
        annotations.get(_PARTITION_KEY),
        annotations.get(_PARTITION_KEY.encode()),
    ):
        if found is not None:
            return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
    return ""
