"""``duobus syphon`` as a process between two brokers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiveMode

from kits.pair import LIMIT_S, Bus, body, client, drain

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def start(bus: Bus, *arguments: str, stdout: int = subprocess.PIPE, **changes: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "DUOBUS_PRIMARY": bus.primary.connection_string,
        "DUOBUS_SECONDARY": bus.secondary.connection_string,
        **changes,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "duobus", "syphon", "--backlog-queues", "3", "--json", *arguments],
        env=environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


async def take(bus: Bus) -> list[ServiceBusReceivedMessage]:
    """The next messages of the queue of orders."""
    how = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with client(bus.primary) as sdk, sdk.get_queue_receiver(bus.orders, receive_mode=how) as receiver:
        return await receiver.receive_messages(max_wait_time=LIMIT_S)


async def put(bus: Bus, text: str) -> None:
    async with client(bus.secondary) as sdk, sdk.get_queue_sender(bus.backlogs[0]) as sender:
        await sender.send_messages(ServiceBusMessage(text, application_properties={"x-ms-path": bus.orders}))


def test_messages_are_carried_until_a_signal_ends_it(bus: Bus) -> None:
    asyncio.run(put(bus, "carried"))
    with start(bus, "--primary-name", bus.name) as process:
        assert process.stdout is not None
        event = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert 0 <= event.pop("lag_ms") < 60_000
    assert event == {"event": "Syphoned", "entity": bus.orders, "backlog": bus.backlogs[0], "messages": 1}
    assert [body(message) for message in asyncio.run(drain(bus.primary, bus.orders))] == ["carried"]


def test_a_signal_ends_it_while_nobody_reads_what_it_prints(bus: Bus) -> None:
    """Its events go to a pipe that is full; messages are carried all the same."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    asyncio.run(put(bus, "carried"))
    try:
        with start(bus, "--primary-name", bus.name, stdout=writing) as process:
            arrived = asyncio.run(take(bus))
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(LIMIT_S) == 0
            finally:
                process.kill()
    finally:
        os.close(reading)
        os.close(writing)
    assert [body(message) for message in arrived] == ["carried"]


def test_a_wrong_name_of_the_primary_is_told_and_ends_it(bus: Bus) -> None:
    with start(bus, "--primary-name", "tailspin") as process:
        _, text = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "none of 3 backlog queues" in text
    assert "--primary-name 'tailspin'" in text


def test_what_is_no_connection_string_is_told_without_repeating_it(bus: Bus) -> None:
    with start(bus, DUOBUS_PRIMARY="SharedAccessKey=secret") as process:
        _, text = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "connection string of the primary" in text
    assert "secret" not in text
