"""What a rule set remembers of messages: which are alike, alone and in a row, until when, and how many."""

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
from duobus.rules.matching import result_cache
from duobus.rules.matching.result_cache import MASKS_MAX, ResultCache
from duobus.rules.system_properties import APPLICATION_SECTION
from kits.rules import VECTOR_MESSAGE, remembered, rule, rule_set


def give(found: RuleSet, payload: bytes, metadata: MessageMetadata | None = None, number: int = 1) -> tuple[int, ...]:
    return found.match_payload(payload, metadata, 5, number).sources


def sources(found: RuleSet, run: list[bytes]) -> list[tuple[int, ...]]:
    return [match.sources for match in found.match_run(run, 5, 1)]


def known(found: RuleSet, run: list[bytes]) -> int:
    """For how many of these messages the result is known without a look."""
    return len(run) - found._cache.find_run(run).count(None)


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


def test_a_message_id_makes_no_difference_but_by_its_length_where_no_rule_looks_at_it() -> None:
    found = counting(rule("sys.Label = 'x'"), rule("sys.Label = 'x' AND a = 1"))
    for message_id in ("m1", "m2", "-."):
        assert give(found, message(message_id, "x", a=1)) == (1, 2)
        assert give(found, message(message_id, "y", a=1)) == ()
    assert found.looks == 2
    found.looks = 0
    for first in ("m", "n"):
        for message_id in ("", None, first * 99):
            assert give(found, message(message_id, "x", a=1)) == (1, 2)
        # One that the broker gave is written in a form of its own.
        assert give(found, with_made_id(message(None, "x", a=1), 0, first.encode() * 32)) == (1, 2)
    assert found.looks == 4


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
    found = rule_set({number: [one] for number, one in enumerate(rules)})
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


def test_what_is_remembered_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_cache, "WORTH_FROM", 0)
    found = counting(*(rule("a >= 0") for _ in range(100)))
    entries = []
    for number in range(1000):
        give(found, message(a=number, filler="x" * 200))
        cache = found._cache
        sizes = [
            result_cache.ENTRY_BYTES + 2 * length + result_cache.SOURCE_BYTES * len(match.sources)
            for length, masks in cache._masks.items()
            for matches in masks.values()
            for match in matches.values()
        ]
        assert sum(sizes) == cache._bytes <= result_cache.BYTES_MAX
        entries.append(len(sizes))
    # More than once it began again.
    assert entries.count(1) > 1
    assert 0 < max(entries) < 400


def test_masks_of_one_length_are_bounded() -> None:
    cache = ResultCache({"a": 1})
    cache.start(APPLICATION_SECTION, with_id=False)
    for number in range(5 * MASKS_MAX):
        # The same length, and another place for the value that nobody asks for.
        cache.keep(message(a="x" * number, b="y" * (30 - number)), Match((1,)))
        assert [len(masks) <= MASKS_MAX for masks in cache._masks.values()] == [True]


def test_ever_new_properties_make_the_cache_rest_and_like_ones_wake_it() -> None:
    found = counting(rule("a >= 0"))
    for number in range(result_cache.JUDGED_AFTER):
        give(found, message(a=number))
    assert found._cache.rest == result_cache.REST
    found.looks = 0
    run = [message(a=1)] * 10
    for _ in range(0, result_cache.REST, 10):
        assert sources(found, run) == [(1,)] * 10
    # All while it rests, and one when it is awake again.
    assert result_cache.REST < found.looks + 10 <= result_cache.REST + 10
    found.looks = 0
    for _ in range(10):
        assert sources(found, run) == [(1,)] * 10
    assert found.looks <= 1


def test_a_quarter_of_the_messages_found_is_enough_to_go_on() -> None:
    found = counting(rule("a >= 0"))
    give(found, message(a=-1))
    for number in range(4 * result_cache.JUDGED_AFTER):
        sources(found, [message(a=number), message(a=-1)])
    assert found._cache.rest == 0


# -- values that no rule asks for -------------------------------------------------------------------------------------


def test_properties_that_no_rule_names_make_no_difference() -> None:
    found = counting(rule("a = 1"), rule("EXISTS (b)"), rule("property('C') = 'x'"), rule("sys.Label = 'l' AND a = 2"))
    for number in range(1000, 1100):
        assert give(found, message("m", "l", order=Int(number), a=2, B=True)) == (2, 4)
        assert give(found, message("m", "l", order=Int(number), a=1)) == (1,)
        assert give(found, message("m", "n", order=Int(number), c="x", a=2)) == (3,)
    assert found.looks == 3


def test_rules_with_names_out_of_the_message_are_remembered_by_all_properties() -> None:
    found = counting(rule("property(which) = 1"), rule("a = 1"))
    for _ in range(2):
        assert give(found, message(which="x", x=1)) == (1,)
        assert give(found, message(which="x", x=2)) == ()
    assert found.looks == 2
    found.remove(1, "r")
    assert give(found, message(which="x", x=1)) == ()
    assert give(found, message(which="y", x=2)) == ()
    assert found.looks == 3


def test_a_rule_that_comes_changes_which_names_count() -> None:
    found = rule_set({1: [rule("a = 1")], 2: []})
    run = [message(a=1, b=1)] * 3
    assert sources(found, run) == [(1,)] * 3
    found.add(2, rule("b = 1"))
    assert sources(found, run) == [(1, 2)] * 3
    assert sources(found, [message(a=1, b=2)]) == [(1,)]
    found.remove(2, "r")
    assert sources(found, run) == [(1,)] * 3


def test_a_value_of_an_uncommon_kind_has_to_be_the_same_and_so_has_all_behind_it() -> None:
    found = counting(rule("a = 1"))
    for number in (1000, 1001):
        assert give(found, message(order=Int(number), other=UInt(1000), n=Int(1), a=1)) == (1,)
    assert found.looks == 1
    assert give(found, message(order=Int(1000), other=UInt(1001), n=Int(1), a=1)) == (1,)
    assert give(found, message(order=Int(1000), other=UInt(1000), n=Int(2), a=1)) == (1,)
    assert found.looks == 3


# -- messages in a row ------------------------------------------------------------------------------------------------


def test_messages_of_a_run_that_differ_in_what_no_rule_asks_for_are_looked_at_once() -> None:
    found = counting(rule("a = 1"), rule(correlation={"Properties": {"b": "x"}}))
    run = [message(f"m{number}", order=Int(number), at=f"t{number % 10}", a=1) for number in range(2, 50)]
    assert sources(found, run) == [(1,)] * 48
    assert found.looks == 1
    assert known(found, run) == 48
    # Values that rules ask for make another message, and so do further properties.
    others = [message(order=Int(1), at="t1", a=2), message(b="x", order=Int(7)), message(b="y", order=Int(7)), run[0]]
    assert sources(found, others) == [(), (2,), (), (1,)]
    assert known(found, others) == 4


@pytest.mark.parametrize("sql", ["a = 1", "a = 1 AND sys.To IS NULL"])
def test_texts_of_several_lengths_and_messages_of_several_kinds_are_known_side_by_side(sql: str) -> None:
    found = counting(rule(sql))
    run = [message(f"m{10**number}", text="x" * number, a=number % 2) for number in range(20)]
    run += [message(a=1, n=Int(5)), message(n=Int(5), a=1), message(a=1, m=Int(5))]
    expected = [(1,) if number % 2 else () for number in range(20)] + [(1,)] * 3
    assert sources(found, run) == expected
    assert known(found, run[::-1]) == len(run)
    assert sources(found, run[::-1]) == expected[::-1]


def test_rules_on_the_properties_alone_are_known_for_a_run_whatever_the_ids() -> None:
    found = counting(rule("sys.Label = 'x'"))
    run = [message(f"m{number}", "xy"[number % 2], a=number) for number in range(20)]
    assert sources(found, run) == [(1,), ()] * 10
    # Two labels, beside ids of one digit and of two.
    assert (found.looks, known(found, run)) == (4, 20)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"text", b"te\xff\xff"), (b"\x04text", b"\x05text"), (b"other", b"othe\xff"), (b"other", b"a\xa1\x01b\x42")],
)
def test_a_message_that_cannot_be_read_is_not_taken_for_one_that_can(old: bytes, new: bytes) -> None:
    found = counting(rule("a = 1"), rule("b > 1"))
    sound = message(a=1, other="text", b=Int(1))
    assert sources(found, [sound] * 2) == [(1,)] * 2
    bad = sound.replace(old, new)
    assert known(found, [bad, sound]) == 1
    assert found.match_run([bad], 5, 1)[0].errors == found.match(MessageView(bad)).errors


def test_a_text_that_is_not_ascii_has_to_be_the_same_whether_a_rule_asks_for_it_or_not() -> None:
    found = counting(rule("a = 1"), rule("b > 1"))
    sound = message(a=1, other="é", b=Int(1))
    assert sources(found, [sound]) == [(1,)]
    assert known(found, [sound]) == 1
    bad = sound.replace("é".encode(), b"\xff\xff")
    assert known(found, [bad]) == 0
    assert found.match_run([bad], 5, 1)[0].errors == found.match(MessageView(bad)).errors


def test_a_head_without_its_first_byte_which_is_zero_is_another_one() -> None:
    cache = ResultCache({"a": 1})
    cache.start(APPLICATION_SECTION, with_id=False)
    head = build_message(None, {"a": 1})
    cache.keep(head, Match((1,)))
    assert cache._find_long(len(head), [head]) != [None]
    assert cache._find_long(len(head), [head[1:]]) == [None]


@pytest.mark.parametrize("cut", range(40))
def test_a_message_that_ends_too_soon_is_looked_at(cut: int) -> None:
    found = counting(rule("a = 0"))
    # What is cut off at the end are zeros, as a number that is made of bytes has them in front.
    sound = message(order=Int(5), a=Int(0)).removesuffix(b"\x00Su\xa0\x04body")
    assert sources(found, [sound]) == [(1,)]
    short = sound[: max(0, len(sound) - 1 - cut)]
    assert known(found, [short]) == 0
    assert known(found, [sound]) == 1
    # In a run with the other, which then is looked at as well.
    assert sources(found, [short, sound]) == [found.match(MessageView(short)).sources, (1,)]
