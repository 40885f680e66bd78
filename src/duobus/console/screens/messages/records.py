"""What pages, and programs that ask for JSON, get of a message."""

from __future__ import annotations

import json
from typing import Any, Final

from duobus.console.screens.messages.places import STATES
from duobus.model.json.deliveries import Delivery
from duobus.model.json.messages import DESCRIPTION, REASON
from duobus.model.json.values import time_text, to_json

#: Columns of the table of messages that a person may choose, by name, with label and class.
COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "number": ("Number", "number"),
    "enqueued": ("Enqueued", "nowrap"),
    "id": ("Message id", ""),
    "subject": ("Subject", ""),
    "session": ("Session", ""),
    "deliveries": ("Deliveries", "number"),
    "size": ("Size", "number"),
    "state": ("State", ""),
    "body": ("Body", "wide"),
    "contentType": ("Content type", ""),
    "correlationId": ("Correlation id", ""),
    "partitionKey": ("Partition key", ""),
    "scheduled": ("Scheduled for", "nowrap"),
    "expires": ("Expires", "nowrap"),
    "reason": ("Reason", ""),
    "description": ("Description", "wide"),
    "to": ("To", ""),
    "replyTo": ("Reply to", ""),
}
DEFAULT_COLUMNS: Final = ("number", "enqueued", "id", "subject", "session", "deliveries", "size", "state")
#: In front of the name of an application property that is a column.
PROPERTY: Final = "property:"
#: Columns that a table has at most.
COLUMNS_MAX: Final = 20

#: The upper bits of a sequence number name the partition, here and on Azure.
PARTITION_BITS: Final = 48

#: Of a text in a table, and of a value on the page of a message.
_CELL_MAX: Final = 120
_VALUE_MAX: Final = 4_096
_NAMES: Final = {dict: "map", list: "list", str: "string", int: "long", float: "double", bool: "boolean"}
#: Marks that turn the direction of text, by which one text looks like another.
_TURNING: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)
_HIDDEN: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(32), 0x7F) if chr(code) not in "\t\n\r"},
    **{code: f"[U+{code:04X}]" for code in _TURNING},
}


def visible(text: str) -> str:
    """A text with its control characters as signs, so that a page shows what is there."""
    return text.translate(_HIDDEN)


def number_of(delivery: Delivery) -> int:
    """The sequence number."""
    return _number(delivery.annotations.get("x-opt-sequence-number")) or 0


def state_of(delivery: Delivery) -> str:
    """``active``, ``deferred`` or ``scheduled``."""
    number = _number(delivery.annotations.get("x-opt-message-state")) or 0
    return STATES[number] if number < len(STATES) else "active"


def body_bytes(delivery: Delivery) -> bytes:
    """The body as bytes: data sections put together, a text in UTF-8, everything else as typed JSON."""
    if delivery.body_kind == "data":
        return b"".join(delivery.body) if len(delivery.body) != 1 else bytes(delivery.body[0])
    if delivery.body_kind == "value" and isinstance(delivery.body[0], str):
        return delivery.body[0].encode("utf-8", "replace")
    if delivery.body_kind == "value" and isinstance(delivery.body[0], bytes):
        return delivery.body[0]
    if not delivery.body_kind:
        return b""
    value: Any = delivery.body[0] if delivery.body_kind == "value" else delivery.body
    return json.dumps(to_json(value), ensure_ascii=False).encode("utf-8", "replace")


def row_of(delivery: Delivery, *, has_body: bool = True) -> dict[str, Any]:
    """A message as one row, by the names of columns; that of an application property begins with ``property:``."""
    found, annotations = delivery.properties, delivery.annotations
    enqueued, ttl = _number(annotations.get("x-opt-enqueued-time")), _number(delivery.header.get("ttl"))
    scheduled = _number(annotations.get("x-opt-scheduled-enqueue-time"))
    row: dict[str, Any] = {
        "number": number_of(delivery),
        "enqueued": _time(enqueued),
        "id": _plain(found.get("messageId")),
        "subject": _plain(found.get("subject")),
        "session": _plain(found.get("groupId")),
        "deliveries": _number(delivery.header.get("deliveryCount")) or 0,
        "size": len(delivery.payload) if has_body else None,
        "state": state_of(delivery),
        "contentType": _plain(found.get("contentType")),
        "correlationId": _plain(found.get("correlationId")),
        "partitionKey": _plain(annotations.get("x-opt-partition-key")),
        "scheduled": _time(scheduled),
        "expires": None if ttl is None or enqueued is None else _time(enqueued + ttl),
        "reason": _plain(delivery.application_properties.get(REASON)),
        "description": _plain(delivery.application_properties.get(DESCRIPTION)),
        "to": _plain(found.get("to")),
        "replyTo": _plain(found.get("replyTo")),
        "body": preview_of(delivery) if has_body else None,
        "fault": delivery.fault,
    }
    row |= {f"{PROPERTY}{name}": _plain(value) for name, value in delivery.application_properties.items()}
    return row


def preview_of(delivery: Delivery) -> str:
    """The beginning of a body, for a table."""
    if delivery.body_kind == "data":
        data = b"".join(delivery.body)[: 4 * _CELL_MAX]
    else:
        data = body_bytes(delivery)[: 4 * _CELL_MAX]
    if data.startswith(b"\x1f\x8b"):
        return "(gzip)"
    text = data.decode("utf-8", "ignore")
    if len(text.encode()) < len(data) - 3:
        return "(binary)"
    return cell(" ".join(text.split()))


def cell(text: str) -> str:
    """A text as a table shows it."""
    return visible(text if len(text) <= _CELL_MAX else f"{text[:_CELL_MAX]}…")


def values_of(values: dict[str, Any]) -> list[dict[str, str]]:
    """Names, AMQP types and texts of properties, in the order of the message."""
    return [{"name": visible(name), **typed(to_json(value))} for name, value in values.items()]


def typed(value: Any) -> dict[str, str]:
    """Type and text of a value in the JSON form of AMQP values."""
    if value is None:
        return {"type": "null", "text": "null"}
    kind, inside = _NAMES.get(type(value), "string"), value
    if isinstance(value, dict) and len(value) == 1:
        ((name, content),) = value.items()
        if name.startswith("$"):
            kind, inside = name[1:], content
    text = inside if isinstance(inside, str) else json.dumps(inside, ensure_ascii=False)
    return {"type": kind, "text": visible(text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…")}


def record_of(delivery: Delivery) -> dict[str, Any]:
    """A whole message as the command line exports one."""
    form = delivery.form()
    properties = form.get("applicationProperties") or {}
    annotations = delivery.annotations
    enqueued = _number(annotations.get("x-opt-enqueued-time"))
    found = {
        "sequenceNumber": number_of(delivery),
        "enqueuedSequenceNumber": _number(annotations.get("x-opt-enqueue-sequence-number")),
        "enqueuedTime": _time(enqueued),
        "deliveryCount": _number(delivery.header.get("deliveryCount")) or 0,
        "state": state_of(delivery),
        "isHeld": False,
        "reason": properties.pop(REASON, None),
        "description": properties.pop(DESCRIPTION, None),
        "deadLetterSource": _plain(annotations.get("x-opt-deadletter-source")),
    }
    if not properties:
        form.pop("applicationProperties", None)
    return {**found, "message": form}


def _plain(value: Any) -> str | None:
    return None if value is None else typed(to_json(value))["text"]


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _time(instant_ms: int | None) -> str | None:
    return None if instant_ms is None else str(time_text(instant_ms))
