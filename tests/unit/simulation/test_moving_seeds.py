"""Fragments that move all the time, under every fault of the simulation; planted bugs (I1, I7, I9, I31, I56)."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.fragment_moves import run


@pytest.mark.parametrize("first", some(firsts("moves", 6)))
def test_no_seed_shows_more_of_a_move_than_a_short_outage(first: int) -> None:
    moves = 0
    for seed in range(first, first + 6):
        wrong, done = run(seed)
        assert wrong == [], f"seed {seed}"
        moves += done
    assert moves > 10


@pytest.mark.parametrize("seed", [142, 184, 887])
def test_what_a_seed_of_moves_has_found_stays_mended(seed: int) -> None:
    assert run(seed)[0] == []
