"""What makes dead letters alike: the text of the exception without what varies in it, and the shape of the body."""

from __future__ import annotations

import json
import re
from typing import Any, Final

#: Bodies that are larger are not parsed.
PARSED_BYTES_MAX: Final = 256 * 1024
#: Members of an object that a shape names.
MEMBERS_MAX: Final = 20
#: Characters of an exception's text that count.
TEXT_LENGTH_MAX: Final = 200

_VARIES: Final = (
    (re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"), "<id>"),
    (re.compile(r"'[^']{1,200}'|\"[^\"]{1,200}\""), "<text>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{12,}\b"), "<hex>"),
    (re.compile(r"\d+"), "<n>"),
)


def alike(text: str | None) -> str:
    """The text of an exception without what differs from one message to the next: ids, numbers, what is quoted."""
    if not text:
        return ""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")[: 4 * TEXT_LENGTH_MAX]
    for pattern, put in _VARIES:
        first = pattern.sub(put, first)
    return first[:TEXT_LENGTH_MAX]


def shape_of(body: bytes | None, body_type: str | None) -> str:
    """What kind of body it is; of a JSON object also its members and their types."""
    if body_type not in (None, "data"):
        return f"amqp {body_type}"
    if not body:
        return "empty"
    if len(body) > PARSED_BYTES_MAX:
        return "large"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "binary"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "text"
    if not isinstance(value, dict):
        return f"json {_kind(value)}"
    members = sorted(value.items())
    told = ", ".join(f"{name[:40]}: {_kind(member)}" for name, member in members[:MEMBERS_MAX])
    return f"json {{{told}{', …' if len(members) > MEMBERS_MAX else ''}}}"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
