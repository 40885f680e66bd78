"""Offsets say the same in the same bytes, stay small, and are checked when they come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.spark.errors import CheckpointError
from duobus.spark.offsets import COUNT_BITS, BrowseOffset, ClaimOffset, Key, expand, runs

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
