"""Trying a rule: whether it matches, what each part of its filter evaluated to, and where a mistake is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from slow_evaluator import PROPERTIES, TREES, text_of

from duobus.model.descriptions import SQL_LENGTH_MAX, RuleDescription, TypedValue
from duobus.rules.language.extents import Extents, parts_of
from duobus.rules.language.parser import parse_filter
from duobus.rules.language.tree import Node
from duobus.rules.trial import Trial, try_description, try_rule
from kits.rules import counting_ids, rule, view


def tried(sql: str | None, properties: dict[str, Any] | None = None, **more: Any) -> Trial:
    kind = "True" if sql is None else "Sql"
    description = RuleDescription(name="r", filter_type=kind, sql_filter=sql, **more)
    payload = view(properties or {}, [None, None, None, "hi"]).payload
    return try_description(description, payload, None, enqueued_ms=0, new_id=counting_ids())


def told(trial: Trial) -> list[tuple[Any, ...]]:
    return [(term.start, term.end, term.text, term.kind, term.value) for term in trial.terms]


def test_a_filter_tells_of_each_part_its_place_and_what_it_evaluated_to() -> None:
    trial = tried("(price > 10 or who like 'a%')\n AND NOT sys.Label = 'hi'", {"price": 12, "who": "bob"})
    assert trial.matches is False
    assert told(trial) == [
        (1, 55, "(price > 10 or who like 'a%')\n AND NOT sys.Label = 'hi'", "and", False),
        (2, 28, "price > 10 or who like 'a%'", "or", True),
        (2, 11, "price > 10", "comparison", True),
        (2, 6, "price", "property", 12),
        (16, 28, "who like 'a%'", "like", False),
        (16, 18, "who", "property", "bob"),
        (36, 55, "NOT sys.Label = 'hi'", "not", False),
        (40, 55, "sys.Label = 'hi'", "comparison", True),
        (40, 48, "sys.Label", "property", "hi"),
    ]


def test_what_is_not_there_is_unknown_and_so_is_what_depends_on_it() -> None:
    trial = tried("missing = 1 OR missing IS NULL")
    assert trial.matches is True
    assert [(term.text, term.type, term.value) for term in trial.terms] == [
        ("missing = 1 OR missing IS NULL", "boolean", True),
        ("missing = 1", "unknown", None),
        ("missing", "unknown", None),
        ("missing IS NULL", "boolean", True),
        ("missing", "unknown", None),
    ]


def test_a_part_that_fails_says_why_and_the_others_have_their_values() -> None:
    trial = tried("a + 1 > 3 OR b = 2", {"a": "x", "b": 2})
    assert (trial.matches, trial.terms[-1].value) == (None, 2)
    assert trial.error == "Rule 'r' cannot be evaluated: a string + an integer has no meaning."
    failed = [term for term in trial.terms if term.error]
    assert [term.text for term in failed] == ["a + 1 > 3 OR b = 2", "a + 1 > 3", "a + 1"]
    assert {term.error for term in failed} == {"a string + an integer has no meaning"}


@pytest.mark.parametrize(
    ("sql", "position", "words"),
    [
        ("price >", 8, "the text ends"),
        ("a = 'x", 5, "nothing closes"),
        ("sys.Nothing = 1", 1, "no system property"),
        ("a = @b", 5, "has no value"),
        ("", 1, "the text ends"),
        ("a = 1 " * 400, None, "at most"),
    ],
)
def test_a_mistake_in_a_filter_has_its_place_and_a_sentence(sql: str, position: int | None, words: str) -> None:
    trial = tried(sql)
    assert trial.mistake is not None
    assert (trial.matches, trial.mistake.part, trial.mistake.position) == (None, "filter", position)
    assert words in trial.mistake.text


def test_a_mistake_in_an_action_is_told_apart_from_one_in_a_filter() -> None:
    trial = tried("1 = 1", sql_action="SET a = 1; SET sys.SequenceNumber = 1")
    assert trial.mistake is not None
    assert (trial.mistake.part, trial.mistake.position) == ("action", 16)
    assert tried("1 =", sql_action="SET").mistake == tried("1 =").mistake


def test_an_action_changes_what_the_filter_takes_and_nothing_else() -> None:
    trial = tried("a = 1", {"a": 1, "b": 2}, sql_action="SET c = a + 1; REMOVE b")
    assert trial.overlay is not None
    assert trial.overlay.application == {"c": 2, "RuleName": "r"}
    assert trial.overlay.removed == ("b",)
    assert tried("a = 2", {"a": 1}, sql_action="SET c = 1").overlay is None
    failing = tried(None, {"a": "x"}, sql_action="SET c = a - 1")
    assert (failing.matches, failing.overlay) == (True, None)
    assert "has no meaning" in (failing.action_error or "")


def test_a_correlation_filter_tells_of_each_of_its_fields() -> None:
    fields = {"Label": "hi", "Properties": {"colour": "red", "size": TypedValue("int", "3"), "gone": 1}}
    description = RuleDescription(name="r", filter_type="Correlation", correlation_filter=fields)
    payload = view({"colour": "red", "size": 4}, [None, None, None, "hi"]).payload
    trial = try_description(description, payload, None, enqueued_ms=0, new_id=counting_ids())
    assert trial.matches is False
    assert [(term.text, term.value) for term in trial.terms] == [
        ("label", True),
        ("colour", True),
        ("size", False),
        ("gone", False),
    ]
    wrong = RuleDescription(name="r", filter_type="Correlation", correlation_filter={"Nothing": "x"})
    found = try_description(wrong, payload, None, enqueued_ms=0, new_id=counting_ids()).mistake
    assert found is not None
    assert found.position is None


def test_values_are_shown_by_their_types() -> None:
    values = {"f": 1.5, "n": float("nan"), "t": "x" * 5_000, "b": b"\x01"}
    shown = {term.text: term for term in tried("f = n OR t = b OR newid() IS NULL", values).terms}
    assert (shown["f"].type, shown["f"].value, shown["n"].value) == ("double", 1.5, "NaN")
    assert len(shown["t"].value) == 1_024
    assert (shown["b"].type, shown["b"].value) == ("base64Binary", "AQ==")
    assert shown["newid()"].type == "guid"


def test_rules_that_are_tried_together_cost_no_more_than_they_may_for_one_message() -> None:
    shared = view({"p": "aab" * 10_000 + "b" * 10})
    hard = rule("p LIKE '%" + "aa_" * 150 + "aabbaab%'")
    trials = [try_rule(hard, shared) for _ in range(100)]
    assert trials[0].error is None
    assert "more with its properties than they may" in (trials[-1].error or "")
    assert trials[-1].matches is None


def without_places(node: Node) -> Any:
    """What a part says, wherever it stands and however it is nested."""
    names = [name for name in node.__struct_fields__ if name not in ("position", "depth")]
    shallow = {name: value for name in names if not _holds_nodes(value := getattr(node, name))}
    return type(node), repr(shallow), [without_places(part) for part in parts_of(node)]


def _holds_nodes(value: Any) -> bool:
    return isinstance(value, Node) or (isinstance(value, tuple) and len(value) > 0)


def every(node: Node) -> list[Node]:
    return [node, *(found for part in parts_of(node) for found in every(part))]


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(TREES, PROPERTIES)
def test_the_text_of_each_part_is_that_part_and_the_first_tells_the_verdict(
    tree: Any, properties: dict[str, Any]
) -> None:
    text = text_of(tree)
    assume(len(text) < SQL_LENGTH_MAX)
    root, extents = parse_filter(text), Extents(text)
    for node in every(root):
        start, end = extents.of(node)
        assert without_places(parse_filter(text[start - 1 : end])) == without_places(node), (text, start, end)
    payload = view(properties).payload
    description = RuleDescription(name="r", filter_type="Sql", sql_filter=text)
    trial = try_description(description, payload, None, enqueued_ms=0, new_id=counting_ids())
    if trial.error is None and trial.terms:
        assert (trial.terms[0].value is True) is trial.matches
