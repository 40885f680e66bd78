"""A request to defer that got no answer, and that the broker does later all the same."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from claim_standin import LOCK_MS, QUEUE, StandIn, StandInAccess, Steps

from duobus.spark.claims.engine import ClaimEngine, Seen
from duobus.spark.claims.lock_handles import LockHandle
from duobus.spark.claims.runner import NAMING_BATCH_MAX, ClaimRunner
from duobus.spark.claims.sdk_access import SdkAccess
from duobus.spark.connection import Place
from duobus.spark.errors import DataLoss
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


class Willing:
    """A receiver whose requests to settle succeed."""

    def _settle_message_via_mgmt_link(self, how: str, tokens: list[Any]) -> None:
        assert (how, len(tokens)) == ("defered", 3)

    def close(self) -> None:
        pass


def test_what_the_broker_says_it_has_deferred_is_looked_over_before_tasks_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lock that ended all the same, or a message that is gone, would fail the task and with it the query."""
    clock, key = HandTime(), Key("orders")
    access = SdkAccess(Place("connectionString", "Endpoint=sb://localhost"), ("orders",), clock=clock)
    until_ms = clock.now_ms() + 60_000
    access._held = {key: {number: LockHandle(number, 0, "token", until_ms, 0, 1) for number in (1, 2, 3)}}
    access._receivers = {key: Willing()}
    monkeypatch.setattr(access, "seen", lambda _: {key: {1: Seen(True, 0), 2: Seen(False, 1)}})
    monkeypatch.setattr(access, "_learned", lambda _: 0)
    assert access.defer({key: dict.fromkeys((1, 2, 3), 0)}) == ({key: {1: 0}}, 0)


@pytest.mark.parametrize(("is_only", "most"), [(False, NAMING_BATCH_MAX), (True, 2_000)])
def test_the_batch_by_which_a_stream_gets_its_name_is_small_unless_it_is_the_only_one(is_only: bool, most: int) -> None:
    queue = StandIn(2_000, claims=True)
    engine = ClaimEngine("here", ("orders",), counted=0, new_name=lambda: "name")
    claim_runner = ClaimRunner(engine, StandInAccess(queue, "first", Steps()))
    end, count = claim_runner.latest(claim_runner.initial(), 10_000, 0, is_only=is_only)
    assert count == most
    if not is_only:
        claim_runner.plan(claim_runner.initial(), end)
        assert claim_runner.latest(end, 10_000, 0)[1] == 1_500


def test_an_error_says_which_messages_are_still_there_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandTime()
    monkeypatch.setattr(tasks, "pause", lambda _: clock.advance(60_000))
    active = SimpleNamespace(sequence_number=5, state=SimpleNamespace(name="ACTIVE"), delivery_count=1)
    monkeypatch.setattr(tasks, "_with_receiver", lambda *_: [active])
    reading: Any = SimpleNamespace(fails_on_loss=True)
    with pytest.raises(DataLoss) as told:
        tasks._waited_for(reading, Key("orders"), [5, 6], clock)
    assert "(5 active, delivered 1 times; 6 gone)" in str(told.value)
    assert "1 of them are in the queue and lost nothing: start the query again" in str(told.value)


def test_a_task_that_was_stopped_for_long_looks_again_before_it_tells_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandTime()
    # Stopped for a minute right after the first look.
    monkeypatch.setattr(tasks, "pause", lambda _: clock.advance(60_000))
    there = SimpleNamespace(sequence_number=5, state=1, delivery_count=0)
    monkeypatch.setattr(tasks, "_with_receiver", lambda *_: [there])
    reading: Any = SimpleNamespace(fails_on_loss=True)
    assert tasks._waited_for(reading, Key("orders"), [5], clock) == {5: there}
