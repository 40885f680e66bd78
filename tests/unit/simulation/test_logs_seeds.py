"""Logs that are lost, cut, older or another's: nothing acknowledged is lost in silence, and planted bugs are caught."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.logs import mark_ignored, run


@pytest.mark.parametrize("first", some(firsts("logs", 30)))
def test_what_was_acknowledged_is_there_or_the_file_is_refused_whatever_becomes_of_its_log(first: int) -> None:
    for seed in some(range(first, first + 30)):
        assert run(seed) == [], f"seed {seed}"


def test_the_same_seed_finds_the_same() -> None:
    with mark_ignored():
        assert run(2) == run(2) != []


@pytest.mark.parametrize("seed", [29, 38, 45])
def test_a_loss_can_be_accepted_whatever_stands_in_the_place_of_the_log(seed: int) -> None:
    assert run(seed) == []


@pytest.mark.parametrize("seed", [56, 100, 401])
def test_a_log_that_is_cut_between_two_commits_takes_nothing_with_it(seed: int) -> None:
    assert run(seed) == []
