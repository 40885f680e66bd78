"""Catalogs that are lost or older, another's, and stores that are older than they were, in virtual time."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.catalogs import run


@pytest.mark.parametrize("first", some(firsts("catalogs", 20)))
def test_no_message_comes_out_of_another_queue_whatever_becomes_of_the_catalog(first: int) -> None:
    for seed in some(range(first, first + 20)):
        assert run(seed) == [], f"seed {seed}"
