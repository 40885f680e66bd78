"""The Python SDK: peek, schedule, cancel, deferred messages by number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageNotFoundError
from kit_bus import Bus
from kit_sdk import Sdk, bodies, within_the_limit

from duobus.testing.namespace import Namespace

KINDS = pytest.mark.parametrize("kind", ["plain", "partitioned"])


@within_the_limit
async def test_peek_of_an_empty_entity_is_an_empty_list(bus: Bus, sdk: Sdk) -> None:
    async with sdk.client(bus.connection_string) as client, client.receiver(bus.queue()) as receiver:
        assert await receiver.peek_messages(max_message_count=10) == []


@within_the_limit
async def test_peek_shows_messages_in_order_and_takes_no_lock(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(b"%d" % index) for index in range(5)])
        async with client.receiver(queue) as receiver:
            first = await receiver.peek_messages(max_message_count=3)
            assert [b"".join(message.body) for message in first] == [b"0", b"1", b"2"]
            # The SDK goes on behind what it has seen.
            rest = await receiver.peek_messages(max_message_count=3)
            assert [b"".join(message.body) for message in rest] == [b"3", b"4"]
            again = await receiver.peek_messages(sequence_number=first[1].sequence_number)
            assert again[0].sequence_number == first[1].sequence_number
            assert {message.delivery_count for message in first} == {0}
            assert await bodies(receiver, 5) == [b"%d" % index for index in range(5)]


@within_the_limit
async def test_a_scheduled_message_arrives_at_its_time_within_a_second(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    due = datetime.now(UTC) + timedelta(seconds=2)
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        (number,) = await sender.schedule_messages(ServiceBusMessage(b"later"), due)
        async with client.receiver(queue) as receiver:
            (peeked,) = await receiver.peek_messages()
            assert (peeked.sequence_number, peeked.state) == (number, ServiceBusMessageState.SCHEDULED)
            (message,) = await receiver.receive_messages(max_wait_time=20)
            late = (datetime.now(UTC) - due).total_seconds()
            # On time in the broker's clock is for the tests in virtual time; here it may not be early.
            assert late >= -0.05
            assert b"".join(message.body) == b"later"
            assert message.enqueued_sequence_number == number
            assert message.sequence_number != number
            await receiver.complete_message(message)


@within_the_limit
async def test_a_message_scheduled_by_its_own_property_waits_too(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        due = datetime.now(UTC) + timedelta(seconds=1)
        await sender.send_messages(ServiceBusMessage(b"later", scheduled_enqueue_time_utc=due))
        async with client.receiver(queue) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            assert (datetime.now(UTC) - due).total_seconds() >= -0.05
            await receiver.complete_message(message)


@KINDS
@within_the_limit
async def test_a_cancelled_message_is_gone_for_good(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    due = datetime.now(UTC) + timedelta(hours=1)
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        numbers = await sender.schedule_messages([ServiceBusMessage(b"%d" % index) for index in range(3)], due)
        assert len(set(numbers)) == 3
        await sender.cancel_scheduled_messages(numbers[:2])
        async with client.receiver(queue) as receiver:
            assert [message.sequence_number for message in await receiver.peek_messages(max_message_count=5)] == [
                numbers[2]
            ]
        with pytest.raises(MessageNotFoundError, match="TrackingId"):
            await sender.cancel_scheduled_messages(numbers[0])


@KINDS
@within_the_limit
async def test_deferred_messages_come_back_by_their_numbers_in_any_order(bus: Bus, sdk: Sdk, kind: str) -> None:
    """PE5."""
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(b"%d" % index) for index in range(4)])
        async with client.receiver(queue) as receiver:
            numbers: dict[bytes, int] = {}
            while len(numbers) < 4:
                for message in await receiver.receive_messages(max_message_count=4, max_wait_time=2):
                    numbers[b"".join(message.body)] = message.sequence_number
                    await receiver.defer_message(message)
            assert await receiver.receive_messages(max_wait_time=0.2) == []
            wanted = [b"3", b"0", b"2"]
            back = await receiver.receive_deferred_messages([numbers[name] for name in wanted])
            assert [b"".join(message.body) for message in back] == wanted
            assert {message.state for message in back} == {ServiceBusMessageState.DEFERRED}
            for message in back:
                await receiver.complete_message(message)
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with client.receiver(queue, receive_mode=mode) as receiver:
            (last,) = await receiver.receive_deferred_messages(numbers[b"1"])
            assert b"".join(last.body) == b"1"
            assert await receiver.peek_messages(max_message_count=5) == []


@within_the_limit
async def test_an_unknown_number_is_message_not_found_and_touches_nothing(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"m"))
        async with client.receiver(queue) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            await receiver.defer_message(message)
            with pytest.raises(MessageNotFoundError):
                await receiver.receive_deferred_messages([message.sequence_number, 4711])
            # All or none: the known one was not locked on the way.
            (back,) = await receiver.receive_deferred_messages(message.sequence_number)
            await receiver.complete_message(back)


@within_the_limit
@pytest.mark.parametrize("dead_letters", [False, True])
async def test_a_deferred_message_expires_when_it_is_asked_for_and_not_before(
    namespace: Namespace, sdk: Sdk, dead_letters: bool
) -> None:
    life = timedelta(seconds=30)
    options = {"default_message_time_to_live": life, "dead_lettering_on_message_expiration": dead_letters}
    queue = namespace.create_queue("short-lived", **options)
    async with sdk.client(namespace.connection_string) as client, client.receiver(queue) as receiver:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"m"))
        (message,) = await receiver.receive_messages(max_wait_time=20)
        await receiver.defer_message(message)
        namespace.advance(3_600)
        (seen,) = await receiver.peek_messages(sequence_number=1)
        assert seen.state == ServiceBusMessageState.DEFERRED
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(message.sequence_number)
        assert await receiver.peek_messages(sequence_number=1) == []
        async with client.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            letters = await dead.peek_messages()
            assert [letter.dead_letter_reason for letter in letters] == ["TTLExpiredException"] * dead_letters


@within_the_limit
async def test_an_abandon_by_number_leaves_the_message_deferred(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"m"))
        async with client.receiver(queue) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            await receiver.defer_message(message)
            (back,) = await receiver.receive_deferred_messages(message.sequence_number)
            await receiver.abandon_message(back)
            (again,) = await receiver.receive_deferred_messages(message.sequence_number)
            await receiver.dead_letter_message(again, reason="enough")
        async with client.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (letter,) = await receiver.receive_messages(max_wait_time=20)
            assert letter.dead_letter_reason == "enough"
            await receiver.complete_message(letter)


@within_the_limit
async def test_a_message_whose_time_is_over_is_not_delivered_any_more(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(b"short", time_to_live=timedelta(milliseconds=200)))
            await sender.send_messages(ServiceBusMessage(b"long", time_to_live=timedelta(hours=1)))
        async with client.receiver(queue) as receiver:
            # The limit of the scenario ends the wait for an expiry that does not come.
            while len(await receiver.peek_messages(max_message_count=5, sequence_number=1)) > 1:
                pass
            assert await bodies(receiver, 1) == [b"long"]
            assert await receiver.peek_messages(sequence_number=1) == []


@KINDS
@within_the_limit
async def test_peek_shows_every_state_in_order_and_dead_letters_at_their_own_node(
    bus: Bus, sdk: Sdk, kind: str
) -> None:
    queue = bus.queue(kind)
    due = datetime.now(UTC) + timedelta(hours=1)
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            for index in range(8):
                await sender.send_messages(ServiceBusMessage(b"%d" % index))
            await sender.schedule_messages(ServiceBusMessage(b"later"), due)
        async with client.receiver(queue) as receiver:
            taken: list[Any] = []
            while len(taken) < 3:
                taken += await receiver.receive_messages(max_message_count=3 - len(taken), max_wait_time=2)
            await receiver.defer_message(taken[0])
            await receiver.dead_letter_message(taken[1], reason="bad")
            found: list[Any] = []
            while page := await receiver.peek_messages(
                max_message_count=3, sequence_number=found[-1].sequence_number + 1 if found else 1
            ):
                found += page
            numbers = [message.sequence_number for message in found]
            assert numbers == sorted(set(numbers))
            states = [message.state for message in found]
            assert states.count(ServiceBusMessageState.DEFERRED) == 1
            assert states.count(ServiceBusMessageState.SCHEDULED) == 1
            # Seven are left that are active, the locked one among them.
            assert len(found) == 8
            assert taken[2].sequence_number in numbers
            await receiver.complete_message(taken[2])
        async with client.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (letter,) = await receiver.peek_messages(max_message_count=9)
            assert letter.dead_letter_reason == "bad"
            assert letter.sequence_number == taken[1].sequence_number


@KINDS
@within_the_limit
async def test_one_peek_brings_at_most_256_kib_and_the_next_goes_on(bus: Bus, sdk: Sdk, kind: str) -> None:
    """PE20."""
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        async with client.sender(queue) as sender:
            for _ in range(7):
                await sender.send_messages(ServiceBusMessage(bytes(100_000)))
        async with client.receiver(queue) as receiver:
            pages: list[list[int]] = []
            while page := await receiver.peek_messages(
                max_message_count=100, sequence_number=pages[-1][-1] + 1 if pages else 1
            ):
                pages.append([message.sequence_number for message in page])
            assert [len(page) for page in pages] == [2, 2, 2, 1]
