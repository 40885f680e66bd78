"""How a topic cuts a long row of messages into runs."""

from __future__ import annotations

import pytest

from duobus.broker.entities.topic import handles_of


@pytest.mark.parametrize(
    ("number", "step", "lengths"),
    [(0, 8, []), (7, 8, [7]), (10, 8, [10]), (11, 8, [8, 3]), (18, 8, [8, 10]), (19, 8, [8, 8, 3]), (3, 1, [1, 1, 1])],
)
def test_a_small_rest_goes_with_the_last_part_and_nothing_is_left_out(
    number: int, step: int, lengths: list[int]
) -> None:
    every = list(range(number))
    parts = list(handles_of(every, step))
    assert [len(part) for part in parts] == lengths
    assert [index for part in parts for index in part] == every
