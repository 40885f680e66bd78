"""Sending via one entity to another, and transactions over several (I8, I14)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from transaction_kit import bodies, condition, coordinator, declare, discharge, outcome, put, send, settle

from duobus.amqp import ACCEPTED, Link, LinkAttached, LinkDetached, Source, Target, TransactionalState
from duobus.broker import Queue, transfer_message_count
from duobus.codec import Symbol, build_message
from duobus.errors import StoreFailed, StoreUnavailable
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, message, serving, settled

ROLLBACK = "amqp:transaction:rollback"
PAIR = (QueueDescription(name="q"), QueueDescription(name="p"))
PARTED = (QueueDescription(name="q", enable_partitioning=True), QueueDescription(name="p", enable_partitioning=True))


async def connected(server: Server) -> Client:
    return Client(await TcpStream.connect(server.port("amqp") or 0))


def queue_of(server: Server, name: str = "q") -> Queue:
    return server.amqp.unit.namespace("ns").queues[name]


def active(server: Server, name: str = "q") -> int:
    return queue_of(server, name).numbers()[0][0]


async def via_link(client: Client, destination: Any = "p", via: str = "q") -> Link:
    """A sender to ``destination`` via ``via``; attached or refused."""
    properties = {"com.microsoft:transfer-destination-address": destination}
    name = uuid.uuid4().hex
    link = client.session.attach_sender(name, Source(address="c"), Target(address=via), properties=properties)
    await client.wait((LinkAttached, LinkDetached), lambda event: event.link is link)
    while link.is_attached and not link.sendable():
        await client.pump()
    return link


async def refusal(client: Client, destination: Any) -> str:
    link = await via_link(client, destination)
    detached = await client.wait(LinkDetached, lambda event: event.link is link)
    assert detached.error is not None
    return str(detached.error.condition)


async def arrived(server: Server, name: str, number: int) -> None:
    """Wait until a queue has so many messages."""
    for _ in range(500):
        if active(server, name) == number:
            # Numbers are as decided; the messages are there when it is durable.
            await asyncio.gather(*(broker.finish() for broker in server.amqp.unit.brokers.values()))
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} has {active(server, name)} messages and not {number}")


def noted(body: bytes, **annotations: Any) -> bytes:
    """A message with annotations."""
    named = {Symbol("x-opt-" + key.replace("_", "-")): value for key, value in annotations.items()}
    return build_message([uuid.uuid4().hex], data=body, annotations=named)


@in_loop
async def test_a_message_sent_via_a_queue_arrives_at_its_destination_and_nowhere_else() -> None:
    async with serving(*PAIR, stores=2) as server:
        client = await connected(server)
        link = await via_link(client)
        assert await outcome(client, put(link, message(b"there"))) == ACCEPTED
        await arrived(server, "p", 1)
        assert await bodies(client, "p") == [b"there"]
        assert (active(server), transfer_message_count(queue_of(server))) == (0, 0)


@in_loop
@pytest.mark.parametrize("stores", [1, 3])
@pytest.mark.parametrize("queues", [PAIR, PARTED])
async def test_settlement_and_sends_via_the_queue_are_done_together(
    stores: int, queues: tuple[QueueDescription, ...]
) -> None:
    async with serving(*queues, stores=stores) as server:
        client = await connected(server)
        controller, via = await coordinator(client), await via_link(client)
        sender, receiver = await client.sender(), await client.receiver(credit=1)
        await client.send(sender, b"input")
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, controller)
        await settle(client, txn, delivery, ACCEPTED)
        assert await send(client, via, txn, b"output") == TransactionalState(txn, ACCEPTED)
        await asyncio.sleep(0.05)
        assert (active(server), active(server, "p")) == (1, 0), "nothing before the commit"
        assert await discharge(client, controller, txn) == ACCEPTED
        await arrived(server, "p", 1)
        assert active(server) == 0


@in_loop
async def test_a_rollback_leaves_nothing_anywhere() -> None:
    async with serving(*PAIR) as server:
        client = await connected(server)
        controller, via, own = await coordinator(client), await via_link(client), await client.sender()
        txn = await declare(client, controller)
        await send(client, via, txn, b"a")
        await send(client, own, txn, b"b")
        assert await discharge(client, controller, txn, fail=True) == ACCEPTED
        await asyncio.sleep(0.1)
        assert (active(server), active(server, "p"), transfer_message_count(queue_of(server))) == (0, 0, 0)


@in_loop
async def test_a_session_that_began_with_its_coordinator_sends_to_others_via_its_first_entity() -> None:
    async with serving(*PAIR, stores=2) as server:
        client = await connected(server)
        controller = await coordinator(client)
        receiver, other = await client.receiver(credit=1), await client.sender("p")
        plain = Client(await TcpStream.connect(server.port("amqp") or 0))
        await plain.send(await plain.sender(), b"input")
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, controller)
        await settle(client, txn, delivery, ACCEPTED)
        assert await send(client, other, txn, b"output") == TransactionalState(txn, ACCEPTED)
        assert await discharge(client, controller, txn) == ACCEPTED
        await arrived(server, "p", 1)
        assert active(server) == 0


@in_loop
async def test_on_a_partitioned_queue_the_via_key_decides_and_has_to_be_one() -> None:
    async with serving(*PARTED) as server:
        client = await connected(server)
        controller, via = await coordinator(client), await via_link(client)
        txn = await declare(client, controller)
        for number in range(3):
            made = noted(b"%d" % number, via_partition_key="v", partition_key=f"k{number}")
            state = await outcome(client, put(via, made, TransactionalState(txn)))
            assert state == TransactionalState(txn, ACCEPTED)
        assert await discharge(client, controller, txn) == ACCEPTED
        await arrived(server, "p", 3)
        for made in (noted(b"x", via_partition_key="w"), noted(b"x")):
            txn = await declare(client, controller)
            if b"via" in made:
                first = noted(b"x", via_partition_key="v")
                await outcome(client, put(via, first, TransactionalState(txn)))
            state = await outcome(client, put(via, made, TransactionalState(txn)))
            assert condition(state) == "amqp:not-allowed"
            assert condition(await discharge(client, controller, txn)) == ROLLBACK
        assert active(server, "p") == 3


@in_loop
async def test_a_destination_is_asked_whether_it_requires_sessions_and_the_queue_in_between_is_not() -> None:
    pair = (QueueDescription(name="q", requires_session=True), QueueDescription(name="p"))
    async with serving(*pair) as server:
        client = await connected(server)
        link = await via_link(client)
        assert await outcome(client, put(link, message(b"no session"))) == ACCEPTED
        await arrived(server, "p", 1)
        back = await via_link(client, "q", "p")
        assert await outcome(client, put(back, message(b"refused there"))) == ACCEPTED
        for _ in range(100):
            if queue_of(server, "p").numbers()[0][2]:
                break
            await asyncio.sleep(0.01)
        letter = await client.receiver("p/$Transfer/$DeadLetterQueue", credit=1)
        _, payload = await client.receive(letter)
        assert b"SessionIdIsNull" in payload


@in_loop
async def test_a_destination_that_is_gone_leaves_the_message_in_the_transfer_dead_letter_queue() -> None:
    async with serving(*PAIR) as server:
        client = await connected(server)
        link = await via_link(client)
        await server.amqp.unit.delete_queue("ns", "p")
        assert await outcome(client, put(link, message(b"lost?"))) == ACCEPTED
        letter = await client.receiver("q/$Transfer/$DeadLetterQueue", credit=1)
        _, payload = await client.receive(letter)
        assert b"MessagingEntityNotFound" in payload
        assert payload.endswith(b"lost?")


@in_loop
async def test_what_is_scheduled_via_a_queue_is_scheduled_at_its_destination() -> None:
    from duobus.codec import Timestamp

    async with serving(*PAIR) as server:
        client = await connected(server)
        link = await via_link(client)
        later = Timestamp(server.amqp.clock.now_ms() + 3_600_000)
        assert await outcome(client, put(link, noted(b"later", scheduled_enqueue_time=later))) == ACCEPTED
        for _ in range(200):
            if queue_of(server, "p").numbers()[0][4]:
                break
            await asyncio.sleep(0.01)
        assert queue_of(server, "p").numbers()[0] == [0, 0, 0, 0, 1]
        assert queue_of(server).numbers()[0] == [0, 0, 0, 0, 0]


@in_loop
async def test_a_destination_has_to_exist_and_to_be_named() -> None:
    async with serving(*PAIR) as server:
        client = await connected(server)
        assert await refusal(client, "nobody") == "amqp:not-found"
        assert await refusal(client, 7) == "amqp:invalid-field"
        assert await refusal(client, "p/$DeadLetterQueue") == "amqp:not-allowed"
        assert await refusal(client, "x" * 2000) == "amqp:invalid-field"


@in_loop
async def test_a_queue_that_forwards_cannot_be_received_from_and_its_dead_letters_can() -> None:
    async with serving(QueueDescription(name="q", forward_to="p"), QueueDescription(name="p")) as server:
        client = await connected(server)
        link = client.session.attach_receiver("no", Source(address="q"), Target(address="c"))
        detached = await client.wait(LinkDetached, lambda event: event.link is link)
        assert detached.error is not None
        assert detached.error.condition == "amqp:not-allowed"
        await client.receiver("q/$DeadLetterQueue")
        await client.receiver("q/$Transfer/$DeadLetterQueue")
        await client.send(await client.sender("q"), b"on")
        await arrived(server, "p", 1)
        assert await bodies(client, "p") == [b"on"]


@in_loop
async def test_a_receiver_is_detached_when_its_queue_begins_to_forward() -> None:
    import msgspec

    async with serving(*PAIR) as server:
        client = await connected(server)
        receiver, dead = await client.receiver(), await client.receiver("q/$DeadLetterQueue")
        about = msgspec.structs.replace(queue_of(server).description, forward_to="p")
        await server.amqp.unit.update_queue("ns", about)
        detached = await client.wait(LinkDetached, lambda event: event.link is receiver)
        assert detached.error is not None
        assert detached.error.condition == "amqp:not-allowed"
        assert dead.is_attached


@in_loop
async def test_a_commit_that_fails_is_told_truly_and_its_messages_arrive_or_not_accordingly() -> None:
    async with serving(*PAIR) as server:
        client = await connected(server)
        controller, via = await coordinator(client), await via_link(client)
        broker = queue_of(server).fragments[0].broker
        store = broker.store
        for is_written in (False, True):
            txn = await declare(client, controller)
            await send(client, via, txn, b"%d" % is_written)
            original = store.commit

            def commit(batch: Any, original: Any = original, is_written: bool = is_written) -> None:
                store.commit = original  # type: ignore[method-assign]
                if is_written:
                    original(batch)
                raise StoreFailed("planted")

            store.commit = commit  # type: ignore[method-assign]
            state = await discharge(client, controller, txn)
            assert (state == ACCEPTED) == is_written
        await arrived(server, "p", 1)
        # A session that began with its coordinator receives from its first entity only.
        assert await bodies(await connected(server), "p") == [b"1"]


@in_loop
async def test_an_entity_that_leaves_while_messages_wait_at_it_leaves_no_forwarder_behind() -> None:
    # One that stays has handles of a life that is over, and would be taken for the forwarder of the next one.
    async with serving(*PAIR, stores=2) as server:
        client = await connected(server)
        via = await via_link(client)
        queue_of(server, "p").fragments[0].broker.lifecycle.fail_for_good(StoreFailed("planted"))
        assert await outcome(client, put(via, message(b"waits"))) == ACCEPTED
        service = server.amqp.unit.forwarding
        await settled(lambda: any(forwarder._taken for forwarder in service._every()))
        service.end(queue_of(server))
        assert [forwarder for forwarder in service._every() if not forwarder.is_idle] == []


class Elsewhere:
    """Says that another server has the queue ``remote``."""

    def find(self, namespace: str, path: str) -> None:
        raise StoreUnavailable("It cannot be reached.")

    def knows(self, namespace: str, path: str) -> bool:
        return path == "far"

    async def refresh(self) -> None:
        return

    def gone(self, origin: Any, counts: list[int]) -> list[int]:
        return []


@in_loop
async def test_a_queue_of_another_server_can_be_sent_to_via_one_of_this() -> None:
    async with serving(*PAIR) as server:
        server.unit.namespace("ns").remote_entities = Elsewhere()
        client = await connected(server)
        link = await via_link(client, "far")
        assert await client.send(link, b"m") == ACCEPTED
        # It is safe here until it gets there.
        assert transfer_message_count(queue_of(server)) == 1
        assert await refusal(client, "nowhere") == "amqp:not-found"
