"""What a commit deletes: however it is told of, the same messages go, and no other."""

from __future__ import annotations

from random import Random

import pytest

from duobus.storage.interface import COUNT_BITS
from duobus.storage.sqlite import schema
from duobus.storage.sqlite.rows import removals


def ids_of(removed: list[tuple[int, int, int]]) -> set[int]:
    return {key << COUNT_BITS | count for key, first, last in removed for count in range(first, last + 1)}


def deleted(removed: list[tuple[int, int, int]]) -> set[int]:
    ranges, singles = removals(removed)
    return {number for first, last in ranges for number in range(first, last + 1)} | set(singles)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_deleted_is_what_was_removed(seed: int) -> None:
    random = Random(seed)
    removed = []
    for key in (1, 2):
        counts = [count for count in range(1, 400) if random.random() < random.choice((0.3, 0.7, 0.97))]
        random.shuffle(counts)
        removed += [(key, count, min(399, count + random.choice((0, 0, 0, 3, 20)))) for count in counts]
    assert deleted(removed) == ids_of(removed)


def test_nothing_removed_is_nothing_deleted() -> None:
    assert removals([]) == ([], [])


def test_a_gap_is_not_deleted_though_something_is_removed_twice() -> None:
    removed = [(1, count, count) for count in (1, 1, *range(3, 11))]
    assert deleted(removed) == ids_of(removed)


def test_singles_that_fill_each_others_gaps_become_one_range() -> None:
    removed = [(1, count, count) for parity in (1, 2) for count in range(parity, 201, 2)]
    assert removals(removed) == ([(1 << COUNT_BITS | 1, 1 << COUNT_BITS | 200)], [])


def test_neighbouring_ranges_are_joined() -> None:
    assert removals([(1, 101, 200), (1, 1, 100)]) == ([(1 << COUNT_BITS | 1, 1 << COUNT_BITS | 200)], [])


def test_singles_keep_their_order_and_fill_whole_statements() -> None:
    removed = [(1, count, count) for count in range(1, 4 * schema.ROWS_PER_STATEMENT, 2)]
    ranges, singles = removals(removed[::-1])
    assert ranges == []
    assert singles == sorted(ids_of(removed))
