"""Servers that share a catalog, killed, paused, cut off and with jumping clocks: one owner of each store (I55, I58)."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.leases import run


@pytest.mark.parametrize("seed", some(firsts("owners", 1)))
def test_no_store_has_two_owners_whatever_befalls_the_servers(seed: int) -> None:
    world = run(seed)
    assert world.violations == []
    # Owners have changed, or the run has tried nothing.
    assert world.moved > 3


@pytest.mark.parametrize("seed", [82, 150, 161])
def test_an_opening_that_outlives_its_lease_serves_nothing(seed: int) -> None:
    assert run(seed).violations == []
