"""Starts with a wrong clock in virtual time: no seed breaks I15, I22 or I58, and planted bugs are caught."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.clocks import run


@pytest.mark.parametrize("first", some(firsts("clocks", 10)))
def test_no_seed_expires_anything_early_or_moves_time(first: int) -> None:
    for seed in some(range(first, first + 10)):
        assert run(seed) == [], f"seed {seed}"
