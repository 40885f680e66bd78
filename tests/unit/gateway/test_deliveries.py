"""Delivery ids to locks: ranges, marks, the wrap at 2**32, links and connections that go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.gateway.amqp.deliveries import Deliveries, split

LINK: Any = object()
OTHER: Any = object()
GROUP: Any = object()
HANDLE: Any = object()
WRAP = 1 << 32


def added(*runs: tuple[int, int, int], link: Any = LINK) -> Deliveries:
    """Deliveries from (first id, first lock, number) of each run."""
    found = Deliveries()
    for first_id, first_lock, number in runs:
        found.add(link, HANDLE, b"prefix..", first_id, first_lock, number)
    return found


def settled(deliveries: Deliveries, first: int, last: int) -> list[tuple[int, int, int]]:
    """(first id, first lock, number) of each stretch that a disposition settles."""
    return [(first_id, lock, number) for _, first_id, lock, number in deliveries.settle(first, last)]


def test_a_range_over_several_runs_gives_one_stretch_for_each() -> None:
    deliveries = added((0, 100, 3), (3, 500, 2), (5, 700, 4))
    assert settled(deliveries, 1, 6) == [(1, 101, 2), (3, 500, 2), (5, 700, 2)]
    assert len(deliveries) == 2


def test_what_was_named_before_is_passed_over() -> None:
    deliveries = added((0, 100, 10))
    assert settled(deliveries, 3, 3) == [(3, 103, 1)]
    assert settled(deliveries, 5, 6) == [(5, 105, 2)]
    assert settled(deliveries, 0, 9) == [(0, 100, 3), (4, 104, 1), (7, 107, 3)]
    assert settled(deliveries, 0, 9) == []
    assert len(deliveries) == 0


@pytest.mark.parametrize(("first", "last"), [(10, 20), (1000, 2000), (WRAP - 5, WRAP - 1)])
def test_ids_that_nobody_knows_are_passed_over(first: int, last: int) -> None:
    assert settled(added((0, 100, 10)), first, last) == []


def test_ids_between_two_runs_belong_to_nobody() -> None:
    deliveries = added((0, 100, 2), (10, 200, 2))
    assert settled(deliveries, 0, 11) == [(0, 100, 2), (10, 200, 2)]


def test_ids_wrap_at_two_to_the_32_within_and_between_runs() -> None:
    deliveries = added((WRAP - 3, 100, 2), (WRAP - 1, 200, 3), (2, 300, 1))
    assert settled(deliveries, WRAP - 2, 0) == [(WRAP - 2, 101, 1), (WRAP - 1, 200, 2)]
    assert settled(deliveries, WRAP - 3, 2) == [(WRAP - 3, 100, 1), (1, 202, 1), (2, 300, 1)]


def test_forgetting_a_link_leaves_the_others_alone() -> None:
    deliveries = added((0, 100, 2))
    deliveries.add(OTHER, HANDLE, b"prefix..", 2, 900, 2)
    deliveries.forget(LINK)
    assert settled(deliveries, 0, 3) == [(2, 900, 2)]


def shared() -> Deliveries:
    """Six deliveries of a session group: two of LINK, three of OTHER, one of LINK."""
    found = Deliveries()
    found.add(GROUP, HANDLE, b"prefix..", 0, 100, 6, [LINK, LINK, OTHER, OTHER, OTHER, LINK])
    return found


def test_deliveries_of_several_links_are_split_where_the_link_changes() -> None:
    found = shared().settle(1, 5)
    assert [(first_id, lock, number) for _, first_id, lock, number in found] == [(1, 101, 5)]
    pieces = {link: [stretch[1:] for stretch in stretches] for link, stretches in split(found).items()}
    assert pieces == {LINK: [(1, 101, 1), (5, 105, 1)], OTHER: [(2, 102, 3)]}


def test_deliveries_of_one_link_are_split_from_none() -> None:
    found = added((0, 100, 2), (2, 300, 2)).settle(0, 3)
    assert split(found) == {LINK: found}


def test_taking_one_of_several_links_leaves_the_deliveries_of_the_others() -> None:
    deliveries = shared()
    assert deliveries.take(OTHER) == [(2, 2), (3, 3), (4, 4)]
    assert deliveries.take(OTHER) == []
    assert settled(deliveries, 0, 5) == [(0, 100, 2), (5, 105, 1)]
    assert len(deliveries) == 0


def test_deliveries_of_several_links_are_gone_when_all_links_are() -> None:
    deliveries = shared()
    deliveries.settle(0, 0)
    deliveries.forget(LINK)
    assert len(deliveries) == 1
    deliveries.forget(OTHER)
    assert len(deliveries) == 0


def test_draining_gives_what_nobody_settled_once() -> None:
    deliveries = added((0, 100, 5), (5, 500, 1))
    deliveries.settle(1, 2)
    assert [ranges for _, ranges in deliveries.drain()] == [[(100, 1), (103, 2)], [(500, 1)]]
    assert deliveries.drain() == []


@given(
    st.integers(0, WRAP - 1),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=8),
)
def test_every_id_is_settled_once_and_with_its_own_lock(
    start: int, runs: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    deliveries = Deliveries()
    locks: dict[int, int] = {}
    position, lock = start, 0
    for gap, number in runs:
        position += gap
        lock += 1000
        deliveries.add(LINK, HANDLE, b"prefix..", position % WRAP, lock, number)
        locks.update({position + index: lock + index for index in range(number)})
        position += number
    for offset, length in ranges:
        first, last = start + offset, min(start + offset + length, position - 1)
        if last < first:
            continue
        found = [
            ((first_id + index) % WRAP, first_lock + index)
            for first_id, first_lock, number in settled(deliveries, first % WRAP, last % WRAP)
            for index in range(number)
        ]
        wanted = [(at % WRAP, locks.pop(at)) for at in range(first, last + 1) if at in locks]
        assert found == wanted
    left = [first + index for _, found in deliveries.drain() for first, number in found for index in range(number)]
    assert left == sorted(locks.values())


def test_taking_a_links_deliveries_gives_the_ids_that_nobody_settled_over_the_wrap() -> None:
    deliveries = added((WRAP - 2, 100, 4))
    deliveries.add(OTHER, HANDLE, b"prefix..", 2, 200, 2)
    settled(deliveries, WRAP - 1, WRAP - 1)
    assert deliveries.take(LINK) == [(WRAP - 2, WRAP - 2), (0, 1)]
    assert deliveries.take(LINK) == []
    assert settled(deliveries, 0, 3) == [(2, 200, 2)]
