"""Queues that are spread over the stores of several servers, which are killed, stopped, drained and cut off."""

from __future__ import annotations

import pytest

from simulation.scenarios.servers import SERVERS
from simulation.scenarios.sharding import run

#: Of those in which nothing must be wrong; CI has no time for all of them.
CLEAN_SEEDS = range(100, 112, 6)


@pytest.mark.slow
@pytest.mark.parametrize("first", CLEAN_SEEDS)
def test_a_spread_queue_loses_nothing_and_shares_no_lock_whatever_befalls_the_servers(first: int) -> None:
    moved = 0
    for seed in range(first, first + 6):
        outcome = run(seed)
        assert outcome.wrong == [], f"seed {seed}"
        assert outcome.events > 100
        moved += outcome.moved
    # Owners have changed, or the runs have tried nothing.
    assert moved > 6 * SERVERS


def test_the_same_seed_of_a_spread_queue_gives_the_same_run() -> None:
    assert run(3).digest == run(3).digest
