"""I53 with real processes: the program is killed again and again, and the broker too; what was accepted arrives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from duobus.ha.aio import OutboxSender, PassiveReplicationSender
from duobus.ha.events import Diverted, FailoverEngaged, OutboxWaits
from duobus.ha.outbox.queue import Outbox
from kits.pair import Bus, Events, body, bounded, client, drain

PROGRAM = Path(__file__).with_name("program_outbox.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@contextmanager
def program(bus: Bus, path: Path, number: int) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "CONNECTION_STRING": bus.primary.connection_string}
    arguments = [sys.executable, str(PROGRAM), str(path), bus.orders, str(number)]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as there:
        try:
            yield there
        finally:
            there.kill()


def killed_while_sending(bus: Bus, path: Path, number: int, accepted: int) -> list[str]:
    """Kill the program when it was told that so many are safe; return them."""
    with program(bus, path, number) as there:
        assert there.stdout is not None
        assert there.stdout.readline() == "ready\n"
        lines = [there.stdout.readline() for _ in range(accepted)]
        there.send_signal(signal.SIGKILL)
        # What it said before it died counts as well; a line that was cut off does not.
        lines += [line for line in there.stdout if line.endswith("\n")]
    return [line.strip() for line in lines]


@bounded
async def test_what_was_accepted_arrives_in_order_per_key_after_any_kill(bus: Bus, tmp_path: Path) -> None:
    """IN7."""
    path = tmp_path / "outbox.db"
    accepted = []
    for kill, number in enumerate(range(0, 100_000, 20_000)):
        if kill == 2:
            bus.primary.kill()
        accepted += killed_while_sending(bus, path, number, 40 + 30 * kill)
        if kill == 3:
            bus.primary.start()
    with program(bus, path, -1) as there:
        assert there.stdout is not None
        assert [there.stdout.readline() for _ in range(2)] == ["ready\n", "flushed\n"]
        there.wait(60)
    arrived = list(dict.fromkeys(body(message) for message in await drain(bus.primary, bus.orders)))
    assert set(accepted) - set(arrived) == set()
    assert len(accepted) >= 500
    for key in "0123":
        numbers = [int(text.split(":")[1]) for text in arrived if text.startswith(f"{key}:")]
        assert numbers == sorted(numbers)


def message(text: str, key: str) -> ServiceBusMessage:
    return ServiceBusMessage(text, session_id=key, message_id=str(uuid.uuid4()))


async def largest(bus: Bus) -> str:
    """The largest body that the primary takes: found, not assumed."""
    low, high = 1, 2_000_000
    async with client(bus.primary) as sdk, sdk.get_queue_sender(bus.orders) as sender:
        while high - low > 1:
            middle = (low + high) // 2
            try:
                await sender.send_messages(message("x" * middle, "b"))
            except MessageSizeExceededError:
                high = middle
            else:
                low = middle
    await drain(bus.primary, bus.orders)
    return "x" * low


@bounded
async def test_behind_a_paired_sender_it_diverts_and_what_is_too_large_waits(bus: Bus, tmp_path: Path) -> None:
    large = await largest(bus)
    waits = Events()
    with Outbox(tmp_path / "outbox.db", retry_first_ms=50, retry_last_ms=200) as outbox:
        async with bus.paired() as (pair, events):
            bus.primary.kill()
            async with OutboxSender(lambda: pair.get_queue_sender(bus.orders), outbox, on_event=waits) as sender:
                await sender.send_messages(message("small", "a"))
                await events.wait(FailoverEngaged)
                await events.wait(Diverted)
                await sender.send_messages(message(large, "b"))
                while not any("failed over" in event.error for event in waits.of(OutboxWaits)):
                    await waits.wait(OutboxWaits, len(waits.of(OutboxWaits)) + 1)
                await sender.send_messages(message("small, too", "a"))
                await events.wait(Diverted, 2)
                assert outbox.depth == (1, outbox.depth.size, 0)
                bus.primary.start()
                assert await sender.flush(20)
    assert [len(body(message)) for message in await drain(bus.primary, bus.orders)] == [len(large)]
    assert sorted(body(message) for message in await bus.kept()) == ["small", "small, too"]


@bounded
async def test_behind_a_replicating_sender_both_namespaces_may_be_away_for_a_while(bus: Bus, tmp_path: Path) -> None:
    with Outbox(tmp_path / "outbox.db", retry_first_ms=50, retry_last_ms=200) as outbox:
        async with client(bus.primary) as one, client(bus.secondary) as two:

            def make() -> PassiveReplicationSender:
                return PassiveReplicationSender(
                    [one.get_queue_sender(bus.orders), two.get_queue_sender(bus.backlogs[0])]
                )

            bus.primary.kill()
            bus.secondary.kill()
            async with OutboxSender(make, outbox) as sender:
                for number in range(3):
                    await sender.send_messages(ServiceBusMessage(str(number)))
                bus.secondary.start()
                assert await sender.flush(20)
                assert outbox.depth.set_aside == 0
    arrived = await drain(bus.secondary, bus.backlogs[0])
    assert list(dict.fromkeys(body(message) for message in arrived)) == ["0", "1", "2"]
