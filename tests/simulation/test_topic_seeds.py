"""Topics on failing stores in virtual time: no seed breaks I24, and planted bugs are caught."""

from __future__ import annotations

import pytest

from duobus.testing.planted_topics import BUGS
from duobus.testing.sim_topics import run

CATCHING_SEEDS = {
    "action-without-its-copy": 1,
    "copy-left-out": 9,
    "subscription-passed-over": 3,
    "tombstone-for-one-copy": 2,
}


@pytest.mark.parametrize("first", range(1, 41, 10))
def test_no_seed_of_a_topic_breaks_the_fan_out(first: int) -> None:
    for seed in range(first, first + 10):
        assert run(seed) == [], f"seed {seed}"


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_the_recorded_seed_of_a_topic_catches_this_planted_bug(bug: str) -> None:
    with BUGS[bug]():
        assert run(CATCHING_SEEDS[bug]) != []
