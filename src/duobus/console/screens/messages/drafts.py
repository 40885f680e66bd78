"""From the fields of a form to messages: what a person sends, and what is wrong with the fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from duobus.errors import ServiceBusError
from duobus.model.durations import format_duration, parse_duration
from duobus.model.json.messages import DESCRIPTION, REASON, message_of

#: Messages that one form sends by repeating.
REPEATED_MAX: Final = 1_000
#: Longest line of a file of messages, in bytes: that of the largest message in base64.
LINE_BYTES_MAX: Final = 136 << 20
#: Application properties that a form has room for.
PROPERTIES_MAX: Final = 100

#: What stands for the number of a repeated message.
COUNTER: Final = "{{n}}"
#: Types of application properties that a form offers.
TYPES: Final = (
    "string",
    "boolean",
    "int",
    "long",
    "double",
    "uuid",
    "timestamp",
    "binary",
    "float",
    "byte",
    "short",
    "ubyte",
    "ushort",
    "uint",
    "ulong",
    "symbol",
    "null",
    "json",
)
TEXT: Final = "text"
JSON: Final = "json"
FILE: Final = "file"
ORIGINAL: Final = "original"

#: Fields of a form that are fields of the message's properties section.
_FIELDS: Final = {
    "id": "messageId",
    "subject": "subject",
    "session": "groupId",
    "correlation": "correlationId",
    "type": "contentType",
    "encoding": "contentEncoding",
    "to": "to",
    "reply": "replyTo",
    "reply_session": "replyToGroupId",
}
_WHOLE: Final = frozenset({"int", "byte", "short", "ubyte", "ushort", "uint", "ulong"})
_SHORT: Final = re.compile(r"(\d{1,9})\s*(ms|s|m|h|d)")
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DraftFault(Exception):
    """A field cannot be used.

    Attributes:
        field: Its name.
        text: Why, in a sentence.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field
        self.text = text


def fresh(form: dict[str, Any]) -> dict[str, Any]:
    """A message without the times of the first one: the life of a copy begins when the copy is sent."""
    found = {name: value for name, value in form.items() if name != "scheduledEnqueueTime"}
    if "properties" in found:
        times = ("absoluteExpiryTime", "creationTime")
        found["properties"] = {name: value for name, value in found["properties"].items() if name not in times}
    return found


def form_of_fields(
    fields: Mapping[str, str],
    properties: Sequence[tuple[str, str, str]],
    *,
    has_file: bool,
    base: dict[str, Any] | None,
    now_ms: int,
) -> dict[str, Any]:
    """The JSON form of the message that a person has written.

    Args:
        fields: Of the form.
        properties: Name, type and text of application properties.
        has_file: Whether a file has come. Where the file is to be the body, the form has an empty body: whoever sends
            the message puts the bytes there.
        base: The message that is sent again; what the form has no field for is taken from it.
        now_ms: For times that are given as a duration.

    Raises:
        DraftFault: A field cannot be used.
    """
    base = fresh(base or {})
    form = {**base, "body": _body(fields, base, has_file=has_file), "properties": _properties_section(fields, base)}
    form["applicationProperties"] = {name: _value(name, kind, text) for name, kind, text in properties if name}
    header = dict(form.get("header") or {})
    header.pop("timeToLive", None)
    if given := fields.get("ttl", "").strip():
        header["timeToLive"] = iso_duration(given, "ttl")
    form["header"] = header
    form["partitionKey"] = fields.get("partition", "") or None
    if given := fields.get("schedule", "").strip():
        form["scheduledEnqueueTime"] = _instant(given, now_ms)
    form = {name: value for name, value in form.items() if value and name != "raw"}
    try:
        message_of(form)
    except ServiceBusError as error:
        raise DraftFault("", str(error)) from None
    return form


def _body(fields: Mapping[str, str], base: dict[str, Any], *, has_file: bool) -> dict[str, Any]:
    kind, text = fields.get("kind", TEXT), fields.get("body", "")
    if kind == ORIGINAL:
        found: dict[str, Any] = base.get("body") or {"data": [""]}
        return found
    if kind == FILE:
        if not has_file:
            raise DraftFault("file", "Choose the file that is to be the body.")
        return {"data": [""]}
    # A browser sends the ends of lines as CR LF, whatever the person has typed.
    text = text.replace("\r\n", "\n")
    if kind == JSON:
        try:
            json.loads(text.replace(COUNTER, "0"))
        except RecursionError:
            raise DraftFault("body", "This JSON is nested too deeply.") from None
        except json.JSONDecodeError as error:
            raise DraftFault(
                "body", f"This is no JSON: {error.msg} in line {error.lineno}, column {error.colno}."
            ) from None
    return {"data": [text]}


def _properties_section(fields: Mapping[str, str], base: dict[str, Any]) -> dict[str, Any]:
    found = dict(base.get("properties") or {})
    for field, name in _FIELDS.items():
        text = fields.get(field, "")
        old = found.get(name)
        # An id of another type than text stays what it is as long as nobody changes it.
        if text and isinstance(old, dict) and text == plain(old):
            continue
        found[name] = text or None
    if fields.get("kind") == JSON and not found["contentType"]:
        found["contentType"] = "application/json"
    return {name: value for name, value in found.items() if value is not None}


def _value(name: str, kind: str, text: str) -> Any:
    """An application property in the JSON form of AMQP values."""
    try:
        if kind == "string":
            return text
        if kind == "null":
            return None
        if kind == "boolean":
            return {"true": True, "false": False}[text.strip().lower()]
        if kind == "long":
            return int(text)
        if kind == "double":
            return float(text)
        if kind in _WHOLE:
            return {f"${kind}": int(text)}
        if kind == "float":
            return {"$float": float(text)}
        if kind == "json":
            return json.loads(text)
    except (KeyError, ValueError, RecursionError):
        raise DraftFault("properties", f"{text!r:.60} is no {kind}, which the property {name} is to be.") from None
    return {f"${kind}": text.strip()}


def plain(value: Any) -> str:
    """A value of the JSON form as a field shows it."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, inside),) = value.items()
        if name.startswith("$"):
            value = inside
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def row_of_value(name: str, value: Any) -> tuple[str, str, str]:
    """Name, type and text of a property for the fields of a form."""
    if value is None:
        return name, "null", ""
    for kind, known in (("boolean", bool), ("string", str), ("long", int), ("double", float)):
        if isinstance(value, known):
            return name, kind, value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, dict) and len(value) == 1:
        ((tag, inside),) = value.items()
        if tag[1:] in TYPES and not isinstance(inside, dict | list):
            return name, tag[1:], plain(value)
    return name, "json", json.dumps(value, ensure_ascii=False)


def fields_of(form: dict[str, Any]) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """The fields and properties that a form shows for a message that is sent again."""
    found = form.get("properties") or {}
    fields = {field: plain(found[name]) if name in found else "" for field, name in _FIELDS.items()}
    fields["partition"] = form.get("partitionKey") or ""
    fields["ttl"] = (form.get("header") or {}).get("timeToLive") or ""
    body = form.get("body") or {}
    parts = body.get("data")
    if parts is not None and len(parts) == 1 and isinstance(parts[0], str):
        fields |= {"kind": TEXT, "body": parts[0]}
    else:
        fields |= {"kind": ORIGINAL, "body": ""}
    properties = [
        row_of_value(name, value)
        for name, value in (form.get("applicationProperties") or {}).items()
        if name not in (REASON, DESCRIPTION)
    ]
    return fields, properties


def iso_duration(text: str, field: str) -> str:
    """A duration as ``5m`` or ISO 8601, as ISO 8601.

    Raises:
        DraftFault: It is none.
    """
    short = _SHORT.fullmatch(text.strip().lower())
    if short is not None:
        return format_duration(int(short[1]) * _UNITS[short[2]])
    try:
        parse_duration(text.strip().upper())
    except ServiceBusError:
        raise DraftFault(field, f"{text!r:.60} is no duration; write it like 90s, 5m, 2h, 7d or PT5M.") from None
    return text.strip().upper()


def _instant(text: str, now_ms: int) -> str:
    if (text[0].isdigit() and _SHORT.fullmatch(text.lower())) or text[0] in "pP":
        delay_ms = parse_duration(iso_duration(text, "schedule"))
        if delay_ms is None:
            raise DraftFault("schedule", "A message cannot be scheduled for ever.")
        try:
            moment = datetime.fromtimestamp(now_ms / 1_000, UTC) + timedelta(milliseconds=delay_ms)
        except OverflowError:
            raise DraftFault("schedule", "That is too late for a calendar.") from None
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise DraftFault(
                "schedule", f"{text!r:.60} is no time; write it like 10m, or like 2026-01-31T12:00:00Z."
            ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat(timespec="milliseconds")


def repeated(form: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """A message so many times, each with its number in place of ``{{n}}``."""
    if count == 1 or not _mentions(form):
        for _ in range(count):
            yield form if not _mentions(form) else _numbered(form, 1)
        return
    for number in range(1, count + 1):
        yield _numbered(form, number)


def _mentions(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_mentions(one) for one in value.values())
    if isinstance(value, list):
        return any(_mentions(one) for one in value)
    return isinstance(value, str) and COUNTER in value


def _numbered(value: Any, number: int) -> Any:
    if isinstance(value, dict):
        # What is binary has no text in which a number could stand.
        return {name: one if name == "$binary" else _numbered(one, number) for name, one in value.items()}
    if isinstance(value, list):
        return [_numbered(one, number) for one in value]
    return value.replace(COUNTER, str(number)) if isinstance(value, str) else value


def forms_of_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The messages of a JSONL file: records as the command line and the console write them, or bare messages.

    Raises:
        DraftFault: A line is none; the sentence names the line.
    """
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_BYTES_MAX:
            raise DraftFault("lines", f"Line {number} is longer than {LINE_BYTES_MAX >> 20} MiB. Nothing was sent.")
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            form = value["message"] if isinstance(value, dict) and "message" in value else value
            message_of(form)
        except (ValueError, RecursionError, ServiceBusError) as error:
            text = str(error).rstrip(".")
            raise DraftFault("lines", f"Line {number} is no message: {text}. Nothing was sent.") from None
        yield fresh(form)


def count_lines(lines: Iterable[bytes]) -> int:
    """How many messages a file has, each of which was looked at.

    Raises:
        DraftFault: A line is none, or the file has no message.
    """
    number = sum(1 for _ in forms_of_lines(lines))
    if not number:
        raise DraftFault("lines", "The file has no message.")
    return number


def key_of(form: dict[str, Any]) -> tuple[Any, Any]:
    """What messages of one batch have in common: a partitioned queue takes no other batch."""
    return (form.get("properties") or {}).get("groupId"), form.get("partitionKey")
