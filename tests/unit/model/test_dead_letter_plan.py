"""Plans of work on dead letters: what one end writes, the other end reads."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.model.json.plan import ACTIONS, BRINGING, DeadLetterPlan, parse_plan

REPAIR = {"set": {"a": 1}, "remove": ["B"], "properties": {"subject": "s", "groupId": None}, "patch": []}


@pytest.mark.parametrize(
    "members",
    [
        *({"action": action} for action in ACTIONS if action not in (*BRINGING, "move")),
        {"action": "list", "sql": "a = 1", "json": "$.a > 1", "numbers": [3, 1], "first": 2, "before": 9, "limit": 7},
        {"action": "list", "messages": False, "before": 0},
        {"action": "list", "heads": True},
        {"action": "resubmit", "repair": REPAIR, "keepReason": True, "dryRun": True, "messages": True},
        {"action": "move", "to": "x/y", "repair": REPAIR, "keepReason": False},
    ],
)
def test_a_plan_is_written_as_it_was_read(members: dict[str, Any]) -> None:
    assert parse_plan(members).members() == members


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"action": "move", "to": "x", "keepReason": True, "messages": False}, {"action": "move", "to": "x"}),
        (
            {"action": "list", "first": None, "before": None, "limit": 100, "sql": None, "dryRun": False},
            {"action": "list"},
        ),
    ],
)
def test_what_is_as_it_would_be_anyway_is_not_written(said: dict[str, Any], meant: dict[str, Any]) -> None:
    assert parse_plan(said).members() == meant


def test_a_plan_to_bring_messages_has_them_apart() -> None:
    assert DeadLetterPlan(action="bury").members() == {"action": "bury"}
    plan = parse_plan({"action": "bury", "items": [{"message": {"body": {"data": ["x"]}}, "sequenceNumber": 5}]})
    assert ([item.number for item in plan.items], plan.members()) == ([5], {"action": "bury"})
