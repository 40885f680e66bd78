"""How many seeds of each world the simulations run: all of them, or the first DUOBUS_SEEDS of the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

#: The seeds that the tests of a world run to see that nothing is wrong. A recorded seed of a planted bug that is one of
#: them needs no other run without its bug.
CLEAN: Final[Mapping[str, Sequence[int]]] = {
    "catalogs": range(1, 41),
    "claims": range(1, 41),
    "clocks": range(1, 41),
    "fair": (2, 3, 5),
    "idle": range(1, 41),
    "journals": range(1, 161),
    "life": range(1, 21),
    "logs": range(1, 61),
    "moves": range(1, 19),
    "owners": range(1, 31),
    "queues": range(1, 41),
    "server-moves": range(1, 13),
    "topics": range(1, 21),
    "wire-topics": range(1, 21),
}


def firsts(world: str, step: int) -> range:
    """Of the clean seeds of a world the first ones of tests that run ``step`` of them each."""
    seeds = CLEAN[world]
    return range(seeds[0], seeds[-1] + 1, step)


def needs_clean_run(world: str, seed: int) -> bool:
    """Whether no other test runs this seed without a bug."""
    return "DUOBUS_SEEDS" in os.environ or seed not in CLEAN.get(world, ())


def some(firsts: range) -> range:
    """Of these seeds those that the environment allows; where a test runs a step of them, the firsts of such tests."""
    most = os.environ.get("DUOBUS_SEEDS")
    if most is None:
        return firsts
    return firsts[: max(1, int(most) // firsts.step)]


def one_each(cases: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """All cases, or the first one of each world where the environment allows only so many seeds."""
    found = list(cases)
    if "DUOBUS_SEEDS" not in os.environ:
        return found
    firsts = dict(reversed(found))
    return [(world, case) for world, case in found if firsts[world] == case]
