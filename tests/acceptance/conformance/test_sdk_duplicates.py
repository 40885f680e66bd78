"""Duplicate detection as the official SDK sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from kit_bus import Bus
from kit_sdk import Sdk, bodies, within_the_limit

from duobus.amqp import Transfers
from duobus.codec import ULong, build_message
from kits.raw_client import RawClient

KINDS = pytest.mark.parametrize("kind", ["watchful", "watchful-partitioned"])


def message(text: str, one: str | None = None, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(text, message_id=one, **options)


@KINDS
@within_the_limit
async def test_an_id_that_came_before_is_accepted_and_dropped(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        for text, one in (("first", "a"), ("again", "a"), ("other", "b"), ("third", "a")):
            await sender.send_messages(message(text, one))
        async with client.receiver(queue) as receiver:
            assert sorted(await bodies(receiver, 2)) == [b"first", b"other"]
            await sender.send_messages(message("after it was completed", "a"))
            assert await receiver.receive_messages(max_wait_time=0.5) == []


@within_the_limit
async def test_each_message_of_a_batch_is_judged_by_itself(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("watchful")
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        await sender.send_messages(message("first", "a"))
        await sender.send_messages([message("dropped", "a"), message("kept", "b"), message("dropped", "b")])
        await sender.send_messages([message("without"), message("without")])
        async with client.receiver(queue) as receiver:
            found = await receiver.receive_messages(max_message_count=10, max_wait_time=2)
            while len(found) < 4:
                found += await receiver.receive_messages(max_message_count=10, max_wait_time=2)
            assert [str(one) for one in found] == ["first", "kept", "without", "without"]


@within_the_limit
async def test_a_scheduled_duplicate_gets_a_number_and_is_dropped(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("watchful")
    later = datetime.now(UTC) + timedelta(hours=1)
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        first = await sender.schedule_messages(message("first", "a"), later)
        again = await sender.schedule_messages([message("again", "a"), message("new", "b")], later)
        assert len({*first, *again}) == 3
        async with client.receiver(queue) as receiver:
            shown = await receiver.peek_messages(max_message_count=10)
            assert [(one.sequence_number, str(one)) for one in shown] == [(first[0], "first"), (again[1], "new")]
        await sender.cancel_scheduled_messages([first[0], again[1]])
        await sender.send_messages(message("its id is remembered though it was cancelled", "a"))
        async with client.receiver(queue) as receiver:
            assert await receiver.peek_messages(max_message_count=10) == []


@within_the_limit
async def test_a_partition_key_belongs_to_the_id_where_there_are_partitions(bus: Bus, sdk: Sdk) -> None:
    """PE2."""
    queue = bus.queue("watchful-partitioned")
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        for key in ("k1", "k2", "k1", "k2"):
            await sender.send_messages(message(key, "a", partition_key=key))
        batch = [message(f"{number}", f"id-{number}", partition_key="k1") for number in range(3)]
        await sender.send_messages(batch)
        await sender.send_messages(batch)
        async with client.receiver(queue) as receiver:
            assert sorted(await bodies(receiver, 5)) == [b"0", b"1", b"2", b"k1", b"k2"]
            assert await receiver.receive_messages(max_wait_time=0.5) == []


def test_ids_of_another_type_are_other_ids(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue("watchful")
    link = raw.credited(raw.sender(queue))
    for one in ("7", ULong(7), b"7") * 2:
        raw.send(link, build_message([one], None, data=b"x"))
    receiver = raw.receiver(queue)
    receiver.grant(10)
    raw.flush()
    assert len(raw.receive(receiver, 3)) == 3
    assert raw.nothing_more(Transfers, 0.3)
