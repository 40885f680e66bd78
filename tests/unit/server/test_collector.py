"""How much the collector of a server looks at in one piece, while nobody is served."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from duobus.server.process import GC_THRESHOLDS

#: A tenth of the objects that a server makes between two collections will do.
SCALE = 10
#: Objects: what the thresholds come to, and some that are made meanwhile.
LOOKED_AT_MAX = 70_000 // SCALE


@pytest.fixture
def looked_at() -> Iterator[list[int]]:
    """The number of objects that each collection looks at."""
    numbers: list[int] = []

    def count(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            numbers.append(sum(len(gc.get_objects(age)) for age in range(about["generation"] + 1)))

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLDS[0] // SCALE, *GC_THRESHOLDS[1:])
    gc.callbacks.append(count)
    yield numbers
    gc.callbacks.remove(count)
    gc.set_threshold(*before)
    # What was frozen before is out of the collector's sight again; what the test kept is no more.
    gc.collect()


def test_a_server_that_is_given_much_to_keep_never_stops_to_look_at_all_of_it(looked_at: list[int]) -> None:
    kept: list[list[int]] = [[number] for number in range(300_000)]

    assert 0 < max(looked_at) < LOOKED_AT_MAX < len(kept)
