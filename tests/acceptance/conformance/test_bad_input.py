"""What clients get wrong with sessions, time, transactions and quotas: a documented error, nothing stored or stuck."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest
from kit_place import (
    Place,
    accept,
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

from duobus.amqp import ACCEPTED, Link, TransactionalState
from duobus.broker.transaction import MESSAGES_MAX
from duobus.codec import Array, Int, Timestamp, UInt, build_message
from duobus.fragment.sessions.states import STATE_BYTES_MAX
from duobus.gateway.amqp.mapping import SCHEDULED_MS_MAX
from kits.raw_client import RawClient

INVALID, OUT_OF_RANGE = "com.microsoft:argument-error", "com.microsoft:argument-out-of-range"
NOT_ALLOWED = "amqp:not-allowed"
QUOTA = "amqp:resource-limit-exceeded"
UNKNOWN_TRANSACTION, ROLLED_BACK = "amqp:transaction:unknown-id", "amqp:transaction:rollback"
SESSION_LOST, LOCK_LOST = "com.microsoft:session-lock-lost", "com.microsoft:message-lock-lost"
NOT_FOUND = "com.microsoft:message-not-found"
MIB = 1 << 20


def sent(client: RawClient, link: Link, payload: bytes) -> str:
    """The condition with which a message is refused; empty when it is taken."""
    return refusal(outcome(client, client.send(link, payload)))


def of_size(size: int) -> bytes:
    """A message of exactly so many bytes. It has an id, so that the broker adds none."""
    empty = build_message(["id"], data=bytes(256))
    payload = build_message(["id"], data=bytes(256 + size - len(empty) if size > len(empty) else 0))
    assert size < 512 or len(payload) == size
    return payload


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_session_id_and_a_partition_key_that_differ(place: Place, is_partitioned: bool) -> None:
    """PE11."""
    for queue, requires_session in (("q", True), ("plain", False)):
        place.create(queue, requires_session=requires_session, enable_partitioning=is_partitioned)
        with place.client() as client:
            link = client.sender(queue)
            for wrong in ("other", "S", ""):
                assert sent(client, link, message(b"wrong", session_id="s", partition_key=wrong)) == NOT_ALLOWED
            assert place.messages(queue) == []
            scheduled = message(b"wrong", session_id="s", partition_key="other", scheduled_enqueue_time=_later())
            entries = {"messages": [{"message": scheduled}]}
            assert ask(client, "schedule-message", entries, queue=queue).condition == NOT_ALLOWED
            assert place.messages(queue) == []
            assert sent(client, link, message(b"right", session_id="s", partition_key="s")) == ""
            assert place.bodies(queue) == [b"right"]


def test_a_session_state_above_the_limit_leaves_the_one_before_it(place: Place) -> None:
    place.create(requires_session=True)
    with place.client() as client:
        link = accept(client, "s")

        def set_state(size: int) -> tuple[int, str]:
            body = {"session-id": "s", "session-state": bytes(size)}
            reply = ask(client, "set-session-state", body, link=link)
            return reply.status, reply.condition

        assert set_state(STATE_BYTES_MAX) == (200, "")
        for size in (STATE_BYTES_MAX + 1, 2 * STATE_BYTES_MAX):
            assert set_state(size) == (403, QUOTA)
        kept = ask(client, "get-session-state", {"session-id": "s"}, link=link).body["session-state"]
        assert len(kept) == STATE_BYTES_MAX
        assert set_state(1) == (200, "")


def test_a_session_state_that_is_no_binary_is_refused(place: Place) -> None:
    place.create(requires_session=True)
    with place.client() as client:
        link = accept(client, "s")
        for state in ("text", 5, [b"list"]):
            reply = ask(client, "set-session-state", {"session-id": "s", "session-state": state}, link=link)
            assert (reply.status, reply.condition) == (400, INVALID)
        assert ask(client, "get-session-state", {"session-id": "s"}, link=link).body == {"session-state": None}


def _later() -> Timestamp:
    return Timestamp(int(time.time() * 1000) + 3_600_000)


@pytest.mark.parametrize("when", [-(1 << 63), -1, 0, 1, 1_000_000_000_000])
def test_a_schedule_time_in_the_past_is_now(place: Place, when: int) -> None:
    place.create()
    with place.client() as client:
        past = message(b"m", scheduled_enqueue_time=Timestamp(when))
        assert sent(client, client.sender("q"), past) == ""
        given = ask(client, "schedule-message", {"messages": [{"message": past}]}).body["sequence-numbers"].items
        found = place.messages()
        assert [each.state for each in found] == ["active", "active"]
        assert found[1].sequence_number == given[0]
        cancelled = ask(client, "cancel-scheduled-message", {"sequence-numbers": Array(int, given)})
        assert (cancelled.status, cancelled.condition) == (404, NOT_FOUND)
        assert len(hold(client, 2)) == 2


@pytest.mark.parametrize("when", [SCHEDULED_MS_MAX + 1, (1 << 63) - 1])
def test_an_absurd_schedule_time_is_refused(place: Place, when: int) -> None:
    place.create()
    with place.client() as client:
        link = client.sender("q")
        absurd = message(b"m", scheduled_enqueue_time=Timestamp(when))
        assert sent(client, link, absurd) == OUT_OF_RANGE
        fine = message(b"fine", scheduled_enqueue_time=_later())
        reply = ask(client, "schedule-message", {"messages": [{"message": fine}, {"message": absurd}]})
        assert (reply.status, reply.condition) == (400, OUT_OF_RANGE)
        assert sent(client, link, message(b"m", scheduled_enqueue_time="tomorrow")) == INVALID
        assert place.messages() == []
        assert sent(client, link, message(b"last", scheduled_enqueue_time=Timestamp(SCHEDULED_MS_MAX))) == ""
        assert [each.state for each in place.messages()] == ["scheduled"]


def test_cancelling_numbers_that_nobody_knows_cancels_nothing(place: Place) -> None:
    place.create()
    with place.client() as client:
        entry = {"message": message(b"m", scheduled_enqueue_time=_later())}
        (number,) = ask(client, "schedule-message", {"messages": [entry]}).body["sequence-numbers"].items
        send(client, b"active")
        active = place.messages()[1].sequence_number
        for wrong in (0, -1, number + 100, active, 1 << 60, (1 << 63) - 1, -(1 << 63)):
            body = {"sequence-numbers": Array(int, [number, wrong])}
            assert ask(client, "cancel-scheduled-message", body)[:2] == (404, NOT_FOUND)
        twice = {"sequence-numbers": Array(int, [number, number])}
        assert ask(client, "cancel-scheduled-message", twice)[:2] == (400, INVALID)
        for nothing in ({}, {"sequence-numbers": Array(int, [])}, {"sequence-numbers": ["1"]}):
            assert ask(client, "cancel-scheduled-message", nothing)[:2] == (400, INVALID)
        assert [each.state for each in place.messages()] == ["scheduled", "active"]
        right = {"sequence-numbers": Array(int, [number])}
        assert ask(client, "cancel-scheduled-message", right).status == 200
        assert place.bodies() == [b"active"]


def test_a_transaction_id_of_another_connection_does_nothing_there_and_stays_good_here(place: Place) -> None:
    place.create()
    with place.client() as mine, place.client() as other:
        link, theirs = coordinator(mine), coordinator(other)
        txn = declare(mine, link)
        sender = other.sender("q")
        state = TransactionalState(txn)
        assert refusal(outcome(other, put(other, sender, message(b"stolen"), state))) == UNKNOWN_TRANSACTION
        assert refusal(discharge(other, theirs, txn)) == UNKNOWN_TRANSACTION
        assert refusal(discharge(other, theirs, txn, fail=True)) == UNKNOWN_TRANSACTION
        assert outcome(mine, put(mine, mine.sender("q"), message(b"own"), state)) == TransactionalState(txn, ACCEPTED)
        assert discharge(mine, link, txn) == ACCEPTED
        assert place.bodies() == [b"own"]


@pytest.mark.parametrize("is_first_rolled_back", [False, True])
def test_a_second_discharge_is_of_an_unknown_transaction_and_changes_nothing(
    place: Place, is_first_rolled_back: bool
) -> None:
    place.create()
    with place.client() as client:
        link, sender = coordinator(client), client.sender("q")
        txn = declare(client, link)
        outcome(client, put(client, sender, message(b"m"), TransactionalState(txn)))
        assert discharge(client, link, txn, fail=is_first_rolled_back) == ACCEPTED
        expected = [] if is_first_rolled_back else [b"m"]
        for fail in (False, True):
            assert refusal(discharge(client, link, txn, fail=fail)) == UNKNOWN_TRANSACTION
            assert place.bodies() == expected
        assert discharge(client, link, declare(client, link)) == ACCEPTED


def test_settling_outside_of_the_session_is_a_lost_lock_and_the_holder_goes_on(place: Place) -> None:
    place.create(requires_session=True)
    with place.client() as client, place.client() as other:
        send(client, b"1", b"2", session_id="s")
        link = accept(client, "s")
        first, second = hold(client, 2, link=link)
        body = {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, [first.token])}
        accept(other, "another")
        # Without naming the session, naming it without holding it, and naming one that is held but is another.
        for named in ({}, {"session-id": "s"}, {"session-id": "another"}):
            assert ask(other, "update-disposition", {**body, **named})[:2] == (410, SESSION_LOST)
        assert [each.is_locked for each in place.messages()] == [True, True]
        assert settle(client, first, ACCEPTED) == ACCEPTED
        assert settle(client, second, ACCEPTED) == ACCEPTED
        assert place.messages() == []


def test_settling_after_the_session_is_lost_leaves_its_messages(place: Place) -> None:
    place.create(requires_session=True, lock_duration=timedelta(seconds=10))
    with place.client() as client, place.client() as heir:
        send(client, b"1", b"2", session_id="s")
        first, second = hold(client, 2, link=accept(client, "s"))
        place.advance(11)
        for held in (first, second):
            assert refusal(settle(client, held, ACCEPTED)) == SESSION_LOST
        assert [found.payload[-1:] for found in hold(heir, 2, link=accept(heir, "s"))] == [b"1", b"2"]


def test_a_message_and_a_queue_of_exactly_the_limit_are_taken_and_not_one_byte_more(place: Place) -> None:
    place.create_unchecked(max_size_in_megabytes=1)
    limit = 256 * 1024
    with place.client() as client:
        link = client.sender("q")
        assert sent(client, link, of_size(limit + 1)) == "amqp:link:message-size-exceeded"
        for _ in range(MIB // limit):
            assert sent(client, link, of_size(limit)) == ""
        smallest = build_message(None, data=b"")
        assert sent(client, link, smallest) == QUOTA
        scheduled = message(b"m", scheduled_enqueue_time=_later())
        assert ask(client, "schedule-message", {"messages": [{"message": scheduled}]})[:2] == (403, QUOTA)
        assert [len(body) for body in place.bodies()] == [len(place.bodies()[0])] * 4
        (held,) = hold(client)
        assert settle(client, held, ACCEPTED) == ACCEPTED
        assert sent(client, link, of_size(limit)) == ""
        assert sent(client, link, smallest) == QUOTA


def test_a_transaction_of_exactly_the_limit_commits_and_one_message_more_is_nothing(place: Place) -> None:
    place.create()
    with place.client() as client:
        link, sender = coordinator(client), client.sender("q")
        for number, conditions in ((MESSAGES_MAX + 1, {QUOTA, ROLLED_BACK}), (MESSAGES_MAX, {""})):
            txn = declare(client, link)
            ids = [put(client, sender, message(b"m"), TransactionalState(txn)) for _ in range(number)]
            assert refusal(outcome(client, ids[-1])) in conditions
            assert refusal(discharge(client, link, txn)) in conditions
            assert len(place.messages()) == (number if conditions == {""} else 0)


def test_a_name_of_exactly_128_characters_is_taken_and_one_of_129_is_not(place: Place) -> None:
    place.create("sessions", requires_session=True)
    place.create()
    with place.client() as client:
        link, plain = client.sender("sessions"), client.sender("q")
        for length, condition in ((129, INVALID), (128, "")):
            name = "x" * length
            assert sent(client, link, message(b"m", session_id=name)) == condition
            assert sent(client, plain, message(b"m", partition_key=name)) == condition
            assert sent(client, plain, build_message([name], data=b"m")) == condition
        assert (len(place.messages()), len(place.messages("sessions"))) == (2, 1)


def test_requests_ask_for_as_much_as_they_may_and_no_more(place: Place) -> None:
    place.create()
    with place.client() as client:
        for number, condition in ((1000, NOT_FOUND), (1001, INVALID)):
            body = {"sequence-numbers": Array(int, list(range(1, number + 1))), "receiver-settle-mode": UInt(1)}
            assert ask(client, "receive-by-sequence-number", body).condition == condition
            assert ask(client, "cancel-scheduled-message", body).condition == condition
            tokens = {"lock-tokens": Array(uuid.UUID, [uuid.uuid4() for _ in range(number)])}
            assert ask(client, "renew-lock", tokens).condition == (LOCK_LOST if number == 1000 else INVALID)
        for count, condition in ((0, OUT_OF_RANGE), (1, NOT_FOUND), (4000, NOT_FOUND), (4001, OUT_OF_RANGE)):
            body = {"message-count": Int(count), "enqueued-time-utc": _later()}
            assert ask(client, "batch-delete-messages", body).condition == condition
