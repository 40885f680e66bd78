"""The results of parts as people read them: a table of each, and at the end one table and one verdict of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    ("messages_per_second", "Messages per second"),
)

#: Rows that must be 0.
_MUST_BE_ZERO = frozenset(
    {"lost", "altered", "wrong", "properties_lost", "revived", "left", "out_of_order", "states_lost"}
)

#: Members with a column of their own in the table of all parts, and its head: the table fits into 80 columns.
_COLUMNS = {"sent": "sent", "received": "received", "duplicates": "doubled", "lost": "lost", "altered": "altered"}


def summary_table(results: Sequence[dict[str, Any]], failed: Mapping[str, Sequence[str]]) -> Table:
    """Return the table of all parts, a row each.

    Args:
        results: Of the parts, in their order.
        failed: Of each part that is a failure, the reasons.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("part", no_wrap=True)
    for head in (*_COLUMNS.values(), "wrong", "faults", "s"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for result in results:
        wrong = sum(result.get(name, 0) for name in _MUST_BE_ZERO if name not in _COLUMNS)
        table.add_row(
            result["part"],
            *(f"{result[name]:,}" if name in result else "" for name in _COLUMNS),
            f"{wrong:,}",
            str(_faults(result)),
            f"{result['seconds']:.0f}",
            "[red]failed[/red]" if result["part"] in failed else "[green]ok[/green]",
        )
    return table


def rate_line(results: Sequence[dict[str, Any]]) -> str:
    """Return what went through while nothing was killed; empty when that was not measured."""
    for result in results:
        if "messages_per_second" in result:
            return (
                f"{result['messages_per_second']:,.0f} messages a second while nothing was killed: "
                f"{result['message_bytes']:,} bytes each, sent and completed one by one by {result['clients']} clients "
                "of the SDK, in one process beside the broker."
            )
    return ""


def verdict(results: Sequence[dict[str, Any]], failed: Mapping[str, Sequence[str]]) -> str:
    """Return the last line."""
    if failed:
        return f"FAILED: {', '.join(failed)}. The reasons stand above."
    received = sum(result.get("received", 0) for result in results)
    faults = sum(map(_faults, results))
    through = f", through {faults} kills and drills" if faults else ""
    return f"PASSED: {received:,} messages received, none lost, altered or wrongly delivered{through}."


def _faults(result: Mapping[str, Any]) -> int:
    """How often a broker was killed, or a store stalled or failed."""
    return len(result.get("kills", ())) + len(result.get("drills", ()))


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


def _value(member: str, value: float) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}"
    if member not in _MUST_BE_ZERO:
        return f"{value:,}"
    return f"[red]{value:,}[/red] (must be 0)" if value else "[green]0[/green]"


def _receive_path(counts: dict[str, int]) -> str:
    faults = ", ".join(f"{counts[name]:,} {name}" for name in ("duplicates", "lost", "altered", "wrong"))
    return f"{counts['received']:,} of {counts['expected']:,} copies, {faults}"


def _in_lines(texts: list[str], per_line: int = 4) -> str:
    return "\n".join("   ".join(texts[start : start + per_line]) for start in range(0, len(texts), per_line))
