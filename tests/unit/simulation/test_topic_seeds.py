"""Topics on failing stores in virtual time: no seed breaks I24, and planted bugs are caught."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.topics import run


@pytest.mark.parametrize("first", some(firsts("topics", 10)))
def test_no_seed_of_a_topic_breaks_the_fan_out(first: int) -> None:
    for seed in some(range(first, first + 10)):
        assert run(seed) == [], f"seed {seed}"
