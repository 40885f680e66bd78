"""Messages of a peek's answer, decoded for rows: usual messages here, all others by the SDK.

The SDK makes objects of a message that no row needs, and making them takes most of the time of a browse. This module
gives the values that the getters of ``rows`` would take out of the SDK's objects; a property test compares the two.
Unusual messages (other sections, described or nested values, a wrong length) are left to the SDK, so that they give the
same row, or the same error, as with the SDK alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from duobus.spark.offsets import COUNT_BITS

#: Times from here on are not exact in the SDK, which counts seconds in floating point.
TIME_MS_END: Final = (1 << 32) * 1000
_TIME_US_END: Final = TIME_MS_END * 1000
#: Values of one list or map; the SDK refuses more.
_VALUES_MAX: Final = 65_536

_DATA: Final = 0x75
_ANNOTATIONS: Final = 0x72
#: Of few deferred messages: the life of the fragment in which they were deferred.
DEFERRED_IN: Final = b"x-opt-duobus-deferred-in"
_STATES: Final = {None: "active", 0: "active", 1: "deferred", 2: "scheduled"}
_EMPTY: Final[dict[bytes, Any]] = {}
_NO_PROPERTIES: Final = (None,) * 8


class Peeked(NamedTuple):
    """The values of a message with a body of data that rows need; named and ordered like the columns.

    Attributes:
        enqueued_time: In microseconds since the epoch, like all other instants.
        application_properties: In the form of the SDK: text is bytes.
    """

    body: bytes
    body_type: str
    message_id: str | None
    session_id: str | None
    partition_key: str | None
    correlation_id: str | None
    subject: str | None
    content_type: str | None
    to: str | None
    reply_to: str | None
    reply_to_session_id: str | None
    sequence_number: int
    enqueued_sequence_number: int | None
    enqueued_time: int | None
    scheduled_enqueue_time: int | None
    expires_at: int | None
    time_to_live_ms: int | None
    delivery_count: int | None
    state: str
    dead_letter_reason: str | None
    dead_letter_error_description: str | None
    dead_letter_source: str | None
    application_properties: dict[bytes, Any] | None
    fragment: int


class _Unusual(Exception):
    """The SDK has to decode this message."""


#: Sections that rows may need, by their codes: header, properties, application properties. Annotations always count.
HEADER: Final = 0x70
PROPERTIES: Final = 0x73
APPLICATION: Final = 0x74
ALL: Final = frozenset({HEADER, PROPERTIES, APPLICATION})


#: Messages of an answer whose beginnings are taken for those of others, one after the other.
_TRIED_MAX: Final = 5
#: What rows need of header and annotations: partition key, number, original number, times of enqueueing, schedule and
#: expiry, time to live, deliveries, state and dead-letter source, as ``Peeked`` has them.
_Head = tuple[str | None, int, int | None, int | None, int | None, int | None, int | None, int | None, str, str | None]


class MessageDecoder:
    """Decodes the messages of an answer, most of which begin alike.

    A message begins with its header and its annotations, and what a broker writes there differs in the number and the
    time alone for most messages of an entity. So the beginning of one message is kept as a format of ``struct`` in
    which these two are left open; what has this form is read at once. All others are read value by value.

    Args:
        has_body: Whether the broker was asked for bodies; otherwise the body is empty.
        sections: Those that rows need; others are passed over, and what they tell is None.
    """

    __slots__ = ("_beginning", "_has_body", "_sections", "_tried")

    def __init__(self, *, has_body: bool = True, sections: frozenset[int] = ALL) -> None:
        self._has_body = has_body
        self._sections = sections
        self._beginning: _Beginning | None = None
        self._tried = 0

    def decoded(self, data: bytes) -> Peeked | None:
        """Decode a message, or return None for one that the SDK has to decode."""
        try:
            beginning = self._beginning
            head = None if beginning is None else beginning.head_of(data)
            if beginning is None or head is None:
                return self._whole(data)
            return self._with_rest(data, beginning.end, _ANNOTATIONS, head)
        except (_Unusual, KeyError, IndexError, struct.error, UnicodeDecodeError):
            return None

    def _whole(self, data: bytes) -> Peeked:
        found: dict[int, Any] = {}
        at, before, end = 0, 0, len(data)
        while at < end and data[at + 2] <= _ANNOTATIONS:
            before, at = _section(data, at, before)
            if before == HEADER and HEADER not in self._sections:
                at = _skipped(data, at)
            else:
                found[before], at = _READ[before](data, at)
        head = _head(found.get(HEADER, ()), found.get(_ANNOTATIONS, _EMPTY))
        if before == _ANNOTATIONS and self._tried < _TRIED_MAX:
            self._tried += 1
            self._beginning = _Beginning.of(data, at, head)
        return self._with_rest(data, at, before, head)

    def _with_rest(self, data: bytes, at: int, before: int, head: _Head) -> Peeked:
        """The message, whose sections from a place on are read; ``before``: the last one that was."""
        parts: list[bytes] = []
        application: dict[bytes, Any] | None = None
        about: Sequence[str | None] = _NO_PROPERTIES
        sections, end, from_bytes = self._sections, len(data), int.from_bytes
        while at < end:
            before, at = _section(data, at, before)
            if before == _DATA:
                if data[at] == 0xB0:
                    start = at + 5
                    at = start + from_bytes(data[at + 1 : start])
                elif data[at] == 0xA0:
                    start = at + 2
                    at = start + data[at + 1]
                else:
                    raise _Unusual
                parts.append(data[start:at])
            elif before in ALL and before not in sections:
                at = _skipped(data, at)
            elif before == PROPERTIES:
                about, at = _properties(data, at)
            elif before == APPLICATION:
                application, at = _map(data, at)
            else:
                _, at = _READ[before](data, at)
        if at != end or bool(parts) != self._has_body:
            raise _Unusual
        reason = description = None
        if application:
            reason = _strict(application.get(b"DeadLetterReason"))
            description = _strict(application.get(b"DeadLetterErrorDescription"))
        message_id, session, correlation_id, subject, content_type, to, reply_to, reply_session = about
        key, number, origin, enqueued, scheduled, expires, ttl_ms, deliveries, state, source = head
        # What ``Peeked(...)`` does, without a call of Python for each message.
        return tuple.__new__(
            Peeked,
            (
                parts[0] if len(parts) == 1 else b"".join(parts),
                "data",
                message_id,
                session,
                key,
                correlation_id,
                subject,
                content_type,
                to,
                reply_to,
                reply_session,
                number,
                origin,
                enqueued,
                scheduled,
                expires,
                ttl_ms,
                deliveries,
                state,
                reason,
                description,
                source,
                application,
                number >> COUNT_BITS,
            ),
        )


class _Beginning:
    """How messages begin that are like a message that was read: all of it but the number and the time.

    Attributes:
        end: Where the next section begins.
    """

    __slots__ = ("_after", "_before", "_constants", "_lives", "_number", "_time", "_unpack", "end")

    def __init__(self, data: bytes, end: int, number_at: int, time_at: int, head: _Head) -> None:
        first, second = sorted((number_at, time_at))
        form = struct.Struct(f">{first}sq{second - first - 8}sq{end - second - 8}s")
        self.end = end
        self._unpack = form.unpack_from
        self._constants = form.unpack_from(data)[::2]
        self._number, self._time = (1, 3) if number_at < time_at else (3, 1)
        key, _, origin, _, scheduled, _, ttl_ms, deliveries, state, source = head
        self._before, self._after = (key, origin, scheduled), (ttl_ms, deliveries, state, source)
        self._lives = None if ttl_ms is None else ttl_ms * 1000

    @classmethod
    def of(cls, data: bytes, end: int, head: _Head) -> _Beginning | None:
        """That of a message whose annotations end at a place; None when they tell the two in another form."""
        places = _places(data, end)
        number, time = places.get(b"x-opt-sequence-number"), places.get(b"x-opt-enqueued-time")
        if number is None or time is None or data[number - 1] != 0x81 or data[time - 1] != 0x83:
            return None
        return cls(data, end, number, time, head)

    def head_of(self, data: bytes) -> _Head | None:
        """What a message tells at its beginning; None when it does not begin so."""
        if len(data) < self.end:
            return None
        values = self._unpack(data)
        enqueued = values[self._time] * 1000
        if values[::2] != self._constants or not 0 < enqueued < _TIME_US_END:
            return None
        key, origin, scheduled = self._before
        expires = None if self._lives is None else enqueued + self._lives
        return (key, values[self._number], origin, enqueued, scheduled, expires, *self._after)


def _section(data: bytes, at: int, before: int) -> tuple[int, int]:
    """The code of the section at a place, which may follow that before, and where its value begins."""
    section = data[at + 2]
    if data[at] or data[at + 1] != 0x53 or section < before or (section == before and section != _DATA):
        raise _Unusual
    return section, at + 3


def _head(header: Sequence[Any], annotations: dict[bytes, Any]) -> _Head:
    get = annotations.get
    number = get(b"x-opt-sequence-number")
    origin = get(b"x-opt-enqueue-sequence-number")
    state = get(b"x-opt-message-state")
    count = len(header)
    ttl_ms = header[2] if count > 2 else None
    deliveries = header[4] if count > 4 else None
    if (
        type(number) is not int
        or DEFERRED_IN in annotations
        or (origin is not None and type(origin) is not int)
        or (state is not None and type(state) is not int)
        or (ttl_ms is not None and type(ttl_ms) is not int)
        or (deliveries is not None and type(deliveries) is not int)
        or not -1 < (ttl_ms or 0) < TIME_MS_END
    ):
        raise _Unusual
    enqueued = _micros(get(b"x-opt-enqueued-time"))
    key, source = get(b"x-opt-partition-key"), get(b"x-opt-deadletter-source")
    return (
        None if key is None else _text(key),
        number,
        origin,
        enqueued,
        _micros(get(b"x-opt-scheduled-enqueue-time")),
        enqueued + ttl_ms * 1000 if enqueued and ttl_ms else None,
        ttl_ms or None,
        deliveries,
        _STATES.get(state, "active"),
        None if source is None else _strict(source),
    )


def _properties(data: bytes, at: int) -> tuple[Sequence[str | None], int]:
    """Message id, session, correlation id, subject, content type, to, reply to, reply to session; and the end."""
    values, at = _list(data, at, 13)
    texts = [value if value is None else _text(value) for value in values]
    texts += [None] * (13 - len(texts))
    message_id, _, to, subject, reply_to, correlation_id, content_type, *_, session, _, reply_session = texts
    return (message_id, session, correlation_id, subject, content_type, to, reply_to, reply_session), at


def _text(value: Any) -> str:
    return value.decode(errors="replace") if type(value) is bytes else str(value)


def _strict(value: Any) -> str | None:
    """What is bytes as text, and nothing else; the SDK fails where it is no UTF-8."""
    return value.decode() if type(value) is bytes else None


def _micros(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < TIME_MS_END:
        raise _Unusual
    return value * 1000 or None


def _map(data: bytes, at: int) -> tuple[dict[bytes, Any], int]:
    if data[at] not in (0xC1, 0xD1):
        raise _Unusual
    values, at = _values(data, at)
    keys = values[::2]
    # A key that is no text may be equal to one of another type, as 1 is to True.
    if len(values) % 2 or not _TEXT_ONLY.issuperset(map(type, keys)):
        raise _Unusual
    return dict(zip(keys, values[1::2], strict=True)), at


def _skipped(data: bytes, at: int) -> int:
    """Where a section ends, a list or a map, that no row needs."""
    code = data[at]
    if code in (0xC0, 0xC1):
        return at + 2 + data[at + 1]
    if code in (0xD0, 0xD1):
        return at + 5 + int(_UINT.unpack_from(data, at + 1)[0])
    if code == 0x45:
        return at + 1
    raise _Unusual


def _list(data: bytes, at: int, most: int) -> tuple[list[Any], int]:
    code = data[at]
    if code == 0x45:
        return [], at + 1
    if code not in (0xC0, 0xD0):
        raise _Unusual
    values, at = _values(data, at)
    if len(values) > most:
        raise _Unusual
    return values, at


def _values(data: bytes, at: int) -> tuple[list[Any], int]:
    """The simple values of a list or map, and where it ends, which has to be where it says."""
    if data[at] < _WIDE:
        end, count = at + 2 + data[at + 1], data[at + 2]
        at += 3
    else:
        size, count = _TWO.unpack_from(data, at + 1)
        end = at + 5 + size
        at += 9
    # Each value takes a byte at least, so a count that is not true costs nothing.
    if end > len(data) or count > end - at or count > _VALUES_MAX:
        raise _Unusual
    found: list[Any] = []
    append, kinds = found.append, _KINDS
    for _ in range(count):
        code = data[at]
        at += 1
        if code == _NULL:
            append(None)
            continue
        kind = kinds[code]
        if kind is _SHORT:
            start = at + 1
            at = start + data[at]
            append(data[start:at])
        elif type(kind) is tuple:
            width, read = kind
            append(read(data, at)[0])
            at += width
        elif kind is _LONG:
            start = at + 4
            at = start + _UINT.unpack_from(data, at)[0]
            append(data[start:at])
        elif kind is _CONSTANT:
            append(_CONSTANTS[code])
        else:
            raise _Unusual
    if at != end:
        raise _Unusual
    return found, end


def _places(data: bytes, end: int) -> dict[bytes, int]:
    """Where the values of a message's annotations begin that have eight bytes, by their keys.

    Args:
        data: The message, whose annotations were read.
        end: Where these end.
    """
    at = before = start = 0
    while before != _ANNOTATIONS:
        before, start = _section(data, at, before)
        at = _skipped(data, start)
    places: dict[bytes, int] = {}
    key, is_key = b"", True
    at = start + (3 if data[start] < _WIDE else 9)
    while at < end:
        code, at = data[at], at + 1
        kind = _KINDS[code]
        text_at = at + (1 if kind is _SHORT else 4)
        width = 0
        if kind is _SHORT:
            width = 1 + data[at]
        elif kind is _LONG:
            width = 4 + int(_UINT.unpack_from(data, at)[0])
        elif type(kind) is tuple:
            width = kind[0]
        if is_key:
            key = data[text_at : at + width]
        elif type(kind) is tuple and width == 8:
            places[key] = at
        at, is_key = at + width, not is_key
    return places


def _bool_at(data: bytes, at: int) -> tuple[bool]:
    return (data[at] == 1,)


def _uuid_at(data: bytes, at: int) -> tuple[UUID]:
    return (UUID(bytes=data[at : at + 16]),)


_UINT: Final = struct.Struct(">I")
_TWO: Final = struct.Struct(">II")
_SHORT: Final = "binary, string or symbol with a length of one byte"
_LONG: Final = "the same with one of four bytes"
_CONSTANT: Final = "a value without bytes of its own"
_NULL: Final = 0x40
#: Lists and maps from this code on have sizes of four bytes.
_WIDE: Final = 0xD0
_TEXT_ONLY: Final = frozenset({bytes})
_CONSTANTS: Final[dict[int, Any]] = {0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_FORMS: Final = {
    0x50: ">B",
    0x51: ">b",
    0x52: ">B",
    0x53: ">B",
    0x54: ">b",
    0x55: ">b",
    0x60: ">H",
    0x61: ">h",
    0x70: ">I",
    0x71: ">i",
    0x72: ">f",
    0x80: ">Q",
    0x81: ">q",
    0x82: ">d",
    0x83: ">q",
}


def _kinds() -> list[Any]:
    kinds: list[Any] = [None] * 256
    kinds[0xA0] = kinds[0xA1] = kinds[0xA3] = _SHORT
    kinds[0xB0] = kinds[0xB1] = kinds[0xB3] = _LONG
    for code in _CONSTANTS:
        kinds[code] = _CONSTANT
    for code, form in _FORMS.items():
        read: Callable[[bytes, int], tuple[Any, ...]] = struct.Struct(form).unpack_from
        kinds[code] = struct.calcsize(form), read
    kinds[0x56], kinds[0x98] = (1, _bool_at), (16, _uuid_at)
    return kinds


#: By format code: how a value is read; None: not here.
_KINDS: Final = _kinds()
#: By code of a section that is a list or a map: how it is read. Delivery annotations and the footer tell no column.
_READ: Final[dict[int, Callable[[bytes, int], tuple[Any, int]]]] = {
    HEADER: lambda data, at: _list(data, at, 5),
    0x71: _map,
    _ANNOTATIONS: _map,
    PROPERTIES: lambda data, at: _list(data, at, 13),
    APPLICATION: _map,
    0x78: _map,
}
