"""A message as ``duobus dlq export`` writes one, with every value in the AMQP type that the sender gave it.

The SDK forgets some types, such as the width of whole numbers. So the form of a message is made of the bytes that the
broker sent, and what the SDK makes of them is used for the values of the broker alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from duobus.codec import DecodeError, decode
from duobus.dead_letters.sdk_messages import BROKER_ANNOTATIONS, KNOWN_ANNOTATIONS, record_of
from duobus.model.durations import format_duration
from duobus.model.json.messages import DESCRIPTION, REASON, form_of
from duobus.model.json.values import time_text, to_json
from duobus.spark.entities import PEEK
from duobus.spark.source.peek_pages import answer_of, by_sdk

_HEADER: Final = 0x70
_ANNOTATIONS: Final = 0x72
#: The sections in front of the bare message.
_FRONT: Final = (_HEADER, 0x71, _ANNOTATIONS)
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
#: The SDK writes both anew from the time to live, which starts again.
_OF_THE_SENDING: Final = ("absoluteExpiryTime", "creationTime")
_STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}


def encoded_form(data: bytes) -> dict[str, Any]:
    """The form of an encoded message, without what brokers write into it.

    Raises:
        DecodeError: The bytes are no message.
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(data):
        descriptor, end = decode(data, at + 1)
        if int(descriptor) not in _FRONT:
            break
        value, at = decode(data, end)
        if int(descriptor) == _HEADER:
            found |= _header(value)
        elif int(descriptor) == _ANNOTATIONS:
            found |= _annotations(value)
    form = found | form_of(data[at:], None)
    for section, names in (("properties", _OF_THE_SENDING), ("applicationProperties", (REASON, DESCRIPTION))):
        form[section] = {name: value for name, value in form.get(section, {}).items() if name not in names}
    return {name: value for name, value in form.items() if value}


def _header(fields: list[Any]) -> dict[str, Any]:
    durable, priority, life_ms, *_ = [*fields, None, None, None]
    head = {
        "durable": durable,
        "priority": None if priority is None else int(priority),
        "timeToLive": None if life_ms is None else format_duration(int(life_ms)),
    }
    return {"header": {name: value for name, value in head.items() if value is not None}}


def _annotations(values: dict[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key)
        if name in KNOWN_ANNOTATIONS:
            found[KNOWN_ANNOTATIONS[name]] = value if value is None else str(value)
        elif name == _SCHEDULED and value is not None:
            found["scheduledEnqueueTime"] = time_text(int(value))
        elif name not in BROKER_ANNOTATIONS and not name.startswith("x-opt-duobus-") and value is not None:
            others[name] = to_json(value)
    return found | {"annotations": others}


def record_of_encoded(data: Any, receiver: Any) -> tuple[dict[str, Any], Any]:
    """The record of a message, and the message as the SDK has it.

    Args:
        data: The bytes of the message, or the message of the SDK where the SDK gives no bytes.
        receiver: The receiver that peeked.
    """
    message = by_sdk(data, receiver) if isinstance(data, bytes) else data
    record = record_of(message)
    record["state"] = _STATES.get(getattr(message.state, "value", 0), "active")
    if isinstance(data, bytes):
        try:
            record["message"] = encoded_form(data)
        except (DecodeError, ValueError):
            # The SDK could read the message, so its form of the message has to do.
            return record, message
    return record, message


def peeked(receiver: Any, first: int, limit: int | None) -> Iterator[list[tuple[dict[str, Any], Any]]]:
    """Yield pages of records and messages, of all messages from a sequence number on; nothing is removed."""
    left = limit
    while left is None or left > 0:
        found = answer_of(receiver, first, PEEK if left is None else min(PEEK, left))
        if not found:
            return
        page = [record_of_encoded(data, receiver) for data in found]
        first = int(page[-1][0]["sequenceNumber"]) + 1
        left = None if left is None else left - len(page)
        yield page
