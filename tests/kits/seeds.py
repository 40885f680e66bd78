"""How many seeds of each world the simulations run: all of them, or the first DUOBUS_SEEDS of the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


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
