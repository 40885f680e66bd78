"""Queues that delete themselves, over the wire in virtual time: no seed breaks I42, and planted bugs are caught."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.idle import run


@pytest.mark.parametrize("first", some(firsts("idle", 10)))
def test_no_seed_deletes_a_queue_that_is_used_or_keeps_one_that_is_not(first: int) -> None:
    for seed in some(range(first, first + 10)):
        assert run(seed) == [], f"seed {seed}"
