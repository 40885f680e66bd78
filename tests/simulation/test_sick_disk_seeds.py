"""One disk that is slow or hangs, for as long as the clients are at work; planted bugs (PE4, I9, I27, I29)."""

from __future__ import annotations

import pytest

from duobus.testing.sim_sick_disk import BUGS, run

CATCHING_SEEDS = {
    "slow-store-waited-for": 1,
    "late-store-chosen": 2,
    "what-waits-stays": 2,
    "credit-stays-with-late-store": 96,
}
#: What a bug is seen as, unless it is a message without a key that is not stored soon elsewhere.
SEEN_AS = {"credit-stays-with-late-store": 29}


@pytest.mark.parametrize("first", range(1, 11, 5))
def test_no_seed_shows_a_keyless_message_that_waits_for_a_sick_disk(first: int) -> None:
    late = 0
    for seed in range(first, first + 5):
        wrong, times = run(seed)
        assert wrong == [], f"seed {seed}"
        late += times
    assert late > 10


@pytest.mark.parametrize("seed", [4])
def test_who_takes_for_good_is_served_by_the_well_stores_while_one_is_sick(seed: int) -> None:
    assert run(seed)[0] == []


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_the_recorded_seed_of_sick_disks_catches_this_planted_bug(bug: str) -> None:
    wrong, _ = run(CATCHING_SEEDS[bug], bug)
    assert SEEN_AS.get(bug, 27) in {found.invariant for found in wrong}
