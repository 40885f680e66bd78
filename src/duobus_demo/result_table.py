"""A part's result as a table for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

_ROWS = (
    ("sessions", "Sessions"),
    ("sent", "Sent"),
    ("acknowledged", "Acknowledged"),
    ("expected", "Copies expected"),
    ("too_large", "Refused as too large"),
    ("sends_unknown", "Sends of unknown outcome"),
    ("diverted", "Diverted"),
    ("syphoned", "Syphoned"),
    ("received", "Received"),
    ("restored", "Diverted and restored in every property"),
    ("duplicates", "Duplicates"),
    ("lost", "Lost"),
    ("altered", "Altered"),
    ("wrong", "Wrongly delivered"),
    ("properties_lost", "With other properties"),
    ("revived", "Completed and delivered again"),
    ("left", "Left behind"),
    ("out_of_order", "Out of order"),
    ("states_set", "States set"),
    ("states_lost", "States lost"),
    ("states_right", "States right in the end"),
    ("abandoned", "Abandoned"),
    ("deferred", "Deferred"),
    ("dead_lettered", "Dead-lettered"),
)

#: Rows that must be 0.
_MUST_BE_ZERO = frozenset(
    {"lost", "altered", "wrong", "properties_lost", "revived", "left", "out_of_order", "states_lost"}
)


def table_of(title: str, result: dict[str, Any]) -> Table:
    """Return the table; members that a part does not have are left out."""
    table = Table(title=title, show_header=False, title_justify="left", caption_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for member, label in _ROWS:
        if member in result:
            table.add_row(label, _value(member, result[member]))
    for label, value in _events(result):
        table.add_row(label, value)
    transports: dict[str, dict[str, int]] = result.get("transports", {})
    for name, counts in transports.items():
        table.add_row(f"Over {name}", f"{counts['sent']:,} sent, {counts['received']:,} received")
    receive_paths: dict[str, dict[str, int]] = result.get("receive_paths", {})
    for name, counts in receive_paths.items():
        table.add_row(f"From {name}", _receive_path(counts))
    fragments: dict[str, int] = result.get("per_fragment", {})
    if fragments:
        table.add_row("Messages per fragment", _in_lines([f"{name}: {count}" for name, count in fragments.items()]))
    rates: dict[str, float] = result.get("rates", {})
    if rates:
        table.caption = "Rates over the whole run, restarts included."
    for name, rate in rates.items():
        table.add_row(name.replace("_", " ").capitalize(), f"{rate:,.0f}")
    timeline: list[dict[str, Any]] = result.get("timeline", [])
    for step in timeline:
        table.add_row(f"At {step['at']:.2f} s", step["what"])
    table.add_row("Seconds", f"{result['seconds']:.1f}")
    return table


def _events(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What was done to the broker meanwhile, and what a client noticed of it."""
    for number, kill in enumerate(result.get("kills", ()), 1):
        yield (
            f"Kill {number}",
            f"{kill['unsettled_sends']} sends unsettled, {kill['locks_held']} locks held, "
            f"back in {kill['restart_seconds']:.2f} s",
        )
    for drill in result.get("drills", ()):
        yield (
            f"Store {drill['store']}, {drill['drill']}",
            f"{drill['sends']} sends meanwhile, {_diverted(drill)}"
            f"back {drill['back_seconds']:.2f} s after it was healed",
        )
    yield from result.get("rows", {}).items()
    if "slowest_send_seconds" in result:
        yield "Slowest send", f"{result['slowest_send_seconds']:.2f} s"


def _diverted(drill: dict[str, Any]) -> str:
    return f"{drill['diverted']} of them diverted, " if "diverted" in drill else ""


def _value(member: str, value: int) -> str:
    if member not in _MUST_BE_ZERO:
        return f"{value:,}"
    return f"[red]{value:,}[/red] (must be 0)" if value else "[green]0[/green]"


def _receive_path(counts: dict[str, int]) -> str:
    faults = ", ".join(f"{counts[name]:,} {name}" for name in ("duplicates", "lost", "altered", "wrong"))
    return f"{counts['received']:,} of {counts['expected']:,} copies, {faults}"


def _in_lines(texts: list[str], per_line: int = 4) -> str:
    return "\n".join("   ".join(texts[start : start + per_line]) for start in range(0, len(texts), per_line))
