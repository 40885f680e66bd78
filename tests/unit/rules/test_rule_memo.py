"""The memo of a rule set: results that are kept, for which messages, until when, and how many."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit_counting import counting

from duobus.codec import Int, Timestamp, UInt, build_message, with_made_id
from duobus.model.metadata import MessageMetadata
from duobus.rules import Match, MessageView, Rule, RuleSet
from duobus.rules.matching import result_cache as memo_module
from duobus.rules.matching.property_cache import NAMES_MAX
from kits.rules import VECTOR_MESSAGE, remembered, rule, rule_set


def give(found: RuleSet, payload: bytes, metadata: MessageMetadata | None = None, number: int = 1) -> tuple[int, ...]:
    return found.match_payload(payload, metadata, 5, number).sources


def message(message_id: Any = None, label: str | None = None, **properties: Any) -> bytes:
    return build_message([message_id, None, None, label], properties, data=b"body")


# -- which messages are alike -----------------------------------------------------------------------------------------


def test_messages_with_the_same_application_properties_are_looked_at_once() -> None:
    found = counting(rule("a = 1"), rule(correlation={"Properties": {"b": "x"}}))
    assert give(found, message("m1", "one", a=1)) == (1,)
    assert give(found, message("m22", "other", a=1)) == (1,)
    assert give(found, build_message(None, {"a": 1}, data=b"another body")) == (1,)
    assert found.looks == 1
    assert give(found, message(a=2)) == ()
    assert give(found, message(b="x")) == (2,)
    assert found.looks == 3


def test_a_message_id_makes_no_difference_where_no_rule_looks_at_it() -> None:
    found = counting(rule("sys.Label = 'x'"), rule("sys.Label = 'x' AND a = 1"))
    for message_id in ("m1", "m2", "", None, "m" * 99):
        assert give(found, message(message_id, "x", a=1)) == (1, 2)
        assert give(found, message(message_id, "y", a=1)) == ()
    # One that the broker gave is written in a form of its own.
    assert give(found, with_made_id(message(None, "x", a=1), 0, b"0" * 32)) == (1, 2)
    assert found.looks == 2


@pytest.mark.parametrize(
    "by_id",
    [
        rule("sys.MessageId = 'm1'"),
        rule("sys.Label LIKE 'x' AND NOT (NOT EXISTS (sys.MessageId) OR sys.MessageId <> 'm1')"),
        rule(correlation={"MessageId": "m1"}),
    ],
)
def test_a_message_id_counts_where_a_rule_looks_at_it(by_id: Rule) -> None:
    found = counting(by_id)
    for _ in range(2):
        assert give(found, message("m1", "x")) == (1,)
        assert give(found, message("m2", "x")) == ()
        assert give(found, message(None, "x")) == ()
    assert found.looks == 3


@pytest.mark.parametrize(
    "sql", ["sys.SequenceNumber = 1", "sys.PartitionKey = 'k'", "-sys.EnqueuedSequenceNumber < -1"]
)
def test_nothing_is_kept_where_a_filter_looks_at_more_than_properties(sql: str) -> None:
    found = counting(rule(sql), rule("a = 1"))
    metadata = MessageMetadata()
    metadata.partition_key = "k"
    for number, with_metadata in ((1, None), (2, None), (3, metadata)):
        expected = found.match(MessageView(message(a=1), with_metadata, 5, number)).sources
        assert give(found, message(a=1), with_metadata, number) == expected


def test_newid_is_drawn_for_each_message() -> None:
    found = counting(rule("newid() = a"), rule("a = 1"))
    give(found, message(a=1))
    give(found, message(a=1))
    assert found.looks == 2
    found.remove(1, "r")
    give(found, message(a=1))
    give(found, message(a=1))
    assert found.looks == 3


def test_errors_and_altered_copies_are_made_anew_for_each_message() -> None:
    found = counting(rule("10 / a = 1"), rule("b = 1", "SET c = newid(); SET d = sys.SequenceNumber"))
    for number in (1, 2):
        assert found.match_payload(message(a=0), None, 5, number).errors
        copy = found.match_payload(message(b=1), None, 5, number).altered[0]
        assert copy.overlay.application["d"] == number
    assert found.looks == 4
    for _ in range(2):
        assert give(found, message(a=10)) == (1,)
    assert found.looks == 5


def test_what_the_codec_has_to_read_is_not_kept() -> None:
    found = counting(rule("sys.To = 'x' OR a = 1"))
    odd = [message(message_id, a=1) for message_id in (uuid.UUID(int=7), b"id")]
    odd += [message(a=1, b="x" * 300), build_message(data=b"body")]
    assert [give(found, payload) for payload in odd * 2] == [(1,), (1,), (1,), ()] * 2
    assert found.looks == 8


# -- hostile bytes ----------------------------------------------------------------------------------------------------

RULES = [
    rule("a = 1"),
    rule("sys.Label = 'x'"),
    rule("b LIKE 'x%' OR sys.To IS NULL"),
    rule(correlation={"Label": "x", "Properties": {"a": 1}}),
    rule("a > 1", "SET a = 2"),
    rule("sys.CorrelationId = 'x'"),
]
VALUES = st.one_of(
    st.sampled_from(["x", "xy", 1, 2, True, None, 1.5, Int(1), UInt(1), Timestamp(5)]), st.text(max_size=3)
)
FIELDS = st.lists(st.sampled_from([None, "x", "xy", "é"]), max_size=13)


def outcome(match: Match) -> tuple[Any, ...]:
    return match.sources, [(copy.source, copy.overlay.encode()) for copy in match.altered], match.errors


@given(
    st.lists(st.sampled_from(RULES), min_size=1, max_size=4),
    st.lists(
        st.tuples(
            FIELDS,
            st.dictionaries(st.sampled_from(["a", "A", "b"]), VALUES),
            st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=2),
        ),
        max_size=6,
    ),
)
def test_a_kept_result_is_the_one_that_looking_gives_whatever_was_seen_before(
    rules: list[Rule], messages: list[Any]
) -> None:
    found = rule_set({number: [one] for number, one in enumerate(rules)})
    for fields, properties, changes in messages:
        payload = bytearray(build_message(fields, properties, data=b"body"))
        # Sound ones first, and then the same with bytes that do not belong there.
        for place, value in ((0, 0), *changes):
            payload[place % len(payload)] = value
            expected = outcome(found.match(MessageView(bytes(payload))))
            for again in remembered(found, bytes(payload)):
                assert outcome(again) == expected


@given(
    st.lists(st.sampled_from(RULES), min_size=1, max_size=4),
    st.tuples(FIELDS, st.dictionaries(st.sampled_from(["a", "A", "b", "n", "other"]), VALUES)),
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(["a", "b", "n"]), VALUES, max_size=1),
            st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=1),
            st.integers(0, 99),
        ),
        max_size=8,
    ),
)
def test_a_run_gives_for_each_message_what_it_gives_alone(rules: list[Rule], first: Any, changed: list[Any]) -> None:
    fields, properties = first
    payloads = [build_message(fields, properties, data=b"body")]
    for others, changes, cut in changed:
        payload = bytearray(build_message(fields, {**properties, **others}, data=b"body"))
        for place, value in changes:
            payload[place % len(payload)] = value
        payloads += [bytes(payload), bytes(payload[:cut])]
    by_names = rule_set({number: [one] for number, one in enumerate(rules)})
    by_names._memo.rest = 1 << 30
    for found in (rule_set({number: [one] for number, one in enumerate(rules)}), by_names):
        for run in (payloads, payloads[::-1], payloads):
            given_back = found.match_run(run, 5, 1)
            for number, (payload, match) in enumerate(zip(run, given_back, strict=True), 1):
                view = MessageView(payload, None, 5, number)
                assert outcome(match) == outcome(found.match(view))


def test_like_messages_in_a_row_share_one_result() -> None:
    found = counting(rule("a = 1"), rule("a = 2"))
    run = [message(f"m{number}", a=1 + number // 3) for number in range(6)]
    found.match_run(run, 5, 1)
    one, two = found.match_run(run, 5, 1)[::3]
    assert [match is one for match in found.match_run(run, 5, 1)] == [True] * 3 + [False] * 3
    assert (one.sources, two.sources, found.looks) == ((1,), (2,), 2)


@pytest.mark.parametrize("other", [Int(7), "text", True, None])
def test_values_that_no_rule_asks_for_are_walked_over_once(other: Any) -> None:
    found = counting(rule("a = 1"))
    found._memo.rest = 1 << 30
    first = message("m1", a=1, other=other, b="end")
    assert give(found, first) == (1,)
    kept = found._named_memo._kept
    assert give(found, first.replace(b"text", b"TEXT")) == (1,)
    assert found._named_memo._kept is kept
    # Not what the quick reader would read: it is looked at.
    if isinstance(other, str):
        assert (
            give(found, first.replace(b"text", b"te\xff\xff"))
            == found.match(MessageView(first.replace(b"text", b"te\xff\xff"))).sources
        )
    assert give(found, message("m1", a=2, other=other, b="end")) == ()
    assert give(found, message("m1", a=1, other=other, b="END")) == (1,)


def test_an_id_that_is_no_text_is_an_error_although_the_rest_is_known() -> None:
    found = counting(rule("sys.Label = 'x'"))
    sound = message("mm", "x")
    assert give(found, sound) == (1,)
    for bad in (sound.replace(b"mm", b"\xff\xff"), sound.replace(b"\x02mm", b"\xf2mm"), sound[:9], b"", b"\x00\x53"):
        assert outcome(found.match_payload(bad, None, 5, 1)) == outcome(found.match(MessageView(bad, None, 5, 1)))


# -- until when, and how many -----------------------------------------------------------------------------------------


def test_a_rule_that_comes_or_goes_holds_for_the_next_message() -> None:
    found = rule_set({1: [rule("qty = 5")], 2: [rule("qty = 6")]})
    assert give(found, VECTOR_MESSAGE) == (1,)
    found.add(2, rule("qty = 5"))
    assert give(found, VECTOR_MESSAGE) == (1, 2)
    found.add(2, rule(name="all"))
    found.remove(2, "r")
    assert give(found, VECTOR_MESSAGE) == (1, 2)
    found.remove(2, "all")
    assert give(found, VECTOR_MESSAGE) == (1,)
    found.put(3, [rule("vip")])
    assert give(found, VECTOR_MESSAGE) == (1, 3)
    found.drop(1)
    assert give(found, VECTOR_MESSAGE) == (3,)


def test_the_memo_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo_module, "WORTH_FROM", 0)
    found = counting(*(rule("a >= 0") for _ in range(100)))
    for number in range(1000):
        give(found, message(a=number, filler="x" * 200))
        memo = found._memo
        kept = sum(320 + len(key) + 8 * len(match.sources) for key, match in memo._known.items())
        assert kept == memo._bytes <= memo_module.BYTES_MAX
    assert 0 < len(found._memo._known) < 200


def test_ever_new_properties_make_the_memo_rest_and_like_ones_wake_it() -> None:
    found = counting(rule("a >= 0"))
    # The memo by all properties is judged first, then the one by those that rules name.
    for number in range(2 * memo_module.JUDGED_AFTER):
        give(found, message(a=number))
    assert len(found._memo._known) == 1
    assert len(found._named_memo._known) == 1
    found.looks = 0
    for _ in range(memo_module.REST + 10):
        assert give(found, message(a=1)) == (1,)
    # All while both rest, and one when the first is awake again.
    assert found.looks == memo_module.REST - memo_module.JUDGED_AFTER + 1


# -- by the properties that rules name --------------------------------------------------------------------------------


def test_properties_that_no_rule_names_make_no_difference_where_they_are_ever_new() -> None:
    found = counting(rule("a = 1"), rule("EXISTS (b)"), rule("property('C') = 'x'"), rule("sys.Label = 'l' AND a = 2"))
    for number in range(memo_module.JUDGED_AFTER):
        give(found, message(order=number))
    found.looks = 0
    for number in range(100):
        assert give(found, message("m", "l", order=number, a=2, B=True)) == (2, 4)
        assert give(found, message("m", "l", order=number, a=1)) == (1,)
        assert give(found, message("m", "n", order=number, c="x", a=2)) == (3,)
    assert found.looks == 3


def test_rules_with_names_out_of_the_message_are_not_remembered_by_names() -> None:
    found = counting(rule("property(which) = 1"), rule("a = 1"))
    found._memo.rest = 10
    assert give(found, message(which="x", x=1)) == (1,)
    assert give(found, message(which="x", x=2)) == ()
    assert found.looks == 2
    found.remove(1, "r")
    found._memo.rest = 10
    assert give(found, message(which="x", x=1)) == ()
    assert give(found, message(which="y", x=2)) == ()
    assert found.looks == 3


def test_a_rule_that_comes_changes_which_names_count() -> None:
    found = rule_set({1: [rule("a = 1")], 2: []})
    found._memo.rest = 10
    assert give(found, message(a=1, b=1)) == (1,)
    found.add(2, rule("b = 1"))
    assert give(found, message(a=1, b=1)) == (1, 2)
    assert give(found, message(a=1, b=2)) == (1,)
    found.remove(2, "r")
    assert give(found, message(a=1, b=1)) == (1,)


def test_the_names_that_are_known_are_bounded() -> None:
    found = rule_set({1: [rule("a = 1")]})
    found._memo.rest = 2 * NAMES_MAX
    for number in range(2 * NAMES_MAX):
        give(found, message(**{f"p{number}": 1}))
        assert len(found._named_memo._asked_for) <= NAMES_MAX
