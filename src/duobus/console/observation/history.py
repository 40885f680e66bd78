"""What charts show: a point every ten seconds for an hour, and one every five minutes for a day, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

#: Points of the last hour, and of the last day.
HOUR_POINTS_MAX: Final = 360
DAY_POINTS_MAX: Final = 288
_DAY_STEP_S: Final = 300
#: After so many seconds without a look a chart has a gap.
_GAP_S: Final = 150.0
_VALUES: Final = ("sent", "received", "active", "dead")


class Point(NamedTuple):
    """The namespace at one time.

    Attributes:
        at_s: Seconds since 1970.
        sent, received: Messages per second; for a namespace of Azure the growth of the active messages is in
            ``sent`` as long as it is above zero, and in ``received`` as long as it is below.
        active, dead: Messages.
    """

    at_s: float
    sent: float | None
    received: float | None
    active: float | None
    dead: float | None


class History:
    """The points of one namespace."""

    def __init__(self) -> None:
        self._hour: deque[Point] = deque(maxlen=HOUR_POINTS_MAX)
        self._day: deque[Point] = deque(maxlen=DAY_POINTS_MAX)
        #: The points of the five minutes that are under way.
        self._open: list[Point] = []

    def add(self, point: Point) -> None:
        """Add a point; one that is not later than the last one is left out, as after a change of the clock."""
        if self._hour and point.at_s <= self._hour[-1].at_s:
            return
        if self._hour and point.at_s - self._hour[-1].at_s > _GAP_S:
            self._hour.append(Point(self._hour[-1].at_s + 1, None, None, None, None))
        self._hour.append(point)
        if self._open and self._open[0].at_s // _DAY_STEP_S != point.at_s // _DAY_STEP_S:
            self._close()
        # A clock that was set back by an hour adds points to one step for as long.
        self._open = [*self._open, point][-HOUR_POINTS_MAX:]

    def _close(self) -> None:
        step = self._open[0].at_s // _DAY_STEP_S * _DAY_STEP_S
        if self._day and step - self._day[-1].at_s > 2 * _DAY_STEP_S:
            self._day.append(Point(self._day[-1].at_s + 1, None, None, None, None))
        if not self._day or step > self._day[-1].at_s:
            self._day.append(mean_of(self._open, step))
        self._open = []

    def begin_with(self, hour: list[Point], day: list[Point]) -> None:
        """Take over the points that the server has kept, in place of all that are here."""
        self._hour = deque(hour, maxlen=HOUR_POINTS_MAX)
        self._day = deque(day, maxlen=DAY_POINTS_MAX)
        self._open = []

    def points(self, span: str) -> list[Point]:
        """The points of the last ``hour`` or ``day``, the latest last."""
        if span != "day":
            return list(self._hour)
        if not self._open:
            return list(self._day)
        last = mean_of(self._open, self._open[0].at_s // _DAY_STEP_S * _DAY_STEP_S)
        # A chart goes from left to right only.
        return [*self._day, *([] if self._day and last.at_s <= self._day[-1].at_s else [last])]


def points_of(answer: Mapping[str, Any]) -> list[Point]:
    """The points in an answer of ``/$duobus/history``."""
    found = []
    for row in answer["points"]:
        named = dict(zip(answer["fields"], row, strict=False))
        found.append(
            Point(named["atMs"] / 1_000, named["sent"], named["received"], named["active"], named["deadLetter"])
        )
    return found


def mean_of(points: list[Point], at_s: float) -> Point:
    """One point for several: the mean of what is known, and the latest of what is counted."""
    means: list[float | None] = []
    for name in _VALUES:
        known = [value for point in points if (value := getattr(point, name)) is not None]
        if not known:
            means.append(None)
        else:
            means.append(sum(known) / len(known) if name in {"sent", "received"} else known[-1])
    return Point(at_s, *means)


def chart(points: list[Point], series: list[tuple[str, str]], unit: str) -> dict[str, Any]:
    """What the script of the page draws.

    Args:
        points: The latest last.
        series: Names of values with their labels.
        unit: Behind each number.
    """
    return {
        "x": [round(point.at_s) for point in points],
        "series": [
            {"label": label, "values": [_rounded(getattr(point, name)) for point in points]} for name, label in series
        ],
        "unit": unit,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
