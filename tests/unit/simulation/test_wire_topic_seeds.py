"""Topics over the wire in virtual time: no seed breaks the fan-out or forwards twice, and planted bugs are caught."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.wire_topics import run


@pytest.mark.parametrize("first", some(firsts("wire-topics", 10)))
def test_no_seed_of_a_topic_over_the_wire_breaks_the_fan_out(first: int) -> None:
    for seed in some(range(first, first + 10)):
        assert run(seed) == [], f"seed {seed}"
