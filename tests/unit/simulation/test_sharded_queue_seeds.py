"""Queues that are spread over the stores of several servers, which are killed, stopped, drained and cut off."""

from __future__ import annotations

import pytest

from simulation.scenarios.servers import SERVERS
from simulation.scenarios.sharding import run

#: Of those in which nothing must be wrong; CI has no time for all of them.
CLEAN_SEEDS = range(100, 112)


@pytest.mark.slow
@pytest.mark.parametrize("seed", CLEAN_SEEDS)
def test_a_spread_queue_loses_nothing_and_shares_no_lock_whatever_befalls_the_servers(seed: int) -> None:
    outcome = run(seed)
    assert outcome.wrong == []
    assert outcome.events > 100
    # Owners have changed, or the run has tried nothing.
    assert outcome.moved > SERVERS


def test_the_same_seed_of_a_spread_queue_gives_the_same_run() -> None:
    assert run(3).digest == run(3).digest
