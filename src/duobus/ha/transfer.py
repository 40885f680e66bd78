"""A message on its way into a backlog queue and out of it: the one module that knows the ``x-ms-`` names.

Messages of all entities share a backlog queue. Properties that would make the secondary treat a message differently
(session id, time to live, scheduled time) are therefore moved to application properties, together with the entity for
which the message is meant (requirement PN10, invariant I47). The syphon restores them.

The SDK loses types when it receives: strings come back as bytes, timestamps as integers. So the types of values that
are not plain strings or numbers are recorded as well, and a body that is an AMQP value with strings in it is written as
the data of its encoding. Both happen only for messages that need it. All other messages have the documented names and
nothing else, so that a syphon of the old library understands them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

# Bodies that are AMQP values, on their way through a backlog queue.
#
# The SDK hands strings out as bytes and timestamps as integers, and cannot read the decimals that it writes (7.15.0),
# so a value with one of them in it would come back as another one. Such a body travels as JSON in a data section, in
# which everything that JSON has no form for carries a tag.

#: The only member of the object that stands for a tagged value.
_TAG: Final = "$"
#: Nested deeper than any value that AMQP peers take from each other (limits.md), so never reached by what was sendable.
DEPTH_MAX: Final = 64


def needs_tags(value: Any) -> bool:
    """Whether the SDK would send another value than it received."""
    if isinstance(value, dict):
        return any(needs_tags(key) or needs_tags(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(needs_tags(item) for item in value)
    return isinstance(value, (str, datetime, Decimal))


def dumps(value: Any) -> bytes:
    """Return the JSON of a value.

    Raises:
        TypeError: The value holds something that AMQP does not have, or is nested too deep.
    """
    return json.dumps(_tagged(value, 0), separators=(",", ":"), allow_nan=True).encode()


def loads(data: bytes) -> Any:
    """Return the value of a JSON text that ``dumps`` wrote.

    Raises:
        ValueError: It is none.
    """
    try:
        return _untagged(json.loads(data))
    except (ArithmeticError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"no value of a backlog message: {error}") from error


def _tagged(value: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise TypeError(f"a body may be nested {DEPTH_MAX} levels deep to be diverted")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [_tagged(item, depth + 1) for item in value]
        return {_TAG: "tuple", "v": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {_TAG: "map", "v": [[_tagged(k, depth + 1), _tagged(v, depth + 1)] for k, v in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {_TAG: "bytes", "v": base64.b64encode(value).decode("ascii")}
    if isinstance(value, UUID):
        return {_TAG: "uuid", "v": str(value)}
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return {_TAG: "timestamp", "v": moment.isoformat()}
    if isinstance(value, Decimal):
        return {_TAG: "decimal", "v": str(value)}
    raise TypeError(f"a body with a {type(value).__name__} in it cannot be diverted")


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, content = value[_TAG], value["v"]
    if kind == "tuple":
        return tuple(_untagged(item) for item in content)
    if kind == "map":
        return {_untagged(key): _untagged(item) for key, item in content}
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "uuid":
        return UUID(content)
    if kind == "timestamp":
        return datetime.fromisoformat(content)
    if kind == "decimal":
        return Decimal(content)
    raise ValueError(f"no tag {kind!r}")


SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED: Final = "x-ms-scheduledenqueuetimeutc"
PATH: Final = "x-ms-path"
#: Ours: when the message was diverted (ms), only beside a time to live, whose clock may go on from there.
DIVERTED_AT: Final = "x-duobus-divertedat"
#: Ours: name to AMQP type, as JSON, of user properties whose type the SDK would forget.
TYPES: Final = "x-duobus-types"
#: Ours: the kind of a body that travels as the JSON of its value.
BODY: Final = "x-duobus-body"
#: Ours: before a user property that is called like one of these.
ESCAPE: Final = "x-duobus-user-"
_OURS: Final = frozenset({SESSION_ID, TIME_TO_LIVE, SCHEDULED, PATH, DIVERTED_AT, TYPES, BODY})

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
PING_LIFE: Final = timedelta(seconds=1)

NO_PATH: Final = "Destination queue not indicated in message when fetched from backlog."
INVALID_TYPE: Final = "Invalid type in property."

#: Annotations by which a broker places a message.
_KEYS: Final = frozenset({"x-opt-partition-key", "x-opt-via-partition-key"})
_SCHEDULED_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
#: What a broker writes into a message that it hands out; a new send must not carry it.
_BROKERS: Final = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
    }
)
#: The lock under which a message was received, among its delivery annotations.
_LOCK_TOKEN: Final = "x-opt-lock-token"
_TIMESPAN: Final = "com.microsoft:timespan"
_TICKS_PER_MS: Final = 10_000
#: Longest time to live in milliseconds: beyond, the message never expires.
_FOREVER_MS: Final = 2**32 - 1
#: An ISO-8601 duration of days and less, as other programs write a time to live.
_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,7})?)S)?)?"
)

#: The SDK looks for these as bytes and would add its own beside them if they were text (``_common/tracing.py``).
_TRACES: Final = frozenset({"traceparent", "tracestate", "Diagnostic-Id"})
_DECIMAL: Final = "DECIMAL128"
TYPE, VALUE = "TYPE", "VALUE"  # The SDK's own form of a value with its AMQP type.
Sendable = ServiceBusMessage | AmqpAnnotatedMessage


class Undeliverable(Exception):
    """A backlog message that cannot be delivered to any entity; it belongs into the dead-letter queue of its queue.

    Attributes:
        reason: The dead-letter reason.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Restored(NamedTuple):
    """A backlog message that was turned back into the message of the application.

    Attributes:
        path: The entity for which the message was meant.
        message: The message as the application sent it.
        is_expired: Whether the time to live ran out while the message waited; never with ``ttl_mode="restart"``.
    """

    path: str
    message: AmqpAnnotatedMessage
    is_expired: bool


def to_backlog(message: Sendable, path: str, now_ms: int) -> AmqpAnnotatedMessage:
    """Return a copy of ``message`` for a backlog queue; the message itself stays as it is.

    Args:
        message: The message that the application gave to the sender.
        path: The entity for which the message is meant.
        now_ms: The time, for messages with a time to live.
    """
    raw = _raw(message)
    aside: dict[str, Any] = {PATH: path}
    header, properties = _header(raw.header), _properties(raw.properties)
    annotations = {_text(key): value for key, value in (raw.annotations or {}).items()}
    if properties.group_id is not None:
        aside[SESSION_ID] = _text(properties.group_id)
        properties.group_id = None
    if header.time_to_live and header.time_to_live < _FOREVER_MS:
        aside[TIME_TO_LIVE] = _timespan(header.time_to_live)
        aside[DIVERTED_AT] = {TYPE: "TIMESTAMP", VALUE: now_ms}
        # The SDK writes both anew from the time to live, when the message is sent with one again.
        properties.creation_time = properties.absolute_expiry_time = None
    header.time_to_live = None
    scheduled = annotations.pop(_SCHEDULED_ANNOTATION, None)
    if scheduled is not None:
        aside[SCHEDULED] = {TYPE: "TIMESTAMP", VALUE: _ms(scheduled)}
    types: dict[str, str] = {}
    users: dict[str, Any] = {}
    for key, value in (raw.application_properties or {}).items():
        name = _text(key)
        escaped = ESCAPE + name if name in _OURS or name.startswith(ESCAPE) else name
        kind = _kind(value)
        if kind is not None:
            types[escaped] = kind
        # The SDK cannot read the decimals that it writes.
        users[escaped] = str(value) if isinstance(value, Decimal) else value
    if types:
        aside[TYPES] = json.dumps(types, separators=(",", ":"))
    body = _body(raw)
    if raw.body_type is not AmqpMessageBodyType.DATA and needs_tags(value := next(iter(body.values()))):
        aside[BODY] = raw.body_type.value
        body = {"data_body": dumps(value)}
    return _rebuilt(raw, body, header, properties, {**users, **aside}, annotations)


def from_backlog(received: Sendable, now_ms: int | None = None) -> Restored:
    """Return the message that a backlog message was made of, and where it belongs.

    Args:
        received: A message that was received from a backlog queue.
        now_ms: With a time, the time that the message waited counts towards its time to live; with None the time to
            live starts again, as in the old library.

    Raises:
        Undeliverable: The message names no destination, or not in the right type.
    """
    raw = _raw(received)
    marks: dict[str, Any] = {}
    users: dict[str, Any] = {}
    for key, value in (raw.application_properties or {}).items():
        name = _text(key)
        if name in _OURS:
            marks[name] = value
        else:
            users[name] = value
    path = marks.get(PATH)
    if not isinstance(path, (str, bytes)) or not path:
        raise Undeliverable(NO_PATH, f"{PATH} is {'missing' if path is None else f'no path but {path!r}'}")
    header, properties = _header(raw.header), _properties(raw.properties)
    header.delivery_count = header.first_acquirer = header.time_to_live = None
    annotations = _restored_annotations(raw)
    session_id = marks.get(SESSION_ID)
    if session_id is not None:
        if not isinstance(session_id, (str, bytes)):
            raise Undeliverable(INVALID_TYPE, f"{SESSION_ID} has to be a string, not {session_id!r}")
        properties.group_id = _text(session_id)
    is_expired = False
    if TIME_TO_LIVE in marks:
        life_ms = _life_ms(marks[TIME_TO_LIVE])
        if now_ms is not None and isinstance(marks.get(DIVERTED_AT), int):
            life_ms -= max(0, now_ms - int(marks[DIVERTED_AT]))
            is_expired = life_ms <= 0
        header.time_to_live = max(1, life_ms)
    if SCHEDULED in marks:
        scheduled = marks[SCHEDULED]
        if not isinstance(scheduled, int) or isinstance(scheduled, bool):
            raise Undeliverable(INVALID_TYPE, f"{SCHEDULED} has to be a timestamp, not {scheduled!r}")
        annotations[_SCHEDULED_ANNOTATION] = {TYPE: "TIMESTAMP", VALUE: int(scheduled)}
    types = _types(marks.get(TYPES))
    restored: dict[str, Any] = {
        name.removeprefix(ESCAPE): _typed(value, types.get(name)) for name, value in users.items()
    }
    message = _rebuilt(raw, _restored_body(raw, marks.get(BODY)), header, properties, restored, annotations)
    return Restored(_text(path), message, is_expired)


def ping(session_id: str, *, is_key: bool = False) -> ServiceBusMessage:
    """Return a ping: empty, of a life of one second, never delivered to anyone (PN13).

    Args:
        session_id: A new session id for each ping, so that entities which require sessions accept the ping.
        is_key: Whether the session id is the partition key as well: then the ping asks for the fragment of that key.
            Otherwise any fragment of the entity may answer.
    """
    return ServiceBusMessage(
        b"",
        content_type=PING_CONTENT_TYPE,
        time_to_live=PING_LIFE,
        session_id=session_id,
        partition_key=session_id if is_key else None,
    )


def _raw(message: Sendable) -> AmqpAnnotatedMessage:
    return message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message


def _header(header: AmqpMessageHeader | None) -> AmqpMessageHeader:
    return AmqpMessageHeader(**dict(header.items())) if header else AmqpMessageHeader()


def _properties(properties: AmqpMessageProperties | None) -> AmqpMessageProperties:
    copy = AmqpMessageProperties(**dict(properties.items())) if properties else AmqpMessageProperties()
    for name, value in copy.items():
        # The SDK hands strings out as bytes, and would send identifiers in bytes as binary. Only user-id is binary.
        if isinstance(value, bytes) and name != "user_id":
            setattr(copy, name, _text(value))
    return copy


def _body(raw: AmqpAnnotatedMessage) -> dict[str, Any]:
    """The body as an argument of a new message."""
    if raw.body_type is AmqpMessageBodyType.DATA:
        return {"data_body": list(raw.body)}
    if raw.body_type is AmqpMessageBodyType.SEQUENCE:
        return {"sequence_body": [list(part) for part in raw.body]}
    return {"value_body": raw.body}


def _restored_body(raw: AmqpAnnotatedMessage, kind: Any) -> dict[str, Any]:
    if kind is None:
        return _body(raw)
    name = _text(kind)
    if name not in ("value", "sequence") or raw.body_type is not AmqpMessageBodyType.DATA:
        raise Undeliverable(INVALID_TYPE, f"{BODY} has to be value or sequence beside a body of data, not {kind!r}")
    try:
        return {f"{name}_body": loads(b"".join(raw.body))}
    except ValueError as error:
        raise Undeliverable(INVALID_TYPE, str(error)) from error


def _restored_annotations(raw: AmqpAnnotatedMessage) -> dict[str, Any]:
    found = {_text(k): v for k, v in (raw.annotations or {}).items() if _text(k) not in _BROKERS}
    for name in _KEYS & found.keys():
        # The SDK hands strings out as bytes, and would send a key of bytes as binary, which a broker refuses.
        found[name] = _text(found[name])
    return found


def _rebuilt(
    raw: AmqpAnnotatedMessage,
    body: dict[str, Any],
    header: AmqpMessageHeader,
    properties: AmqpMessageProperties,
    application_properties: dict[str, Any],
    annotations: Mapping[str, Any],
) -> AmqpAnnotatedMessage:
    """Return a message with the footer and the delivery annotations of ``raw``, and everything else new."""
    users: dict[Any, Any] = {
        key.encode() if key in _TRACES else key: value for key, value in application_properties.items()
    }
    message = AmqpAnnotatedMessage(
        footer=dict(raw.footer) if raw.footer else None,
        application_properties=users or None,
        annotations=dict(annotations) or None,
        delivery_annotations=_delivery_annotations(raw) or None,
        **body,
    )
    message.header, message.properties = header, properties
    return message


def _delivery_annotations(raw: AmqpAnnotatedMessage) -> dict[str, Any]:
    found = {_text(key): value for key, value in (raw.delivery_annotations or {}).items()}
    found.pop(_LOCK_TOKEN, None)
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _ms(moment: Any) -> int:
    """A scheduled time as the SDK takes it: a datetime, which is UTC where it does not say; or milliseconds."""
    if isinstance(moment, dict):
        return _ms(moment[VALUE])
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    return int(moment)


def _timespan(ms: int) -> dict[str, Any]:
    """A .NET time span, in the only form of it that AMQP has: ticks of 100 ns, described."""
    described = ({TYPE: "SYMBOL", VALUE: _TIMESPAN}, {TYPE: "LONG", VALUE: ms * _TICKS_PER_MS})
    return {TYPE: "DESCRIBED", VALUE: described}


def _life_ms(value: Any) -> int:
    """A time to live in each form that programs write it: a time span, milliseconds, an ISO-8601 duration."""
    if isinstance(value, int) and not isinstance(value, bool):
        is_ticks = _text(getattr(value, "descriptor", b"")) == _TIMESPAN
        return int(value) // _TICKS_PER_MS if is_ticks else int(value)
    match = _DURATION.fullmatch(_text(value)) if isinstance(value, (str, bytes)) else None
    if match is None or not any(match.groups()):
        raise Undeliverable(INVALID_TYPE, f"{TIME_TO_LIVE} has to be a time span, not {value!r}")
    parts = {name: float(number) for name, number in match.groupdict().items() if number is not None}
    return round(timedelta(**parts).total_seconds() * 1000)


def _kind(value: Any) -> str | None:
    """The AMQP type to note down for a user property; None when the SDK sends again what it received."""
    if isinstance(value, datetime):
        return "TIMESTAMP"
    if isinstance(value, Decimal):
        return _DECIMAL
    if isinstance(value, dict) and isinstance(value.get(TYPE), str) and value[TYPE] != "DESCRIBED":
        return str(value[TYPE])
    return None


def _types(note: Any) -> dict[str, str]:
    if note is None:
        return {}
    try:
        types = json.loads(note)
    except (TypeError, ValueError):
        types = None
    if not isinstance(types, dict) or not all(isinstance(kind, str) for kind in types.values()):
        raise Undeliverable(INVALID_TYPE, f"{TYPES} has to be a JSON object of names and types, not {note!r}")
    return types


def _typed(value: Any, kind: str | None) -> Any:
    if kind == _DECIMAL:
        try:
            return Decimal(_text(value))
        except ArithmeticError as error:
            raise Undeliverable(INVALID_TYPE, f"no decimal number: {value!r}") from error
    if kind is not None:
        return {TYPE: kind, VALUE: value}
    return value if isinstance(value, (bool, int, float, UUID, type(None))) else _text(value)
