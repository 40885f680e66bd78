"""Topics over the wire in virtual time: no seed breaks the fan-out or forwards twice, and planted bugs are caught."""

from __future__ import annotations

import pytest

from duobus.testing.loop import UnhandledFailure
from duobus.testing.planted_forwarding import FORWARDING_BUGS
from duobus.testing.planted_topics import BUGS
from duobus.testing.sim_wire_topics import run

CATCHING_SEEDS = {
    "action-without-its-copy": 1,
    "copy-left-out": 1,
    "forwarded-without-record": 1,
    "ledger-lost-at-restart": 1,
    "subscription-passed-over": 1,
    "tombstone-for-one-copy": 7,
}


@pytest.mark.parametrize("first", range(1, 31, 10))
def test_no_seed_of_a_topic_over_the_wire_breaks_the_fan_out(first: int) -> None:
    for seed in range(first, first + 10):
        assert run(seed) == [], f"seed {seed}"


@pytest.mark.parametrize("bug", sorted(CATCHING_SEEDS))
def test_the_recorded_seed_over_the_wire_catches_this_planted_bug(bug: str) -> None:
    with {**BUGS, **FORWARDING_BUGS}[bug]():
        try:
            problems = run(CATCHING_SEEDS[bug])
        except UnhandledFailure as failure:
            # The simulated store was asked for what its interface forbids, which is a finding as well.
            problems = [str(failure)]
    assert problems != []
