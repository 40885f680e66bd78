"""The life of entities over the wire in virtual time: statuses, the quota, deletion under traffic; planted bugs."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.entity_life import run


@pytest.mark.parametrize("first", some(firsts("life", 10)))
def test_no_seed_breaks_what_the_life_of_an_entity_promises(first: int) -> None:
    """I33."""
    for seed in some(range(first, first + 10)):
        assert run(seed) == [], f"seed {seed}"


@pytest.mark.parametrize("seed", [581, 817])
def test_what_a_client_holds_of_an_entity_that_is_gone_is_not_laid_to_its_namesake(seed: int) -> None:
    """The client had the messages, waited 5 s for an answer that a power cut took, and looked at them after that."""
    assert run(seed) == []
