"""Listing the sessions of a queue that has very many: in pages, and with turns for others in between (I62)."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from transaction_kit import Manager, keyed

from duobus.amqp import Dispositions
from duobus.broker.entities import queue as queues
from duobus.codec import Int, Timestamp
from duobus.gateway.amqp.management import node as management_node
from duobus.model.descriptions import QueueDescription
from kits.gateway import Client, TcpStream, in_loop, serving

NAMES = [f"session-{number:02}" for number in range(23)]
#: Asks for sessions with active messages.
ACTIVE = Timestamp(253_402_300_800_000)


@in_loop
async def test_sessions_are_listed_in_pages_and_others_have_turns_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "SESSIONS_AT_ONCE", 5)
    turns = 0

    async def sleep(seconds: float, original: object = asyncio.sleep) -> None:
        nonlocal turns
        turns += 1
        await original(seconds)  # type: ignore[operator]

    async with serving(QueueDescription(name="q", requires_session=True)) as server:
        client = Client(await TcpStream.connect(server.port("amqp") or 0))
        link = await client.sender()
        for name in NAMES:
            first = link.send_one(uuid.uuid4().bytes, keyed(b"x", session=name), False)
            await client.wait(Dispositions, lambda event, first=first: event.ranges[0][0] == first)  # type: ignore[misc]
        manager = await Manager.attach(client)
        monkeypatch.setattr(management_node.asyncio, "sleep", sleep)
        found: list[str] = []
        while (await manager.ask("get-message-sessions", page_of(len(found), 7)))[0] == 200:
            found += manager.body["sessions-ids"].items
        assert found == NAMES
        turns = 0
        # Nothing is behind the last of them; all are looked at to know it.
        status, condition, _ = await manager.ask("get-message-sessions", page_of(1_000_000, 100))
        assert (status, condition) == (204, "com.microsoft:session-not-found")
        assert turns == 5
        monkeypatch.undo()


def page_of(skip: int, top: int) -> dict[str, object]:
    return {"last-updated-time": ACTIVE, "skip": Int(skip), "top": Int(top)}
