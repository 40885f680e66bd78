"""What clients saw during a drill: what the server counted from its begin to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duobus.console.observation.findings import errors_between
from duobus.console.observation.readings import Reading

#: What a drill asks for, and what the store is called after that.
MODES: Final = {"fail": "failing", "stall": "stalling", "heal": "healthy"}


class Drill(NamedTuple):
    """One drill of a store.

    Attributes:
        store: Its number.
        mode: ``failing`` or ``stalling``.
        begin: The look at the namespace just before.
        end: The look at its end; None while the drill is under way.
    """

    store: int
    mode: str
    begin: Reading
    end: Reading | None = None


def told(drill: Drill, now: Reading) -> dict[str, Any]:
    """What a person reads of a drill.

    Args:
        drill: The drill.
        now: The latest look, for a drill that is under way.
    """
    end = drill.end or now
    is_same_run = drill.begin.started_ms == end.started_ms
    seconds = max(0.0, (end.elapsed_ms - drill.begin.elapsed_ms) / 1000) if is_same_run else None
    found: dict[str, Any] = {
        "store": drill.store,
        "mode": drill.mode,
        "begun_ms": drill.begin.at_ms,
        "is_over": drill.end is not None,
        "seconds": seconds,
        "errors": errors_between(drill.begin, end),
        "was_restarted": not is_same_run,
    }
    for name in ("sent", "received"):
        before, after = drill.begin.total(name), end.total(name)
        known = is_same_run and before is not None and after is not None
        found[name] = max(0, (after or 0) - (before or 0)) if known else None
        found[f"{name}_rate"] = found[name] / seconds if found[name] is not None and seconds else None
    return found


def is_over(drill: Drill, stores: Mapping[int, str | None]) -> bool:
    """Whether a drill that is under way has ended, by whomever: its store does something else."""
    return drill.end is None and stores.get(drill.store) != drill.mode
