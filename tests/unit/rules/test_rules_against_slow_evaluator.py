"""The engine gives what a second evaluator gives that was written from the description of the language."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from slow_evaluator import PROPERTIES, TREES, text_of, verdict_of

from duobus.model.descriptions import SQL_LENGTH_MAX
from kits.rules import remembered, rule, rule_set, view


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
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(TREES, PROPERTIES)
def test_the_engine_agrees_with_the_slow_evaluator(tree: Any, properties: dict[str, Any]) -> None:
    text = text_of(tree)
    assume(len(text) < SQL_LENGTH_MAX - 6)
    assert engine_verdict(text, properties) == verdict_of(tree, properties), text


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TREES, min_size=1, max_size=12), st.lists(PROPERTIES, min_size=1, max_size=5))
def test_many_rules_together_agree_with_the_slow_evaluator(trees: list[Any], messages: list[dict[str, Any]]) -> None:
    texts = [text_of(tree) for tree in trees]
    assume(all(len(text) < SQL_LENGTH_MAX for text in texts))
    rules = rule_set({source: [rule(text)] for source, text in enumerate(texts)})
    # One set of rules for all messages: what was kept of the ones before must not show in the others.
    for properties in messages:
        payload = view(properties).payload
        for found in (rules.match(view(properties)), *remembered(rules, payload)):
            for source, tree in enumerate(trees):
                expected = verdict_of(tree, properties)
                taken = "T" if source in found.sources else "E" if source in (found.errors or ()) else "no"
                assert taken == (expected if expected in ("T", "E") else "no"), texts[source]
