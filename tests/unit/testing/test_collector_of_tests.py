"""Collecting what a test leaves doesn't look at what all tests share."""

from __future__ import annotations

import gc
import sys


def test_modules_and_tests_are_out_of_the_collectors_sight() -> None:
    seen = {id(found) for found in gc.get_objects()}
    assert id(sys.modules[__name__].__dict__) not in seen
    assert gc.get_freeze_count() > len(seen)


def test_what_a_test_makes_is_collected_as_ever() -> None:
    class Leaves:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            gone.append(True)

    gone: list[bool] = []
    Leaves()
    gc.collect()
    assert gone == [True]
