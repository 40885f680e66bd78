"""What deliveries look like to the Python SDK: sections, annotations, times and counts, as its live tests have them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader
from kit_bus import Bus

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ORDINARY = {b"x-opt-enqueued-time", b"x-opt-sequence-number"}
LOCKED = ORDINARY | {b"x-opt-locked-until"}


@contextmanager
def received(
    client: ServiceBusClient,
    queue: str,
    mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
    sub_queue: ServiceBusSubQueue | None = None,
) -> Iterator[ServiceBusReceivedMessage]:
    """The one message of a queue, which is settled in the end: from then on the SDK tells no lock token."""
    with client.get_queue_receiver(queue, receive_mode=mode, sub_queue=sub_queue, max_wait_time=10) as receiver:
        (message,) = receiver.receive_messages()
        yield message
        if mode is ServiceBusReceiveMode.PEEK_LOCK:
            receiver.complete_message(message)


def sent(client: ServiceBusClient, queue: str, message: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    """Send a message."""
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(message)


@pytest.mark.parametrize("mode", list(ServiceBusReceiveMode))
def test_a_message_that_lives_half_a_minute_looks_as_upstream_s_tests_want_it(
    bus: Bus, mode: ServiceBusReceiveMode
) -> None:
    queue = bus.queue()
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        message = ServiceBusMessage(
            "hello",
            application_properties={"prop": "test"},
            session_id="id_session",
            message_id="id_message",
            time_to_live=timedelta(seconds=30),
            content_type="content type",
            correlation_id="correlation",
            subject="github",
            partition_key="id_session",
            to="forward to",
            reply_to="reply to",
            reply_to_session_id="reply to session",
        )
        sent(client, queue, message)
        with received(client, queue, mode) as found:
            look_at(found, is_locked=mode is ServiceBusReceiveMode.PEEK_LOCK)


def look_at(found: ServiceBusReceivedMessage, *, is_locked: bool) -> None:
    """Compare what was received with what upstream's tests of old programs say of it."""
    raw, legacy = found.raw_amqp_message, found.message
    # 28 bytes of a lock token among the delivery annotations, and of the end of the lock.
    assert legacy.get_message_encoded_size() == (333 if is_locked else 263)
    assert legacy.settled is not is_locked
    if is_locked:
        assert legacy.delivery_annotations == {b"x-opt-lock-token": found.lock_token}
        assert found.lock_token == uuid.UUID(bytes_le=legacy.delivery_tag)
    else:
        assert legacy.delivery_annotations == {}
        assert legacy.delivery_tag is None
    assert raw.annotations.keys() == (LOCKED if is_locked else ORDINARY) | {b"x-opt-partition-key"}
    header = legacy.header
    assert str(header) == str(
        {"delivery_count": 0, "time_to_live": 30000, "first_acquirer": None, "durable": None, "priority": None}
    )
    enqueued_ms = raw.annotations[b"x-opt-enqueued-time"]
    properties = raw.properties
    assert (properties.creation_time, properties.absolute_expiry_time) == (enqueued_ms, enqueued_ms + 30_000)


@pytest.mark.parametrize(
    "server", ["lock", "remove", "peek", "deferred", "deferred, removed", "dead-lettered", "forwarded"]
)
def test_annotations_and_headers_of_a_sender_come_over_every_interface(bus: Bus, server: str) -> None:
    queue = target = bus.queue()
    if server == "forwarded":
        way = bus.way()
        queue, target = f"way-{way}", f"way-out-{way}"
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        message = AmqpAnnotatedMessage(
            data_body=b"m",
            header=AmqpMessageHeader(durable=True, priority=5),
            delivery_annotations={"mine": 3},
            annotations={"own": 2},
        )
        sent(client, queue, message)
        locked_mode, removing = ServiceBusReceiveMode.PEEK_LOCK, ServiceBusReceiveMode.RECEIVE_AND_DELETE
        mode = removing if "remove" in server else locked_mode
        with client.get_queue_receiver(target, receive_mode=mode, max_wait_time=10) as receiver:
            if server == "peek":
                (found,) = receiver.peek_messages()
            elif "deferred" in server:
                with client.get_queue_receiver(target, max_wait_time=10) as other:
                    (found,) = other.receive_messages()
                    other.defer_message(found)
                (found,) = receiver.receive_deferred_messages(found.sequence_number)
            else:
                (found,) = receiver.receive_messages()
            if server == "dead-lettered":
                receiver.dead_letter_message(found, reason="r")
                with received(client, target, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
                    compare(dead, has_lock=True, handed_on=True)
            else:
                compare(found, has_lock=server != "peek" and mode is locked_mode, handed_on=server == "forwarded")


def compare(found: ServiceBusReceivedMessage, *, has_lock: bool, handed_on: bool) -> None:
    """Look for what the sender said."""
    raw = found.raw_amqp_message
    assert raw.delivery_annotations == {b"mine": 3} | ({b"x-opt-lock-token": found.lock_token} if has_lock else {})
    assert (raw.header.durable, raw.header.priority, raw.header.first_acquirer) == (True, 5, None)
    assert raw.annotations[b"own"] == 2
    assert (found.enqueued_sequence_number is not None) == handed_on


def test_a_message_that_was_received_is_sent_again_without_the_lock_token_that_it_had(bus: Bus) -> None:
    queue = bus.queue()
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        sent(client, queue, ServiceBusMessage(b"m", message_id="one"))
        with received(client, queue) as first:
            old = first.lock_token
            sent(client, queue, first.raw_amqp_message)
        with received(client, queue) as again:
            assert again.lock_token != old
            assert again.raw_amqp_message.delivery_annotations == {b"x-opt-lock-token": again.lock_token}
