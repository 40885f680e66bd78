"""What the owner of a client or of an entity has to mend is no fault of a message, which waits (I49, I53)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import EntityStatus

from duobus.cli.remote import Remote
from duobus.ha.aio import OutboxSender, Syphon
from duobus.ha.events import OutboxSetAside, OutboxWaits, Reporter, SyphonDeadLettered, Syphoned, SyphonSkipped
from duobus.ha.outbox.queue import Outbox
from duobus.ha.sdk import prompt_client
from kits.pair import Bus, Events, body, bounded, client, drain

pytestmark = pytest.mark.slow

WAITING = 20


@bounded
async def test_an_outbox_whose_client_was_closed_gives_up_nothing_and_keeps_the_order_of_a_key(
    bus: Bus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK says ValueError there, as it does of messages that it cannot encode."""
    events = Events()
    closed = client(bus.primary)
    made: list[Any] = [closed.get_queue_sender(bus.registrations)]
    with Outbox(tmp_path / "outbox.db", retry_first_ms=20, retry_last_ms=100) as outbox:
        async with OutboxSender(lambda: made[-1], outbox, on_event=events) as sender:
            await sender.send_messages(ServiceBusMessage("0", session_id="s"))
            assert await sender.flush(10)
            await closed.close()
            for number in range(1, 5):
                await sender.send_messages(ServiceBusMessage(str(number), session_id="s"))
            waits = await events.wait(OutboxWaits, 2)
            assert (waits.meaning, "make a new one" in waits.error) == ("owner", True)
            assert not await sender.flush(0.2), "what waits is not sent"
            assert (outbox.depth.messages, outbox.depth.set_aside) == (4, 0)
            async with client(bus.primary) as new:
                made.append(new.get_queue_sender(bus.registrations))
                assert await sender.flush(10)
    assert events.of(OutboxSetAside) == []
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in told if "wait in the outbox" in text]) == 1, "once, not with each try"
    received = await drain(bus.primary, bus.registrations, session_id="s")
    assert [body(message) for message in received] == ["0", "1", "2", "3", "4"]


@contextlib.asynccontextmanager
async def carrying(bus: Bus, primary: ServiceBusClient, path: str) -> AsyncIterator[Events]:
    """A syphon of one backlog queue that leaves a destination alone for a moment only."""
    events = Events()
    async with client(bus.secondary) as secondary:
        syphon = Syphon(primary, secondary, [path], retry=timedelta(milliseconds=300), reporter=Reporter(events))
        running = asyncio.create_task(syphon.run())
        try:
            yield events
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def divert(bus: Bus, path: str, *destinations: str) -> None:
    """Put messages for each destination into a backlog queue, by turns."""
    async with client(bus.secondary) as sdk, sdk.get_queue_sender(path) as sender:
        await sender.send_messages(
            [
                ServiceBusMessage(f"{there} {number}", application_properties={"x-ms-path": there})
                for number in range(WAITING)
                for there in destinations
            ]
        )


async def until_all_are_there(events: Events, there: str) -> None:
    number = 1
    while sum(event.messages for event in events.of(Syphoned) if event.entity == there) < WAITING:
        await events.wait(Syphoned, number)
        number += 1


def set_status(bus: Bus, queue: str, status: EntityStatus) -> None:
    with Remote(bus.primary.connection_string, None, None).administration(queue) as administration:
        there = administration.get_queue(queue)
        there.status = status
        administration.update_queue(there)


@bounded
async def test_messages_of_a_queue_that_is_disabled_wait_in_the_backlog_and_hold_up_nobody(bus: Bus) -> None:
    path = bus.backlogs[0]
    await divert(bus, path, bus.orders, bus.bills)
    set_status(bus, bus.orders, EntityStatus.SEND_DISABLED)
    async with client(bus.primary) as primary, carrying(bus, primary, path) as events:
        await until_all_are_there(events, bus.bills)
        skipped = await events.wait(SyphonSkipped, 2)
        assert (skipped.entity, skipped.meaning) == (bus.orders, "owner")
        assert "SendDisabled" in skipped.error
        set_status(bus, bus.orders, EntityStatus.ACTIVE)
        await until_all_are_there(events, bus.orders)
        assert events.of(SyphonDeadLettered) == []
    assert len(await drain(bus.primary, bus.orders)) == WAITING


@bounded
async def test_a_key_of_the_primary_that_was_changed_makes_a_backlog_wait(bus: Bus) -> None:
    path = bus.backlogs[0]
    await divert(bus, path, bus.orders)
    text = bus.primary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    changed = prompt_client(ServiceBusClient.from_connection_string(text, retry_total=0))
    async with changed, carrying(bus, changed, path) as events:
        skipped = await events.wait(SyphonSkipped, 2)
        assert (skipped.messages, skipped.meaning) == (WAITING, "owner")
        assert "correct the key" in skipped.error
        assert events.of(SyphonDeadLettered) == []
    assert await drain(bus.secondary, path, sub_queue="deadletter") == []


@bounded
async def test_a_client_that_its_owner_closed_makes_a_backlog_wait(bus: Bus) -> None:
    path = bus.backlogs[0]
    primary = client(bus.primary)
    async with carrying(bus, primary, path) as events:
        await divert(bus, path, bus.orders)
        await until_all_are_there(events, bus.orders)
        await primary.close()
        await divert(bus, path, bus.orders)
        skipped = await events.wait(SyphonSkipped)
        assert (skipped.messages, skipped.meaning) == (WAITING, "owner")
        assert "already been shutdown" in skipped.error
    assert await drain(bus.secondary, path, sub_queue="deadletter") == []
    await primary.close()
