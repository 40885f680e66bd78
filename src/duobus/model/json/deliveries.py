"""A message as a receiver gets it, all sections of it, with the AMQP types of every value.

An SDK makes Python's values of a message, which have one type for eight of AMQP's. What shows a message to people, or
sends a copy of it, reads the bytes instead.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from duobus.codec import DecodeError, Described, Symbol, decode
from duobus.codec.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
)
from duobus.model.durations import format_duration
from duobus.model.json.messages import FIELDS, form_of
from duobus.model.json.values import time_text, to_json

#: Annotations that a broker sets, or that a form has a member for.
_PARTITION_KEYS: Final = {"x-opt-partition-key": "partitionKey", "x-opt-via-partition-key": "viaPartitionKey"}
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
_BROKERS: Final = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-lock-token",
        _SCHEDULED,
        *_PARTITION_KEYS,
    }
)
_HEADER_FIELDS: Final = ("durable", "priority", "ttl", "firstAcquirer", "deliveryCount")
_CODES: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
_KINDS: Final = {DATA: "data", SEQUENCE: "sequence", VALUE: "value"}


class Delivery:
    """One message as it came, taken apart; values are those of ``duobus.codec``.

    Args:
        payload: The bytes of all sections. Bytes that are no message are a delivery that is malformed.

    Attributes:
        payload: The same bytes.
        header: Fields of the header that are set.
        annotations: Message annotations by name.
        delivery_annotations: Delivery annotations by name.
        properties: Fields of the properties section that are set, named as in the JSON form of a message.
        application_properties: By name.
        footer: By name.
        body_kind: ``data``, ``value``, ``sequence``, or empty where there is no body.
        body: Content of each body section.
        fault: Why the bytes cannot be read; empty when they can.
    """

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.header: dict[str, Any] = {}
        self.annotations: dict[str, Any] = {}
        self.delivery_annotations: dict[str, Any] = {}
        self.properties: dict[str, Any] = {}
        self.application_properties: dict[str, Any] = {}
        self.footer: dict[str, Any] = {}
        self.body_kind = ""
        self.body: list[Any] = []
        self.fault = ""
        self._bare = 0
        try:
            self._read()
        except (DecodeError, AttributeError, TypeError, ValueError, KeyError) as error:
            self.fault = str(error) or type(error).__name__

    def _read(self) -> None:
        pos = 0
        while pos < len(self.payload):
            found, end = decode(self.payload, pos)
            if not isinstance(found, Described):
                raise DecodeError("a section has no descriptor")
            descriptor = found.descriptor
            code = _CODES[str(descriptor)] if isinstance(descriptor, Symbol) else int(descriptor)
            if code < PROPERTIES:
                self._bare = end
            self._take(code, found.value)
            pos = end

    def _take(self, code: int, value: Any) -> None:
        if code in _KINDS:
            self.body_kind = _KINDS[code]
            self.body.append(value)
        elif code == HEADER:
            self.header = _set(_HEADER_FIELDS, value)
        elif code == PROPERTIES:
            self.properties = _set(FIELDS, value)
        elif code == MESSAGE_ANNOTATIONS:
            self.annotations = _named(value)
        elif code == DELIVERY_ANNOTATIONS:
            self.delivery_annotations = _named(value)
        elif code == APPLICATION_PROPERTIES:
            self.application_properties = _named(value)
        elif code == FOOTER:
            self.footer = _named(value)
        else:
            raise DecodeError(f"there is no section {code:#x}")

    @property
    def bare(self) -> bytes:
        """The message without header and annotations: as its sender wrote it."""
        return self.payload[self._bare :]

    def form(self) -> dict[str, Any]:
        """The message in the JSON form of ``duobus.model.json.messages``, without what the broker added."""
        if self.fault:
            return {"raw": base64.b64encode(self.payload).decode()}
        ttl = self.header.get("ttl")
        header = {
            "durable": self.header.get("durable") or None,
            "priority": None if self.header.get("priority") is None else int(self.header["priority"]),
            "timeToLive": None if ttl is None else format_duration(int(ttl)),
        }
        annotations = self.annotations
        scheduled = annotations.get(_SCHEDULED)
        found: dict[str, Any] = {"header": {name: value for name, value in header.items() if value is not None}}
        for name, member in _PARTITION_KEYS.items():
            found[member] = annotations.get(name)
        found["scheduledEnqueueTime"] = None if scheduled is None else time_text(int(scheduled))
        found["annotations"] = {
            name: to_json(value)
            for name, value in annotations.items()
            if name not in _BROKERS and value is not None and not name.startswith("$")
        }
        found |= form_of(self.bare, None)
        return {name: value for name, value in found.items() if value}


def _set(names: tuple[str, ...], values: list[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(names, values, strict=False) if value is not None}


def _named(values: dict[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in values.items()}


__all__ = ["Delivery"]
