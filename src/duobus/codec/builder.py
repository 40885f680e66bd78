"""Builders of message sections and whole messages (AMQP 1.0 part 3, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from duobus.codec.decoder import decode
from duobus.codec.encoder import encode_into
from duobus.codec.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    application_properties,
    find_section,
)
from duobus.codec.values import Symbol, UByte, UInt


class _Absent:
    """Stands for "no such section", because None is a body of its own: amqp-value null."""


ABSENT: Final = _Absent()

_DESCRIPTOR: Final = b"\x00\x53"


def _section(code: int, value: Any) -> bytes:
    # Always 00 53 code: pyamqp steps over three bytes without looking.
    out = bytearray(_DESCRIPTOR)
    out.append(code)
    encode_into(out, value)
    return bytes(out)


def header_section(
    durable: bool | None = None,
    priority: int | None = None,
    ttl_ms: int | None = None,
    first_acquirer: bool | None = None,
    delivery_count: int | None = None,
) -> bytes:
    """Return a header section with all five fields.

    Args:
        durable: Whether the message survives a restart.
        priority: 0 to 255; 4 is usual.
        ttl_ms: Time to live in ms, below 2**32.
        first_acquirer: Whether nobody else has seen the message.
        delivery_count: Earlier deliveries that counted.
    """
    return _section(
        HEADER,
        [
            durable,
            None if priority is None else UByte(priority),
            None if ttl_ms is None else UInt(ttl_ms),
            first_acquirer,
            None if delivery_count is None else UInt(delivery_count),
        ],
    )


def _symbol_keys(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {Symbol(key) if type(key) is str else key: value for key, value in values.items()}


def annotations_section(values: Mapping[Any, Any]) -> bytes:
    """Return a message-annotations section; keys that are plain strings become symbols."""
    return _section(MESSAGE_ANNOTATIONS, _symbol_keys(values))


def delivery_annotations_section(values: Mapping[Any, Any]) -> bytes:
    """Return a delivery-annotations section; keys that are plain strings become symbols."""
    return _section(DELIVERY_ANNOTATIONS, _symbol_keys(values))


def footer_section(values: Mapping[Any, Any]) -> bytes:
    """Return a footer; keys that are plain strings become symbols."""
    return _section(FOOTER, _symbol_keys(values))


def properties_section(fields: Sequence[Any]) -> bytes:
    """Return a properties section of up to 13 fields, each typed as its column in the specification."""
    return _section(PROPERTIES, list(fields))


def application_properties_section(values: Mapping[str, Any]) -> bytes:
    """Return an application-properties section; symbols among the keys become strings (AMQP 1.0 part 3, 3.4)."""
    return _section(APPLICATION_PROPERTIES, {str(key): value for key, value in values.items()})


def data_section(content: bytes) -> bytes:
    """Return a data section with this content."""
    size = len(content)
    if size < 256:
        return b"\x00\x53\x75\xa0" + size.to_bytes(1, "big") + content
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + content


def build_message(
    properties: Sequence[Any] | None = None,
    application_properties: Mapping[str, Any] | None = None,
    *,
    body_value: Any = ABSENT,
    data: bytes | Sequence[bytes] | None = None,
    sequences: Sequence[list[Any]] | None = None,
    header: bytes = b"",
    annotations: Mapping[Any, Any] | None = None,
    delivery_annotations: Mapping[Any, Any] | None = None,
) -> bytes:
    """Return an encoded message.

    Args:
        properties: Up to 13 typed fields: message-id, user-id, to, subject, reply-to, correlation-id, content-type
            (Symbol), content-encoding (Symbol), absolute-expiry-time, creation-time (Timestamp), group-id,
            group-sequence (UInt), reply-to-group-id.
        application_properties: Names to simple values.
        body_value: Content of an amqp-value body; None is one.
        data: Content of one data section, or of several.
        sequences: Contents of amqp-sequence sections.
        header: A ready header section, see ``header_section``.
        annotations: Message annotations.
        delivery_annotations: Delivery annotations.

    Raises:
        EncodeError: A value has no AMQP encoding.
    """
    parts = [header]
    if delivery_annotations is not None:
        parts.append(delivery_annotations_section(delivery_annotations))
    if annotations is not None:
        parts.append(annotations_section(annotations))
    if properties is not None:
        parts.append(properties_section(properties))
    if application_properties is not None:
        parts.append(application_properties_section(application_properties))
    if data is not None:
        parts.extend(map(data_section, [data] if isinstance(data, bytes) else data))
    for sequence in sequences or ():
        parts.append(_section(SEQUENCE, sequence))
    if body_value is not ABSENT:
        parts.append(_section(VALUE, body_value))
    return b"".join(parts)


def with_symbols_in_footer(payload: bytes) -> bytes:
    """Return a message whose footer has symbols for keys, as the specification wants: Java's SDK takes no others.

    Raises:
        DecodeError: The message is malformed.
    """
    start, value, end = find_section(payload, FOOTER)
    fields = decode(payload, value)[0] if value < end else {}
    if not any(type(key) is str for key in fields):
        return payload
    return payload[:start] + footer_section(fields)


def with_application_properties(bare_message: bytes, changes: Mapping[str, Any]) -> bytes:
    """Return the message with these application properties set; every byte of the other sections stays.

    Args:
        bare_message: A message, from its properties on.
        changes: Overwrites and additions; nothing is removed.

    Raises:
        DecodeError: The message is malformed.
        EncodeError: A new value has no AMQP encoding.
    """
    if not changes:
        return bare_message
    merged = application_properties(bare_message)
    merged.update((str(key), value) for key, value in changes.items())
    start, _, end = find_section(bare_message, APPLICATION_PROPERTIES)
    return bare_message[:start] + application_properties_section(merged) + bare_message[end:]
