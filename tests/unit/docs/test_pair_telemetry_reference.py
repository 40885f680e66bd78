"""The page of events, metrics and spans of a pair says what the code does."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from duobus.ha import events, metrics, tracing
from duobus.relay import events as relay_events
from duobus.relay import metrics as relay_metrics

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "pair-telemetry.md"


def rows_below(heading: str) -> list[list[str]]:
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_event_stands_there_with_its_members_and_its_meaning() -> None:
    kinds = [kind for kind in vars(events).values() if inspect.isclass(kind) and issubclass(kind, events.Event)]
    assert {named(name)[0]: (named(members), meaning) for name, members, meaning in rows_below("Events")} == {
        kind.__name__: (
            [field.name for field in dataclasses.fields(kind) if field.name != "entity"],
            " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()),
        )
        for kind in kinds
        if kind is not events.Event
    }


def test_every_metric_of_a_pair_stands_there_with_unit_and_attributes() -> None:
    written = {
        named(name)[0]: (named(unit)[0], meaning, tuple(named(attributes)))
        for name, _, unit, attributes, meaning in rows_below("Metrics")
    }
    built = metrics.COUNTERS | metrics.OTHERS
    assert written == {
        name: (unit, text, ("namespace", *attributes)) for name, (unit, text, attributes) in built.items()
    }


def test_every_span_stands_there() -> None:
    assert [named(row[0])[0] for row in rows_below("Spans")] == [tracing.DIVERT, tracing.SYPHON]


def test_every_event_of_the_old_library_has_one_of_ours() -> None:
    rows = rows_below("Beside the traces of the old library")
    numbers = {int(number) for row in rows for number in re.findall(r"\b306\d\d", row[0])}
    assert numbers == set(range(30600, 30617))
    for row in rows:
        for name in named(row[1]):
            assert name == "error" or hasattr(events, name)


def test_every_event_and_metric_of_relays_stands_there() -> None:
    first, others = PAGE.read_text().split("\n## Relays\n", 1)[1].split("\n| metric ", 1)
    kinds = [kind for kind in vars(relay_events).values() if inspect.isclass(kind)]
    told = {kind for kind in kinds if issubclass(kind, relay_events.Event) and kind is not relay_events.Event}
    rows = [line.strip("|").split(" | ") for line in first.splitlines() if line.startswith("| `")]
    assert {named(name)[0]: (named(members), meaning.strip()) for name, members, meaning in rows} == {
        kind.__name__: (
            [field.name for field in dataclasses.fields(kind) if field.name != "entity"],
            " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()),
        )
        for kind in told
    }
    counted = [line.strip("|").split(" | ") for line in others.splitlines() if line.startswith("| `")]
    assert {named(row[0])[0]: (named(row[2])[0], row[4].strip()) for row in counted} == relay_metrics.COUNTERS
