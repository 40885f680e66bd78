"""How pages write numbers, times and durations: filters of the templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

#: What stands for a value that is not known: a dash.
UNKNOWN: Final = "\N{EN DASH}"
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_KIB: Final = 1024
#: Durations of this length and above mean "without end": Azure writes its longest one.
_ENDLESS: Final = timedelta(days=10_000_000)
_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
#: Azure and the broker write an instant that never was as the first of all instants.
_NEVER_YEAR: Final = 1
_DAY_S: Final = 86_400


def count(value: Any) -> str:
    """A number with separators between the thousands; a dash where the number is not known."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{int(value):,}"


def rate(value: float | None) -> str:
    """A number per second."""
    return UNKNOWN if value is None else f"{count(float(value))}/s"


def size(value: Any) -> str:
    """A number of bytes in a unit that people read."""
    if value is None:
        return UNKNOWN
    number, unit = float(value), 0
    while abs(number) >= _KIB and unit < len(_BYTE_UNITS) - 1:
        number, unit = number / _KIB, unit + 1
    return f"{number:.1f} {_BYTE_UNITS[unit]}" if unit and number < 100 else f"{number:.0f} {_BYTE_UNITS[unit]}"


def as_timedelta(value: Any) -> timedelta | None:
    """A duration that is given as ISO 8601 text, as timedelta, or as a number of milliseconds."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return timedelta(milliseconds=value)
    found = _DURATION.fullmatch(str(value))
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        return timedelta.max


def short_duration(value: Any) -> str:
    """A duration in at most two units, as ``5 m`` or ``1 h 30 m``; ``unlimited`` for the longest."""
    found = as_timedelta(value)
    if found is None:
        return UNKNOWN if value is None else str(value)
    if found >= _ENDLESS:
        return "unlimited"
    if found < timedelta(0):
        return f"-{short_duration(-found)}"
    if found < timedelta(seconds=1):
        return f"{found / timedelta(milliseconds=1):.0f} ms"
    if found < timedelta(minutes=1):
        return f"{found.total_seconds():g} s" if found.total_seconds() < 10 else f"{found.total_seconds():.0f} s"
    seconds = round(found.total_seconds())
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", _DAY_S), ("h", 3_600), ("m", 60), ("s", 1)):
        number, seconds = divmod(seconds, length)
        if number or parts:
            parts.append((number, unit))
    return " ".join(f"{number} {unit}" for number, unit in parts[:2] if number)


def duration(value: Any) -> Markup:
    """A duration for people, with its exact form as a title."""
    exact = _iso_duration(value) if isinstance(value, timedelta) else value
    return Markup('<span class="duration" title="{}">{}</span>').format(
        "" if exact is None else exact, short_duration(value)
    )


def _iso_duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    return f"PT{seconds:g}S" if seconds < _DAY_S else f"P{value.days}DT{value.seconds}S"


def as_datetime(value: Any) -> datetime | None:
    """An instant that is given as a datetime, as milliseconds since 1970, or as ISO 8601 text."""
    try:
        if isinstance(value, datetime):
            return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000, UTC)
        if isinstance(value, str) and value:
            found = datetime.fromisoformat(value)
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def time(value: Any) -> Markup:
    """An instant; a script writes it in the viewer's zone, and the exact one is the title."""
    found = as_datetime(value)
    if value in (None, "", 0) or (found is not None and found.year <= _NEVER_YEAR):
        return Markup(UNKNOWN)
    if found is None:
        return escape(str(value))
    exact = found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, found.strftime("%Y-%m-%d %H:%M:%S"))


def entity_path(path: str) -> str:
    """The path of an entity in a URL: percent-encoded, one segment after the other."""
    return "/".join(quote(segment, safe="") for segment in path.split("/"))


def entity_url(path: str, screen: str = "entities", **query: Any) -> str:
    """The address of a screen about an entity: ``/entities/orders``, or ``/messages/orders?place=deadletter``."""
    kept = {name: str(value) for name, value in query.items() if value is not None}
    return f"/{screen}/{entity_path(path)}" + (f"?{urlencode(kept)}" if kept else "")


def pretty_json(value: Any) -> str:
    """A value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


#: Names under which templates use these functions.
FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "count": count,
    "rate": rate,
    "bytes": size,
    "duration": duration,
    "short_duration": short_duration,
    "time": time,
    "entity_path": entity_path,
    "entity_url": entity_url,
    "pretty_json": pretty_json,
}
