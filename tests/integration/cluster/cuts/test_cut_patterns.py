"""Which ends see each other in each pattern, of many seeds."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kit_patterns import PATTERNS, Ends, cut_network

ENDS = Ends(("s0", "s1", "s2"), ("catalog", "other"))
SEEDS = range(50)


def drawn(name: str, seed: int) -> set[tuple[str, str]]:
    ways = PATTERNS[name](ENDS, random.Random(seed))
    assert len(set(ways)) == len(ways)
    assert all(one != other for one, other in ways)
    return set(ways)


def seen_from(end: str, ways: set[tuple[str, str]]) -> set[str]:
    """The ends with which this one can talk, which takes both directions."""
    return {other for other in ENDS.all if other == end or not {(end, other), (other, end)} & ways}


def test_of_a_whole_network_nothing_is_cut() -> None:
    assert drawn("whole", 1) == set()


@pytest.mark.parametrize("name", ["halves", "flapping"])
def test_halves_are_two_groups_of_which_each_sees_itself_alone(name: str) -> None:
    splits = set()
    for seed in SEEDS:
        ways = drawn(name, seed)
        groups = {frozenset(seen_from(end, ways)) for end in ENDS.all}
        assert len(groups) == 2
        assert sum(map(len, groups)) == len(ENDS.all)
        splits.add(min(groups, key=len))
    # Each server alone, and with each of the databases.
    assert len(splits) == 9
    assert {frozenset({server, "other"}) for server in ENDS.servers} < splits


def test_of_a_bridge_one_server_sees_all_and_the_halves_do_not_see_each_other() -> None:
    for seed in SEEDS:
        ways = drawn("bridge", seed)
        middle = [end for end in ENDS.all if seen_from(end, ways) == set(ENDS.all)]
        groups = {frozenset(seen_from(end, ways) - set(middle)) for end in ENDS.all if end not in middle}
        assert len(middle) == 1
        assert middle[0] in ENDS.servers
        assert sorted(map(len, groups)) == [2, 2]
        assert all(group & set(ENDS.databases) for group in groups)


def test_what_is_cut_one_way_is_open_the_other_way() -> None:
    for seed in SEEDS:
        ways = drawn("one_way", seed)
        assert ways
        assert not ways & {(other, one) for one, other in ways}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_seed_draws_the_same_again(name: str) -> None:
    assert drawn(name, 7) == drawn(name, 7)


class _Wires:
    """A network that counts its cuts."""

    def __init__(self) -> None:
        self.blocked: list[Any] = []
        self.is_whole = True

    def block(self, ways: Any) -> None:
        self.blocked.append(ways)
        self.is_whole = False

    def heal(self) -> None:
        self.is_whole = True


@pytest.mark.parametrize("name", PATTERNS)
def test_a_network_is_whole_when_its_pattern_is_over(name: str) -> None:
    wires: Any = _Wires()
    with cut_network(wires, name, ENDS, random.Random(1)) as ways:
        assert bool(ways) == (name != "whole")
    assert wires.blocked[0] == ways
    assert wires.is_whole
