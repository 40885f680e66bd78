"""Transactions that settle messages of a queue over several servers and send to another entity (issue 27, point 1)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from sharding_kit import ShardedRoom, names_in, sharded_entities
from transaction_kit import AllRemote, coordinator, declare, discharge, keyed, outcome, put, settle

from duobus.amqp import ACCEPTED, Link, LinkDetached, Rejected, Source, Target, TransactionalState
from duobus.broker import transfer_message_count
from duobus.codec import Symbol, build_message
from kits.gateway import in_loop, settled

both = pytest.mark.parametrize("together", [False, True], ids=["of two servers", "of one server"])


class _Worker:
    """A client that takes messages of the queue and sends to another one, in transactions of one session."""

    def __init__(self, room: ShardedRoom, controller: Link, receiver: Link, sender: Link) -> None:
        self._room = room
        self.client = room.client
        self.controller = controller
        self.receiver = receiver
        self.sender = sender

    async def take(self, index: int) -> int:
        """Have a message in a shard and receive it."""
        plain = await self._room.again()
        (key,) = names_in(self._room, index, 1)
        assert await outcome(plain, put(await plain.sender("q"), keyed(b"input", key=key))) == ACCEPTED
        self.receiver.grant(1)
        await self.client.flush()
        return (await self.client.receive(self.receiver))[0]

    async def send(self, txn: bytes, via: str | None = None) -> object:
        """Send to the other queue in a transaction."""
        about = {} if via is None else {Symbol("x-opt-via-partition-key"): via}
        payload = build_message([uuid.uuid4().hex], data=b"output", annotations=about)
        return await outcome(self.client, put(self.sender, payload, TransactionalState(txn)))

    def in_transit(self) -> list[int]:
        """Messages in each shard that are for the other queue."""
        return [transfer_message_count(self._room.share(number)) for number in self._room.owners]


@asynccontextmanager
async def _worker(*, together: bool = False, away: Iterable[int] = ()) -> AsyncIterator[tuple[ShardedRoom, _Worker]]:
    async with sharded_entities(together=together) as room:
        room.about.away = set(away)
        for server in room.owners.values():
            server.unit.namespace("ns").remote_entities = AllRemote()
        client = room.client
        controller = await coordinator(client)
        receiver, sender = await client.receiver("q"), await client.sender("own")
        yield room, _Worker(room, controller, receiver, sender)


@in_loop
@both
async def test_what_is_sent_without_a_key_goes_by_way_of_the_shard_whose_message_is_settled(together: bool) -> None:
    async with _worker(together=together) as (room, worker):
        wanted = [0, 0]
        for index in (0, 1, 1, 0):
            delivery = await worker.take(index)
            for is_rolled_back in (True, False):
                txn = await declare(worker.client, worker.controller)
                assert await settle(worker.client, txn, delivery, ACCEPTED) == TransactionalState(txn, ACCEPTED)
                assert await worker.send(txn) == TransactionalState(txn, ACCEPTED)
                assert worker.in_transit() == wanted
                assert await discharge(worker.client, worker.controller, txn, fail=is_rolled_back) == ACCEPTED
                wanted[index] += not is_rolled_back
                assert worker.in_transit() == wanted
        assert room.numbers() == [0, 0]


@in_loop
@both
async def test_what_is_sent_before_anything_is_settled_goes_by_way_of_the_shard_of_its_key(together: bool) -> None:
    async with _worker(together=together) as (room, worker):
        for index in (0, 1):
            delivery = await worker.take(index)
            txn = await declare(worker.client, worker.controller)
            (key,) = names_in(room, index, 1)
            assert await worker.send(txn, via=key) == TransactionalState(txn, ACCEPTED)
            assert await settle(worker.client, txn, delivery, ACCEPTED) == TransactionalState(txn, ACCEPTED)
            assert await discharge(worker.client, worker.controller, txn) == ACCEPTED
        assert (worker.in_transit(), room.numbers()) == ([1, 1], [0, 0])


@in_loop
@both
async def test_a_key_of_another_shard_than_the_settled_message_has_rolls_everything_back(together: bool) -> None:
    """PE15."""
    async with _worker(together=together) as (room, worker):
        delivery = await worker.take(0)
        txn = await declare(worker.client, worker.controller)
        await settle(worker.client, txn, delivery, ACCEPTED)
        (key,) = names_in(room, 1, 1)
        assert isinstance(await worker.send(txn, via=key), Rejected)
        assert isinstance(await discharge(worker.client, worker.controller, txn), Rejected)
        assert worker.in_transit() == [0, 0]


@in_loop
@both
async def test_what_is_sent_first_and_without_a_key_is_refused_as_on_one_server(together: bool) -> None:
    """PE15."""
    async with _worker(together=together) as (_, worker):
        txn = await declare(worker.client, worker.controller)
        refused = await worker.send(txn)
        assert isinstance(refused, Rejected)
        assert refused.error is not None
        assert "via partition key" in str(refused.error.description)
        assert isinstance(await discharge(worker.client, worker.controller, txn), Rejected)


@in_loop
async def test_a_session_that_receives_from_all_shards_of_a_queue_receives_from_nothing_else() -> None:
    async with _worker() as (_, worker):
        client = worker.client
        link = client.session.attach_receiver("second", Source(address="own"), Target(address="c"))
        event = await client.wait(LinkDetached, lambda event: event.link is link)
        assert event.error is not None
        assert event.error.condition == "com.microsoft:operation-cancelled"
        assert "'q'" in str(event.error.description)
        assert "share" not in str(event.error.description)


@in_loop
async def test_a_shard_that_was_away_when_a_client_attached_is_sent_by_way_of_when_it_is_back() -> None:
    async with _worker(away=[1]) as (room, worker):
        client, controller = worker.client, worker.controller
        txn = await declare(client, controller)
        (key,) = names_in(room, 0, 1)
        refused = await worker.send(txn, via=key)
        assert isinstance(refused, Rejected)
        assert refused.error is not None
        assert "has no server now" in str(refused.error.description)
        room.about.away = set()
        delivery = await worker.take(0)
        found: object = None
        while not isinstance(found, TransactionalState):
            txn = await declare(client, controller)
            found = await worker.send(txn, via=key)
        await settle(client, txn, delivery, ACCEPTED)
        assert await discharge(client, controller, txn) == ACCEPTED
        assert (worker.in_transit(), room.numbers()) == ([1, 0], [0, 0])


@in_loop
async def test_the_links_beside_one_that_is_gone_are_gone_too() -> None:
    async with _worker() as (room, worker):
        (peer,) = room.front.amqp.peers
        assert len(peer.router.node_links()) == 2
        worker.sender.detach()
        await worker.client.flush()

        def are_gone() -> bool:
            peer.tick(room.front.amqp.clock.now_ms(), room.front.amqp.clock.monotonic_ms())
            return not peer.router.node_links()

        await settled(are_gone)
