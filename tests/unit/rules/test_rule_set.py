"""Several rules on several subscriptions: who gets which copies."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.codec import build_message
from duobus.errors import QuotaExceeded
from duobus.rules import Match, MessageView, RuleSet
from kits.rules import VECTOR_MESSAGE, rule, rule_set, view

ANY = {"filter_type": "True"}


def match(found: RuleSet, payload: bytes = VECTOR_MESSAGE) -> Match:
    return found.match(MessageView(payload))


def copies(found: Match) -> list[tuple[int, str]]:
    return [(copy.source, copy.rule_name) for copy in found.altered]


def test_five_matching_rules_two_of_them_with_action_give_three_copies() -> None:
    found = match(
        rule_set(
            {
                4: [
                    rule("qty = 5", name="a"),
                    rule("qty > 1", "SET x = 1", name="b"),
                    rule("vip", name="c"),
                    rule(correlation={"Label": "Order-7"}, action="SET x = 2", name="d"),
                    rule(name="e"),
                    rule("qty = 6", "SET x = 3", name="f"),
                ]
            }
        )
    )
    assert found.sources == (4,)
    assert copies(found) == [(4, "b"), (4, "d")]
    assert [copy.overlay.application for copy in found.altered] == [
        {"RuleName": "b", "x": 1},
        {"RuleName": "d", "x": 2},
    ]
    assert found.errors is None


def test_every_rule_sees_the_original_message() -> None:
    found = match(rule_set({1: [rule("qty = 5", "SET qty = 6", name="a"), rule("qty = 6", name="b")]}))
    assert (found.sources, copies(found)) == ((), [(1, "a")])


def test_subscriptions_are_told_apart() -> None:
    found = match(
        rule_set(
            {
                7: [rule("qty = 5")],
                3: [rule(), rule("vip", "REMOVE vip", name="s")],
                5: [rule("qty = 6")],
                6: [],
                2: [rule(correlation={"Properties": {"color": "red"}})],
                1: [rule(filter_type="False"), rule(action="SET a = 1", name="s")],
            }
        )
    )
    assert found.sources == (2, 3, 7)
    assert copies(found) == [(1, "s"), (3, "s")]


def test_a_rule_with_action_gives_its_copy_beside_a_true_filter() -> None:
    assert copies(match(rule_set({1: [rule(name="a"), rule(action="SET a = 1", name="b")]}))) == [(1, "b")]


# -- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_is_told_once_for_its_subscription_and_hurts_no_other_rule() -> None:
    found = match(
        rule_set(
            {
                1: [rule("qty / 0 = 1", name="a"), rule("color + 1 = 1", name="b"), rule("qty = 5", name="c")],
                2: [rule("qty = 5")],
                3: [rule("qty")],
                4: [rule(action="SET a = qty / 0")],
            }
        )
    )
    assert found.sources == (1, 2)
    assert found.errors == {
        1: "Rule 'a' cannot be evaluated: division by zero.",
        3: "Rule 'r' cannot be evaluated: the filter is an integer, not a boolean.",
        4: "Rule 'r' cannot be evaluated: division by zero.",
    }


def test_an_error_is_told_although_a_true_filter_matches() -> None:
    found = match(rule_set({1: [rule(), rule("qty / 0 = 1", name="b")]}))
    assert found.sources == (1,)
    assert found.errors is not None


@pytest.mark.parametrize(
    "bad", [b"\x00\x53\x74\xc1\x02\x02", b"\x00\x53\x73\x45" + b"\x00\x53\x74\xc1\x04\x02\x54\x01\x54"]
)
def test_a_message_that_cannot_be_read_is_an_error_where_its_properties_matter(bad: bytes) -> None:
    rules: dict[int, Any] = {
        1: [rule()],
        2: [rule("qty = 5")],
        3: [rule("qty LIKE 'x'")],
        4: [rule(correlation={"Properties": {"a": 1}}), rule(name="t")],
        5: [rule("newid() IS NOT NULL")],
        6: [rule(action="SET a = 1")],
        7: [rule("sys.Size > 0")],
    }
    found = match(rule_set(rules), bad)
    assert set(found.errors or ()) >= {2, 3, 4, 6}
    assert found.sources[0:2] == (1, 4)
    assert all("cannot be read" in text for text in (found.errors or {}).values())


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_topic_has_room_for_so_many_rules_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duobus.rules.ruleset.SQL_RULES_MAX", 2)
    monkeypatch.setattr("duobus.rules.ruleset.CORRELATION_RULES_MAX", 1)
    correlation = rule(correlation={"Label": "x"}, name="c")
    found = rule_set({1: [rule(name="a")], 2: [correlation]})
    found.check_room(1, rule("a = 1", name="b"))
    found.add(1, rule("a = 1", name="b"))
    found.check_room(1, rule("a = 2", name="B"))
    found.check_room(2, correlation)
    for more in (rule("a = 1", name="d"), rule(name="d"), rule(correlation={"Label": "y"}, name="d")):
        with pytest.raises(QuotaExceeded):
            found.check_room(1, more)
    found.remove(1, "a")
    found.drop(2)
    found.check_room(1, rule("a = 1", name="d"))
    found.check_room(1, correlation)


# -- what is not looked at --------------------------------------------------------------------------------------------


class Unreadable(MessageView):
    def need(self, sections: int) -> None:
        raise AssertionError("somebody looked")


def test_a_topic_of_true_filters_decodes_nothing() -> None:
    found = rule_set({2: [rule()], 1: [rule("1=1")], 3: [rule("1=0")], 4: [rule(filter_type="False")]})
    assert found.match(Unreadable(b"\xff")).sources == (1, 2)


@pytest.mark.parametrize(("sql", "decoded"), [("sys.Label = 'x'", 1), ("a = 1", 2), ("sys.Size = 1", 4)])
def test_only_the_sections_that_a_rule_needs_are_decoded(sql: str, decoded: int) -> None:
    asked = []

    class Asked(MessageView):
        def _load(self, sections: int) -> None:
            asked.append(sections)
            super()._load(sections)

    rule_set({1: [rule(sql)], 2: [rule()]}).match(Asked(VECTOR_MESSAGE))
    assert asked == [decoded]


def test_trivial_tells_the_sources_that_everything_goes_to() -> None:
    found = rule_set({2: [rule()], 1: [rule("1=1")]})
    assert found.trivial == (1, 2)
    found.add(1, rule("a = 1", name="s"))
    assert found.trivial is None
    found.remove(1, "S")
    assert found.trivial == (1, 2)
    found.put(3, [])
    assert found.trivial is None
    found.drop(3)
    assert found.trivial == (1, 2)
    found.put(1, [rule(action="SET a = 1")])
    assert found.trivial is None
    found.drop(1)
    found.drop(1)
    found.remove(2, "no")
    assert found.trivial == (2,)
    found.drop(2)
    assert found.trivial == ()


def test_rules_come_and_go() -> None:
    found = rule_set({1: [rule("qty = 5")], 2: []})
    found.add(2, rule("qty > 1"))
    assert match(found).sources == (1, 2)
    # Of the same name: the new one takes the place of the old one.
    found.add(2, rule("qty > 9"))
    assert match(found).sources == (1,)
    found.add(2, rule(correlation={"Label": "Order-7"}, name="c"))
    found.add(2, rule(name="t"))
    found.remove(1, "r")
    assert match(found).sources == (2,)
    found.remove(2, "t")
    found.remove(2, "c")
    assert match(found).sources == ()
    found.drop(2)
    assert match(found).sources == ()
    with pytest.raises(KeyError):
        found.add(2, rule())


def test_what_is_known_of_the_envelope_can_be_asked_for() -> None:
    sql = "sys.SequenceNumber = 9 AND sys.EnqueuedSequenceNumber = 9 AND sys.EnqueuedTimeUtc IS NOT NULL"
    found = rule_set({1: [rule(sql)]})
    assert found.match(view(enqueued_ms=5, sequence_number=9)).sources == (1,)
    assert found.match(view()).sources == ()


def test_two_messages_get_ids_of_their_own() -> None:
    found = rule_set({1: [rule(action="SET a = newid(); SET b = newid()")]})
    seen = [match(found).altered[0].overlay.application[name] for name in "ab" for _ in range(2)]
    assert len(set(seen)) > 1


def test_a_message_without_properties_is_a_message() -> None:
    found = rule_set({1: [rule("a IS NULL AND sys.Label IS NULL")], 2: [rule(action="SET a = 1; SET sys.To = 'x'")]})
    outcome = match(found, build_message(data=b""))
    assert outcome.sources == (1,)
    changed = outcome.altered[0].overlay.apply_to(build_message(data=b""))
    assert changed == build_message([None, None, "x"], {"RuleName": "r", "a": 1}, data=b"")
