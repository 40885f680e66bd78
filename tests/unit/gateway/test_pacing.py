"""What one connection may cost at a time: how its work is cut into slices, and in which order a lost one ends."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from duobus.gateway.amqp.deliveries import DeliveryRun
from duobus.gateway.amqp.pacing import CLOSING, RELEASED_MAX, ending, work_off
from duobus.gateway.waits import REST_S


class Clock:
    """The calls that a loop is asked for, each made by hand."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def call_later(self, after_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.later.append((after_s, call, arguments))

    def turn(self) -> float:
        """Make the one call that is waited for, and return how long it waited."""
        ((after_s, call, arguments),) = self.later
        self.later.clear()
        call(*arguments)
        return after_s


@pytest.mark.parametrize(
    ("costs", "slices"),
    [
        ([1] * (RELEASED_MAX - 1), [RELEASED_MAX - 1]),
        ([1] * (2 * RELEASED_MAX + 3), [RELEASED_MAX, RELEASED_MAX, 3]),
        ([RELEASED_MAX - 1, RELEASED_MAX, 1], [2, 1]),
    ],
)
def test_work_is_done_in_slices_with_a_rest_between(costs: list[int], slices: list[int]) -> None:
    clock: Any = Clock()
    done: list[int] = []
    steps = (done.append(cost) or cost for cost in costs)  # type: ignore[func-returns-value]
    work_off(clock, steps)
    seen = [len(done)]
    while clock.later:
        before = len(done)
        assert clock.turn() == REST_S
        if len(done) > before:
            seen.append(len(done) - before)
    assert seen == slices


def test_a_lost_connection_closes_its_links_and_then_gives_back_in_parts_what_they_delivered() -> None:
    order: list[Any] = []

    def unlock(source_no: int, prefix: bytes, ranges: list[tuple[int, int]], *, counted: bool) -> None:
        order.append((source_no, prefix, ranges, counted))

    links: list[Any] = [SimpleNamespace(close=lambda name=name: order.append(name)) for name in ("one", "two")]
    handle: Any = SimpleNamespace(unlock=unlock)
    link = SimpleNamespace(queue=SimpleNamespace(source_no=7))
    run = DeliveryRun(link, handle, b"prefix..", 0, 100, 300)
    costs = list(ending(links, [(run, [(100, 2 * RELEASED_MAX + 1), (290, 1)])]))
    assert order == [
        "one",
        "two",
        (7, b"prefix..", [(100, RELEASED_MAX)], True),
        (7, b"prefix..", [(100 + RELEASED_MAX, RELEASED_MAX)], True),
        (7, b"prefix..", [(100 + 2 * RELEASED_MAX, 1)], True),
        (7, b"prefix..", [(290, 1)], True),
    ]
    assert costs == [CLOSING, CLOSING, RELEASED_MAX, RELEASED_MAX, 1, 1]
