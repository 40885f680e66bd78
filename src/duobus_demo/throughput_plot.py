"""Rate and backlog over time, as one SVG: two panels over the same seconds, marks where something happened.

Written by hand, since drawing a few lines is no reason for a dependency.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

_WIDTH: Final = 860
_PANEL_HEIGHT: Final = 220
_LEFT: Final = 70
_RIGHT: Final = 20
_TOP: Final = 40
_GAP: Final = 50
_COLOURS: Final = ("#1f6fb4", "#c4571a")
_STEPS: Final = (1, 2, 5)


class Sample(NamedTuple):
    """What was seen at one moment.

    Attributes:
        at_s: Seconds since the beginning.
        captured: Messages that were in files by then.
        backlog: Messages that were in the entity then.
    """

    at_s: float
    captured: int
    backlog: int


class Mark(NamedTuple):
    """Something that happened at one moment, in a few words."""

    at_s: float
    what: str


def rates(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Messages captured in a second between each sample and the one before, at the later one's time."""
    return [
        (later.at_s, max(0, later.captured - earlier.captured) / (later.at_s - earlier.at_s))
        for earlier, later in pairwise(samples)
        if later.at_s > earlier.at_s
    ]


def round_up(value: float) -> float:
    """Return the least of 1, 2, 5, 10, 20, 50 … that is not below ``value``."""
    power = 1.0
    while True:
        for step in _STEPS:
            if step * power >= value:
                return step * power
        power *= 10


def draw(title: str, samples: Sequence[Sample], marks: Sequence[Mark]) -> str:
    """Return the SVG."""
    end_s = max([1.0, *(sample.at_s for sample in samples), *(mark.at_s for mark in marks)])
    lines = [
        ("Messages captured in a second", rates(samples)),
        ("Messages in the entity", [(sample.at_s, float(sample.backlog)) for sample in samples]),
    ]
    height = _TOP + 2 * (_PANEL_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for index, (name, points) in enumerate(lines):
        parts.extend(_panel(name, points, _TOP + index * (_PANEL_HEIGHT + _GAP), end_s, _COLOURS[index], marks))
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    name: str, points: Sequence[tuple[float, float]], top: int, end_s: float, colour: str, marks: Sequence[Mark]
) -> list[str]:
    highest = round_up(max([1.0, *(value for _, value in points)]))
    bottom, width = top + _PANEL_HEIGHT, _WIDTH - _LEFT - _RIGHT

    def x(at_s: float) -> str:
        return f"{_LEFT + width * at_s / end_s:.1f}"

    def y(value: float) -> str:
        return f"{bottom - (_PANEL_HEIGHT - 20) * value / highest:.1f}"

    parts = [f'<text x="{_LEFT}" y="{top + 10}" fill="{colour}">{escape(name)}</text>']
    for quarter in range(5):
        value = highest * quarter / 4
        parts.append(f'<path d="M{_LEFT} {y(value)}H{_LEFT + width}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value)}" text-anchor="end" dy="4">{value:,.6g}</text>')
        second = end_s * quarter / 4
        parts.append(f'<text x="{x(second)}" y="{bottom + 16}" text-anchor="middle">{second:.3g} s</text>')
    for mark in marks:
        parts.append(f'<path d="M{x(mark.at_s)} {top + 16}V{bottom}" stroke="#999" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{x(mark.at_s)}" y="{top + 26}" dx="4" fill="#555">{escape(mark.what)}</text>')
    if points:
        path = "L".join(f"{x(at_s)} {y(value)}" for at_s, value in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return parts
