"""Delivery tags: the counting part has seven bits in each byte."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.codec import COUNTERS, digit_runs, in_guid_order, runs_of_tags, tag_counter, tag_of
from duobus.codec.delivery_tags import counter_of, digits

PREFIX = bytes.fromhex("80ff8100c3a9f09f")
COUNTER = st.integers(0, COUNTERS - 1)


@pytest.mark.parametrize("first", [0, 127, 2**20 + 77, COUNTERS - 50_000])
def test_a_hundred_thousand_tags_of_a_link_differ_after_a_lossy_decoding(first: int) -> None:
    tags = [PREFIX + found.to_bytes(8, "big") for found in digit_runs(first, 100_000)]
    assert len({tag.decode("utf-8", "replace") for tag in tags}) == 100_000


@given(COUNTER)
def test_the_way_back_from_a_tag_leads_to_its_lock(counter: int) -> None:
    tag = tag_of(PREFIX, counter)
    assert (len(tag), tag[:8], tag_counter(tag)) == (16, PREFIX, counter)
    assert max(tag[8:]) < 0x80


@given(COUNTER, st.integers(0, 700))
def test_a_run_of_tags_is_what_each_lock_has_by_itself(first: int, number: int) -> None:
    assert list(digit_runs(first, number)) == [digits(first + index) for index in range(number)]


@given(st.integers(0, 2**64 - 1))
def test_bytes_that_are_no_digits_are_no_lock(found: int) -> None:
    counter = counter_of(found)
    assert counter == -1 if any(byte > 0x7F for byte in found.to_bytes(8, "big")) else digits(counter) == found


@pytest.mark.parametrize("tag", [b"", PREFIX, bytes(15), bytes(17), PREFIX + b"\x80" + bytes(7)])
def test_what_is_no_tag_of_ours_has_no_lock(tag: bytes) -> None:
    assert tag_counter(tag) == -1


@given(COUNTER)
def test_a_tag_and_its_uuid_are_one_lock_token(counter: int) -> None:
    tag = tag_of(PREFIX, counter)
    assert in_guid_order(PREFIX) + tag[8:] == uuid.UUID(bytes_le=tag).bytes


def test_tags_of_several_lives_are_runs_of_each() -> None:
    other = PREFIX[::-1]
    tags = [tag_of(PREFIX, 126 + index) for index in range(5)]
    tags += [tag_of(other, 131), tag_of(other, 132), tag_of(other, 134)]
    assert runs_of_tags(tags) == [(PREFIX, 126, 5), (other, 131, 2), (other, 134, 1)]


@given(COUNTER, st.integers(1, 700))
def test_tags_that_count_up_are_one_run(first: int, number: int) -> None:
    tags = [tag_of(PREFIX, first + index) for index in range(number)]
    assert runs_of_tags(tags) == [(PREFIX, first, number)] or first + number > COUNTERS


@pytest.mark.parametrize("strange", [b"", PREFIX, bytes(17), PREFIX + b"\x80" + bytes(7)])
def test_tags_of_which_one_is_not_ours_are_no_runs(strange: bytes) -> None:
    ours = tag_of(PREFIX, 7)
    assert runs_of_tags([ours, strange]) is None
    assert runs_of_tags([strange, ours]) is None
    # Of the same size together, and not each.
    assert runs_of_tags([ours + ours[:1], ours[1:]]) is None
