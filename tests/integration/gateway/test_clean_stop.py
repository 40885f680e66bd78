"""A stop, of the server or of a link, comes after the answers to what was taken (I63)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from duobus.amqp import ACCEPTED, Closed, Dispositions, LinkDetached, LinkFlow
from duobus.storage.writers import LoopWriter
from kits.gateway import Client, TcpStream, in_loop, message, serving

#: How long a slow store takes for everything.
DELAY_S = 0.3


def slow_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every store tell its outcomes late from now on."""
    submit = LoopWriter.submit

    def late(self: LoopWriter, call: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def tell(result: Any, error: BaseException | None) -> None:
            asyncio.get_running_loop().call_later(DELAY_S, done, result, error)

        submit(self, call, tell)

    monkeypatch.setattr(LoopWriter, "submit", late)


async def until_closed(client: Client) -> list[Any]:
    """Everything that the server says, its close included."""
    while not any(isinstance(event, Closed) for event in client.events):
        await client.pump()
    return client.events


def is_accepted(event: Any, delivery: int, *, role: bool) -> bool:
    """Whether it is the outcome of a delivery; ``role`` as in Dispositions."""
    return (
        isinstance(event, Dispositions)
        and event.role is role
        and any(first <= delivery <= last and state is ACCEPTED for first, last, _, state, *_ in event.ranges)
    )


@in_loop
async def test_a_send_under_way_is_answered_before_its_link_is_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        client = Client(await TcpStream.connect(server.port("amqp") or 0))
        link = await client.sender()
        slow_stores(monkeypatch)
        delivery = link.send_one(uuid.uuid4().bytes, message(b"m"), False)
        await client.flush()
        closing = asyncio.create_task(server.amqp.close(0.1))
        events = await until_closed(client)
        await closing
        answered = [index for index, event in enumerate(events) if is_accepted(event, delivery, role=True)]
        detached = [index for index, event in enumerate(events) if isinstance(event, LinkDetached)]
        assert len(answered) == len(detached) == 1
        assert answered < detached


@in_loop
async def test_a_settlement_under_way_is_answered_before_its_link_is_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        client = Client(await TcpStream.connect(server.port("amqp") or 0))
        sending = await client.sender()
        await client.send(sending, b"m")
        receiving = await client.receiver(credit=1)
        delivery, _ = await client.receive(receiving)
        slow_stores(monkeypatch)
        client.session.disposition(True, delivery, delivery, ACCEPTED, False)
        await client.flush()
        closing = asyncio.create_task(server.amqp.close(0.1))
        events = await until_closed(client)
        await closing
        answered = [index for index, event in enumerate(events) if is_accepted(event, delivery, role=False)]
        detached = [
            index for index, event in enumerate(events) if isinstance(event, LinkDetached) and event.link is receiving
        ]
        assert len(answered) == len(detached) == 1
        assert answered < detached


@pytest.mark.parametrize("last_word", ["drain", "detach"])
@in_loop
async def test_a_settlement_under_way_is_answered_before_the_client_s_last_word(
    last_word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JavaScript SDK waits a minute for an outcome that comes after the answer to either of them."""
    async with serving() as server:
        client = Client(await TcpStream.connect(server.port("amqp") or 0))
        sending = await client.sender()
        await client.send(sending, b"m")
        receiving = await client.receiver(credit=1)
        delivery, _ = await client.receive(receiving)
        slow_stores(monkeypatch)
        client.session.disposition(True, delivery, delivery, ACCEPTED, False)
        await client.flush()
        if last_word == "drain":
            receiving.grant(5, drain=True)
        else:
            receiving.detach()
        await client.flush()
        kind = LinkFlow if last_word == "drain" else LinkDetached
        events = client.events
        while not any(isinstance(event, kind) and event.link is receiving for event in events):
            await client.pump()
        answered = [index for index, event in enumerate(events) if is_accepted(event, delivery, role=False)]
        last = [i for i, event in enumerate(events) if isinstance(event, kind) and event.link is receiving]
        assert len(answered) == len(last) == 1
        assert answered < last


@in_loop
async def test_senders_lose_their_credit_before_the_server_closes() -> None:
    async with serving() as server:
        client = Client(await TcpStream.connect(server.port("amqp") or 0))
        link = await client.sender()
        closing = asyncio.create_task(server.amqp.close(0.1))
        while link.credit:
            await client.pump()
        assert not any(isinstance(event, (LinkDetached, Closed)) for event in client.events)
        await until_closed(client)
        await closing
