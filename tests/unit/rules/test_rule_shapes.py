"""What a rule set remembers of messages in a row that differ in what no rule asks for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import kit_counting
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit_counting import Counting

from duobus.codec import Int, Timestamp, UInt, build_message
from duobus.rules import Match, MessageView, Rule, RuleSet
from duobus.rules.matching import result_cache as memo_module
from duobus.rules.matching.shape_cache import MASKS_MAX, Shapes, mask_of
from kits.rules import rule, rule_set

RULES = [
    rule("a = 1"),
    rule("a LIKE 'x%'"),
    rule("EXISTS (b)"),
    rule(correlation={"Properties": {"B": "x", "a": 2}}),
    rule("a IS NULL"),
    rule("a + 1 > 2"),
    rule("b = 'x'", "SET a = 7"),
]


def counting(*rules: Rule) -> Counting:
    """A rule set whose memo by all properties rests."""
    found = kit_counting.counting(*rules)
    found._memo.rest = 1 << 40
    return found


def message(message_id: str | None = "m1", **properties: Any) -> bytes:
    return build_message([message_id], properties, data=b"body")


def sources(found: RuleSet, run: list[bytes]) -> list[tuple[int, ...]]:
    return [match.sources for match in found.match_run(run, 5, 1)]


def remembered(found: RuleSet, run: list[bytes]) -> int:
    """For how many of these messages the result is known without a look."""
    known: list[Match | None] = [None] * len(run)
    return found._shapes.fill(run, known)


def test_messages_that_differ_in_what_no_rule_asks_for_are_looked_at_once() -> None:
    found = counting(rule("a = 1"), rule(correlation={"Properties": {"b": "x"}}))
    run = [message(f"m{number}", order=Int(number), at=f"t{number % 10}", a=1) for number in range(2, 50)]
    assert sources(found, run) == [(1,)] * 48
    assert found.looks == 1
    assert remembered(found, run) == 48
    # Values that rules ask for make another message, and so do further properties.
    others = [message(order=Int(1), at="t1", a=2), message(b="x", order=Int(7)), message(b="y", order=Int(7)), run[0]]
    assert sources(found, others) == [(), (2,), (), (1,)]
    assert remembered(found, others) == 4


def test_texts_of_several_lengths_and_messages_of_several_kinds_are_known_side_by_side() -> None:
    found = counting(rule("a = 1"))
    run = [message(f"m{10**number}", text="x" * number, a=number % 2) for number in range(20)]
    run += [message(None, a=1, n=Int(5)), message(None, n=Int(5), a=1), message(None, m=Int(5), a=1)]
    expected = [(1,) if number % 2 else () for number in range(20)] + [(1,)] * 3
    assert sources(found, run) == expected
    assert remembered(found, run[::-1]) == len(run)
    assert sources(found, run[::-1]) == expected[::-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"text", b"te\xff\xff"), (b"\x04text", b"\x05text"), (b"other", b"othe\xff"), (b"other", b"a\xa1\x01b\x42")],
)
def test_a_message_that_cannot_be_read_is_not_taken_for_one_that_can(old: bytes, new: bytes) -> None:
    found = counting(rule("a = 1"), rule("b > 1"))
    sound = message(a=1, other="text", b=Int(1))
    assert sources(found, [sound] * 2) == [(1,)] * 2
    bad = sound.replace(old, new)
    assert remembered(found, [bad, sound]) == 1
    assert found.match_run([bad], 5, 1)[0].errors == found.match(MessageView(bad)).errors


@pytest.mark.parametrize("cut", range(40))
def test_a_message_that_ends_too_soon_is_looked_at(cut: int) -> None:
    found = counting(rule("a = 1"))
    sound = message(a=1, order=Int(5)).removesuffix(b"\x00Su\xa0\x04body")
    assert sources(found, [sound]) == [(1,)]
    short = sound[: max(0, len(sound) - 1 - cut)]
    assert remembered(found, [short]) == 0
    assert remembered(found, [sound]) == 1
    # In a run with the other, which then is looked at as well.
    assert sources(found, [short, sound]) == [found.match(MessageView(short)).sources, (1,)]


@given(
    st.lists(st.sampled_from(RULES), min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.sampled_from([None, "m1", "m22"]),
            st.lists(
                st.tuples(
                    st.sampled_from(["a", "A", "b", "n", "other"]),
                    st.sampled_from(["x", "xy", "é", "", 1, 2, True, None, 1.5, Int(1), UInt(1), Timestamp(5)]),
                ),
                max_size=4,
            ),
            st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=1),
            st.integers(0, 99),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_what_is_known_of_a_message_is_what_looking_at_it_gives(rules: list[Rule], messages: list[Any]) -> None:
    found = rule_set({number: [one] for number, one in enumerate(rules)})
    found._memo.rest = 1 << 40
    payloads: list[bytes] = []
    for message_id, properties, changes, cut in messages:
        payload = bytearray(build_message([message_id], dict(properties), data=b"body"))
        for place, value in changes:
            payload[place % len(payload)] = value
        payloads += [bytes(payload), bytes(payload[:cut])]
    for run in (payloads, payloads[::-1], payloads[::2]):
        for payload, match in zip(run, found.match_run(run, 5, 1), strict=True):
            expected = found.match(MessageView(payload, None, 5, 1))
            assert (match.sources, match.errors, len(match.altered)) == (
                expected.sources,
                expected.errors,
                len(expected.altered),
            )


def test_errors_and_copies_of_actions_are_not_remembered() -> None:
    found = counting(rule("10 / a = 1"), rule("b = 1", "SET c = newid()"))
    run = [message(a=0), message(b=1)]
    for _ in range(2):
        failed, altered = found.match_run(run, 5, 1)
        assert failed.errors
        assert altered.altered
    assert found.looks == 4
    assert remembered(found, run) == 0


@pytest.mark.parametrize("sql", ["newid() = a", "sys.Label = 'x'", "property(which) = 1", "sys.SequenceNumber = 9"])
def test_rules_that_look_at_more_than_named_properties_turn_it_off(sql: str) -> None:
    found = counting(rule("a = 1"), rule(sql))
    assert not found._shapes.is_on
    assert sources(found, [message(a=1)] * 2) == [(1,)] * 2
    found.remove(2, "r")
    assert found._shapes.is_on


def test_a_rule_that_comes_is_asked_for_the_next_run() -> None:
    found = counting(rule("a = 1"), rule("a = 2"))
    run = [message(a=1, b=2)] * 3
    assert sources(found, run) == [(1,)] * 3
    found.add(2, rule("b = 2"))
    assert sources(found, run) == [(1, 2)] * 3
    assert sources(found, [message(a=1, b=3)]) == [(1,)]


def test_what_is_found_too_seldom_is_not_looked_for_any_more() -> None:
    found = counting(rule("a < 0"))
    # The first is asked for when nothing is known.
    for number in range(1 + memo_module.JUDGED_AFTER):
        sources(found, [message(a=number)])
    shapes = found._shapes
    assert (shapes.rest, shapes._masks) == (memo_module.REST, {})
    assert remembered(found, [message(a=1)] * memo_module.REST) == 0
    assert shapes.rest == 0
    sources(found, [message(a=1)])
    assert remembered(found, [message(a=1)]) == 1


def test_messages_that_come_while_another_memo_is_tried_do_not_count() -> None:
    found = counting(rule("a = 1"))
    found._memo.rest = 0
    for number in range(memo_module.JUDGED_AFTER):
        sources(found, [message(a=number)])
    assert (found._memo.rest, found._shapes.rest) == (memo_module.REST, 0)
    run = [message(a=1, order=number) for number in range(50)]
    assert sources(found, run[:1]) == [(1,)]
    assert remembered(found, run) == 50


def test_what_is_remembered_of_shapes_is_bounded() -> None:
    found = counting(*(rule("a >= 0") for _ in range(100)))
    shapes = found._shapes
    entries = []
    for number in range(600):
        payload = message(a=number, filler="x" * 200)
        shapes.learn(payload, found.match_payload(payload, None, 5, 1))
        entries.append(sum(len(known) for masks in shapes._masks.values() for known in masks.values()))
        assert shapes._bytes <= memo_module.BYTES_MAX
    assert 1 in entries[1:]
    assert 0 < max(entries) < 200


def test_masks_of_one_length_are_bounded() -> None:
    shapes = Shapes({"a": 1})
    shapes.start(is_on=True)
    for number in range(5 * MASKS_MAX):
        # The same length, and another place for the value that nobody asks for.
        shapes.learn(message(**{"a": "x" * number, "b": "y" * (30 - number)}), Match((1,)))
        assert [len(masks) <= MASKS_MAX for masks in shapes._masks.values()] == [True]


@pytest.mark.parametrize("cut", range(6, 20))
def test_a_mask_is_made_of_whole_sections_only(cut: int) -> None:
    section = message(None, a=1, order=Int(5))
    section = section[section.index(b"\x00St") :]
    whole = section[: 5 + section[4]]
    assert mask_of(whole, {"a": 1}) is not None
    part = bytearray(whole[:cut])
    assert mask_of(bytes(part), {"a": 1}) is None
    part[4] = cut - 5
    with suppress(IndexError):
        assert mask_of(bytes(part), {"a": 1}) is None
