"""Forwarding as the official SDK sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from kit_bus import Bus
from kit_sdk import Face, Sdk, within_the_limit

from duobus.fragment.transfer import HOPS_EXCEEDED

COUNT_MASK = (1 << 48) - 1


async def received(receiver: Face, number: int) -> list[Face]:
    found: list[Face] = []
    while len(found) < number:
        more = await receiver.receive_messages(max_message_count=number - len(found), max_wait_time=5)
        assert more, f"only {len(found)} of {number} messages came"
        found += more
    return found


@within_the_limit
async def test_messages_pass_a_chain_of_plain_and_partitioned_queues(bus: Bus, sdk: Sdk) -> None:
    """PE16."""
    way = bus.way()
    async with sdk.client(bus.connection_string) as client, client.sender(f"way-{way}") as sender:
        for number in range(10):
            made = ServiceBusMessage(
                f"m{number}",
                message_id=f"id{number}",
                partition_key="key",
                subject="s",
                application_properties={"n": number},
            )
            await sender.send_messages(made)
        async with client.receiver(f"way-out-{way}") as receiver:
            found = await received(receiver, 10)
            assert [str(one) for one in found] == [f"m{number}" for number in range(10)], "a key keeps its order"
            for number, one in enumerate(found):
                assert (one.message_id, one.partition_key, one.subject) == (f"id{number}", "key", "s")
                assert one.application_properties == {b"n": number}
                assert one.enqueued_sequence_number == number + 1, "the number that the first queue gave"
                assert (one.delivery_count, one.sequence_number & COUNT_MASK) == (0, number + 1)
                await receiver.complete_message(one)


@within_the_limit
async def test_a_queue_that_forwards_is_not_received_from_and_its_messages_are_counted(bus: Bus, sdk: Sdk) -> None:
    way = bus.way()
    async with sdk.client(bus.connection_string, retry_total=2) as client:
        with pytest.raises(ServiceBusError, match="forwards its messages"):
            async with client.receiver(f"way-{way}"):
                pytest.fail("the link was attached")
        async with client.sender(f"way-{way}") as sender:
            later = datetime.now(UTC) + timedelta(hours=1)
            await sender.schedule_messages(ServiceBusMessage("later"), later)
        assert bus.metric("duobus_messages_to_forward", f"way-{way}") == 0


@within_the_limit
async def test_dead_letters_go_on_with_their_reason(bus: Bus, sdk: Sdk) -> None:
    way = bus.way()
    async with sdk.client(bus.connection_string) as client, client.sender(f"way-{way}") as sender:
        await sender.send_messages(ServiceBusMessage("bad", application_properties={"n": 1}))
        async with client.receiver(f"way-out-{way}") as receiver:
            (found,) = await received(receiver, 1)
            await receiver.dead_letter_message(found, reason="why", error_description="because")
        async with client.receiver(f"way-graves-{way}") as receiver:
            (dead,) = await received(receiver, 1)
            assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "because")
            assert (dead.dead_letter_source, dead.application_properties[b"n"]) == (f"way-out-{way}", 1)
            assert dead.enqueued_sequence_number == 1
            await receiver.complete_message(dead)


@within_the_limit
async def test_what_goes_in_a_circle_is_found_in_the_transfer_dead_letter_queue(bus: Bus, sdk: Sdk) -> None:
    way = bus.way()
    async with sdk.client(bus.connection_string) as client, client.sender(f"circle-{way}") as sender:
        await sender.send_messages(ServiceBusMessage("round"))
        options = {"sub_queue": ServiceBusSubQueue.TRANSFER_DEAD_LETTER}
        async with client.receiver(f"circle-{way}", **options) as receiver:
            (found,) = await received(receiver, 1)
            assert (str(found), found.dead_letter_reason) == ("round", HOPS_EXCEEDED)
            await receiver.complete_message(found)
