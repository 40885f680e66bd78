"""Transactions on queues with sessions, over the wire: who holds the session at the discharge decides."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from transaction_kit import Manager, condition, coordinator, declare, discharge, keyed, outcome, put, send, settle

from duobus.amqp import ACCEPTED, Link, LinkAttached, Modified, Source, Target, TransactionalState
from duobus.codec import Array, Symbol, tag_of
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, serving

PLAIN = QueueDescription(name="q", requires_session=True)
PARTED = QueueDescription(name="q", requires_session=True, enable_partitioning=True)
ROLLBACK = "amqp:transaction:rollback"
KINDS = pytest.mark.parametrize("queue", [PLAIN, PARTED], ids=["plain", "partitioned"])


async def connected(server: Server) -> Client:
    return Client(await TcpStream.connect(server.port("amqp") or 0))


def active(server: Server) -> int:
    """Active messages of the queue, locked ones among them."""
    return server.amqp.unit.namespace("ns").queues["q"].numbers()[0][0]


async def accept(client: Client, session_id: str, credit: int = 1) -> Link:
    """Accept a session and ask for its messages."""
    source = Source(address="q", filter={Symbol("com.microsoft:session-filter"): session_id})
    link = client.session.attach_receiver(uuid.uuid4().hex, source, Target(address="c"))
    await client.wait(LinkAttached, lambda event: event.link is link)
    link.grant(credit)
    await client.flush()
    return link


async def stored(client: Client, sender: Link, body: bytes, session_id: str) -> None:
    """Send a message outside of any transaction."""
    assert await outcome(client, put(sender, keyed(body, session=session_id))) == ACCEPTED


@in_loop
@KINDS
async def test_a_move_within_a_session_is_done_together(queue: QueueDescription) -> None:
    async with serving(queue, stores=2) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        await stored(client, sender, b"input", "s")
        receiver = await accept(client, "s")
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, link)
        assert await send(client, sender, txn, b"output", session="s") == TransactionalState(txn, ACCEPTED)
        assert await settle(client, txn, delivery, ACCEPTED) == TransactionalState(txn, ACCEPTED)
        assert active(server) == 1
        assert await discharge(client, link, txn) == ACCEPTED
        receiver.grant(1)
        _, payload = await client.receive(receiver)
        assert payload.endswith(b"output")


@in_loop
async def test_an_abandon_in_a_transaction_brings_the_message_back_first() -> None:
    async with serving(PLAIN) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        for body in (b"first", b"second"):
            await stored(client, sender, body, "s")
        receiver = await accept(client, "s")
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, link)
        assert await settle(client, txn, delivery, Modified(True, None, None)) is not None
        assert await discharge(client, link, txn) == ACCEPTED
        for body in (b"first", b"second"):
            receiver.grant(1)
            assert (await client.receive(receiver))[1].endswith(body)


@in_loop
@KINDS
async def test_a_session_that_is_given_up_before_the_discharge_rolls_everything_back(queue: QueueDescription) -> None:
    async with serving(queue, stores=2) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        await stored(client, sender, b"input", "s")
        receiver = await accept(client, "s")
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, link)
        await send(client, sender, txn, b"output", session="s")
        await settle(client, txn, delivery, ACCEPTED)
        receiver.detach()
        other = await accept(client, "s", credit=5)
        _, payload = await client.receive(other)
        assert payload.endswith(b"input")
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert active(server) == 1


@in_loop
async def test_a_session_whose_lock_runs_out_before_the_discharge_rolls_everything_back() -> None:
    async with serving(QueueDescription(name="q", requires_session=True, lock_duration_ms=300)) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        await stored(client, sender, b"input", "s")
        delivery, _ = await client.receive(await accept(client, "s"))
        txn = await declare(client, link)
        await settle(client, txn, delivery, ACCEPTED)
        await asyncio.sleep(0.5)
        refused = await discharge(client, link, txn)
        assert condition(refused) == ROLLBACK
        assert active(server) == 1


@in_loop
@KINDS
async def test_a_message_without_a_session_leaves_only_the_rollback(queue: QueueDescription) -> None:
    async with serving(queue, stores=2) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        assert await send(client, sender, txn, b"one", session="s") == TransactionalState(txn, ACCEPTED)
        assert condition(await send(client, sender, txn, b"two")) == "amqp:not-allowed"
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert active(server) == 0


@in_loop
async def test_two_sessions_in_a_transaction_are_one_too_many_where_they_may_lie_apart() -> None:
    async with serving(PARTED, stores=2) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        await send(client, sender, txn, b"one", session="s")
        assert condition(await send(client, sender, txn, b"two", session="t")) == "amqp:not-allowed"
    async with serving(PLAIN) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        for session in ("s", "t"):
            assert await send(client, sender, txn, b"one", session=session) == TransactionalState(txn, ACCEPTED)
        assert await discharge(client, link, txn) == ACCEPTED
        assert active(server) == 2


@in_loop
async def test_a_disposition_by_token_in_a_transaction_needs_the_session_to_be_held() -> None:
    async with serving(PLAIN) as server:
        client = await connected(server)
        link, sender, manager = await coordinator(client), await client.sender(), await Manager.attach(client)
        await stored(client, sender, b"input", "s")
        await client.receive(await accept(client, "s"))
        for session, status in (("other", 410), ("s", 200)):
            txn = await declare(client, link)
            about: dict[str, Any] = {
                "disposition-status": "completed",
                "lock-tokens": tokens(server),
                "session-id": session,
            }
            assert (await manager.ask("update-disposition", about, txn))[0] == status
            ended = await discharge(client, link, txn)
            assert ended == ACCEPTED if status == 200 else condition(ended) == ROLLBACK
        assert active(server) == 0


def tokens(server: Server) -> Array:
    """The tokens of every lock of the queue, as a client shows them."""
    fragment = server.amqp.unit.namespace("ns").queues["q"].fragments[0].fragment
    assert fragment is not None
    found = [tag_of(fragment.prefix, lock) for lock in fragment.sources[0].locks]
    return Array(uuid.UUID, [uuid.UUID(bytes_le=token) for token in found])
