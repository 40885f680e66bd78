"""Batch delete and the purge of this broker, over the wire; the Python SDK has neither."""

from __future__ import annotations

import time
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from kit_bus import KEY, LISTEN_ONLY, SEND_ONLY, Bus
from kit_sdk import Sdk, within_the_limit
from test_raw_deliveries import filled, locked, management
from test_raw_sessions import sent

from duobus.codec import Int, Timestamp
from duobus.model.access_rules import sign_token
from kits.raw_client import RawClient, token

KINDS = pytest.mark.parametrize("kind", ["plain", "partitioned"])


def later() -> Timestamp:
    """After everything that was sent."""
    return Timestamp(int(time.time() * 1000) + 60_000)


def delete(raw: RawClient, node: str, number: int, **members: Any) -> tuple[int, dict[str, Any], Any]:
    """Ask for a batch delete."""
    body = {"message-count": Int(number), "enqueued-time-utc": later(), **members}
    return management(raw, node, "batch-delete-messages", body)


def purge(raw: RawClient, node: str) -> tuple[dict[str, Any], Any]:
    """Ask for a purge: (application properties, body)."""
    properties, body, _ = raw.request(f"{node}/$management", {"operation": "duobus:purge-messages"}, {})
    return properties, body


@KINDS
def test_a_batch_delete_says_how_many_and_then_that_there_are_none(bus: Bus, raw: RawClient, kind: str) -> None:
    queue = bus.queue(kind)
    filled(raw, queue, 20)
    status, _, answer = delete(raw, queue, 15)
    assert (status, answer) == (200, {"message-count": 15})
    status, _, answer = delete(raw, queue, 4000)
    assert (status, answer) == (200, {"message-count": 5})
    status, properties, answer = delete(raw, queue, 4000)
    assert (status, answer) == (204, None)
    assert properties["errorCondition"] == "com.microsoft:message-not-found"


def test_a_batch_delete_leaves_what_is_locked_and_what_is_younger(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    link, delivery_id, _ = locked(raw, queue)
    filled(raw, queue, 3)
    request = {"message-count": Int(10), "enqueued-time-utc": Timestamp(1)}
    assert management(raw, queue, "batch-delete-messages", request)[0] == 204
    assert delete(raw, queue, 10)[2] == {"message-count": 3}
    assert delivery_id >= 0
    assert link.is_attached
    assert management(raw, queue, "peek-message", {"from-sequence-number": 0, "message-count": Int(9)})[0] == 200


def test_four_thousand_messages_go_in_one_request(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue("partitioned")
    for _ in range(5):
        filled(raw, queue, 900)
    assert delete(raw, queue, 4000)[2] == {"message-count": 4000}
    assert delete(raw, queue, 4000)[2] == {"message-count": 500}


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ({"message-count": Int(0), "enqueued-time-utc": Timestamp(1)}, "com.microsoft:argument-out-of-range"),
        ({"message-count": Int(4001), "enqueued-time-utc": Timestamp(1)}, "com.microsoft:argument-out-of-range"),
        ({"message-count": "all", "enqueued-time-utc": Timestamp(1)}, "com.microsoft:argument-error"),
        ({"message-count": Int(5)}, "com.microsoft:argument-error"),
        ({"message-count": Int(5), "enqueued-time-utc": "now"}, "com.microsoft:argument-error"),
        ({"message-count": Int(5), "enqueued-time-utc": Timestamp(1), "session-id": "s"}, "amqp:not-allowed"),
    ],
)
def test_a_batch_delete_that_cannot_be_meant_is_refused(
    bus: Bus, raw: RawClient, body: dict[str, Any], condition: str
) -> None:
    status, properties, _ = management(raw, bus.queue(), "batch-delete-messages", body)
    assert (status, properties["errorCondition"]) == (400, condition)


@within_the_limit
async def test_what_the_sdk_made_of_a_queue_is_purged_and_what_it_holds_is_reported(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("partitioned")
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            for index in range(12):
                await sender.send_messages(ServiceBusMessage(b"%d" % index))
        async with client.receiver(queue) as receiver:
            taken: list[Any] = []
            while len(taken) < 3:
                taken += await receiver.receive_messages(max_message_count=3 - len(taken), max_wait_time=2)
            await receiver.defer_message(taken[0])
            await receiver.dead_letter_message(taken[1])
            with RawClient(bus.port) as raw:
                raw.put_token("", token(""))
                properties, answer = purge(raw, queue)
                assert properties["statusCode"] == 200
                assert answer == {"message-count": 11, "locked-count": 1, "is-complete": True}
            await receiver.complete_message(taken[2])
            assert await receiver.peek_messages(max_message_count=9, sequence_number=1) == []
        async with client.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            assert await receiver.peek_messages() == []


def test_a_purge_takes_the_right_to_listen_as_a_batch_delete_does_and_no_other(bus: Bus) -> None:
    queue = bus.queue()
    with RawClient(bus.port) as raw:
        raw.put_token("", sign_token("sb://localhost/", LISTEN_ONLY, KEY, int(time.time()) + 600))
        assert purge(raw, queue)[0]["statusCode"] == 200
        assert delete(raw, queue, 5)[0] == 204
    with RawClient(bus.port) as raw:
        raw.put_token("", sign_token("sb://localhost/", SEND_ONLY, KEY, int(time.time()) + 600))
        properties, answer = purge(raw, queue)
        assert (properties["statusCode"], answer) == (401, None)
        assert delete(raw, queue, 5)[0] == 401


@pytest.mark.parametrize("kind", ["sessions", "parted-sessions"])
def test_a_batch_delete_of_a_session_leaves_the_others_and_a_purge_takes_them_all(
    bus: Bus, raw: RawClient, kind: str
) -> None:
    queue = bus.queue(kind)
    for session, number in (("a", 3), ("b", 2)):
        sent(raw, queue, session, *[b"x"] * number)
    assert delete(raw, queue, 10, **{"session-id": "a"})[2] == {"message-count": 3}
    assert delete(raw, queue, 10, **{"session-id": "a"})[0] == 204
    assert delete(raw, queue, 10, **{"session-id": 7})[1]["errorCondition"] == "com.microsoft:argument-error"
    assert purge(raw, queue)[1]["message-count"] == 2
    assert delete(raw, queue, 10)[0] == 204
