"""The life of entities over the wire in virtual time: statuses, the quota, deletion under traffic; planted bugs."""

from __future__ import annotations

import pytest

from duobus.testing.planted_life import BUGS
from duobus.testing.sim_life import run

CATCHING_SEEDS = {
    "deletion-not-told": 7,
    "namesake-inherits": 10,
    "quota-ignored": 1,
    "quota-not-counted-back": 1,
    "status-ignored-on-live-links": 1,
}


@pytest.mark.parametrize("first", range(1, 41, 10))
def test_no_seed_breaks_what_the_life_of_an_entity_promises(first: int) -> None:
    for seed in range(first, first + 10):
        assert run(seed) == [], f"seed {seed}"


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_the_recorded_seed_of_a_life_catches_this_planted_bug(bug: str) -> None:
    with BUGS[bug]():
        assert run(CATCHING_SEEDS[bug]) != []
