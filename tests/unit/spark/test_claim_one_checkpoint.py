"""Two processes with one checkpoint, on the stand-in: whoever of them goes on, nothing is settled that was not read."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from claim_standin import LOCK_MS, QUEUE, StandIn, StandInAccess, Steps

from duobus.spark.claims.engine import ClaimEngine
from duobus.spark.claims.runner import PAUSES_MAX, ClaimRunner
from duobus.spark.offsets import ClaimOffset


def process(queue: StandIn, owner: str) -> tuple[ClaimRunner, StandInAccess]:
    access = StandInAccess(queue, owner, Steps())
    return ClaimRunner(ClaimEngine("here", ("orders",)), access), access


def claimed(claim_runner: ClaimRunner) -> tuple[Any, Any]:
    """Claim a batch that Spark writes down: its start and its end."""
    start = claim_runner.initial()
    end, _ = claim_runner.latest(start, 4, 0)
    return start, json.loads(json.dumps(end))


def test_one_that_replays_waits_for_what_the_other_is_about_to_defer(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise it reads and commits two of four, and a third process removes all four as settled."""
    queue = StandIn(4)
    first, _ = process(queue, "first")
    start, end = claimed(first)
    for number in (1, 2):
        assert queue.defer(number, "first")

    second, access = process(queue, "second")
    pause = access.pause

    def rest_is_deferred() -> None:
        pause()
        for number in (3, 4):
            queue.defer(number, "first")

    access.pause = rest_is_deferred  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, logger="duobus.spark"):
        plan = second.plan(start, end)
    assert set(plan.claim[QUEUE]) == {1, 2, 3, 4}
    assert "use this checkpoint too" in caplog.text


def test_one_that_never_defers_the_rest_is_waited_for_until_its_locks_end() -> None:
    queue = StandIn(4)
    first, _ = process(queue, "first")
    start, end = claimed(first)
    for number in (1, 2):
        assert queue.defer(number, "first")
    second, _ = process(queue, "second")
    assert set(second.plan(start, end).claim[QUEUE]) == {1, 2}
    assert queue.now >= LOCK_MS

    # It wakes up: its locks are gone, so it changes nothing, and a third settles what was read and no more.
    first.plan(start, end)
    assert [number for number, seen in queue.seen().items() if seen.is_deferred] == [1, 2]
    third, _ = process(queue, "third")
    later, count = third.latest(end, 4, 0)
    assert (count, set(queue.seen())) == (2, {3, 4})
    assert set(ClaimOffset.from_json(later).claim[QUEUE]) == {3, 4}


def test_one_whose_connection_is_gone_is_not_waited_for() -> None:
    queue = StandIn(4)
    first, _ = process(queue, "first")
    start, end = claimed(first)
    assert queue.defer(1, "first")
    queue.connection_lost("first")
    second, _ = process(queue, "second")
    assert set(second.plan(start, end).claim[QUEUE]) == {1}
    assert queue.now == 0


def test_a_checkpoint_of_an_earlier_release_names_no_end_of_locks_and_is_not_waited_for() -> None:
    queue = StandIn(4)
    first, _ = process(queue, "first")
    start, end = claimed(first)
    del end["u"]
    second, _ = process(queue, "second")
    assert second.plan(start, end).dropped == 4
    assert queue.now == 0


def test_the_process_that_holds_the_locks_itself_does_not_wait_for_them() -> None:
    queue = StandIn(4)
    first, access = process(queue, "first")
    start, end = claimed(first)
    access.defer = lambda claim: ({}, None)  # type: ignore[method-assign]
    assert first.plan(start, end).dropped == 4
    assert queue.now == 0


def test_a_checkpoint_that_names_a_time_beyond_any_lock_is_not_waited_for_for_ever() -> None:
    queue = StandIn(4)
    first, _ = process(queue, "first")
    start, end = claimed(first)
    end["u"] = 1 << 60
    second, access = process(queue, "second")
    waits = [0]

    def pause() -> None:
        waits[0] += 1

    access.pause = pause  # type: ignore[method-assign]
    assert second.plan(start, end).dropped == 4
    assert waits[0] == PAUSES_MAX
