"""Durations as people type them, and the exact text of a duration that can be typed again."""

from __future__ import annotations

import re
from typing import Final

from duobus.errors import ArgumentInvalid
from duobus.model.durations import INFINITE, format_duration, parse_duration

UNLIMITED: Final = "unlimited"
_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_WORDS: Final = {"day": "d", "days": "d", "hour": "h", "hours": "h", "min": "m", "minute": "m", "minutes": "m"} | {
    "sec": "s",
    "second": "s",
    "seconds": "s",
}
_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([a-z]+)\s*", re.ASCII)
_ENDLESS: Final = frozenset({UNLIMITED, "infinite", "never", "max"})


def typed_duration(text: str) -> str:
    """Return what a person typed as ISO 8601: ``5m``, ``1 h 30 m``, ``90s``, ``PT5M`` or ``unlimited``.

    Raises:
        ArgumentInvalid: It is no duration.
    """
    low = text.strip().lower()
    if low in _ENDLESS:
        return INFINITE
    if low.startswith("p"):
        return format_duration(parse_duration(text.strip().upper()))
    total, at = 0.0, 0
    while at < len(low):
        found = _PART.match(low, at)
        unit = None if found is None else _WORDS.get(found[2], found[2])
        if found is None or unit not in _UNITS_MS:
            raise ArgumentInvalid(f"{text[:64]!r} is no duration: write 30s, 5m, 1h 30m, 14d, PT5M or unlimited.")
        total += float(found[1]) * _UNITS_MS[unit]
        at = found.end()
    if not low:
        raise ArgumentInvalid("A duration is needed: 30s, 5m, 1h 30m, 14d or PT5M.")
    return format_duration(round(total))


def exact_duration(iso: str) -> str:
    """Return a duration in all its units, as ``1 h 30 m``; ``typed_duration`` reads the text again."""
    total = parse_duration(iso)
    if total is None:
        return UNLIMITED
    parts = []
    for unit, length in _UNITS_MS.items():
        number, total = divmod(total, length)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts) or "0 s"
