"""ISO 8601 durations as Service Bus writes them, to and from milliseconds (Azure: quotas).

The wire counts ticks of 100 ns and knows a largest value, which means "for ever". Inside, a duration is
``int`` milliseconds and "for ever" is None.
"""

from __future__ import annotations

import re

from duobus.errors import ArgumentInvalid

#: .NET's TimeSpan.MaxValue, 9,223,372,036,854,775,807 ticks: how the wire says "for ever".
INFINITE = "P10675199DT2H48M5.4775807S"

_DAY_MS = 86_400_000

#: A duration of so many days or more means "for ever": clients that compute in floating point send the
#: largest value back a little changed (rule 0.14).
_INFINITE_MS = 10_675_199 * _DAY_MS

_YEAR_MS = 365 * _DAY_MS
_MONTH_MS = 30 * _DAY_MS

# Nine digits a part are over two million years of days; a longer text is an error, not arithmetic.
_PATTERN = re.compile(
    r"P(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9})(?:\.(?P<part>\d{1,9}))?S)?)?",
    re.ASCII,
)


def parse_duration(text: str, *, calendar_parts: bool = False) -> int | None:
    """Return a duration in ms, cut to whole ones, or None for one that means "for ever".

    Args:
        text: ``P[nD][T[nH][nM][n[.f]S]]`` with at least one part, and one after ``T``.
        calendar_parts: Also take years (365 days) and months (30 days), as emulator files may hold them.

    Raises:
        ArgumentInvalid: It is not of this form; the text quotes it.
    """
    match = _PATTERN.fullmatch(text)
    if match is None or text == "P" or text.endswith("T"):
        raise ArgumentInvalid(f"{text[:64]!r} is no duration; write it like 'PT1M', 'P14D' or 'PT0.5S'.")
    parts = {name: int(value) for name, value in match.groupdict("0").items() if name not in {"time", "part"}}
    if not calendar_parts and (match["years"] or match["months"]):
        raise ArgumentInvalid(f"The duration {text[:64]!r} counts in years or months; use days.")
    fraction_ms = int((match["part"] or "0").ljust(3, "0")[:3])
    total = (
        parts["years"] * _YEAR_MS
        + parts["months"] * _MONTH_MS
        + parts["days"] * _DAY_MS
        + parts["hours"] * 3_600_000
        + parts["minutes"] * 60_000
        + parts["seconds"] * 1000
        + fraction_ms
    )
    return None if total >= _INFINITE_MS else total


def format_duration(duration_ms: int | None) -> str:
    """Return the canonical text of a duration (0 and up; None for ever): no zero parts, days and below."""
    if duration_ms is None or duration_ms >= _INFINITE_MS:
        return INFINITE
    days, rest = divmod(duration_ms, _DAY_MS)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds, part = divmod(rest, 1000)
    date = f"P{days}D" if days else "P"
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if part:
        time += f"{seconds}.{part:03d}".rstrip("0") + "S"
    elif seconds:
        time += f"{seconds}S"
    if not time and not days:
        return "PT0S"
    return f"{date}T{time}" if time else date
