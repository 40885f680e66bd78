"""``schedule-message`` and ``cancel-scheduled-message`` in transactions (I7, I8, I34, I35)."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from kit_place import (
    Place,
    Reply,
    ask,
    coordinator,
    declare,
    discharge,
    hold,
    message,
    outcome,
    put,
    refusal,
    send,
    settle,
)

from duobus.amqp import ACCEPTED, DeliveryState, TransactionalState
from duobus.codec import Array, Symbol, Timestamp, build_message, scan
from kits.raw_client import RawClient, opened_reply

NOT_FOUND = "com.microsoft:message-not-found"
ROLLED_BACK = "amqp:transaction:rollback"


class Manager:
    """A client that works in transactions, with a pair of links to the management node of an entity."""

    def __init__(self, client: RawClient, entity: str = "q") -> None:
        self.client = client
        self.coordinator = coordinator(client)
        self._replies, self._requests = client.receiver(f"{entity}/$management"), client.sender(f"{entity}/$management")
        self._replies.grant(100)

    def declare(self) -> bytes:
        return declare(self.client, self.coordinator)

    def discharge(self, txn_id: bytes, *, fail: bool = False) -> DeliveryState | None:
        return discharge(self.client, self.coordinator, txn_id, fail=fail)

    def begin(self, operation: str, body: Any, txn_id: bytes) -> int:
        payload = build_message([uuid.uuid4().hex], {"operation": f"com.microsoft:{operation}"}, body_value=body)
        return put(self.client, self._requests, payload, TransactionalState(txn_id))

    def answer(self) -> Reply:
        ((_, payload),) = self.client.receive(self._replies, 1)
        found, body, _ = opened_reply(payload)
        return Reply(int(found["statusCode"]), str(found.get("errorCondition", "")), body, found)

    def ask(self, operation: str, body: Any, txn_id: bytes) -> Reply:
        number = self.begin(operation, body, txn_id)
        reply = self.answer()
        assert outcome(self.client, number) == TransactionalState(txn_id, ACCEPTED)
        return reply

    def schedule(self, txn_id: bytes, *bodies: bytes, after_s: float = 3_600, **more: Any) -> list[int]:
        reply = self.ask("schedule-message", entries(*bodies, after_s=after_s, **more), txn_id)
        assert (reply.status, reply.condition) == (200, "")
        given = reply.body["sequence-numbers"]
        assert isinstance(given, Array)
        return [int(number) for number in given.items]

    def cancel(self, txn_id: bytes, *numbers: int) -> Reply:
        return self.ask("cancel-scheduled-message", {"sequence-numbers": Array(int, list(numbers))}, txn_id)


def entries(*bodies: bytes, after_s: float = 3_600, **more: Any) -> dict[str, Any]:
    when = Timestamp(int((time.time() + after_s) * 1000))
    return {"messages": [{"message": message(body, scheduled_enqueue_time=when, **more)} for body in bodies]}


def states(place: Place, queue: str = "q") -> list[tuple[int, bytes, str]]:
    return [(found.sequence_number, found.body, found.state) for found in place.messages(queue)]


def test_numbers_are_told_at_once_and_the_messages_are_there_with_the_commit(place: Place) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        txn = manager.declare()
        first, second = manager.schedule(txn, b"a", b"b")
        send(client, b"between")
        assert [body for _, body, _ in states(place)] == [b"between"]
        assert manager.discharge(txn) == ACCEPTED
        between = states(place)[2][0]
        assert between > second
        assert states(place) == [
            (first, b"a", "scheduled"),
            (second, b"b", "scheduled"),
            (between, b"between", "active"),
        ]
        # The numbers are as good as any (10.6), and kept as those of the enqueueing afterwards (13.1).
        assert ask(client, "cancel-scheduled-message", {"sequence-numbers": Array(int, [first])}).status == 200
        settle(client, hold(client)[0], ACCEPTED)
        place.advance(3_700)
        (held,) = hold(client)
        marks = scan(held.payload).annotations or {}
        assert marks[Symbol("x-opt-enqueue-sequence-number")] == second
        assert held.number > between


def test_a_rollback_leaves_a_gap(place: Place) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        (before,) = manager.schedule(txn := manager.declare(), b"kept")
        assert manager.discharge(txn) == ACCEPTED
        gone = manager.schedule(txn := manager.declare(), b"gone", b"gone")
        assert manager.discharge(txn, fail=True) == ACCEPTED
        (after,) = manager.schedule(txn := manager.declare(), b"kept")
        assert manager.discharge(txn) == ACCEPTED
        assert gone == [before + 1, before + 2]
        assert after > gone[-1]
        assert [number for number, *_ in states(place)] == [before, after]
        reply = ask(client, "cancel-scheduled-message", {"sequence-numbers": Array(int, [gone[0]])})
        assert (reply.status, reply.condition) == (404, NOT_FOUND)


def test_a_time_that_passes_before_the_commit_makes_the_message_active_with_it(place: Place) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        txn = manager.declare()
        (number,) = manager.schedule(txn, b"late", after_s=30)
        send(client, b"before")
        place.advance(60)
        assert [body for _, body, _ in states(place)] == [b"before"]
        assert manager.discharge(txn) == ACCEPTED
        first, late = hold(client, 2)
        assert (first.payload.endswith(b"before"), late.payload.endswith(b"late")) == (True, True)
        marks = scan(late.payload).annotations or {}
        assert marks[Symbol("x-opt-enqueue-sequence-number")] == number


def test_what_does_not_wait_for_its_numbers_is_committed_under_them(place: Place) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        txn = manager.declare()
        manager.begin("schedule-message", entries(b"a", b"b"), txn)
        assert manager.discharge(txn) == ACCEPTED
        given = manager.answer().body["sequence-numbers"].items
        assert states(place) == [(given[0], b"a", "scheduled"), (given[1], b"b", "scheduled")]


def test_scheduling_and_settling_are_done_together(place: Place) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        send(client, b"input")
        (held,) = hold(client)
        for fail in (True, False):
            txn = manager.declare()
            manager.schedule(txn, b"output")
            state = TransactionalState(txn, ACCEPTED)
            client.session.disposition(True, held.delivery_id, held.delivery_id, state, False)
            assert outcome(client, held.delivery_id, role=False) == state
            assert manager.discharge(txn, fail=fail) == ACCEPTED
            expected = [(b"input", "active")] if fail else [(b"output", "scheduled")]
            assert [(body, found) for _, body, found in states(place)] == expected


def test_a_cancel_takes_effect_with_the_commit(place: Place) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        given = ask(client, "schedule-message", entries(b"a", b"b")).body["sequence-numbers"].items
        for fail in (True, False):
            txn = manager.declare()
            reply = manager.cancel(txn, *given)
            assert (reply.status, reply.body) == (200, None)
            assert len(states(place)) == 2
            assert manager.discharge(txn, fail=fail) == ACCEPTED
            assert len(states(place)) == (2 if fail else 0)


def test_a_cancel_whose_message_comes_out_before_the_commit_rolls_everything_back(place: Place) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        (number,) = ask(client, "schedule-message", entries(b"m", after_s=30)).body["sequence-numbers"].items
        txn = manager.declare()
        manager.schedule(txn, b"instead")
        assert manager.cancel(txn, number).status == 200
        place.advance(60)
        assert refusal(manager.discharge(txn)) == ROLLED_BACK
        assert [(body, state) for _, body, state in states(place)] == [(b"m", "active")]


@pytest.mark.parametrize("what", ["unknown", "twice", "its own"])
def test_a_cancel_of_what_is_not_there_leaves_only_the_rollback(place: Place, what: str) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        (number,) = ask(client, "schedule-message", entries(b"m")).body["sequence-numbers"].items
        txn = manager.declare()
        (own,) = manager.schedule(txn, b"own")
        if what == "twice":
            assert manager.cancel(txn, number).status == 200
        reply = manager.cancel(txn, {"unknown": 4_711, "twice": number, "its own": own}[what])
        assert (reply.status, reply.condition) == ((400, "amqp:not-allowed") if what == "twice" else (404, NOT_FOUND))
        assert refusal(manager.discharge(txn)) == ROLLED_BACK
        assert [(body, state) for _, body, state in states(place)] == [(b"m", "scheduled")]


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ({"messages": []}, "com.microsoft:argument-error"),
        ({"messages": [{"message": message(b"at once")}]}, "com.microsoft:argument-error"),
        (entries(*[b"m"] * 101), "amqp:resource-limit-exceeded"),
    ],
    ids=["nothing", "no time", "101 messages"],
)
def test_a_request_that_is_refused_leaves_only_the_rollback(place: Place, body: Any, condition: str) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        txn = manager.declare()
        manager.schedule(txn, b"before")
        manager.begin("schedule-message", body, txn)
        assert manager.answer().condition == condition
        assert refusal(manager.discharge(txn)) == ROLLED_BACK
        assert states(place) == []


def test_on_a_partitioned_queue_scheduled_messages_need_the_one_key(place: Place) -> None:
    place.create(enable_partitioning=True)
    with place.client() as client:
        manager = Manager(client)
        txn = manager.declare()
        (first,) = manager.schedule(txn, b"a", partition_key="k")
        (second,) = manager.schedule(txn, b"b", partition_key="k")
        assert first >> 48 == second >> 48
        assert manager.discharge(txn) == ACCEPTED
        txn = manager.declare()
        manager.begin("schedule-message", entries(b"c"), txn)
        assert manager.answer().condition == "amqp:not-allowed"
        assert refusal(manager.discharge(txn)) == ROLLED_BACK
        assert [number for number, *_ in states(place)] == [first, second]


def test_a_duplicate_uses_its_number_up_and_is_dropped(place: Place) -> None:
    place.create(requires_duplicate_detection=True)
    with place.client() as client:
        manager = Manager(client)
        when = Timestamp(int((time.time() + 3_600) * 1000))
        marks = {Symbol("x-opt-scheduled-enqueue-time"): when}
        twins = [{"message": build_message([name], data=name.encode(), annotations=marks)} for name in ("x", "x", "y")]
        for _ in range(2):
            txn = manager.declare()
            reply = manager.ask("schedule-message", {"messages": twins}, txn)
            given = reply.body["sequence-numbers"].items
            assert given == [given[0], given[0] + 1, given[0] + 2]
            assert manager.discharge(txn) == ACCEPTED
        assert [body for _, body, _ in states(place)] == [b"x", b"y"]
        assert states(place)[1][0] == states(place)[0][0] + 2
        place.advance(3_700)
        assert [state for *_, state in states(place)] == ["active", "active"]


def test_the_messages_of_a_transaction_meet_the_size_quota_together(place: Place) -> None:
    place.create_unchecked(max_size_in_megabytes=1)
    with place.client() as client:
        manager, sender = Manager(client), client.sender("q")
        txn = manager.declare()
        state = TransactionalState(txn)
        # Each for itself would fit.
        for _ in range(5):
            assert outcome(client, put(client, sender, message(bytes(200_000)), state)) == TransactionalState(
                txn, ACCEPTED
            )
        manager.schedule(txn, bytes(100_000))
        assert refusal(manager.discharge(txn)) == ROLLED_BACK
        assert states(place) == []


def test_a_topic_schedules_in_a_transaction_too(place: Place) -> None:
    place.create_topic("t")
    with place.client() as client:
        manager = Manager(client, "t")
        for fail in (True, False):
            txn = manager.declare()
            numbers = manager.schedule(txn, b"a", b"b")
            assert manager.discharge(txn, fail=fail) == ACCEPTED
        body = {"sequence-numbers": Array(int, numbers)}
        assert ask(client, "cancel-scheduled-message", body, queue="t").status == 200
        assert ask(client, "cancel-scheduled-message", body, queue="t").condition == NOT_FOUND


def test_messages_of_now_and_of_later_are_stored_together(place: Place) -> None:
    place.create()
    with place.client() as client:
        manager = Manager(client)
        link = client.sender("q")
        txn = manager.declare()
        outcome(client, put(client, link, message(b"now"), TransactionalState(txn)))
        manager.schedule(txn, b"later")
        assert manager.discharge(txn) == ACCEPTED
        assert sorted(state for *_, state in states(place)) == ["active", "scheduled"]
