"""A whole message as a JSON object and back: what is exported, imported, and shown of a repair.

Members that are absent are not there; values have the types of ``duobus.model.json.values``::

    {"header": {"durable": true, "priority": 5, "timeToLive": "PT1H"}, "partitionKey": "...", "viaPartitionKey": "...",
     "scheduledEnqueueTime": "...", "annotations": {...}, "properties": {"messageId": ..., "groupId": ...},
     "applicationProperties": {...}, "body": {"data": [...]} or {"value": ...} or {"sequence": [[...], ...]},
     "footer": {...}}

A data section is the text that it holds in UTF-8, else ``{"$binary": base64}``. The session id is ``groupId``. What
cannot be read (nobody looks into bodies when they are sent) has ``raw`` instead, the bytes of the message in base64.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from duobus.codec import (
    DecodeError,
    EncodeError,
    Symbol,
    Timestamp,
    UInt,
    application_properties_section,
    data_section,
    decode,
    encode,
    properties_section,
    scan,
)
from duobus.codec.sections import (
    DATA,
    FOOTER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    application_properties,
    find_section,
)
from duobus.errors import ArgumentInvalid
from duobus.model.durations import format_duration, parse_duration
from duobus.model.json.values import from_json, time_of, time_text, to_json
from duobus.model.metadata import MessageMetadata
from duobus.model.overlay import Overlay

#: Fields of the properties section, in its order.
FIELDS: Final = (
    "messageId",
    "userId",
    "to",
    "subject",
    "replyTo",
    "correlationId",
    "contentType",
    "contentEncoding",
    "absoluteExpiryTime",
    "creationTime",
    "groupId",
    "groupSequence",
    "replyToGroupId",
)
_SYMBOLS: Final = frozenset({"contentType", "contentEncoding"})
_TIMES: Final = frozenset({"absoluteExpiryTime", "creationTime"})

#: What the broker sets when it dead-letters, and takes off on the way back.
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"

_SECTION: Final = b"\x00\x53"
_NAMES: Final = {
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
_MEMBERS: Final = frozenset(
    {
        "header",
        "partitionKey",
        "viaPartitionKey",
        "scheduledEnqueueTime",
        "annotations",
        "properties",
        "applicationProperties",
        "body",
        "footer",
        "raw",
    }
)


def merged(payload: bytes, metadata: MessageMetadata | None) -> bytes:
    """The bare message with what a rule and settlements laid over it.

    Raises:
        DecodeError: The message is malformed.
    """
    if metadata is None:
        return payload
    if metadata.changes is not None:
        payload = Overlay.decode(metadata.changes).apply_to(payload)
    if metadata.overlay is not None:
        return Overlay(application=decode(metadata.overlay)[0]).apply_to(payload)
    return payload


def form_of(payload: bytes, metadata: MessageMetadata | None) -> dict[str, Any]:
    """Return the form of a message; what is laid over it is part of it."""
    found = {} if metadata is None else _envelope(metadata)
    try:
        payload = merged(payload, metadata)
        return found | _bare_form(payload)
    except DecodeError:
        return found | {"raw": base64.b64encode(payload).decode()}


def _bare_form(payload: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    start, value, _ = find_section(payload, PROPERTIES)
    if start != value:
        fields: list[Any] = decode(payload, value)[0]
        found["properties"] = {
            name: _field_to_json(name, field) for name, field in zip(FIELDS, fields, strict=False) if field is not None
        }
    properties = application_properties(payload)
    if properties:
        found["applicationProperties"] = {str(name): to_json(one) for name, one in properties.items()}
    found |= _body_and_footer(payload)
    return found


def _envelope(metadata: MessageMetadata) -> dict[str, Any]:
    header = {
        "durable": metadata.durable,
        "priority": metadata.priority,
        "timeToLive": None if metadata.ttl_ms is None else format_duration(metadata.ttl_ms),
    }
    annotations: dict[Any, Any] = {}
    pos = 0
    while metadata.annotations is not None and pos < len(metadata.annotations):
        key, pos = decode(metadata.annotations, pos)
        annotations[key], pos = decode(metadata.annotations, pos)
    found = {
        "header": {name: value for name, value in header.items() if value is not None} or None,
        "partitionKey": metadata.partition_key,
        "viaPartitionKey": metadata.via_partition_key,
        "scheduledEnqueueTime": None if metadata.scheduled_ms is None else time_text(metadata.scheduled_ms),
        "annotations": _annotations_to_json(annotations) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _annotations_to_json(annotations: dict[Any, Any]) -> Any:
    if all(type(key) is Symbol and not key.startswith("$") for key in annotations):
        return {str(key): to_json(value) for key, value in annotations.items()}
    return to_json(annotations)


def _field_to_json(name: str, value: Any) -> Any:
    if name in _SYMBOLS:
        return str(value) if type(value) is Symbol else {"$string": str(value)}
    if name in _TIMES:
        return time_text(int(value))
    return int(value) if name == "groupSequence" else to_json(value)


def _body_and_footer(payload: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    data: list[Any] = []
    sequences: list[Any] = []
    pos = find_section(payload, DATA)[0]
    while pos < len(payload):
        descriptor, pos = _descriptor(payload, pos)
        value, pos = decode(payload, pos)
        if descriptor == DATA:
            data.append(_data_to_json(value))
        elif descriptor == SEQUENCE:
            sequences.append(to_json(value))
        elif descriptor == VALUE:
            found["body"] = {"value": to_json(value)}
        elif descriptor == FOOTER:
            found["footer"] = _annotations_to_json(value)
    if data or sequences:
        found["body"] = {"data": data} if data else {"sequence": sequences}
    return found


def _descriptor(payload: bytes, pos: int) -> tuple[int, int]:
    value, end = decode(payload, pos + 1)
    return (_NAMES[str(value)] if isinstance(value, Symbol) else int(value)), end


def _data_to_json(value: bytes) -> Any:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return {"$binary": base64.b64encode(value).decode()}


def message_of(form: Any) -> tuple[bytes, MessageMetadata]:
    """Return (bare message, the metadata of it) of a form.

    Raises:
        ArgumentInvalid: It is none; the text says what is wrong.
    """
    if not isinstance(form, dict):
        raise ArgumentInvalid("A message must be an object.")
    unknown = form.keys() - _MEMBERS
    if unknown:
        raise ArgumentInvalid(f"A message has no member {sorted(unknown)[0]!r:.60}.")
    metadata = _metadata_of(form)
    try:
        payload = _bare(form, metadata)
        # Whatever a client could not send is not let in this way either.
        metadata.has_expiry = scan(payload).absolute_expiry_ms is not None
    except (EncodeError, DecodeError, UnicodeEncodeError) as error:
        raise ArgumentInvalid(f"The message cannot be encoded: {error}") from None
    return payload, metadata


def _metadata_of(form: dict[str, Any]) -> MessageMetadata:
    header = _object(form, "header")
    metadata = MessageMetadata(
        partition_key=_optional_text(form, "partitionKey"),
        via_partition_key=_optional_text(form, "viaPartitionKey"),
    )
    if header.get("timeToLive") is not None:
        metadata.ttl_ms = parse_duration(str(header["timeToLive"]))
    priority = header.get("priority")
    if priority is not None:
        if not isinstance(priority, int) or not 0 <= priority <= 255:
            raise ArgumentInvalid("header.priority must be from 0 to 255.")
        metadata.priority = priority
    durable = header.get("durable")
    if durable is not None and not isinstance(durable, bool):
        raise ArgumentInvalid("header.durable must be true or false.")
    metadata.durable = durable
    if form.get("scheduledEnqueueTime") is not None:
        metadata.scheduled_ms = time_of(form["scheduledEnqueueTime"])
    annotations = _map(form, "annotations")
    if annotations:
        try:
            metadata.annotations = b"".join(encode(part) for pair in annotations.items() for part in pair)
        except (EncodeError, UnicodeEncodeError) as error:
            raise ArgumentInvalid(f"The annotations cannot be encoded: {error}") from None
        metadata.annotations_count = 2 * len(annotations)
    return metadata


def _bare(form: dict[str, Any], metadata: MessageMetadata) -> bytes:
    parts: list[bytes] = []
    if form.get("raw") is not None:
        raw: bytes = from_json({"$binary": form["raw"]})
        metadata.session_id = scan(raw).group_id
        return raw
    given = _object(form, "properties")
    if given:
        unknown = given.keys() - set(FIELDS)
        if unknown:
            raise ArgumentInvalid(f"There is no property {sorted(unknown)[0]!r:.60}; they are {', '.join(FIELDS)}.")
        fields = [field_of(name, given.get(name)) for name in FIELDS]
        metadata.session_id = fields[FIELDS.index("groupId")]
        while fields and fields[-1] is None:
            fields.pop()
        parts.append(properties_section(fields))
    properties = _object(form, "applicationProperties")
    if properties:
        parts.append(application_properties_section({name: from_json(one) for name, one in properties.items()}))
    parts += _body_of(_object(form, "body"))
    footer = _map(form, "footer")
    if footer:
        parts.append(_SECTION + bytes([FOOTER]) + encode(footer))
    return b"".join(parts)


def field_of(name: str, value: Any) -> Any:
    """The AMQP value of a field of the properties section that is given as JSON.

    Raises:
        ArgumentInvalid: It can have no such value.
    """
    if value is None:
        return None
    if name in _SYMBOLS and isinstance(value, str):
        return from_json({"$symbol": value})
    if name in _TIMES:
        return Timestamp(time_of(value))
    if name == "groupSequence":
        return UInt(from_json({"$uint": value}))
    found = from_json(value)
    if name == "userId":
        found = found.encode() if type(found) is str else found
        is_right = isinstance(found, bytes)
    elif name in ("messageId", "correlationId"):
        is_right = not isinstance(found, bool | float | list | dict)
    else:
        is_right = type(found) is str or (name in _SYMBOLS and isinstance(found, str))
    if not is_right:
        raise ArgumentInvalid(f"{value!r:.60} cannot be the {name}.")
    return found


def _body_of(body: dict[str, Any]) -> list[bytes]:
    if not body:
        return []
    if len(body) != 1:
        raise ArgumentInvalid("A body has one member: data, value or sequence.")
    ((kind, content),) = body.items()
    if kind == "value":
        return [_SECTION + bytes([VALUE]) + encode(from_json(content))]
    if kind not in ("data", "sequence") or not isinstance(content, list):
        raise ArgumentInvalid("A body has data or sequence, each a list, or a value.")
    parts = []
    for item in content:
        found = from_json(item)
        if kind == "data":
            found = found.encode() if type(found) is str else found
            if not isinstance(found, bytes):
                raise ArgumentInvalid('A section of data is a text or {"$binary": base64}.')
            parts.append(data_section(found))
        else:
            if not isinstance(found, list):
                raise ArgumentInvalid("A section of a sequence is a list.")
            parts.append(_SECTION + bytes([SEQUENCE]) + encode(found))
    return parts


def _object(form: dict[str, Any], name: str) -> dict[str, Any]:
    found = form.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ArgumentInvalid(f"{name} must be an object.")
    return found


def _map(form: dict[str, Any], name: str) -> dict[Any, Any]:
    """Annotations or a footer: names are symbols, unless a $map says otherwise."""
    found = _object(form, name)
    if "$map" in found:
        values = from_json(found)
        assert isinstance(values, dict)
        return values
    return {from_json({"$symbol": key}): from_json(value) for key, value in found.items()}


def _optional_text(form: dict[str, Any], name: str) -> str | None:
    found = form.get(name)
    if found is not None and not isinstance(found, str):
        raise ArgumentInvalid(f"{name} must be text.")
    return found


__all__ = ["DESCRIPTION", "FIELDS", "REASON", "field_of", "form_of", "merged", "message_of"]
