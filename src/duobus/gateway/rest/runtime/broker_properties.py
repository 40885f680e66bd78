"""The header ``BrokerProperties``: what the broker itself looks at, as one line of JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from duobus.errors import ArgumentInvalid, NotAllowed
from duobus.gateway.rest.runtime.header_values import read_date

#: Azure: quotas, in characters.
ID_LENGTH_MAX: Final = 128
#: Other texts of one message, in characters.
TEXT_LENGTH_MAX: Final = 4_096
#: Longest time to live that is told apart from "for ever": .NET's largest.
_TTL_MS_MAX: Final = 922_337_203_685_477

_SPAN: Final = re.compile(r"(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,7}))?", re.ASCII)


class BrokerProperties(msgspec.Struct):
    """What a message is sent with; None for what was left out."""

    message_id: str | None = None
    correlation_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    via_partition_key: str | None = None
    label: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    to: str | None = None
    content_type: str | None = None
    ttl_ms: int | None = None
    scheduled_ms: int | None = None


#: Lower-case name to attribute.
_TEXTS: Final = {
    "messageid": "message_id",
    "correlationid": "correlation_id",
    "sessionid": "session_id",
    "partitionkey": "partition_key",
    "viapartitionkey": "via_partition_key",
    "label": "label",
    "subject": "label",
    "replyto": "reply_to",
    "replytosessionid": "reply_to_session_id",
    "to": "to",
    "contenttype": "content_type",
}
_IDS: Final = frozenset({"message_id", "session_id", "partition_key", "via_partition_key", "reply_to_session_id"})


def read_header(text: str) -> BrokerProperties:
    """Return what the header says.

    Raises:
        ArgumentInvalid: It is no JSON object, or a value cannot be.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ArgumentInvalid("The header BrokerProperties is no JSON.") from None
    if not isinstance(found, dict):
        raise ArgumentInvalid("The header BrokerProperties must be a JSON object.")
    return read_members(found)


def read_members(members: Mapping[str, Any]) -> BrokerProperties:
    """Return what a JSON object says; names in any case, values also as strings, unknown names ignored.

    Raises:
        ArgumentInvalid: A value cannot be.
        NotAllowed: Session id and partition key differ (PE11).
    """
    found = BrokerProperties()
    for name, value in members.items():
        lower = name.lower()
        if value is None:
            continue
        if lower in _TEXTS:
            setattr(found, _TEXTS[lower], _text(name, value, _TEXTS[lower] in _IDS))
        elif lower == "timetolive":
            found.ttl_ms = _seconds(name, value)
        elif lower == "timetolivetimespan":
            found.ttl_ms = _span(name, value)
        elif lower == "scheduledenqueuetimeutc" and value != "":
            found.scheduled_ms = read_date(value) if isinstance(value, str) else None
            if found.scheduled_ms is None:
                raise ArgumentInvalid(f"{name} is no time; write it like 'Wed, 02 Jul 2014 01:32:27 GMT'.")
    if found.session_id is not None and found.partition_key not in (None, found.session_id):
        raise NotAllowed("SessionId and PartitionKey of a message must be equal when both are given.")
    return found


def _text(name: str, value: Any, is_id: bool) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ArgumentInvalid(f"{name} must be a string.")
    text = str(value)
    limit = ID_LENGTH_MAX if is_id else TEXT_LENGTH_MAX
    if len(text) > limit:
        raise ArgumentInvalid(f"{name} has {len(text)} characters; at most {limit} are allowed.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentInvalid(f"{name} is no legal text: half of a surrogate pair stands alone.") from None
    # An empty one is none: it names no session and no message.
    return text or None


def _seconds(name: str, value: Any) -> int | None:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentInvalid(f"{name} is no number of seconds.") from None
    if isinstance(value, bool) or not math.isfinite(seconds) or seconds <= 0:
        raise ArgumentInvalid(f"{name} must be more than 0 seconds.")
    milliseconds = math.ceil(seconds * 1000)
    return None if milliseconds >= _TTL_MS_MAX else milliseconds


def _span(name: str, value: Any) -> int:
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ArgumentInvalid(f"{name} is no time span; write it like '0.00:00:40'.")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    milliseconds = int((match[5] or "0").ljust(3, "0")[:3])
    found = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + milliseconds
    if not 0 < found < _TTL_MS_MAX:
        raise ArgumentInvalid(f"{name} must be more than 0.")
    return found


def write_header(members: Mapping[str, Any]) -> str:
    """Return one line of ASCII; what is None is left out."""
    return json.dumps({name: value for name, value in members.items() if value is not None}, separators=(",", ":"))
