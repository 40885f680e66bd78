"""The sections of an encoded message, without decoding its body (AMQP 1.0 part 3, section 3.2).

    header | delivery-annotations | message-annotations | properties | application-properties | body | footer
    '---------- rewritten by every broker ------------'   '------- the bare message: kept as it came --------'

A broker needs little of a message: how long it lives, where it belongs, what it is called. ``scan_plain`` finds
out quickly that a message has nothing of interest; ``scan`` looks properly. Bodies are stepped over by size.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from duobus.codec.decoder import decode, skip
from duobus.codec.group_ids import ID_SIZE_PLAIN_MAX, is_group_alone
from duobus.codec.values import DecodeError, Symbol, Timestamp, TooLargeError, UByte, UInt, ULong

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

#: Message format of a batch: an envelope whose data sections hold one message each.
BATCH_FORMAT: Final = 0x80013700

#: Everything in front of the body together, in bytes (Azure: quotas); also bounds what decoding it can cost.
FRONT_SIZE_MAX: Final = 65_536
#: One application property, encoded (Azure: quotas).
PROPERTY_SIZE_MAX: Final = 32_768

_NAMES: Final = {
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

_LISTS: Final = b"\x45\xc0\xd0"
_MAPS: Final = b"\xc1\xd1"
_BINARIES: Final = b"\xa0\xb0"
# Which constructors the value of a section may have; amqp-value takes any.
_SHAPES: Final = {
    HEADER: _LISTS,
    DELIVERY_ANNOTATIONS: _MAPS,
    MESSAGE_ANNOTATIONS: _MAPS,
    PROPERTIES: _LISTS,
    APPLICATION_PROPERTIES: _MAPS,
    DATA: _BINARIES,
    SEQUENCE: _LISTS,
    FOOTER: _MAPS,
}
# Sections whose value takes no room beyond its constructor and sizes; the bodies of an "empty" message.
_EMPTY_BODIES: Final = frozenset(
    (b"\xa0\x00", b"\xb0\x00\x00\x00\x00", b"\x40", b"\x45", b"\xa1\x00", b"\xb1\x00\x00\x00\x00")
)

# Every section starts 00 53 code constructor; the next four bytes hold the size, or size and count of one byte each.
_SECTION: Final = struct.Struct(">HBBI").unpack_from
_SECTION_SIZE: Final = 8
# Durable, priority and ttl of a header that says nothing of them.
_NULLS: Final = b"\x40\x40\x40"


class Scan:
    """What a broker wants to know of a message. Absent fields are None.

    Attributes:
        bare: Offset of the bare message; header and annotations lie in front of it.
        ttl_ms: ``header.ttl``.
        durable: ``header.durable``.
        priority: ``header.priority``.
        annotations: Message annotations, decoded, None when there are none.
        delivery_annotations: Likewise.
        message_id: str, ULong, uuid.UUID or bytes: the type counts when ids are compared.
        user_id: Bytes.
        to: Address of the destination.
        subject: What Service Bus calls the label.
        reply_to: Address for answers.
        correlation_id: Typed as ``message_id``.
        content_type: A MIME type.
        absolute_expiry_ms: ``properties.absolute-expiry-time``.
        creation_time_ms: ``properties.creation-time``.
        group_id: What Service Bus calls the session id.
        reply_to_group_id: The session id for answers.
        body_bytes_empty: There is no body, or one without content.
        data: Contents of the data sections, in order, where they were asked for.
        has_footer: There is a footer.
    """

    __slots__ = (
        "absolute_expiry_ms",
        "annotations",
        "bare",
        "body_bytes_empty",
        "content_type",
        "correlation_id",
        "creation_time_ms",
        "data",
        "delivery_annotations",
        "durable",
        "group_id",
        "has_footer",
        "message_id",
        "priority",
        "reply_to",
        "reply_to_group_id",
        "subject",
        "to",
        "ttl_ms",
        "user_id",
    )

    def __init__(self) -> None:
        self.bare = 0
        self.ttl_ms: int | None = None
        self.durable: bool | None = None
        self.priority: int | None = None
        self.annotations: dict[Any, Any] | None = None
        self.delivery_annotations: dict[Any, Any] | None = None
        self.message_id: str | ULong | uuid.UUID | bytes | None = None
        self.user_id: bytes | None = None
        self.to: str | None = None
        self.subject: str | None = None
        self.reply_to: str | None = None
        self.correlation_id: str | ULong | uuid.UUID | bytes | None = None
        self.content_type: str | None = None
        self.absolute_expiry_ms: int | None = None
        self.creation_time_ms: int | None = None
        self.group_id: str | None = None
        self.reply_to_group_id: str | None = None
        self.body_bytes_empty = True
        self.data: list[bytes] | None = None
        self.has_footer = False


def scan_plain(payload: bytes, want_group_id: bool) -> int:  # noqa: C901 - hot path, one walk without calls
    """Return the offset of the bare message if nothing in the message matters to a broker, otherwise less than 0.

    Nothing matters when the header has neither durable nor priority nor ttl, there are no annotations, the properties
    have neither content type nor expiry (nor, when wanted, group id) nor an id that may be too long, there is no
    footer, and the sections walk to the very end of the payload.
    ``-2 - offset`` says the same of a message that has no message-id; ``plain_start`` makes the offset of it.
    -1 says no more than that ``scan`` must look; a malformed message gives -1, too, and so does a message-id whose
    length takes four bytes, which is how the broker writes its own.

    Args:
        payload: One message, all sections.
        want_group_id: The entity has sessions, so that a group id matters.
    """
    # Said, not inferred from what struct gives: compiled code computes with them as they are (decision 0008).
    descriptor: int
    code: int
    constructor: int
    sizes: int
    end = len(payload)
    pos = 0
    try:
        descriptor, code, constructor, sizes = _SECTION(payload, 0)
        if code == 0x70:
            if constructor == 0xC0:
                # durable, priority and ttl, as far as they are there, must be null; mostly one or three are there.
                if (
                    sizes & 0x00FFFF00 != 0x00014000
                    and (sizes & 0xFFFF != 0x4040 or payload[8] != 0x40)
                    and not payload.startswith(_NULLS[: (sizes >> 16) & 0xFF], 6)
                ):
                    return -1
                pos = 5 + (sizes >> 24)
            elif constructor == 0x45:
                pos = 4
            else:
                return -1
            if descriptor != 0x0053:
                return -1
            if end - pos < 8:
                return _plain_tail(payload, pos, -2 - pos, 0x70)
            descriptor, code, constructor, sizes = _SECTION(payload, pos)
        if code == 0x72 and sizes & 0xFFFF0000 == 0x01000000 and constructor == 0xC1 and descriptor == 0x0053:
            pos += 6
            if end - pos < 8:
                return _plain_tail(payload, pos, -2 - pos, 0x72)
            descriptor, code, constructor, sizes = _SECTION(payload, pos)
        if code == 0x73:
            if constructor != 0xC0 or descriptor != 0x0053:
                if constructor != 0x45 or descriptor != 0x0053:
                    return -1
                return _plain_tail(payload, pos + 4, -2 - pos, 0x73)
            bare = pos
            size = sizes >> 24
            count = (sizes >> 16) & 0xFF
            # As many bytes as fields: all of them are null or the like (pyamqp writes 13 nulls). The second
            # shortcut is the same behind a message-id of one byte's length, the third before and behind a group-id.
            if count > 6 and size - 1 != count:
                first = payload[pos + 6]
                if first in b"\xa1\xa0":
                    width = 2 + payload[pos + 7]
                    if width > 2 + ID_SIZE_PLAIN_MAX:
                        return -1
                elif first == 0x98:
                    width = 17
                else:
                    width = 1
                if (
                    size - width != count
                    and (want_group_id or not is_group_alone(payload, pos + 6, size, count, width))
                    and not _properties_plain(payload, pos + 6, pos + 5 + size, count, want_group_id)
                ):
                    return -1
            else:
                if size > ID_SIZE_PLAIN_MAX and not _properties_plain(
                    payload, pos + 6, pos + 5 + size, count, want_group_id
                ):
                    return -1
                if not count and size != 1:
                    return -1
                first = payload[pos + 6] if count else 0x40
            if first == 0x40:
                bare = -2 - pos
            elif first == 0xB1:
                # A message-id whose length takes four bytes.
                return -1
            pos += 5 + size
            if end - pos < 8:
                return _plain_tail(payload, pos, bare, 0x73)
            descriptor, code, constructor, sizes = _SECTION(payload, pos)
        else:
            bare = -2 - pos
        if code == 0x74 and descriptor == 0x0053:
            if constructor == 0xC1:
                pos += 5 + (sizes >> 24)
            elif constructor == 0xD1 and pos + sizes <= 32_700:
                # Larger ones are looked at property by property; 32,700 and what came before is PROPERTY_SIZE_MAX.
                pos += 8 + sizes
            else:
                return -1
            if end - pos < 8:
                return _plain_tail(payload, pos, bare, 0x74)
            descriptor, code, constructor, sizes = _SECTION(payload, pos)
            if code == 0x74:
                return -1
        if code == 0x75 and descriptor == 0x0053:
            # One data section up to the end is how nearly every message ends.
            if constructor == 0xB0:
                if pos + 8 + sizes == end:
                    return bare
            elif constructor == 0xA0 and pos + 5 + (sizes >> 24) == end:
                return bare
    except (IndexError, struct.error):
        # Too short for a look ahead of eight bytes, or malformed; the thorough walk tells which.
        return -1
    return _plain_tail(payload, pos, bare, 0x73)


def plain_start(quick: int) -> int:
    """Return the offset of the bare message that ``scan_plain`` found, with a message-id or not; -1 when it did not."""
    return quick if quick >= -1 else -2 - quick


def _plain_tail(payload: bytes, pos: int, bare: int, last: int) -> int:
    """Walk the sections from ``pos`` to the end; return ``bare``, which is what ``scan_plain`` found, or -1."""
    try:
        while pos < len(payload):
            code, pos = _next_section(payload, pos, last)
            start = pos
            pos = skip(payload, pos)
            if code <= PROPERTIES or code == FOOTER or (code < DATA and pos - start > PROPERTY_SIZE_MAX):
                return -1
            last = code
    except DecodeError:
        return -1
    return bare if pos == len(payload) else -1


def _properties_plain(payload: bytes, pos: int, end: int, count: int, want_group_id: bool) -> bool:
    """Whether content-type (6), expiry (8) and a wanted group-id (10) are null or absent, and no id may be too long."""
    try:
        for index in range(min(count, 11)):
            # Most fields of most messages are null.
            if payload[pos] == 0x40:
                pos += 1
                continue
            if index in (6, 8) or (index == 10 and want_group_id):
                return False
            after = skip(payload, pos)
            if index in (0, 10) and after - pos > 2 + ID_SIZE_PLAIN_MAX:
                return False
            pos = after
    except (IndexError, DecodeError):
        return False
    return pos <= end


def _next_section(payload: bytes, pos: int, last: int) -> tuple[int, int]:
    """Read a section's descriptor and check order and constructor; return (code, offset of the value)."""
    start = pos
    if payload[pos] != 0:
        raise DecodeError(f"a message section must start at offset {pos}, not 0x{payload[pos]:02x}")
    if pos + 2 < len(payload) and payload[pos + 1] == 0x53:
        code = payload[pos + 2]
        pos += 3
    else:
        code, pos = _long_descriptor(payload, pos + 1)
    if not HEADER <= code <= FOOTER:
        raise DecodeError(f"unknown message section 0x{code:02x} at offset {start}")
    if not _may_follow(last, code):
        raise DecodeError(f"message section 0x{code:02x} at offset {start} may not follow 0x{last:02x}")
    if pos >= len(payload):
        raise DecodeError(f"the message section at offset {start} has no value")
    if code != VALUE and payload[pos] not in _SHAPES[code]:
        raise DecodeError(f"message section 0x{code:02x} at offset {start} is of the wrong type 0x{payload[pos]:02x}")
    return code, pos


def _long_descriptor(payload: bytes, pos: int) -> tuple[int, int]:
    descriptor, pos = decode(payload, pos)
    if isinstance(descriptor, ULong):
        return int(descriptor), pos
    if isinstance(descriptor, Symbol) and descriptor in _NAMES:
        return _NAMES[descriptor], pos
    raise DecodeError(f"unknown message section {descriptor!r:.100}")


def _may_follow(last: int, code: int) -> bool:
    if DATA <= last <= VALUE and DATA <= code <= VALUE:
        # A body is any number of data sections, or of sequences, or one value.
        return code == last and code != VALUE
    return code > last


def scan(payload: bytes) -> Scan:
    """Look at header, annotations and properties, and check that the sections are legal and end with the payload.

    Raises:
        DecodeError: The message is malformed, a section is unknown or out of order, or a field has the wrong type.
    """
    return _scan(payload, want_data=False)


def split_batch(payload: bytes) -> tuple[Scan, list[bytes]]:
    """Take apart a batch (message format ``BATCH_FORMAT``); return its envelope and the messages in order.

    The messages themselves are not looked at. Source: Azure: AMQP protocol guide, message format 0x80013700.

    Raises:
        DecodeError: The envelope is malformed, or has a body that is not data sections.
    """
    envelope = _scan(payload, want_data=True)
    messages = envelope.data or []
    envelope.data = None
    return envelope, messages


def _scan(payload: bytes, want_data: bool) -> Scan:
    result = Scan()
    messages: list[bytes] = []
    end = len(payload)
    pos = last = bare = 0
    while pos < end:
        code, pos = _next_section(payload, pos, last)
        last = code
        after = skip(payload, pos)
        if code < DATA and after > PROPERTY_SIZE_MAX:
            _check_front(payload, code, pos, after)
        if code in (APPLICATION_PROPERTIES, FOOTER):
            result.has_footer = code == FOOTER
            pos = after
        elif code >= DATA:
            if want_data and code != DATA:
                raise DecodeError("the body of a batch must be data sections")
            if after - pos > 5 or payload[pos:after] not in _EMPTY_BODIES:
                result.body_bytes_empty = False
            if want_data:
                messages.append(decode(payload, pos)[0])
            pos = after
        else:
            value, pos = decode(payload, pos)
            _FRONT[code](result, value)
            if code < PROPERTIES:
                bare = pos
    result.bare = bare
    if want_data:
        result.data = messages
    return result


def _check_front(payload: bytes, code: int, pos: int, after: int) -> None:
    """Refuse a section that ends further than everything in front of the body may, and properties that are too large.

    A map of more than 255 bytes has its constructor, its size and its count first.
    """
    if after > FRONT_SIZE_MAX:
        raise TooLargeError(f"header and properties have {after} bytes together; {FRONT_SIZE_MAX} are allowed")
    if code != APPLICATION_PROPERTIES or after - pos <= PROPERTY_SIZE_MAX:
        return
    count = int.from_bytes(payload[pos + 5 : pos + 9], "big")
    pos += 9
    for _ in range(count):
        after = skip(payload, pos)
        if after - pos > PROPERTY_SIZE_MAX:
            raise TooLargeError(f"an application property has {after - pos} bytes; {PROPERTY_SIZE_MAX} are allowed")
        pos = after


def _field(fields: list[Any], index: int, kinds: tuple[type, ...], name: str) -> Any:
    if index >= len(fields):
        return None
    value = fields[index]
    if value is not None and type(value) not in kinds:
        raise DecodeError(f"{name} may not be of type {type(value).__name__}")
    return value


_ID_TYPES: Final = (str, ULong, uuid.UUID, bytes)
_TEXT: Final = (str,)
_UINT: Final = (UInt,)
_TIME: Final = (Timestamp,)


def _take_header(result: Scan, fields: list[Any]) -> None:
    if len(fields) > 5:
        raise DecodeError(f"a header has 5 fields, not {len(fields)}")
    result.durable = _field(fields, 0, (bool,), "header.durable")
    result.priority = _field(fields, 1, (UByte,), "header.priority")
    result.ttl_ms = _field(fields, 2, _UINT, "header.ttl")
    _field(fields, 3, (bool,), "header.first-acquirer")
    _field(fields, 4, _UINT, "header.delivery-count")


def check_annotations(fields: dict[Any, Any]) -> None:
    """Raise DecodeError when a key of annotations is of no type that keys have."""
    # The specification wants symbols; strings are taken as well, as pyamqp does (AMQP 1.0 part 1, 1.6).
    for key in fields:
        if type(key) not in (Symbol, str, ULong):
            raise DecodeError(f"an annotation's key is a symbol, not a {type(key).__name__}")


def _take_delivery_annotations(result: Scan, fields: dict[Any, Any]) -> None:
    check_annotations(fields)
    result.delivery_annotations = fields or None


def _take_annotations(result: Scan, fields: dict[Any, Any]) -> None:
    check_annotations(fields)
    result.annotations = fields or None


def _take_properties(result: Scan, fields: list[Any]) -> None:
    if len(fields) > 13:
        raise DecodeError(f"properties have 13 fields, not {len(fields)}")
    result.message_id = _field(fields, 0, _ID_TYPES, "message-id")
    result.user_id = _field(fields, 1, (bytes,), "user-id")
    result.to = _field(fields, 2, _TEXT, "to")
    result.subject = _field(fields, 3, _TEXT, "subject")
    result.reply_to = _field(fields, 4, _TEXT, "reply-to")
    result.correlation_id = _field(fields, 5, _ID_TYPES, "correlation-id")
    result.content_type = _field(fields, 6, (Symbol, str), "content-type")
    _field(fields, 7, (Symbol, str), "content-encoding")
    result.absolute_expiry_ms = _field(fields, 8, _TIME, "absolute-expiry-time")
    result.creation_time_ms = _field(fields, 9, _TIME, "creation-time")
    result.group_id = _field(fields, 10, _TEXT, "group-id")
    _field(fields, 11, _UINT, "group-sequence")
    result.reply_to_group_id = _field(fields, 12, _TEXT, "reply-to-group-id")


_FRONT: Final[dict[int, Callable[[Scan, Any], None]]] = {
    HEADER: _take_header,
    DELIVERY_ANNOTATIONS: _take_delivery_annotations,
    MESSAGE_ANNOTATIONS: _take_annotations,
    PROPERTIES: _take_properties,
}


def message_id_of(payload: bytes, bare: int = 0) -> str | ULong | uuid.UUID | bytes | None:
    """Return the message id of the bare message at offset ``bare``, with its type, or None.

    Raises:
        DecodeError: What stands there is no section, or the id has the wrong type.
    """
    if bare >= len(payload):
        return None
    code, pos = _next_section(payload, bare, 0)
    if code != PROPERTIES or payload[pos] == 0x45:
        return None
    # The first field follows size and count, of one byte each or of four.
    width = 1 if payload[pos] == 0xC0 else 4
    if pos + 1 + width > len(payload) or not any(payload[pos + 1 + width : pos + 1 + 2 * width]):
        return None
    message_id: str | ULong | uuid.UUID | bytes | None = decode(payload, pos + 1 + 2 * width)[0]
    _field([message_id], 0, _ID_TYPES, "message-id")
    return message_id


def find_section(message: bytes, wanted: int) -> tuple[int, int, int]:
    """Return (start, start of the value, end) of the first section with this code.

    When there is none, all three are the offset where it would have to be inserted.

    Raises:
        DecodeError: The message is malformed up to that section.
    """
    pos = last = 0
    while pos < len(message):
        start = pos
        last, pos = _next_section(message, pos, last)
        if last > wanted:
            return start, start, start
        value = pos
        pos = skip(message, pos)
        if last == wanted:
            return start, value, pos
    return pos, pos, pos


def application_properties(bare_message: bytes) -> dict[str, Any]:
    """Decode the application properties of a message; an empty dict when there are none.

    Raises:
        DecodeError: The message is malformed, or a key is not a string.
    """
    start, value, _ = find_section(bare_message, APPLICATION_PROPERTIES)
    if start == value:
        return {}
    properties: dict[Any, Any] = decode(bare_message, value)[0]  # A map: its constructor was checked.
    for key in properties:
        if not isinstance(key, str):
            raise DecodeError(f"an application property's name is a string, not a {type(key).__name__}")
    return properties


# Delivery annotations behind the body, where the SDK for Python writes them.
#
# The standard puts them second (AMQP 1.0 part 3, section 3.2). They are delivered there, so what is stored as the
# message is the rest.


def without_trailing_annotations(payload: bytes) -> bytes:
    """Return a message without delivery annotations that are its last section; as it came if there are none.

    Only the form in which the SDK writes descriptors is looked for. Whether the rest is legal is for ``scan`` to say.
    """
    pos, last = 0, -1
    try:
        while pos < len(payload):
            if payload[pos] != 0 or payload[pos + 1] != 0x53:
                return payload
            code = payload[pos + 2]
            after = skip(payload, pos + 3)
            if code == DELIVERY_ANNOTATIONS and DATA <= last <= FOOTER and after == len(payload):
                return payload[:pos] if payload[pos + 3] in b"\xc1\xd1" else payload
            pos, last = after, code
    except (DecodeError, IndexError):
        return payload
    return payload


def trailing_annotations(payload: bytes, start: int) -> dict[Any, Any] | None:
    """Return the delivery annotations that begin at ``start``, where ``without_trailing_annotations`` has cut.

    Raises:
        TooLargeError: They are larger than everything in front of a body may be.
        DecodeError: A key is none.
    """
    if len(payload) - start > FRONT_SIZE_MAX:
        raise TooLargeError(f"delivery annotations have {len(payload) - start} bytes; {FRONT_SIZE_MAX} are allowed")
    found: dict[Any, Any] = decode(payload, start + 3)[0]  # A map: its constructor was looked at.
    check_annotations(found)
    return found or None
