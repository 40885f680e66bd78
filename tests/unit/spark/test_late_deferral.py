"""A request to defer that got no answer, and that the broker does later all the same."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from claim_standin import LOCK_MS, QUEUE, StandIn, StandInAccess, Steps

from duobus.spark.claims.engine import ClaimEngine
from duobus.spark.claims.lock_handles import LockHandle
from duobus.spark.claims.runner import ClaimRunner
from duobus.spark.claims.sdk_access import SdkAccess
from duobus.spark.connection import Place
from duobus.spark.offsets import Claim, ClaimOffset, Key
from duobus.spark.source import partition_reader as tasks
from kits.hand_time import HandTime


class Interrupted(StandInAccess):
    """Its requests get no answer, and are done ``late``, or never."""

    late = True

    def defer(self, claim: Claim) -> tuple[Claim, int | None]:
        self.wanted = list(claim[QUEUE])
        return {}, None

    def may_still_defer(self) -> bool:
        return True

    def pause(self) -> None:
        super().pause()
        if self.late:
            for number in self.wanted:
                self.queue.defer(number, self.owner)


def begun(access: StandInAccess) -> tuple[ClaimRunner, Any, Any]:
    claim_runner = ClaimRunner(ClaimEngine("here", ("orders",), counted=0), access)
    start = claim_runner.initial()
    end, _ = claim_runner.latest(start, 4, 0)
    return claim_runner, start, json.loads(json.dumps(end))


def test_a_deferral_that_comes_after_its_request_broke_is_part_of_the_batch() -> None:
    """Otherwise the batch is read without them, and whoever settles it after a restart removes them unread."""
    queue = StandIn(4)
    claim_runner, start, end = begun(Interrupted(queue, "first", Steps()))
    assert set(claim_runner.plan(start, end).claim[QUEUE]) == {1, 2, 3, 4}


def test_one_that_never_comes_is_waited_for_as_long_as_the_locks_last() -> None:
    queue = StandIn(4)
    access = Interrupted(queue, "first", Steps())
    access.late = False
    claim_runner, start, end = begun(access)
    assert claim_runner.plan(start, end).dropped == 4
    assert queue.now >= LOCK_MS
    # Nothing is settled by mistake, and the next batch has them.
    after = ClaimRunner(ClaimEngine("here", ("orders",), counted=0), StandInAccess(queue, "second", Steps()))
    later, count = after.latest(end, 4, 0)
    assert (count, queue.left()) == (4, 4)
    assert set(ClaimOffset.from_json(later).claim[QUEUE]) == {1, 2, 3, 4}


class Silent:
    """A receiver whose requests to settle fail as the SDK's do when nothing is answered."""

    def _settle_message_via_mgmt_link(self, how: str, tokens: list[Any]) -> None:
        raise TimeoutError(f"{how} of {len(tokens)}")

    def close(self) -> None:
        pass


def test_the_sdk_access_tells_that_it_was_interrupted() -> None:
    clock = HandTime()
    access = SdkAccess(Place("connectionString", "x"), ("orders",), clock=clock)
    key = Key("orders")
    until_ms = clock.now_ms() + 60_000
    access._held = {key: {1: LockHandle(1, 0, "token", until_ms, 0, 1)}}
    access._receivers = {key: Silent()}
    assert not access.may_still_defer()
    assert access.defer({key: {1: 0}}) == ({}, None)
    assert access.may_still_defer()
    assert access.defer({}) == ({}, None)
    assert not access.may_still_defer()


def test_a_task_that_was_stopped_for_long_looks_again_before_it_tells_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandTime()
    # Stopped for a minute right after the first look.
    monkeypatch.setattr(tasks, "pause", lambda _: clock.advance(60_000))
    there = SimpleNamespace(sequence_number=5, state=1, delivery_count=0)
    monkeypatch.setattr(tasks, "_with_receiver", lambda *_: [there])
    reading: Any = SimpleNamespace(fails_on_loss=True)
    assert tasks._waited_for(reading, Key("orders"), [5], clock) == {5: there}
