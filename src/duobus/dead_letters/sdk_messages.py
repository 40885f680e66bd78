"""Messages of the SDK in the JSON form of the dead-letter service, and back.

What the SDK makes of a message is all that is known of it, so that types of whole numbers among properties are not told
apart.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from duobus.codec import Symbol
from duobus.model.durations import format_duration, parse_duration
from duobus.model.json.messages import DESCRIPTION, REASON, message_of
from duobus.model.json.values import from_json, to_json

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

_FIELDS: Final = {
    "messageId": "message_id",
    "userId": "user_id",
    "to": "to",
    "subject": "subject",
    "replyTo": "reply_to",
    "correlationId": "correlation_id",
    "contentType": "content_type",
    "contentEncoding": "content_encoding",
    "absoluteExpiryTime": "absolute_expiry_time",
    "creationTime": "creation_time",
    "groupId": "group_id",
    "groupSequence": "group_sequence",
    "replyToGroupId": "reply_to_group_id",
}
_TEXTS: Final = frozenset(_FIELDS) - {"messageId", "userId", "correlationId"}
#: Annotations that are no sender's, or that a form has a member for.
KNOWN_ANNOTATIONS: Final = {"x-opt-partition-key": "partitionKey", "x-opt-via-partition-key": "viaPartitionKey"}
BROKER_ANNOTATIONS: Final = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-scheduled-enqueue-time",
    }
)
_TYPES: Final = {
    "ubyte": "UBYTE",
    "ushort": "USHORT",
    "uint": "UINT",
    "ulong": "ULONG",
    "byte": "BYTE",
    "short": "SHORT",
    "int": "INT",
    "long": "LONG",
    "float": "FLOAT",
    "timestamp": "TIMESTAMP",
    "symbol": "SYMBOL",
    # As it is: the SDK would take it for text.
    "binary": "BINARY",
}


def record_of(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """What the dead-letter service of a server would tell of a message."""
    form = form_of_sdk(message)
    properties = form.get("applicationProperties", {})
    return {
        "sequenceNumber": message.sequence_number,
        "enqueuedSequenceNumber": message.enqueued_sequence_number,
        "enqueuedTime": None if message.enqueued_time_utc is None else message.enqueued_time_utc.isoformat(),
        "deliveryCount": message.delivery_count or 0,
        "state": "active",
        "isHeld": False,
        "reason": properties.pop(REASON, None),
        "description": properties.pop(DESCRIPTION, None),
        "deadLetterSource": message.dead_letter_source,
        "message": form,
    }


def form_of_sdk(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """The form of a message that the SDK has received."""
    raw = message.raw_amqp_message
    form: dict[str, Any] = {}
    header = raw.header
    if header is not None:
        head = {
            "durable": header.durable,
            "priority": header.priority,
            "timeToLive": None if header.time_to_live is None else format_duration(header.time_to_live),
        }
        form["header"] = {name: value for name, value in head.items() if value is not None}
    annotations: dict[str, Any] = {}
    for key, value in (raw.annotations or {}).items():
        name = _plain(key)
        if name in KNOWN_ANNOTATIONS:
            form[KNOWN_ANNOTATIONS[name]] = _plain(value)
        elif name not in BROKER_ANNOTATIONS and value is not None:
            annotations[str(name)] = _typed(value)
    form["annotations"] = annotations
    if raw.properties is not None:
        found = {name: getattr(raw.properties, attribute) for name, attribute in _FIELDS.items()}
        form["properties"] = {
            name: _plain(value) if name in _TEXTS else _identity(name, value)
            for name, value in found.items()
            if value is not None
        }
    form["applicationProperties"] = {
        str(_plain(name)): _typed(value) for name, value in (raw.application_properties or {}).items()
    }
    if raw.footer:
        form["footer"] = {str(_plain(name)): _typed(value) for name, value in raw.footer.items()}
    form["body"] = _body_of(raw)
    return {name: value for name, value in form.items() if value}


def _body_of(raw: Any) -> dict[str, Any] | None:
    kind = raw.body_type.value
    if kind == "data":
        parts = []
        for part in raw.body:
            try:
                parts.append(bytes(part).decode())
            except UnicodeDecodeError:
                parts.append(to_json(bytes(part)))
        return {"data": parts}
    if kind == "sequence":
        return {"sequence": [_typed(list(part)) for part in raw.body]}
    return {"value": _typed(raw.body)}


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _identity(name: str, value: Any) -> Any:
    # pyamqp gives strings and binary as bytes alike; nearly all ids are text.
    return _plain(value) if isinstance(value, bytes | str) and name != "userId" else to_json(_coded(value))


def _typed(value: Any) -> Any:
    return to_json(_coded(value))


def _coded(value: Any) -> Any:
    """A value of pyamqp, where text comes as bytes, as one of the codec."""
    if isinstance(value, Mapping):
        return {_coded(key): _coded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_coded(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, datetime):
        return from_json({"$timestamp": value.isoformat()})
    if value is None or isinstance(value, bool | int | float | str | uuid.UUID):
        return value
    return str(value)


def sdk_message(form: dict[str, Any], data: bytes | None = None) -> Any:
    """A message of the SDK that is sent as the form says.

    Args:
        form: Of the message.
        data: The body in place of that of the form: a large one need not become JSON for that.

    Raises:
        ArgumentInvalid: It is no form.
    """
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    # All that can be wrong with it is told here, in the words of the form.
    _, metadata = message_of(form)
    body = form.get("body") or {"data": [""]}
    options: dict[str, Any] = {}
    if data is not None:
        options["data_body"] = [data]
    elif "data" in body:
        options["data_body"] = [_binary(part) for part in body["data"]]
    elif "sequence" in body:
        options["sequence_body"] = [[_for_sdk(item) for item in part] for part in body["sequence"]]
    else:
        options["value_body"] = _for_sdk(body["value"])
    fields = {_FIELDS[name]: _field(name, value) for name, value in (form.get("properties") or {}).items()}
    annotations = {name: _for_sdk(value) for name, value in (form.get("annotations") or {}).items()}
    for annotation, member in KNOWN_ANNOTATIONS.items():
        if form.get(member) is not None:
            annotations[annotation] = form[member]
    if metadata.scheduled_ms is not None:
        annotations["x-opt-scheduled-enqueue-time"] = {"TYPE": "TIMESTAMP", "VALUE": metadata.scheduled_ms}
    header: dict[str, Any] = {}
    if metadata.ttl_ms is not None:
        header["time_to_live"] = parse_duration(str(form["header"]["timeToLive"]))
    if metadata.priority is not None:
        header["priority"] = metadata.priority
    if metadata.durable is not None:
        header["durable"] = metadata.durable
    return AmqpAnnotatedMessage(
        header=header or None,
        properties=fields or None,
        annotations=annotations or None,
        application_properties={
            name: _for_sdk(value) for name, value in (form.get("applicationProperties") or {}).items()
        }
        or None,
        footer={name: _for_sdk(value) for name, value in (form.get("footer") or {}).items()} or None,
        **options,
    )


def _binary(part: Any) -> bytes:
    found = from_json(part)
    return found.encode() if isinstance(found, str) else bytes(found)


def _field(name: str, value: Any) -> Any:
    found = from_json(value)
    if isinstance(found, Symbol):
        return str(found)
    if name in ("absoluteExpiryTime", "creationTime"):
        return from_json({"$timestamp": value}) if not isinstance(value, dict) else found
    return found


def _for_sdk(value: Any) -> Any:
    """A typed value of JSON as pyamqp encodes it: with its type, where Python has none of its own."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, inside),) = value.items()
        if name.startswith("$") and name[1:] in _TYPES:
            return {"TYPE": _TYPES[name[1:]], "VALUE": from_json(value) if name != "$float" else float(inside)}
        if name.startswith("$"):
            return from_json(value)
    if isinstance(value, dict):
        return {key: _for_sdk(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_for_sdk(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return {"TYPE": "LONG", "VALUE": value}
    return value
