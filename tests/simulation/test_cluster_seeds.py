"""Servers that share a catalog, killed, paused, cut off and with jumping clocks: one owner of each store (I55, I58)."""

from __future__ import annotations

import pytest

from duobus.testing.sim_cluster import BUGS, run

#: A seed that finds each planted bug.
CATCHING_SEEDS = {
    "stale-owner-writes": 2,
    "lease-judged-by-the-local-clock": 1,
    "epoch-not-checked": 1,
    "lease-counted-from-the-answer": 82,
}


@pytest.mark.parametrize("seed", range(1, 31))
def test_no_store_has_two_owners_whatever_befalls_the_servers(seed: int) -> None:
    world = run(seed)
    assert world.violations == []
    # Owners have changed, or the run has tried nothing.
    assert world.moved > 3


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_the_recorded_seed_catches_this_mistake_of_owners(bug: str) -> None:
    with BUGS[bug]():
        assert run(CATCHING_SEEDS[bug]).violations
