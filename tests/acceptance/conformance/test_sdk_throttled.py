"""A namespace past its rate: what the official SDK is told, and that it waits and gets through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError
from kit_bus import NAMESPACE
from kit_sdk import Face, Sdk, bodies, within_the_limit
from test_raw_deliveries import management, message

from duobus.amqp import LinkFlow
from duobus.codec import Int, Timestamp
from duobus.testing.server import ServerProcess
from kits.raw_client import RawClient, token

#: Of these sends may have 7, so that 3 are left for receivers.
RATE = 10


@pytest.fixture
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A broker whose only namespace is held to RATE."""
    namespace = {"Name": NAMESPACE, "MessagesPerSecond": RATE, "Queues": [{"Name": "q"}]}
    configuration = {"UserConfig": {"Namespaces": [namespace]}}
    with ServerProcess(tmp_path_factory.mktemp("slow"), config=configuration, arguments=("--emulator",)) as process:
        yield process


async def flood(sender: Face, number: int) -> None:
    """Send messages one after the other."""
    for index in range(number):
        await sender.send_messages(ServiceBusMessage(b"%d" % index))


@within_the_limit
async def test_a_send_beyond_the_rate_is_server_busy_with_the_code_and_the_wait(slow: ServerProcess, sdk: Sdk) -> None:
    async with sdk.client(slow.connection_string) as client, client.sender("q") as sender:
        with pytest.raises(ServiceBusServerBusyError, match=r"50009.*wait 2 seconds.*TrackingId"):
            await flood(sender, 60)
        # The link lives on.
        await asyncio.sleep(1)
        await sender.send_messages(ServiceBusMessage(b"later"))


@within_the_limit
async def test_an_sdk_that_may_retry_waits_and_gets_every_message_through(slow: ServerProcess, sdk: Sdk) -> None:
    async with sdk.client(slow.connection_string, retry_total=3) as client:
        started = time.monotonic()
        async with client.sender("q") as sender:
            await flood(sender, 20)
        # The wait of the SDK for this condition; without it the refusal would have come again.
        assert time.monotonic() - started > 0.5
        async with client.receiver("q") as receiver:
            assert sorted(await bodies(receiver, 20)) == sorted(b"%d" % index for index in range(20))


@within_the_limit
async def test_a_batch_goes_as_a_whole_and_what_comes_behind_it_waits(slow: ServerProcess, sdk: Sdk) -> None:
    async with sdk.client(slow.connection_string) as client, client.sender("q") as sender:
        # Six seconds' worth, when nothing else was sent.
        await sender.send_messages([ServiceBusMessage(b"%d" % index) for index in range(60)])
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage(b"behind"))
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages([ServiceBusMessage(b"behind")] * 2)
        with RawClient(int(slow.ready["amqp_port"])) as raw:
            raw.put_token("", token(""))
            status, properties, _ = management(raw, "q", "peek-message", {"message-count": Int(1)})
            assert (status, properties["errorCondition"]) == (503, "com.microsoft:server-busy")
            assert "wait 2 seconds" in properties["statusDescription"]
            # Whoever makes room is not held up.
            before = Timestamp(int(time.time() * 1000) + 60_000)
            request = {"message-count": Int(100), "enqueued-time-utc": before}
            assert management(raw, "q", "batch-delete-messages", request)[2] == {"message-count": 60}


def test_a_client_that_does_not_wait_is_given_little_credit(slow: ServerProcess) -> None:
    with RawClient(int(slow.ready["amqp_port"])) as raw:
        assert raw.put_token("", token(""))[0] == 202
        link = raw.sender("q")
        sent = 0
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            while link.credit > 0:
                raw.send(link, message(b"m"))
                sent += 1
            raw.wait(LinkFlow, where=lambda event: event.link is link)
        # A second's worth at a time, and half a second between: not the thousands that it would have sent.
        assert RATE < sent <= 8 * RATE
