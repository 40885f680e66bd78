"""What rules do with long texts is counted, bounded, and known before (decision 0048)."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from duobus.codec import Int, build_message
from duobus.rules import EFFORT_MAX, MessageView, RuleSet
from duobus.rules.effort import READ_COST, head_size
from kits.rules import rule, rule_set, view

LONG = "aab" * 10_000
#: Looks at all of LONG for each of its characters.
HARD = "p LIKE '%" + "aa_" * 150 + "aabbaab%'"


def payload_of(**properties: Any) -> bytes:
    return build_message(None, properties, data=b"body")


def spent_on(rules: RuleSet, payload: bytes) -> int:
    rules.meter.spent = 0
    rules.match_payload(payload, None, 1, 1)
    return rules.meter.spent


def test_a_message_that_is_too_much_work_fails_before_all_rules_but_those_that_take_everything() -> None:
    hard = [rule(HARD, name=f"r{number}") for number in range(100)]
    rules = rule_set({1: [rule()], 2: hard, 3: [rule("color = 'red'"), rule("q = 1", name="other")]})
    found = rules.match_payload(payload_of(p=LONG + "b" * 10, color="red"), None, 1, 1)
    assert rules.meter.was_exceeded
    assert found.sources == (1,)
    assert found.errors is not None
    assert sorted(found.errors) == [2, 3]
    assert f"{EFFORT_MAX} comparisons" in found.errors[2]
    # The next message has all of it again.
    assert rules.match_payload(payload_of(p="short", color="red"), None, 1, 1).sources == (1, 3)


@pytest.mark.parametrize(
    "sql",
    [
        "p LIKE '%a_b1%'",
        "p LIKE '%a_b%b_a%aa_aa_aa%' OR p LIKE '%abab%'",
        "p LIKE q",
        "q LIKE p ESCAPE '!'",
        "p > q OR p <> q",
        "p + q = 'x'",
        "p + 'a' + 'b' = q",
        "p IN (q, 'x', q)",
        "property(p) = 1",
    ],
)
def test_what_is_spent_on_long_texts_is_told_before_and_not_exceeded(sql: str) -> None:
    one, hundred = rule_set({1: [rule(sql)]}), rule_set({n: [rule(sql)] for n in range(100)})
    for text in (LONG, "a" * 30_000, "ab" * 7_000, "я" * 15_000, "яa" * 9_000):
        payload = payload_of(p=text, q="%a_b%" + text[:2_000])
        for rules in (one, hundred):
            assert 0 < spent_on(rules, payload) <= rules.strain_of(payload)


def test_random_patterns_spend_no_more_than_was_told() -> None:
    draw = random.Random(7)
    for _ in range(100):
        pattern = "".join(draw.choices("ab_%", weights=(4, 4, 2, 1), k=draw.randint(1, 300)))
        rules = rule_set({1: [rule(f"p LIKE '%{pattern}%'")]})
        payload = payload_of(p="".join(draw.choices("aab", k=3)) * draw.randint(30, 9_000))
        assert spent_on(rules, payload) <= rules.strain_of(payload), pattern


def test_actions_on_many_properties_are_counted_and_told_before() -> None:
    many = {f"P{number}": Int(number) for number in range(5_000)}
    for action in ("SET P7 = 1", "SET x = p; REMOVE p1; REMOVE p2", "SET y = p + p"):
        rules = rule_set({1: [rule("P0 = 0", action)]})
        payload = payload_of(p="x" * 9_000, **many)
        assert 100_000 < spent_on(rules, payload) <= rules.strain_of(payload), action


def test_rules_on_short_values_tell_of_no_strain() -> None:
    rules = rule_set({1: [rule("color = 'red' AND size IN (1, 2) AND NOT (x > 3) AND sys.Label <> 'x'")]})
    large = build_message(["id"], {"color": "red"}, data=bytes(1 << 20))
    assert not rules.may_exceed([large], len(large))
    # Nothing but reading it.
    assert rules.strain == READ_COST
    rules.add(1, rule("color LIKE 'r%'", name="like"))
    assert rules.strain > READ_COST
    rules.remove(1, "like")
    assert rules.strain == READ_COST
    rules.remove(1, "r")
    assert rules.strain == 0


def test_reading_many_properties_is_counted_and_told_before() -> None:
    rules = rule_set({1: [rule("p5 = 5")]})
    payload = payload_of(**{f"p{number}": Int(number) for number in range(5_500)})
    assert 50_000 < len(payload) < 65_536
    assert 5_000_000 < spent_on(rules, payload) <= rules.strain_of(payload)
    assert rules.may_exceed([payload] * 7, 7 * len(payload))
    assert not rules.may_exceed([payload] * 6, 6 * len(payload))


def test_so_many_messages_go_together_as_their_rules_allow() -> None:
    assert rule_set({1: [rule("color = 'red'")]}).at_once == EFFORT_MAX
    few, many = (rule_set({n: [rule(f"c LIKE 'x{n}%'")] for n in range(number)}).at_once for number in (10, 1_000))
    assert (few > 1_500, many < 50) == (True, True)


@pytest.mark.parametrize("front", [None, ["id"], ["x" * 300]])
@pytest.mark.parametrize("properties", [None, {"a": 1}, {"a": "x" * 300}])
def test_the_head_of_a_message_ends_behind_its_application_properties(front: Any, properties: Any) -> None:
    payload = build_message(front, properties, data=bytes(1_000))
    bare = build_message(front, properties)
    assert len(bare) - 8 <= head_size(payload) <= len(bare)
    for cut in range(40):
        assert head_size(payload[:cut]) <= cut


def test_a_guid_is_compared_with_the_beginning_of_a_long_text() -> None:
    guid = uuid.UUID(int=5)
    rules = rule_set({1: [rule("g = p")], 2: [rule("g < p")], 3: [rule("p = g")], 4: [rule("p > g")]})
    for text, expected in (
        (str(guid).upper(), (1, 3)),
        (str(guid) + "x" * 5_000, (2, 4)),
        ("z" * 5_000, (2, 4)),
        ("0" * 5_000, (2, 4)),
        ("0", ()),
    ):
        assert rules.match(view({"g": guid, "p": text})).sources == expected, text[:40]


def test_the_same_message_costs_the_same_every_time() -> None:
    rules = rule_set({n: [rule(f"p LIKE '%a_b{n}%'")] for n in range(50)})
    payload = payload_of(p=LONG)
    assert len({spent_on(rules, payload) for _ in range(5)}) == 1
    assert MessageView(payload).texts is not MessageView(payload).texts
