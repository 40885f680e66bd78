"""Application properties as HTTP headers, both ways (Azure: Service Bus REST API).

Names keep their letters' case: whoever reads them on the other side compares it.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, Final

from duobus.codec import Timestamp
from duobus.errors import ArgumentInvalid

#: Names of headers that are never properties, lower case; and beginnings of such names.
# fmt: off
_OWN: Final = frozenset(
    {
        "authorization", "brokerproperties", "cache-control", "connection", "cookie", "date", "expect", "forwarded",
        "from", "host", "keep-alive", "max-forwards", "origin", "pragma", "range", "referer",
        "servicebusauthorization", "servicebussupplementaryauthorization", "servicebusdlqsupplementaryauthorization",
        "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "via", "warning", "x-real-ip",
        "x-ms-client-request-id", "x-ms-return-client-request-id", "x-ms-retrypolicy", "x-ms-version", "location",
        "server", "set-cookie", "retry-after", "etag", "vary", "age", "priority-hints", "alt-svc", "http2-settings",
        "upgrade-insecure-requests", "dnt",
    }
)
# fmt: on
_OWN_STARTS: Final = ("accept", "content-", "if-", "proxy-", "sec-", "x-forwarded-", "access-control-")
#: Where W3C trace contexts are kept, as the SDKs do.
_TRACES: Final = {"traceparent": "Diagnostic-Id", "tracestate": "tracestate"}

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,255}")
_INTEGER: Final = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d{1,64}\.?\d{0,64}|\.\d{1,64})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_DATE: Final = re.compile(r"[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT", re.ASCII)
_UNSAFE: Final = re.compile(r"[^\x20-\x7e]|[\"\\]")
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")

_LONG_MAX: Final = (1 << 63) - 1


def is_property(name: str) -> bool:
    """Whether a header of this name is an application property."""
    lower = name.lower()
    return lower not in _OWN and not lower.startswith(_OWN_STARTS)


def read_properties(raw_headers: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Return the application properties that a request's headers carry; of repeated ones the last.

    Raises:
        ArgumentInvalid: A quoted value does not end.
    """
    found: dict[str, Any] = {}
    for raw_name, raw_value in raw_headers:
        name = raw_name.decode("latin-1")
        if is_property(name):
            found[_TRACES.get(name.lower(), name)] = read_value(_text(raw_value), name)
    return found


def _text(value: bytes) -> str:
    try:
        return value.decode().strip()
    except UnicodeDecodeError:
        return value.decode("latin-1").strip()


def read_value(text: str, name: str = "") -> Any:
    """Return the value that a header's text means; what is neither quoted nor a number or flag is a string.

    Raises:
        ArgumentInvalid: It begins with a quote and does not end with one.
    """
    if text.startswith('"'):
        if len(text) < 2 or not text.endswith('"'):
            raise ArgumentInvalid(f"The value of the header {name[:64]} begins with a quote and does not end with one.")
        inside = _ESCAPED.sub(_unescaped, text[1:-1])
        instant = read_date(inside) if _DATE.fullmatch(inside) else None
        return inside if instant is None else Timestamp(instant)
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if _INTEGER.fullmatch(text) and -_LONG_MAX - 1 <= int(text) <= _LONG_MAX:
        return int(text)
    if _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) == 5 else escape


def read_date(text: str) -> int | None:
    """Return ms since the epoch of an RFC 1123 or ISO 8601 time, or None."""
    try:
        found = parsedate_to_datetime(text) if "," in text else datetime.fromisoformat(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


def write_date(at_ms: int) -> str | None:
    """Return an RFC 1123 time, to the second; None for one that the calendar does not have."""
    try:
        return format_datetime(datetime.fromtimestamp(at_ms // 1000, tz=UTC), usegmt=True)
    except (ValueError, OverflowError, OSError):
        return None


def write_properties(properties: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return headers for application properties; what cannot be one (by name or by type) is left out."""
    found = []
    for name, value in properties.items():
        if _TOKEN.fullmatch(name) and is_property(name):
            text = _written(value)
            if text is not None:
                found.append((name, text))
    return found


def _written(value: Any) -> str | None:  # one type after the other
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        date = write_date(int(value))
        return None if date is None else f'"{date}"'
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else None
    if isinstance(value, str):
        return f'"{_UNSAFE.sub(_escaped, value)}"'
    if isinstance(value, uuid.UUID):
        return f'"{value}"'
    return None


def _escaped(match: re.Match[str]) -> str:
    """Nothing that ends a header line, or that a reader might take for something else, is ever written as it is."""
    character = match[0]
    if character in '"\\':
        return "\\" + character
    return "".join(f"\\u{unit:04x}" for unit in _units(character))


def _units(character: str) -> list[int]:
    data = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[pos : pos + 2], "big") for pos in range(0, len(data), 2)]
