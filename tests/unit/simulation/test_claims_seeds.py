"""Claims on failing stores in virtual time: each message is with one claim, none is lost, none comes back."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.claims import run


@pytest.mark.parametrize("first", some(firsts("claims", 10)))
def test_no_seed_loses_or_doubles_what_streams_claim(first: int) -> None:
    for seed in some(range(first, first + 10)):
        assert run(seed) == [], f"seed {seed}"


def test_a_fragment_that_comes_back_while_a_claim_is_told_counts_as_away() -> None:
    """Otherwise a driver that was started again takes what lies in it for gone."""
    assert run(392) == []
