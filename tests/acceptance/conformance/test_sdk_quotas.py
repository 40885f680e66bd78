"""Quotas and sizes over the wire: one too many is refused with the condition that the SDK knows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from kit_bus import Bus
from kit_sdk import Sdk, bodies, within_the_limit

from duobus.amqp import Closed
from kits.raw_client import RawClient, token


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """A broker that allows little."""
    found = Bus(tmp_path_factory.mktemp("small"), ("--quota", "connections=8", "--quota", "receivers=2"))
    with found.process:
        yield found


def test_one_connection_too_many_is_closed_and_strangers_do_not_count(small: Bus) -> None:
    strangers = [RawClient(small.port) for _ in range(5)]
    clients = [RawClient(small.port) for _ in range(8)]
    for client in clients:
        assert client.put_token("", token(""))[0] == 202
    with RawClient(small.port) as over:
        with pytest.raises(AssertionError, match=r"connection closed|no Transfers"):
            over.put_token("", token(""))
        closed = next(event for event in over.events if isinstance(event, Closed))
        assert closed.error is not None
        assert closed.error.condition == "amqp:resource-limit-exceeded"
        assert "8 connections of at most 8" in (closed.error.description or "")
    for client in [*clients, *strangers]:
        client.__exit__(None, None, None)


@within_the_limit
async def test_one_receiver_too_many_is_refused_and_senders_are_not(small: Bus, sdk: Sdk) -> None:
    queue = small.queue()
    async with sdk.client(small.connection_string) as client:
        async with client.receiver(queue) as first, client.receiver(queue, sub_queue="deadletter") as dead:
            await first.peek_messages()
            await dead.peek_messages()
            with pytest.raises(ServiceBusError):
                async with client.receiver(queue) as third:
                    await third.receive_messages(max_wait_time=1)
        async with client.sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("m"))
        async with client.receiver(queue) as again:
            assert await bodies(again, 1) == [b"m"]


@within_the_limit
async def test_properties_that_are_too_large_are_refused_for_good(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue()
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        fits = {f"p{number}": "x" * 30_000 for number in range(2)}
        await sender.send_messages(ServiceBusMessage("fits", application_properties=fits))
        for properties, text in (
            ({"p": "x" * 32_768}, "32768 are allowed"),
            ({f"p{number}": "x" * 30_000 for number in range(3)}, "65536 are allowed"),
        ):
            with pytest.raises(ServiceBusError, match=text):
                await sender.send_messages(ServiceBusMessage("refused", application_properties=properties))
        async with client.receiver(queue) as receiver:
            (found,) = await receiver.receive_messages(max_wait_time=20)
            assert len(found.application_properties) == 2
