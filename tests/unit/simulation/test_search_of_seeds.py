"""Which seeds a search for planted bugs tries, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from simulation import campaign
from simulation.campaign import CampaignWorld, Found, quickest_first, search

#: Seconds that the run of a seed takes; the seconds of the second block are shorter than all of the first.
SECONDS = {**dict.fromkeys(range(1, 51), 9.0), 2: 1.0, 3: 4.0, 4: 2.0, 51: 0.5}
#: A seed that finds something without a planted bug proves nothing with it.
UNCLEAN = 2
CATCHES = {3, 51}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> str:
    spent = [0.0]
    planted: list[str] = []

    def run(seed: int) -> Found:
        spent[0] += SECONDS.get(seed, 9.0)
        return Found(["I1: lost"] if seed == UNCLEAN or (planted and seed in CATCHES) else [], 0)

    @contextmanager
    def bug() -> Iterator[None]:
        planted.append("bug")
        yield
        planted.clear()

    monkeypatch.setitem(campaign.WORLDS, "searched", CampaignWorld("", run, {"bug": bug}))  # type: ignore[arg-type]
    monkeypatch.setattr(campaign, "time", SimpleNamespace(process_time=lambda: spent[0]))
    campaign._clean_seeds.cache_clear()
    return "searched"


def test_of_fifty_seeds_in_a_row_the_quickest_clean_ones_come_first(world: str) -> None:
    order = list(quickest_first(world, 51))
    assert order[:3] == [4, 3, 1]
    assert order[-1] == 51
    assert sorted(order) == [seed for seed in range(1, 52) if seed != UNCLEAN]


def test_a_search_ends_with_the_first_of_them_that_catches_the_bug(world: str) -> None:
    assert search(world, "bug", quickest_first(world, 300)) == (3, "I1: lost")
    assert search(world, "bug", [4, 5]) is None
