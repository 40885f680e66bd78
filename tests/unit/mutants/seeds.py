"""Seeds of simulations, one for each test, for mutants only: the suite runs two hundred in ten tests.

No pattern of pytest's finds this file; ``make mutants`` names it.
"""

from __future__ import annotations

import pytest

from simulation.campaign import caught

#: So many of each world: what a mutant survives that touches everything takes that long.
SEEDS = {"queues": 12, "topics": 12, "wire-topics": 4, "life": 2, "spread": 2}


@pytest.mark.parametrize(
    ("world", "seed"), [(name, seed) for name, most in SEEDS.items() for seed in range(1, most + 1)]
)
def test_no_seed_breaks_an_invariant(world: str, seed: int) -> None:
    assert caught(world, None, seed) is None
