"""Writing XML: text that no reader stumbles over, and the forms of times and numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

#: What XML 1.0 cannot hold, not even escaped; descriptions that came from a configuration file may have it.
_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}
_TO_ESCAPE: Final = re.compile('[&<>"\r\n\t]')

#: How the wire says "never".
NEVER_TEXT: Final = "0001-01-01T00:00:00Z"


def escape(text: str) -> str:
    """Return a text as it may stand between tags and in an attribute; what XML cannot hold becomes U+FFFD."""
    return _TO_ESCAPE.sub(lambda found: _ESCAPES[found[0]], _ILLEGAL.sub("\ufffd", text))


def element(name: str, text: str) -> str:
    """Return an element with a text."""
    return f"<{name}>{escape(text)}</{name}>"


def optional(name: str, text: str | None) -> str:
    """The same for what may be unset, which is left out: never empty, never nil (rule 0.27)."""
    return element(name, text) if text else ""


def flag(name: str, value: bool) -> str:
    """Return an element with ``true`` or ``false``."""
    return f"<{name}>{'true' if value else 'false'}</{name}>"


def number(name: str, value: int) -> str:
    """Return an element with a whole number."""
    return f"<{name}>{value}</{name}>"


def time_text(at_ms: int) -> str:
    """Return ``2026-11-21T00:20:27.123Z``; 0 is never."""
    if at_ms <= 0:
        return NEVER_TEXT
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(name: str, at_ms: int) -> str:
    """Return an element with a time."""
    return f"<{name}>{time_text(at_ms)}</{name}>"
