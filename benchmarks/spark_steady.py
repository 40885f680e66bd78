"""What a query of Spark does batch after batch, without what it costs to start: pure, from its own progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from statistics import median
from typing import Any, NamedTuple

#: Where the time of a batch goes, as Spark names it: planning includes settling the batch before and the receive.
PHASES = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")


class Steady(NamedTuple):
    """One run of a query, or several.

    Attributes:
        rows: Of all batches but the first.
        seconds: From the end of the first batch to that of the last.
        first_s: From the start of the query to the end of its first batch.
        phases_ms: Median of each phase, of all batches but the first.
    """

    rows: int
    seconds: float
    first_s: float
    phases_ms: dict[str, int]

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


def steady_of(progress: Iterable[Mapping[str, Any]], started: datetime) -> Steady:
    """Take the first batch of a run apart from the others.

    Args:
        progress: ``recentProgress`` of a query that has ended.
        started: When it was started, with a zone.

    Raises:
        ValueError: There were fewer than two batches with rows.
    """
    batches = [one for one in progress if one["numInputRows"]]
    if len(batches) < 2:
        raise ValueError(f"{len(batches)} batches had rows; what is steady begins with the second")
    ends = [_end_s(one) for one in batches]
    phases = {name: round(median(one["durationMs"].get(name, 0) for one in batches[1:])) for name in PHASES}
    return Steady(
        sum(one["numInputRows"] for one in batches[1:]),
        ends[-1] - ends[0],
        ends[0] - started.timestamp(),
        phases,
    )


def together(runs: list[Steady]) -> Steady:
    """Several runs of the same as one: rates by all their rows, the rest by medians."""
    return Steady(
        sum(run.rows for run in runs),
        sum(run.seconds for run in runs),
        median(run.first_s for run in runs),
        {name: round(median(run.phases_ms[name] for run in runs)) for name in PHASES},
    )


def _end_s(one: Mapping[str, Any]) -> float:
    begun = datetime.fromisoformat(one["timestamp"]).timestamp()
    return begun + float(one["durationMs"]["triggerExecution"]) / 1000
