"""Queues that delete themselves, over the wire in virtual time: no seed breaks I42, and planted bugs are caught."""

from __future__ import annotations

import pytest

from duobus.testing.planted_idle import BUGS
from duobus.testing.sim_idle import run

CATCHING_SEEDS = {
    "idle-since-it-was-made": 1,
    "never-looked-again": 1,
    "peek-is-no-use": 5,
    "receivers-not-seen": 1,
    "rows-left-behind": 1,
}


@pytest.mark.parametrize("first", range(1, 41, 10))
def test_no_seed_deletes_a_queue_that_is_used_or_keeps_one_that_is_not(first: int) -> None:
    for seed in range(first, first + 10):
        assert run(seed) == [], f"seed {seed}"


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_the_recorded_seed_of_an_idle_queue_catches_this_planted_bug(bug: str) -> None:
    with BUGS[bug]():
        assert run(CATCHING_SEEDS[bug]) != []
