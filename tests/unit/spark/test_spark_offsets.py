"""Offsets say the same in the same bytes, stay small, and are checked when they come back."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.spark.errors import CheckpointError
from duobus.spark.offsets import (
    CLAIM_MAX,
    COUNT_BITS,
    COUNT_MASK,
    PLAIN_BYTES_MAX,
    BrowseOffset,
    ClaimOffset,
    Key,
    deliveries_of,
    expand,
    life_of,
    mark_of,
    runs,
)

numbers = st.dictionaries(
    st.builds(lambda fragment, count: fragment << COUNT_BITS | count, st.integers(0, 3), st.integers(1, 400)),
    st.integers(0, 3),
    min_size=1,
)
keys = st.builds(Key, st.sampled_from(["a", "b/Subscriptions/c"]), st.none())
session_keys = st.builds(Key, st.just("s"), st.text(max_size=5))


@given(
    st.dictionaries(keys | session_keys, numbers, max_size=4),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, 0, 1_790_000_000_000]),
)
@settings(deadline=None)
def test_a_claim_comes_back_as_it_was(claim: Any, counted: int | None, until_ms: int | None) -> None:
    offset = ClaimOffset("here", 7, claim, counted, until_ms)
    assert ClaimOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_the_same_claim_is_the_same_text_in_whatever_order_it_was_made() -> None:
    one = ClaimOffset("here", 1, {Key("a"): {1: 0, 2: 0}, Key("b"): {5: 1}})
    other = ClaimOffset("here", 1, {Key("b"): {5: 1}, Key("a"): {2: 0, 1: 0}})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_a_fragment_is_packed_into_gaps_and_lengths() -> None:
    assert runs([5, 6, 7, 9]) == [5, 3, 1, 1]
    assert expand([5, 3, 1, 1]) == [5, 6, 7, 9]
    offset = ClaimOffset("here", 1, {Key("a"): {2 << COUNT_BITS | 5: 0, 2 << COUNT_BITS | 6: 0}})
    assert offset.to_json() == {"v": 1, "at": "here", "b": 1, "c": {"a": {"2": [5, 2]}}}


@pytest.mark.parametrize(("messages", "most"), [(1_000, 1_500), (10_000, 8_000), (50_000, 30_000)])
def test_an_offset_stays_small_when_rivals_take_every_second_message(messages: int, most: int) -> None:
    claim = {Key("a"): {n % 4 << COUNT_BITS | n // 2 * 4: 0 for n in range(messages)}}
    assert len(json.dumps(ClaimOffset("here", 1, claim).to_json())) < most


def test_an_offset_of_a_sole_consumer_is_tiny() -> None:
    claim = {Key("a"): dict.fromkeys(range(100_000, 150_000), 0)}
    assert len(json.dumps(ClaimOffset("here", 1, claim).to_json())) < 100


@pytest.mark.parametrize(
    "form",
    [
        None,
        [],
        {},
        {"v": 2, "at": "x", "b": 1, "c": {}},
        {"v": 1, "at": "x", "b": -1, "c": {}},
        {"v": 1, "at": "x", "b": True, "c": {}},
        {"v": 1, "at": 5, "b": 1, "c": {}},
        {"v": 1, "at": "x", "b": 1},
        {"v": 1, "at": "x", "b": 1, "c": []},
        {"v": 1, "at": "x", "b": 1, "c": {"a": {"0": [1]}}},
        {"v": 1, "at": "x", "b": 1, "c": {"a": {"0": [1, "2"]}}},
        {"v": 1, "at": "x", "b": 1, "c": {"a": {"70000": [1, 1]}}},
        {"v": 1, "at": "x", "b": 1, "c": {"a": {"0": [1, 10**12]}}},
        {"v": 1, "at": "x", "b": 1, "c": {"a": {"0": [1 << 50, 1]}}},
        {"v": 1, "at": "x", "b": 1, "c": {"a": {"0": {"n": [1, 2], "k": [0, 3]}}}},
        {"v": 1, "at": "x", "b": 1, "c": {}, "u": -1},
        {"v": 1, "at": "x", "b": 1, "c": {}, "u": "soon"},
        {"v": 1, "at": "x", "b": 1, "z": "????"},
        {"v": 1, "at": "x", "b": 1, "z": "eJw="},
        {"v": 1, "at": "x", "b": 1, "n": {}},
    ],
)
def test_a_damaged_offset_of_a_claim_is_refused(form: Any) -> None:
    with pytest.raises(CheckpointError, match="nothing was settled"):
        ClaimOffset.from_json(form)


def test_a_browse_offset_comes_back_as_it_was() -> None:
    offset = BrowseOffset("here", {"b": {3: 3 << COUNT_BITS | 9, 0: 4}, "a": {0: 1}})
    assert BrowseOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert list(offset.to_json()["n"]) == ["a", "b"]


@pytest.mark.parametrize(
    "form",
    [
        None,
        {"v": 1, "at": "x", "b": 1, "c": {}},
        {"v": 1, "at": "x", "n": []},
        {"v": 1, "at": "x", "n": {"a": 5}},
        {"v": 1, "at": "x", "n": {"a": {"0": "5"}}},
        {"v": 1, "at": "x", "n": {"a": {"0": 7 << COUNT_BITS}}},
    ],
)
def test_a_damaged_browse_offset_is_refused(form: Any) -> None:
    with pytest.raises(CheckpointError, match="of its own"):
        BrowseOffset.from_json(form)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"v": 1, "at": "x", "b": 1, "c": {}}, "an offset of readMode=claim"),
        ({"v": 1, "at": "x"}, "without numbers"),
        ({"v": 2, "at": "x", "n": {}}, "of another version"),
        ([], "of another version"),
        ({"v": 1, "at": "x", "n": {"a": {"0": -1}}}, "a wrong number"),
        ({"v": 1, "at": "x", "n": {"a": {"1": (3 << COUNT_BITS)}}}, "a wrong number"),
        ({"v": 1, "at": "x", "n": {}, "from": []}, "no object"),
    ],
)
def test_a_damaged_browse_offset_says_what_is_wrong(form: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        BrowseOffset.from_json(form)


def test_a_browse_offset_may_stand_at_the_end_of_its_fragment_and_keeps_where_it_began() -> None:
    offset = BrowseOffset("here", {"a": {3: 4 << COUNT_BITS}}, {"a": {3: 3 << COUNT_BITS | 1}})
    assert BrowseOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert "from" not in BrowseOffset("here", {"a": {}}).to_json()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ([], "no object"),
        ({"v": 1, "at": "x", "b": 1, "n": {}}, "an offset of readMode=browse"),
        ({"v": 2, "at": "x", "b": 1, "c": {}}, "of version 2"),
        ({"v": 1, "at": 5, "b": 1, "c": {}}, "without a namespace or a batch"),
        ({"v": 1, "at": "x", "b": "1", "c": {}}, "without a namespace or a batch"),
        ({"v": 1, "at": "x", "b": 1, "c": {}, "d": 2}, "with an unknown 'd'"),
        ({"v": 1, "at": "x", "b": 1, "c": {}, "u": True}, "with a 'u' that is no time"),
        ({"v": 1, "at": "x", "b": 1, "c": []}, "a claim that is no object"),
        ({"v": 1, "at": "x", "b": 1, "c": {"a": 5}}, "a claim of 'a' that is no object"),
        ({"v": 1, "at": "x", "b": 1, "c": {"a": {"65536": [1, 1]}}}, "a fragment 65536"),
        ({"v": 1, "at": "x", "b": 1, "c": {"a": {"-1": [1, 1]}}}, "a fragment -1"),
        ({"v": 1, "at": "x", "b": 1, "c": {"a": {"0": [1]}}}, "no list of pairs"),
        ({"v": 1, "at": "x", "b": 1, "c": {"a": {"0": "12"}}}, "no list of pairs"),
        ({"v": 1, "at": "x", "b": 1, "c": {"a": {"0": [1, -1]}}}, "a list with something else than counts"),
        ({"v": 1, "at": "x", "b": 1, "c": {"a": {"0": {"n": [1, 2], "k": [0]}}}}, "no list of counts"),
        ({"v": 1, "at": "x", "b": 1, "c": {"a": {"0": {"n": [1, 2], "k": {}}}}}, "no list of counts"),
        ({"v": 1, "at": "x", "b": 1, "c": {"a": {"0": {"n": [1, 2], "k": [0, 1]}}}}, "does not fit its numbers"),
        ({"v": 1, "at": "x", "b": 1, "z": "e!Jw="}, "damaged"),
        ({"v": 1, "at": "x", "b": 1, "z": "AAAA"}, "damaged"),
        ({"v": 1, "at": "x", "b": 1, "z": base64.b64encode(zlib.compress(b"{}")[:-5]).decode()}, "cut off"),
    ],
)
def test_a_damaged_offset_of_a_claim_says_what_is_wrong(form: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        ClaimOffset.from_json(form)


def test_a_claim_has_the_numbers_that_there_are_and_no_others() -> None:
    assert expand([COUNT_MASK, 1]) == [COUNT_MASK]
    with pytest.raises(ValueError, match="beyond"):
        expand([COUNT_MASK + 1, 1])
    assert len(expand([0, CLAIM_MAX])) == CLAIM_MAX
    with pytest.raises(ValueError, match="more than"):
        expand([0, CLAIM_MAX, 1, 1])
    claim = {Key("a"): {65_535 << COUNT_BITS | 1: 0}}
    assert ClaimOffset.from_json(ClaimOffset("x", 0, claim).to_json()).claim == claim


def test_a_mark_holds_a_count_and_a_life() -> None:
    for deliveries, life in ((0, 0), (3, 0), (0, 5), ((1 << 32) - 1, (1 << 32) - 1)):
        mark = mark_of(deliveries, life)
        assert (deliveries_of(mark), life_of(mark)) == (deliveries, life)


def test_a_claim_is_compressed_above_a_size_and_only_there() -> None:
    def form_of(length: int) -> dict[str, Any]:
        return ClaimOffset("x", 1, {Key("a" * length): {1: 0}}).to_json()

    most = PLAIN_BYTES_MAX - len(json.dumps({"": {"0": [1, 1]}}))
    assert "c" in form_of(most)
    assert "z" in form_of(most + 1)
    assert ClaimOffset.from_json(form_of(most + 1)).claim == {Key("a" * (most + 1)): {1: 0}}


def test_entities_without_messages_are_not_written_and_sessions_stand_beside_each_other() -> None:
    claim = {Key("b", "2"): {1: 0}, Key("a"): {}, Key("b", ""): {2: 1}, Key("a", "x"): {3: 0}}
    assert ClaimOffset("x", 1, claim).to_json()["c"] == {
        "a": {"sessions": {"x": {"0": [3, 1]}}},
        "b": {"sessions": {"": {"0": {"n": [2, 1], "k": [1, 1]}}, "2": {"0": [1, 1]}}},
    }
