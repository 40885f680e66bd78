"""The engine gives what a second evaluator gives that was written from the contract's text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from rules_kit import remembered, rule, rule_set, view
from slow_evaluator import PROPERTIES, TREES, text_of, verdict_of

from duobus.model.description import SQL_LENGTH_MAX


def engine_verdict(text: str, properties: dict[str, Any]) -> str:
    """By the way that messages go: through the index, if the filter is in one."""
    for sql, outcome in ((text, "T"), (f"NOT ({text})", "F")):
        rules = rule_set({1: [rule(sql)]})
        found = rules.match(view(properties))
        for again in remembered(rules, view(properties).payload):
            assert (again.sources, again.errors) == (found.sources, found.errors), sql
        if found.errors:
            return "E"
        if found.sources:
            return outcome
    return "U"


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(TREES, PROPERTIES)
def test_the_engine_agrees_with_the_slow_evaluator(tree: Any, properties: dict[str, Any]) -> None:
    text = text_of(tree)
    assume(len(text) < SQL_LENGTH_MAX - 6)
    assert engine_verdict(text, properties) == verdict_of(tree, properties), text
