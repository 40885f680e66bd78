"""The life of entities over the wire in virtual time: statuses, the quota, deletion under traffic; planted bugs."""

from __future__ import annotations

import pytest

from simulation.scenarios.entity_life import run


@pytest.mark.parametrize("first", range(1, 41, 10))
def test_no_seed_breaks_what_the_life_of_an_entity_promises(first: int) -> None:
    """I33."""
    for seed in range(first, first + 10):
        assert run(seed) == [], f"seed {seed}"
