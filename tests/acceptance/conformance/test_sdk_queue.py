"""Sending, receiving and settling on a queue with the Python SDK, with asyncio and with threads."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from uuid import uuid4

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.exceptions import MessageLockLostError, MessageSizeExceededError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kit_bus import Bus
from kit_sdk import Sdk, bodies, within_the_limit

from duobus.testing.namespace import Namespace

#: How many messages a look into a queue shows at the most.
LOOKED_AT = 1000


@within_the_limit
async def test_one_message_and_a_batch_of_100_arrive_separately(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"alone"))
            batch = await sender.create_message_batch()
            for index in range(100):
                batch.add_message(ServiceBusMessage(b"%d" % index))
            await sender.send_messages(batch)
        async with client.receiver(queue) as receiver:
            assert await bodies(receiver, 101) == [b"alone", *[b"%d" % index for index in range(100)]]


@within_the_limit
async def test_a_batch_object_fills_up_to_the_announced_limit(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        batch = await sender.create_message_batch()
        assert batch.max_size_in_bytes == 256 * 1024
        number = 26
        for _ in range(number):
            batch.add_message(ServiceBusMessage(b"x" * 10_000))
        with pytest.raises(MessageSizeExceededError):
            batch.add_message(ServiceBusMessage(b"x" * 10_000))
        await sender.send_messages(batch)
        async with client.receiver(queue) as receiver:
            assert await bodies(receiver, number) == [b"x" * 10_000] * number


def _filled(batch: ServiceBusMessageBatch, body: bytes, **properties: str) -> int:
    """Add messages until the SDK refuses one, as its page shows; the number of those that are in."""
    number = 0
    while True:
        try:
            batch.add_message(ServiceBusMessage(body, **properties))
        except MessageSizeExceededError:
            return number
        number += 1


@pytest.mark.parametrize("properties", [(), ("message_id",), ("session_id",), ("message_id", "partition_key")])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(0, 20_000),
    word=st.text(st.characters(codec="utf-8", exclude_categories="C"), min_size=1, max_size=128),
)
@example(size=1, word="i" * 128)
@example(size=100, word="\U0001f4e6" * 128)
def test_what_the_sdk_filled_until_it_raised_is_taken(
    namespace: Namespace, properties: tuple[str, ...], size: int, word: str
) -> None:
    queue = namespace.create_queue(f"filled-{uuid4().hex}", requires_session="session_id" in properties)
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        batch = sender.create_message_batch()
        number = _filled(batch, b"x" * size, **dict.fromkeys(properties, word))
        sender.send_messages(batch)
    assert len(namespace.messages(queue)) == min(number, LOOKED_AT)


@within_the_limit
async def test_the_lock_of_a_large_message_is_renewed_and_the_message_completed(namespace: Namespace, sdk: Sdk) -> None:
    queue = namespace.create_queue(f"large-{uuid4().hex}", max_message_size_in_kilobytes=4096)
    body = b"x" * (1_100 << 10)
    async with sdk.client(namespace.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(body))
        async with client.receiver(queue) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            await receiver.renew_message_lock(message)
            assert b"".join(message.body) == body
            await receiver.complete_message(message)
    assert namespace.messages(queue) == []


@within_the_limit
async def test_a_message_above_the_limit_ends_in_the_size_error_at_once(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * (256 * 1024 + 1)))
        await sender.send_messages(ServiceBusMessage(b"small"))
        async with client.receiver(queue) as receiver:
            assert await bodies(receiver, 1) == [b"small"]


@within_the_limit
async def test_a_megabyte_over_many_frames_arrives_bit_exact_where_allowed(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("large")
    body = bytes(range(256)) * 4096
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(body))
        async with client.receiver(queue) as receiver:
            assert await bodies(receiver, 1) == [body]


@within_the_limit
async def test_receiving_on_an_empty_queue_ends_at_its_wait_time_three_times(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client, client.receiver(queue) as receiver:
        # The first call opens the link; the number of links is counted from then on.
        assert await receiver.receive_messages(max_wait_time=0.3) == []
        links = bus.metric("duobus_links")
        for _ in range(3):
            started = time.monotonic()
            assert await receiver.receive_messages(max_wait_time=0.3) == []
            assert time.monotonic() - started > 0.25
        assert bus.metric("duobus_links") == links


@within_the_limit
async def test_twenty_five_messages_come_as_ten_ten_and_five(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(b"%d" % index) for index in range(25)])
        async with client.receiver(queue) as receiver:
            sizes, found = [], []
            for _ in range(3):
                messages = await receiver.receive_messages(max_message_count=10, max_wait_time=20)
                sizes.append(len(messages))
                found += [b"".join(message.body) for message in messages]
                for message in messages:
                    await receiver.complete_message(message)
            assert sizes == [10, 10, 5]
            assert found == [b"%d" % index for index in range(25)]


@within_the_limit
async def test_a_renewal_with_the_token_moves_the_end_of_the_lock(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"m"))
        async with client.receiver(queue) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            before = message.locked_until_utc
            await asyncio.sleep(0.05)
            after = await receiver.renew_message_lock(message)
            assert after > before
            assert message.locked_until_utc == after
            await receiver.complete_message(message)


@within_the_limit
async def test_each_of_the_four_settlements_is_confirmed(bus: Bus, sdk: Sdk) -> None:
    """TL10; the scenario's limit ends the wait for an answer that does not come."""
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            messages = [ServiceBusMessage(name, message_id=name) for name in ("complete", "defer", "dead", "abandon")]
            await sender.send_messages(messages)
        async with client.receiver(queue) as receiver:
            got = await receiver.receive_messages(max_message_count=4, max_wait_time=20)
            complete, defer, dead, abandon = got
            await receiver.complete_message(complete)
            await receiver.defer_message(defer)
            await receiver.dead_letter_message(dead, reason="broken", error_description="beyond repair")
            await receiver.abandon_message(abandon)
            (again,) = await receiver.receive_messages(max_message_count=4, max_wait_time=20)
            assert (again.message_id, again.delivery_count) == ("abandon", 1)
            await receiver.complete_message(again)
            (back,) = await receiver.receive_deferred_messages([defer.sequence_number])
            assert b"".join(back.body) == b"defer"
            await receiver.complete_message(back)
        async with client.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (letter,) = await receiver.receive_messages(max_wait_time=20)
            assert (letter.message_id, letter.dead_letter_reason) == ("dead", "broken")
            assert letter.dead_letter_error_description == "beyond repair"
            assert letter.application_properties[b"DeadLetterReason"] == b"broken"
            await receiver.complete_message(letter)


@within_the_limit
async def test_dead_letters_of_a_dead_letter_reader_can_be_settled_in_every_way(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"m"))
        async with client.receiver(queue) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            await receiver.dead_letter_message(message, reason="first")
        async with client.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            for _ in range(2):
                (message,) = await receiver.receive_messages(max_wait_time=20)
                # In a dead-letter queue the count stays what it was.
                assert message.delivery_count == 0
                await receiver.abandon_message(message)
            (message,) = await receiver.receive_messages(max_wait_time=20)
            await receiver.defer_message(message)
            (message,) = await receiver.receive_deferred_messages([message.sequence_number])
            await receiver.complete_message(message)
            assert await receiver.peek_messages() == []


@within_the_limit
async def test_a_message_delivered_too_often_is_found_among_the_dead_letters(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("twice")
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"m"))
        async with client.receiver(queue) as receiver:
            for count in range(2):
                (message,) = await receiver.receive_messages(max_wait_time=20)
                assert message.delivery_count == count
                await receiver.abandon_message(message)
            assert await receiver.receive_messages(max_wait_time=0.3) == []
        async with client.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (letter,) = await receiver.receive_messages(max_wait_time=20)
            assert letter.dead_letter_reason == "MaxDeliveryCountExceeded"
            await receiver.complete_message(letter)


@within_the_limit
async def test_settling_after_the_lock_has_expired_is_lock_lost(namespace: Namespace, sdk: Sdk) -> None:
    queue = namespace.create_queue("impatient", lock_duration=timedelta(seconds=5))
    async with sdk.client(namespace.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"m"))
        async with client.receiver(queue) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            # The SDK refuses by itself what its own clock calls late. That one stays: the broker decides.
            namespace.advance(5.2)
            with pytest.raises(MessageLockLostError, match="TrackingId") as refused:
                await receiver.renew_message_lock(message)
            text = "The lock supplied is invalid. Either the lock expired, or the message has already been removed from"
            assert f"{text} the queue" in str(refused.value)
            with pytest.raises(MessageLockLostError):
                await receiver.complete_message(message)
            (again,) = await receiver.receive_messages(max_wait_time=20)
            assert again.delivery_count == 1
            await receiver.complete_message(again)


@within_the_limit
async def test_closing_gives_prefetched_messages_back_uncounted(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(b"%d" % index) for index in range(10)])
        async with client.receiver(queue, prefetch_count=10) as receiver:
            read = await receiver.receive_messages(max_message_count=3, max_wait_time=20)
            assert len(read) == 3
            for message in read:
                await receiver.complete_message(message)
        # The lock of a message that was not given back would last a minute.
        async with client.receiver(queue) as receiver:
            rest: list[tuple[bytes, int]] = []
            while len(rest) < 7:
                messages = await receiver.receive_messages(max_message_count=7, max_wait_time=20)
                assert messages, f"only {len(rest)} of 7 came back"
                for message in messages:
                    rest.append((b"".join(message.body), message.delivery_count))
                    await receiver.complete_message(message)
        assert rest == [(b"%d" % index, 0) for index in range(3, 10)]


@within_the_limit
async def test_receive_and_delete_leaves_the_queue_empty_at_once(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(b"%d" % index) for index in range(6)])
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with client.receiver(queue, receive_mode=mode, prefetch_count=5) as receiver:
            found: list[bytes] = []
            while len(found) < 6:
                messages = await receiver.receive_messages(max_message_count=6, max_wait_time=2)
                assert messages, "not all six came"
                found += [b"".join(message.body) for message in messages]
            assert found == [b"%d" % index for index in range(6)]
        async with client.receiver(queue) as receiver:
            assert await receiver.peek_messages() == []


@within_the_limit
async def test_messages_over_tls_are_verified_against_our_authority(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("partitioned")
    options = {
        "custom_endpoint_address": bus.process.tls_endpoint,
        "transport_type": TransportType.Amqp,
        "connection_verify": bus.process.ca,
    }
    async with sdk.client(bus.process.connection_string_tls, **options) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(b"%d" % index) for index in range(50)])
        async with client.receiver(queue) as receiver:
            assert sorted(await bodies(receiver, 50)) == sorted(b"%d" % index for index in range(50))


@within_the_limit
async def test_a_partition_key_keeps_its_messages_in_their_order(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("partitioned")
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            for index in range(20):
                await sender.send_messages(ServiceBusMessage(b"%d" % index, partition_key="k"))
        async with client.receiver(queue) as receiver:
            assert await bodies(receiver, 20) == [b"%d" % index for index in range(20)]


@within_the_limit
async def test_an_emulator_program_sends_to_and_receives_from_queue_1(bus: Bus, sdk: Sdk) -> None:
    text = f"Endpoint=sb://localhost:{bus.port};SharedAccessKeyName=RootManageSharedAccessKey;"
    text += "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    async with sdk.client(text) as client:
        async with client.sender("queue.1") as sender:
            await sender.send_messages(ServiceBusMessage(b"hello"))
        async with client.receiver("queue.1") as receiver:
            assert await bodies(receiver, 1) == [b"hello"]


@pytest.mark.parametrize("form", ["{}", "/{}", "{upper}"])
@within_the_limit
async def test_every_form_of_an_address_reaches_the_same_queue(bus: Bus, sdk: Sdk, form: str) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(form.format(queue, upper=queue.upper())) as sender:
            await sender.send_messages(ServiceBusMessage(b"m"))
        async with client.receiver(queue) as receiver:
            assert await bodies(receiver, 1) == [b"m"]
