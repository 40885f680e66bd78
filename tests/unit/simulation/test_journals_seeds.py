"""Stores with a journal on a disk that tears writes and loses power: nothing answered is lost or comes back."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.journals import replayed_twice, run


@pytest.mark.parametrize("first", some(firsts("journals", 40)))
def test_what_was_answered_is_there_whenever_the_power_goes(first: int) -> None:
    for seed in some(range(first, first + 40)):
        assert run(seed) == [], f"seed {seed}"


def test_the_same_seed_finds_the_same() -> None:
    with replayed_twice():
        assert run(2) == run(2) != []


@pytest.mark.parametrize("seed", [102, 263])
def test_a_sector_with_several_commits_that_is_lost_at_the_end_of_the_journal_passes_for_a_torn_tail(seed: int) -> None:
    assert run(seed) == []
