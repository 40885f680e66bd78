"""Pairs of delivery ids of a proxied session: what is found and forgotten is what a plain dictionary would have."""

from __future__ import annotations

import random

import pytest

from duobus.cluster.proxy.id_pairs import RUN_MAX, IdPairs, ranges

IDS = 1 << 32


def pairs_of(found: list[tuple[int, int, int]]) -> IdPairs:
    pairs = IdPairs()
    for here, there, number in found:
        pairs.add(here % IDS, there % IDS, number)
    return pairs


def ids(pairs: IdPairs, first: int, last: int) -> list[tuple[int, int]]:
    """What is found of a range of the client's ids: each with the owner's."""
    return [
        ((one.here + index) % IDS, (one.there + index) % IDS)
        for one in pairs.of_client(first, last)
        for index in range(one.number)
    ]


def test_neighbours_of_both_sides_are_one_run_up_to_a_limit() -> None:
    pairs = IdPairs()
    runs = {id(pairs.add(5 + index, 90 + index, 1)) for index in range(RUN_MAX)}
    assert len(runs) == 1
    assert id(pairs.add(5 + RUN_MAX, 90 + RUN_MAX, 1)) not in runs
    assert [(one.here, one.number) for one in pairs.of_client(0, 2**31)] == [(5, RUN_MAX), (5 + RUN_MAX, 1)]


def test_what_was_removed_is_found_no_more_from_either_side() -> None:
    pairs = pairs_of([(0, 100, 10)])
    (found,) = pairs.of_owner(103, 104)
    pairs.remove(found)
    assert [here for here, _ in ids(pairs, 0, 9)] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert [(one.there, one.number) for one in pairs.of_owner(100, 109)] == [(100, 3), (105, 5)]
    for one in pairs.of_client(0, 9):
        pairs.remove(one)
    assert not pairs


@pytest.mark.parametrize("beyond", [10, 2**31 - 1, 2**32 - 1])
def test_a_range_of_any_size_finds_what_waits(beyond: int) -> None:
    pairs = pairs_of([(0, 50, 3), (3, 70, 2)])
    assert ids(pairs, 0, beyond) == [(0, 50), (1, 51), (2, 52), (3, 70), (4, 71)]


def test_a_range_that_nobody_has_sent_finds_nothing() -> None:
    pairs = pairs_of([(1_000, 2_000, 5)])
    assert ids(pairs, 2_000, 3_000) == []
    assert ids(pairs, 0, 999) == []
    assert ids(IdPairs(), 0, IDS - 1) == []


def test_ids_that_wrap_are_found_and_told_in_two_ranges() -> None:
    pairs = pairs_of([(IDS - 2, IDS - 1, 4)])
    assert ids(pairs, IDS - 2, 1) == [(IDS - 2, IDS - 1), (IDS - 1, 0), (0, 1), (1, 2)]
    assert list(ranges((one.here, one.number) for one in pairs.of_client(IDS - 2, 1))) == [(IDS - 2, IDS - 1), (0, 1)]


def test_ranges_of_neighbours_are_one_range() -> None:
    assert list(ranges([(1, 2), (3, 1), (7, 1), (8, 2)])) == [(1, 3), (7, 9)]
    assert list(ranges([])) == []


@pytest.mark.parametrize("seed", range(30))
def test_pairs_are_what_a_dictionary_has(seed: int) -> None:
    draw = random.Random(seed)
    pairs, model = IdPairs(), dict[int, int]()
    here, there = draw.choice([0, 7, IDS - 40]), draw.choice([3, IDS - 25])
    held: list[tuple[int, int]] = []
    for _ in range(120):
        kind = draw.random()
        number = draw.randint(1, 6)
        if kind < 0.5:
            # Of the owner's deliveries some are kept back, and passed on after later ones.
            if draw.random() < 0.2:
                held.append((there, number))
            else:
                pairs.add(here, there, number)
                model |= {(here + index) % IDS: (there + index) % IDS for index in range(number)}
                here = (here + number) % IDS
            there = (there + number + draw.choice([0, 0, 1])) % IDS
        elif kind < 0.6 and held:
            late, number = held.pop(0)
            pairs.add(here, late, number)
            model |= {(here + index) % IDS: (late + index) % IDS for index in range(number)}
            here = (here + number) % IDS
        elif model:
            first = draw.choice(list(model))
            by_owner = draw.random() < 0.5
            low = model[first] if by_owner else first
            found = (pairs.of_owner if by_owner else pairs.of_client)(low, (low + number) % IDS)
            named = {(low + index) % IDS for index in range(number + 1)}
            expected = {h: t for h, t in model.items() if (t if by_owner else h) in named}
            got = {(one.here + n) % IDS: (one.there + n) % IDS for one in found for n in range(one.number)}
            assert got == expected
            for one in found:
                pairs.remove(one)
            model = {h: t for h, t in model.items() if h not in expected}
        assert bool(pairs) == bool(model)
    # Serial numbers (RFC 1982): what was sent last, and what came in the half of all ids before.
    assert dict(ids(pairs, (here - IDS // 2) % IDS, here)) == model
