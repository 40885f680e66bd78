"""Metered operations by entity and hour, and their cost."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.console.observation.usage import (
    billed,
    by_entity,
    by_hour,
    cost_of,
    cost_text,
    of_relays,
    price_of,
    total_of,
)
from duobus.model.metering import KINDS

HOUR = 3_600_000


def row(hour: int, entity: str, operations: int, kind: str = "send") -> dict[str, Any]:
    about = {"hourMs": hour * HOUR, "entity": entity, "kind": kind}
    return {**about, "messages": operations, "bytes": 10 * operations, "operations": operations}


@pytest.mark.parametrize(("text", "price"), [("0.05", 0.05), (" 0,05 ", 0.05), ("0", 0.0)])
def test_a_price_is_written_with_a_point_or_a_comma(text: str, price: float) -> None:
    assert price_of(text) == price


@pytest.mark.parametrize("text", ["", "free", "-1", "1e9", "nan", "inf", "<b>"])
def test_what_is_no_price_is_none(text: str) -> None:
    assert price_of(text) is None


def test_operations_are_summed_by_entity_the_dearest_first() -> None:
    rows = by_entity([row(1, "a", 5), row(2, "b", 7, "receive"), row(2, "b", 9), row(1, "b", 1)], 2.0)
    assert [(one["entity"], one["operations"]) for one in rows] == [("b", 17), ("a", 5)]
    assert rows[0]["kinds"] == {"send": 10, "receive": 7}
    assert rows[0]["cost"] == 17 * 2.0 / 1_000_000
    assert cost_of(5, None) is None


def test_hours_without_operations_are_there_and_those_outside_are_not() -> None:
    hours = by_hour([row(3, "a", 5), row(9, "a", 1)], 2 * HOUR + 5, 5 * HOUR, None)
    assert [(hour["hour_ms"] // HOUR, hour["operations"]) for hour in hours] == [(2, 0), (3, 5), (4, 0)]


def test_kinds_that_cost_nothing_are_left_out_of_the_cost() -> None:
    free = next(kind for kind, is_billed in KINDS.items() if not is_billed)
    rows = [row(1, "a", 5), row(1, "a", 3, free), row(1, "a", 2, "a kind of tomorrow")]
    assert total_of(billed(rows))["operations"] == 7


def test_a_small_cost_is_not_rounded_to_nothing() -> None:
    costs = [cost_text(cost) for cost in (None, 0.0, 1234.5, 0.5, 0.0021)]
    assert costs == ["\N{EN DASH}", "0.00", "1,234.50", "0.500", "0.0021"]


def test_the_use_of_relays_is_summed_apart_and_costs_nothing() -> None:
    rows = [
        row(1, "idle", 7, "relay-listener"),
        row(1, "web", 3, "relay-request"),
        row(2, "web", 4, "relay-request"),
        row(2, "web", 5, "relay-message"),
        row(2, "web", 3_600, "relay-listener"),
        row(2, "orders", 9),
    ]
    found = {one["entity"]: one for one in of_relays(rows)}
    assert (found["web"]["requests"], found["web"]["messages"]) == (7, 5)
    assert (found["web"]["listener_ms"], found["idle"]["listener_ms"]) == (3_600_000, 7_000)
    assert sorted(found) == ["idle", "web"]
    assert total_of(billed(rows))["operations"] == 9
