"""The state of a pair's entities, as its clients report them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from duobus.ha.reports.message import Report, latest


def states_of(reports: Iterable[Report]) -> dict[str, Any]:
    """What the last reports of all clients say together.

    An entity that no report names is healthy for every client. The entities come in order: those first that most
    clients have given up.
    """
    last = latest(reports)
    entities: dict[tuple[str, str], dict[str, Any]] = {}
    for report in last:
        for one in report.entities:
            about = {"entity": one.entity, "fragment": one.fragment, "failed_over": 0, "suspect": 0}
            found = entities.setdefault((one.entity, one.fragment), about)
            found["failed_over" if one.state == "failed over" else "suspect"] += 1
    ordered = sorted(
        entities.values(), key=lambda one: (-one["failed_over"], -one["suspect"], one["entity"], one["fragment"])
    )
    return {
        "clients": len(last),
        "entities": ordered,
        "left_out": max((report.left_out for report in last), default=0),
        "latest_ms": max((report.at_ms for report in last), default=None),
    }
