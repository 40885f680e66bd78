"""One disk that is slow or hangs, for as long as the clients are at work; planted bugs (PE4, I9, I27, I29)."""

from __future__ import annotations

import pytest

from simulation.scenarios.slow_disk import run


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_no_seed_shows_a_keyless_message_that_waits_for_a_sick_disk(seed: int) -> None:
    wrong, late = run(seed)
    assert wrong == []
    # The disk was late at all, or the run has tried nothing.
    assert late > 0


@pytest.mark.parametrize("seed", [4])
def test_who_takes_for_good_is_served_by_the_well_stores_while_one_is_sick(seed: int) -> None:
    assert run(seed)[0] == []
