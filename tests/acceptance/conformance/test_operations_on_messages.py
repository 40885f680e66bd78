"""Operations of ``$management`` about messages, one by one, with the types that clients expect."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from kit_place import (
    SEQUENCE_NUMBER,
    Place,
    ask,
    coordinator,
    declare,
    discharge,
    hold,
    message,
    number_of,
    outcome,
    put,
    refusal,
    send,
    settle,
)

from duobus.amqp import ACCEPTED, Modified, TransactionalState
from duobus.codec import Array, Int, Symbol, Timestamp, UInt, ULong, scan

LOCK_LOST = (410, "com.microsoft:message-lock-lost")
NOT_FOUND = (404, "com.microsoft:message-not-found")
EVERYTHING = {"from-sequence-number": 0, "message-count": Int(100)}


def tokens(*found: uuid.UUID) -> Array:
    return Array(uuid.UUID, list(found))


def numbers(*found: int) -> Array:
    return Array(int, list(found))


def in_an_hour() -> Timestamp:
    return Timestamp(int(time.time() * 1000) + 3_600_000)


def test_renew_lock_answers_with_the_ends_in_order_and_renews_all_or_none(place: Place) -> None:
    place.create(lock_duration=timedelta(seconds=30))
    with place.client() as client:
        send(client, b"1", b"2")
        first, second = hold(client, 2)
        place.advance(20)
        reply = ask(client, "renew-lock", {"lock-tokens": tokens(second.token, first.token)})
        assert reply.status == 200
        ends = reply.body["expirations"]
        assert isinstance(ends, Array)
        assert [type(end) for end in ends.items] == [Timestamp, Timestamp]
        place.advance(20)
        # Without the renewal they would have been lost by now.
        assert settle(client, first, ACCEPTED) == ACCEPTED
        assert ask(client, "renew-lock", {"lock-tokens": tokens(second.token, first.token)})[:2] == LOCK_LOST
        place.advance(20)
        assert refusal(settle(client, second, ACCEPTED)) == LOCK_LOST[1]
        assert place.bodies() == [b"2"]


def test_peek_message_shows_from_the_number_on_and_changes_nothing(place: Place) -> None:
    place.create()
    with place.client() as client:
        assert ask(client, "peek-message", EVERYTHING)[:3] == (204, "com.microsoft:message-not-found", None)
        send(client, b"1", b"2", b"3")
        link = client.sender("q")
        assert outcome(client, client.send(link, message(b"4", scheduled_enqueue_time=in_an_hour()))) == ACCEPTED
        (held,) = hold(client)
        settle(client, held, Modified(None, True, None))
        found = ask(client, "peek-message", EVERYTHING).body["messages"]
        assert [entry["message"][-1:] for entry in found] == [b"1", b"2", b"3", b"4"]
        states = [(scan(entry["message"]).annotations or {}).get(Symbol("x-opt-message-state")) for entry in found]
        assert states == [1, None, None, 2]
        second = number_of(found[1]["message"])
        some = {"from-sequence-number": second, "message-count": Int(2), "omit-message-body": True}
        entries = ask(client, "peek-message", some).body["messages"]
        assert [number_of(entry["message"]) for entry in entries] == [second, second + 1]
        assert all(b"\x53\x75" not in entry["message"][-5:] for entry in entries)
        assert [found.is_locked for found in place.messages()] == [False] * 4


@pytest.mark.parametrize("mode", [0, 1])
def test_receive_by_sequence_number_takes_deferred_messages_and_all_or_none(place: Place, mode: int) -> None:
    place.create()
    with place.client() as client:
        send(client, b"1", b"2", b"active")
        first, second, active = hold(client, 3)
        for held in (first, second):
            settle(client, held, Modified(None, True, None))
        settle(client, active, Modified(None, None, None))

        def receive(*wanted: int) -> Any:
            body = {"sequence-numbers": numbers(*wanted), "receiver-settle-mode": UInt(mode)}
            return ask(client, "receive-by-sequence-number", body)

        for missing in (active.number, 4711):
            assert receive(first.number, missing)[:2] == NOT_FOUND
        reply = receive(second.number, first.number)
        assert [entry["message"][-1:] for entry in reply.body["messages"]] == [b"2", b"1"]
        assert ["lock-token" in entry for entry in reply.body["messages"]] == [mode == 1] * 2
        if mode == 1:
            assert receive(first.number)[:2] == NOT_FOUND
            found = [entry["lock-token"] for entry in reply.body["messages"]]
            settled = {"disposition-status": "completed", "lock-tokens": tokens(*found)}
            assert ask(client, "update-disposition", settled).status == 200
        assert place.bodies() == [b"active"]


@pytest.mark.parametrize(
    ("status", "state", "count"),
    [
        ("completed", None, 0),
        ("abandoned", "active", 1),
        ("defered", "deferred", 0),
        ("deferred", "deferred", 0),
        ("suspended", "dead-letter", 0),
    ],
)
def test_update_disposition_settles_by_token_in_each_way_and_once(
    place: Place, status: str, state: str | None, count: int
) -> None:
    """TL10."""
    place.create()
    with place.client() as client:
        send(client, b"m")
        (held,) = hold(client)
        body = {
            "disposition-status": status,
            "lock-tokens": tokens(held.token),
            "properties-to-modify": {"touched": "yes"},
            "deadletter-reason": "the reason",
            "deadletter-description": "and more",
        }
        lost = {**body, "lock-tokens": tokens(held.token, uuid.uuid4())}
        assert ask(client, "update-disposition", lost)[:2] == LOCK_LOST
        assert [found.is_locked for found in place.messages()] == [True]
        reply = ask(client, "update-disposition", body)
        assert (reply.status, reply.body) == (200, None)
        found = place.messages()
        assert [(each.state, each.delivery_count) for each in found] == ([] if state is None else [(state, count)])
        assert [each.dead_letter_reason for each in found if state == "dead-letter"] in ([], ["the reason"])
        assert ask(client, "update-disposition", body)[:2] == LOCK_LOST
        assert [each.state for each in place.messages()] == [each.state for each in found]


def test_schedule_message_answers_with_numbers_that_lead_to_the_messages(place: Place) -> None:
    place.create()
    with place.client() as client:
        entries = [
            {"message-id": name, "message": message(name.encode(), scheduled_enqueue_time=in_an_hour())}
            for name in ("a", "b")
        ]
        reply = ask(client, "schedule-message", {"messages": entries})
        assert reply.status == 200
        given = reply.body["sequence-numbers"]
        assert isinstance(given, Array)
        assert [(found.sequence_number, found.body, found.state) for found in place.messages()] == [
            (given.items[0], b"a", "scheduled"),
            (given.items[1], b"b", "scheduled"),
        ]
        # Never early, and with a number of its own from then on.
        place.advance(3590)
        assert [found.state for found in place.messages()] == ["scheduled", "scheduled"]
        place.advance(20)
        assert [found.state for found in place.messages()] == ["active", "active"]
        (held,) = hold(client)
        marks = scan(held.payload).annotations or {}
        assert marks[Symbol("x-opt-enqueue-sequence-number")] == given.items[0]
        assert marks[SEQUENCE_NUMBER] > given.items[1]


@pytest.mark.parametrize("is_rolled_back", [False, True])
def test_what_is_scheduled_by_its_annotation_in_a_transaction_waits_from_the_commit_on(
    place: Place, is_rolled_back: bool
) -> None:
    place.create()
    with place.client() as client:
        link, sender = coordinator(client), client.sender("q")
        txn = declare(client, link)
        payload = message(b"m", scheduled_enqueue_time=in_an_hour())
        state = outcome(client, put(client, sender, payload, TransactionalState(txn)))
        assert state == TransactionalState(txn, ACCEPTED)
        assert place.messages() == []
        assert discharge(client, link, txn, fail=is_rolled_back) == ACCEPTED
        assert [found.state for found in place.messages()] == ([] if is_rolled_back else ["scheduled"])


def test_cancel_scheduled_message_takes_all_or_none_and_none_that_is_active(place: Place) -> None:
    place.create()
    with place.client() as client:
        entries = [{"message": message(name, scheduled_enqueue_time=in_an_hour())} for name in (b"a", b"b", b"c")]
        first, second, third = ask(client, "schedule-message", {"messages": entries}).body["sequence-numbers"].items
        assert ask(client, "cancel-scheduled-message", {"sequence-numbers": numbers(first, 4711)})[:2] == NOT_FOUND
        reply = ask(client, "cancel-scheduled-message", {"sequence-numbers": numbers(first, second)})
        assert (reply.status, reply.body) == (200, None)
        assert place.bodies() == [b"c"]
        for gone in (first, second):
            assert ask(client, "cancel-scheduled-message", {"sequence-numbers": numbers(gone)})[:2] == NOT_FOUND
        place.advance(3700)
        assert ask(client, "cancel-scheduled-message", {"sequence-numbers": numbers(third)})[:2] == NOT_FOUND
        assert [(found.body, found.state) for found in place.messages()] == [(b"c", "active")]


def test_batch_delete_messages_takes_free_messages_and_says_how_many(place: Place) -> None:
    place.create()
    with place.client() as client:
        before = {"message-count": Int(2), "enqueued-time-utc": in_an_hour()}
        assert ask(client, "batch-delete-messages", before)[:2] == (204, "com.microsoft:message-not-found")
        send(client, b"1", b"2", b"3", b"4")
        (held,) = hold(client)
        reply = ask(client, "batch-delete-messages", before)
        assert (reply.status, reply.body) == (200, {"message-count": 2})
        assert place.bodies() == [b"1", b"4"]
        assert settle(client, held, ACCEPTED) == ACCEPTED


def test_a_reply_is_about_its_request_and_has_the_types_that_sdks_cast_to(place: Place) -> None:
    place.create()
    with place.client() as client:
        for message_id in (uuid.uuid4(), "a text", ULong(77)):
            properties = {"operation": "com.microsoft:peek-message", "com.microsoft:tracking-id": "mine"}
            found, _, correlation = client.request("q/$management", properties, EVERYTHING, message_id=message_id)
            assert correlation == message_id
            assert found["com.microsoft:tracking-id"] == "mine"
            assert isinstance(found["errorCondition"], Symbol)
            assert isinstance(found["statusDescription"], str)
            # .NET casts the status to an int.
            assert type(found["statusCode"]) is Int
