"""Rules and messages as they are typed, and where a rule is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.console.screens.entities.rule_forms import (
    changes_between,
    mistake_at,
    property_lines,
    rule_texts,
    rule_words,
    trial_of,
    typed_message,
    typed_properties,
    typed_rule,
)
from duobus.console.screens.entities.trial import with_depths
from duobus.errors import ArgumentInvalid

RULES: list[dict[str, Any]] = [
    {"name": "r", "filter": {"type": "true"}},
    {"name": "r", "filter": {"type": "false"}},
    {
        "name": "r",
        "filter": {"type": "sql", "sqlExpression": "a = @x", "parameters": {"@x": 5}},
        "action": {"sqlExpression": "SET b = @y", "parameters": {"@y": "z"}},
    },
    {
        "name": "r",
        "filter": {
            "type": "correlation",
            "label": "order",
            "sessionId": "s",
            "properties": {"size": 5, "text": "5", "is": True, "odd": ' "a" '},
        },
    },
]


@pytest.mark.parametrize("rule", RULES)
def test_what_stands_in_the_fields_makes_the_same_rule_again(rule: dict[str, Any]) -> None:
    assert typed_rule("r", rule_texts(rule)) == (rule, {})


def test_properties_are_typed_as_lines_or_as_json() -> None:
    expected = {"colour": "red", "size": 5, "ratio": 0.5, "is": False, "text": "5", "url": "a=b"}
    lines = 'colour = red\nsize: 5\n\nratio=0.5\nis = false\ntext = "5"\nurl = a=b\n'
    assert typed_properties(lines) == expected
    assert typed_properties('{"colour": "red", "size": 5}') == {"colour": "red", "size": 5}
    assert typed_properties(property_lines(expected)) == expected


def test_what_lines_cannot_say_is_written_as_json() -> None:
    strange = {"a=b": "x", "two\nlines": "y"}
    assert property_lines(strange).startswith("{")
    assert typed_properties(property_lines(strange)) == strange


@pytest.mark.parametrize(("text", "told"), [("colour", "Line 1"), ("a = 1\nb", "Line 2"), ("{", "no JSON")])
def test_properties_that_cannot_be_meant_are_told_by_line(text: str, told: str) -> None:
    with pytest.raises(ArgumentInvalid, match=told):
        typed_properties(text)


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ArgumentInvalid):
        typed_properties('{"a":' + "[" * 100_000)


def test_a_rule_that_cannot_be_meant_is_told_at_its_field() -> None:
    assert set(typed_rule("r", {"filter": "sql"})[1]) == {"sql"}
    assert set(typed_rule("r", {"filter": "correlation"})[1]) == {"filter"}
    assert set(typed_rule("r", {"filter": "other"})[1]) == {"filter"}
    for text in ("[1]", '{"@x": [1]}', '{"@x": null}', '{"@x": 1e999}', '{"@x": 99999999999999999999999}'):
        assert set(typed_rule("r", {"filter": "sql", "sql": "1=1", "parameters": text})[1]) == {"parameters"}, text
    assert set(typed_rule("r", {"filter": "correlation", "properties": '{"a": {}}'})[1]) == {"properties"}


def test_a_rule_is_told_in_a_line() -> None:
    assert rule_words(RULES[2]) == {"kind": "sql", "condition": "a = @x", "action": "SET b = @y"}
    assert rule_words(RULES[3])["condition"].startswith("Subject (label) = order AND Session id = s AND size = 5")
    assert rule_words(RULES[0])["condition"] == "every message"


def test_a_rule_is_tried_in_the_words_of_the_broker() -> None:
    message = {"applicationProperties": {"a": 5}}
    assert trial_of(RULES[1], message) == {"message": message, "filter": {"isTrue": False}}
    assert trial_of(RULES[2], message) == {
        "message": message,
        "filter": {"sql": "a = @x", "parameters": {"@x": 5}},
        "action": "SET b = @y",
        "actionParameters": {"@y": "z"},
    }
    assert trial_of(RULES[3], message)["filter"]["correlation"]["Label"] == "order"


def test_a_message_is_typed_by_its_fields() -> None:
    texts = {"m_subject": "order", "m_groupId": "", "m_properties": "size = 5"}
    assert typed_message(texts) == ({"properties": {"subject": "order"}, "applicationProperties": {"size": 5}}, {})
    assert set(typed_message({"m_properties": "size"})[1]) == {"m_properties"}


def test_a_mistake_is_told_by_line_and_column_with_a_caret_below() -> None:
    mistake = mistake_at("filter", "a = 1 AND\n\tb == 2", 14, "no")
    assert (mistake.line, mistake.column, mistake.source, mistake.pointer) == (2, 4, "\tb == 2", "\t  ^")
    told = mistake_at("filter", "a = = 1", None, "at position 5 there is '='")
    assert (told.line, told.column, told.pointer) == (1, 5, "    ^")
    assert mistake_at("action", "x", None, "No place.").line == 0
    assert mistake_at("filter", "a =", 4, "at the end").column == 4


def test_what_an_action_changed_is_found() -> None:
    before = {"properties": {"subject": "a"}, "applicationProperties": {"size": 5, "gone": 1}}
    after = {"properties": {"subject": "b"}, "applicationProperties": {"size": 5, "made": 2}}
    assert changes_between(before, after) == [("subject", "a", "b"), ("gone", 1, None), ("made", None, 2)]
    assert changes_between({}, {}) == []


def test_a_term_knows_how_many_terms_it_is_a_part_of() -> None:
    terms = [{"start": 1, "end": 21}, {"start": 1, "end": 5}, {"start": 1, "end": 1}, {"start": 11, "end": 21}]
    assert [term["depth"] for term in with_depths([*terms, {"start": None, "end": None}])] == [0, 1, 2, 1, 0]
