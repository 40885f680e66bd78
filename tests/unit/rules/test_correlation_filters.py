"""Correlation filters and the index that finds them."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from duobus.codec import Int, Symbol, Timestamp
from duobus.errors import ArgumentInvalid, ArgumentOutOfRange
from duobus.model.descriptions import RuleDescription, TypedValue, from_json, to_json
from duobus.rules import MessageView, compile_rule
from kits.rules import WHEN_MS, matches, rule, rule_set, view

FIELDS = ["id", None, "to", "label", "reply", "corr", Symbol("text/plain"), None, None, None, "s", None, "rs"]
MEMBERS = {
    "MessageId": "id",
    "To": "to",
    "Label": "label",
    "ReplyTo": "reply",
    "CorrelationId": "corr",
    "ContentType": "text/plain",
    "SessionId": "s",
    "ReplyToSessionId": "rs",
}


def correlates(
    members: dict[str, Any], properties: dict[str, Any] | None = None, fields: list[Any] | None = None
) -> bool:
    found = rule(correlation=members)
    message = view(properties, fields)
    by_test = matches(found, message)
    # The index finds what the test says, and nothing else.
    assert rule_set({1: [found]}).match(view(properties, fields)).sources == ((1,) if by_test else ())
    return by_test


@pytest.mark.parametrize("member", MEMBERS)
def test_each_field_is_compared_exactly(member: str) -> None:
    assert correlates({member: MEMBERS[member]}, None, FIELDS)
    assert correlates({member.lower(): MEMBERS[member]}, None, FIELDS)
    assert not correlates({member: MEMBERS[member].upper()}, None, FIELDS)
    assert not correlates({member: MEMBERS[member]}, None, [])


def test_all_fields_have_to_be_equal() -> None:
    assert correlates({**MEMBERS, "Properties": {"a": 1, "B": "x"}}, {"a": Int(1), "b": "x"}, FIELDS)
    assert not correlates({**MEMBERS, "Properties": {"a": 1, "B": "x"}}, {"a": Int(1)}, FIELDS)
    assert not correlates({"Label": "label", "To": "other"}, None, FIELDS)
    assert correlates({"Subject": "label"}, None, FIELDS)


GUID = uuid.UUID("aaaaaaaa-0000-4000-8000-00000000000a")
TYPED = [
    (3.0, Int(3), True),
    (3, 3.0, True),
    (3, "3", False),
    ("3", "3", True),
    ("3", Int(3), True),
    ("3", 3.0, True),
    ("3.0", 3.0, False),
    ("2.5", 2.5, True),
    ("-7", -7, True),
    ("03", 3, False),
    ("true", True, True),
    ("False", False, True),
    ("yes", True, False),
    (True, True, True),
    (True, 1, False),
    (1, True, False),
    (True, "true", False),
    ("%", "x", False),
    ("*", "x", False),
    ("A", "a", False),
    ("aaaaaaaa-0000-4000-8000-00000000000A", GUID, True),
    (TypedValue("double", "3"), Int(3), True),
    (TypedValue("long", "3"), "3", False),
    (TypedValue("dateTime", "2026-01-02T00:00:00Z"), Timestamp(WHEN_MS), True),
    ({"type": "dateTime", "value": "2026-01-02T00:00:01Z"}, Timestamp(WHEN_MS), False),
    (
        TypedValue("guid", "AAAAAAAA-0000-4000-8000-00000000000A"),
        uuid.UUID("aaaaaaaa-0000-4000-8000-00000000000a"),
        True,
    ),
    ("x", b"x", False),
    ("x", None, False),
    ("x", ["x"], False),
    (1e300, 1e300, True),
    (9007199254740993, 9007199254740993, True),
]


@pytest.mark.parametrize(("wanted", "found", "expected"), TYPED)
def test_properties_are_compared_by_value_and_type(wanted: Any, found: Any, expected: bool) -> None:
    assert correlates({"Properties": {"p": wanted}}, {"p": found}) is expected
    assert correlates({"Label": "l", "Properties": {"P": wanted}}, {"p": found}, [None, None, None, "l"]) is expected


@pytest.mark.parametrize(
    ("members", "error", "text"),
    [
        ({}, ArgumentInvalid, "at least one"),
        ({"Properties": {}}, ArgumentInvalid, "at least one"),
        ({"Label": None}, ArgumentInvalid, "at least one"),
        ({"Colour": "x"}, ArgumentInvalid, "no 'Colour'"),
        ({"Label": 5}, ArgumentInvalid, "Label of a correlation filter is a string"),
        ({"Label": "x" * 1025}, ArgumentOutOfRange, "1025 characters; at most 1024"),
        ({"Properties": 5}, ArgumentInvalid, "map names to values"),
        ({"Properties": {"": 1}}, ArgumentInvalid, "1 to 1024 characters"),
        ({"Properties": {"x" * 1025: 1}}, ArgumentInvalid, "1 to 1024 characters"),
        ({"Properties": {"a": [1]}}, ArgumentInvalid, "'a' is a string, number or boolean"),
        ({"Properties": {"a": {"type": "int"}}}, ArgumentInvalid, "'a' is not understood"),
        ({"Properties": {"a": TypedValue("int", "x")}}, ArgumentInvalid, "'a' is no int"),
        ({"Properties": {"a": float("nan")}}, ArgumentInvalid, "never equal"),
        ({"Properties": {f"p{n}": 1 for n in range(129)}}, ArgumentOutOfRange, "129 properties; at most 128"),
    ],
)
def test_what_is_no_correlation_filter_is_refused(members: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        rule(correlation=members)


def test_a_filter_means_the_same_after_it_was_stored() -> None:
    members = {"Label": "l", "Properties": {"n": TypedValue("long", "7"), "t": "x"}}
    stored = from_json(
        to_json(RuleDescription(name="r", filter_type="Correlation", correlation_filter=members)), RuleDescription
    )
    assert matches(compile_rule(stored), view({"n": Int(7), "t": "x"}, [None, None, None, "l"]))


def test_the_index_agrees_with_trying_every_rule() -> None:
    chance = random.Random(5)
    names, values = ["a", "B", "c", "D"], ["x", "y", 1, 2.0, False, "1"]
    texts = ["'x'", "'y'", "1", "2.0", "FALSE", "'1'"]

    def some_rule(number: int) -> Any:
        chosen = chance.sample(names, chance.randrange(1, 4))
        wanted = {name: chance.choice(values) for name in chosen}
        kind = chance.randrange(4)
        if kind == 0:
            members: dict[str, Any] = {"Properties": wanted}
            if chance.random() < 0.3:
                members["Label"] = chance.choice("lm")
            return rule(correlation=members, name=f"r{number}")
        sql = " AND ".join(f"{name} = {texts[values.index(value)]}" for name, value in wanted.items())
        if kind == 2:
            sql += f" AND {chance.choice(names)} IN ({', '.join(chance.sample(texts, 2))})"
        elif kind == 3:
            sql = f"{chance.choice(names)} IN ('x', 1) AND EXISTS({chance.choice(names)})"
        return rule(sql, name=f"r{number}")

    rules = {source: [some_rule(n) for n in range(chance.randrange(1, 4))] for source in range(300)}
    found = rule_set(rules)
    for source in chance.sample(sorted(rules), 60):
        gone = rules[source].pop()
        found.remove(source, gone.name)
    for _ in range(300):
        chosen = chance.sample([*names, "b", "extra"], chance.randrange(5))
        properties = {name: chance.choice(values) for name in chosen}
        fields = [None, None, None, chance.choice(["l", "m", None])]
        expected = tuple(
            source for source, tried in rules.items() if any(matches(one, view(properties, fields)) for one in tried)
        )
        assert found.match(view(properties, fields)).sources == expected


class Counting(dict[str, Any]):
    """User properties that count how often they are read."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(key, default)


def reads(found: Any, properties: dict[str, Any]) -> int:
    message = view(properties)
    message.need(7)
    message.user = Counting(message.user)
    found.match(message)
    return message.user.reads


@pytest.mark.parametrize("form", ["values", "names", "pairs", "sql"])
def test_rules_that_do_not_match_are_not_looked_at(form: str) -> None:
    def member(n: int) -> Any:
        if form == "sql":
            return rule(f"a = 'x{n}' AND b > {n}")
        if form == "values":
            return rule(correlation={"Properties": {"a": f"x{n}"}})
        if form == "names":
            return rule(correlation={"Properties": {f"p{n}": "x"}})
        return rule(correlation={"Properties": {"a": "x", f"p{n}": "x"}})

    found = rule_set({source: [member(source)] for source in range(2000)})
    properties = {"a": "x", "p7": "x", "q": 1}
    assert reads(found, properties) <= 8
    assert found.match(view({"a": "x7", "b": 8} if form in ("values", "sql") else properties)).sources == (7,)


def test_a_message_view_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("duobus.rules.message_view.quick_user", lambda payload: calls.append(payload) or {"a": "x7"})
    found = rule_set({source: [rule(f"a = 'x{source}'"), rule("a LIKE 'y%'", name="s")] for source in range(9)})
    assert found.match(MessageView(b"")).sources == (7,)
    assert len(calls) == 1
