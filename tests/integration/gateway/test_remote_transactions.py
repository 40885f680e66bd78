"""Transactions through a server that does not have the entity (I8, I34, I35).

Three servers in one loop: ``first`` has the queue ``own``, ``owner`` has ``q`` and ``near``, ``other`` has ``p``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial

from transaction_kit import (
    AllRemote,
    Manager,
    bodies,
    condition,
    coordinator,
    declare,
    discharge,
    discharge_message,
    forget,
    outcome,
    put,
    send,
    settle,
    settle_plainly,
)

from duobus.amqp import ACCEPTED, Link, LinkDetached, Source, Target, TransactionalState
from duobus.broker import transfer_message_count
from duobus.clock import Clock
from duobus.cluster.proxy.via_link import RemoteViaLink
from duobus.cluster.router import HERE, IDLE_MS, UNKNOWN, ClusterRouter
from duobus.gateway.amqp.transactions.transactions import TRANSACTION_MS
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, message, serving, settled

UNKNOWN_ID, ROLLBACK, TIMEOUT = (f"amqp:transaction:{name}" for name in ("unknown-id", "rollback", "timeout"))
NOT_ALLOWED = "amqp:not-allowed"


class Map:
    """Which of the servers has which queue; see OwnerDirectory."""

    knows_catalog = True

    def __init__(self, here: Server, servers: dict[str, Server]) -> None:
        self.node_id = "one"
        self.context = None
        self.proxied_links = 0
        self.proxied_messages = 0
        self._here = here
        self._servers = servers

    def where(self, namespace: str, key: str) -> str:
        found = self._servers.get(key)
        if found is None:
            return UNKNOWN
        return HERE if found is self._here else f"127.0.0.1:{found.port('amqp')}"

    def sharded_entity_of(self, namespace: str, key: str) -> None:
        return None

    def home_of(self, namespace: str, key: str) -> None:
        return None

    def address_of(self, store_id: int) -> str:
        return UNKNOWN

    async def refresh(self) -> None:
        await asyncio.sleep(0)

    def numbers(self) -> Iterable[tuple[str, float]]:
        return ()


class MovedClock(Clock):
    """The real clock, moved."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.moved_ms


class Room:
    def __init__(self, first: Server, owner: Server, other: Server) -> None:
        self.first = first
        self.owner = owner
        self.other = other

    async def client(self) -> Client:
        """A client of the first server."""
        return Client(await TcpStream.connect(self.first.port("amqp") or 0))


@asynccontextmanager
async def servers() -> AsyncIterator[Room]:
    own, q, near, p = (QueueDescription(name=name) for name in ("own", "q", "near", "p"))
    async with serving(own) as first, serving(q, near) as owner, serving(p) as other:
        known = {"own": first, "q": owner, "near": owner, "p": other}
        for server in (first, owner, other):
            server.amqp.router_of = partial(ClusterRouter, owners=Map(server, known))
        yield Room(first, owner, other)


def active(server: Server, name: str = "q") -> int:
    return server.amqp.unit.namespace("ns").queues[name].numbers()[0][0]


async def with_input(room: Room) -> tuple[Client, Link, Link, int]:
    """A client that has received a message: itself, its coordinator, a sender of the queue, and the delivery's id."""
    client = await room.client()
    controller = await coordinator(client)
    sender, receiver = await client.sender("q"), await client.receiver("q", credit=1)
    await client.send(sender, b"input")
    delivery, _ = await client.receive(receiver)
    return client, controller, sender, delivery


# -- one entity -------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_transaction_is_done_by_the_owner_of_its_entity_and_nothing_is_seen_before() -> None:
    async with servers() as room:
        client, controller, sender, delivery = await with_input(room)
        txn = await declare(client, controller)
        assert await send(client, sender, txn, b"output") == TransactionalState(txn, ACCEPTED)
        assert await settle(client, txn, delivery, ACCEPTED) == TransactionalState(txn, ACCEPTED)
        assert active(room.owner) == 1
        assert await discharge(client, controller, txn) == ACCEPTED
        assert await bodies(client) == [b"output"]


@in_loop
async def test_it_does_not_matter_whether_the_coordinator_or_the_links_were_there_first() -> None:
    async with servers() as room:
        client = await room.client()
        sender = await client.sender("q")
        controller = await coordinator(client)
        for body in (b"a", b"b"):
            txn = await declare(client, controller)
            await send(client, sender, txn, body)
            assert await discharge(client, controller, txn) == ACCEPTED
        assert await bodies(client) == [b"a", b"b"]


@in_loop
async def test_a_rollback_sends_nothing_and_what_it_settled_can_be_settled_again() -> None:
    async with servers() as room:
        client, controller, sender, delivery = await with_input(room)
        txn = await declare(client, controller)
        await send(client, sender, txn, b"output")
        await settle(client, txn, delivery, ACCEPTED)
        assert await discharge(client, controller, txn, fail=True) == ACCEPTED
        assert active(room.owner) == 1
        assert await settle_plainly(client, delivery, ACCEPTED) == ACCEPTED
        await settled(lambda: active(room.owner) == 0)


@in_loop
async def test_what_was_rolled_back_before_the_owner_answered_can_be_settled_again() -> None:
    async with servers() as room:
        client, controller, _, delivery = await with_input(room)
        for _ in range(2):
            txn = await declare(client, controller)
            forget(client, delivery)
            client.session.disposition(True, delivery, delivery, TransactionalState(txn, ACCEPTED), False)
            rollback = put(controller, discharge_message(txn, True))
            assert await outcome(client, rollback) == ACCEPTED
            # The owner's answer comes later than that of the rollback, which is given where the client is.
            assert await outcome(client, delivery, role=False) == TransactionalState(txn, ACCEPTED)
        assert await settle_plainly(client, delivery, ACCEPTED) == ACCEPTED
        await settled(lambda: active(room.owner) == 0)


@in_loop
async def test_many_transactions_without_waiting_for_any_answer_are_all_done() -> None:
    async with servers() as room:
        client = await room.client()
        controller = await coordinator(client)
        sender = await client.sender("q")
        for turn in range(6):
            names = [await declare(client, controller) for _ in range(50)]
            ends = []
            for name in names:
                put(sender, message(b"m"), TransactionalState(name), settled=True)
                ends.append(put(controller, discharge_message(name)))
            assert [await outcome(client, end) for end in ends] == [ACCEPTED] * 50
            assert active(room.owner) == 50 * (turn + 1)


@in_loop
async def test_requests_to_the_management_node_are_part_of_it_too() -> None:
    async with servers() as room:
        client = await room.client()
        controller = await coordinator(client)
        manager = await Manager.attach(client, "q")
        txn = await declare(client, controller)
        status, _, state = await manager.ask("cancel-scheduled-message", {"sequence-numbers": []}, txn)
        # The owner's own words: it says what there is to cancel.
        assert (status, state) == (400, TransactionalState(txn, ACCEPTED))
        assert condition(await discharge(client, controller, txn)) == ROLLBACK


@in_loop
async def test_what_the_owner_refuses_dooms_the_transaction() -> None:
    async with servers() as room:
        client = await room.client()
        sender, near = await client.sender("q"), await client.sender("near")
        controller = await coordinator(client)
        txn = await declare(client, controller)
        await send(client, sender, txn, b"a")
        # Another entity, of the same owner.
        assert condition(await send(client, near, txn, b"b")) == NOT_ALLOWED
        assert condition(await discharge(client, controller, txn)) == ROLLBACK
        assert (active(room.owner), active(room.owner, "near")) == (0, 0)


@in_loop
async def test_entities_of_several_servers_are_refused_as_several_entities_are() -> None:
    async with servers() as room:
        client = await room.client()
        own, sender, other = [await client.sender(name) for name in ("own", "q", "p")]
        controller = await coordinator(client)
        for one, two in ((own, sender), (sender, own), (sender, other)):
            txn = await declare(client, controller)
            await send(client, one, txn, b"a")
            assert condition(await send(client, two, txn, b"b")) == NOT_ALLOWED
            assert condition(await discharge(client, controller, txn)) == ROLLBACK
        await settled(lambda: not any(peer.transactions._open for peer in room.owner.amqp.peers))
        assert [active(room.first, "own"), active(room.owner), active(room.other, "p")] == [0, 0, 0]


@in_loop
async def test_a_name_that_nobody_declared_is_unknown_here_and_at_the_owner() -> None:
    async with servers() as room:
        client = await room.client()
        controller = await coordinator(client)
        sender = await client.sender("q")
        assert condition(await send(client, sender, b"nobody's", b"m")) == UNKNOWN_ID
        assert condition(await discharge(client, controller, b"nobody's")) == UNKNOWN_ID
        # The link lives, and its credit is the owner's again.
        assert await client.send(sender, b"m") == ACCEPTED


# -- ends -------------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_transaction_that_takes_too_long_is_rolled_back_at_the_owner() -> None:
    async with servers() as room:
        clock = room.first.amqp.clock = MovedClock()
        client = await room.client()
        controller = await coordinator(client)
        sender = await client.sender("q")
        txn = await declare(client, controller)
        await send(client, sender, txn, b"m")
        (peer,) = room.owner.amqp.peers
        assert peer.transactions._open
        for found in room.first.amqp.peers:
            found.transactions.tick(clock.monotonic_ms() + TRANSACTION_MS)
        await settled(lambda: not peer.transactions._open)
        assert condition(await discharge(client, controller, txn)) == TIMEOUT
        assert active(room.owner) == 0


@in_loop
async def test_what_is_not_discharged_when_its_coordinator_goes_is_rolled_back_at_the_owner() -> None:
    async with servers() as room:
        client = await room.client()
        controller = await coordinator(client)
        sender = await client.sender("q")
        txn = await declare(client, controller)
        await send(client, sender, txn, b"m")
        controller.detach()
        await client.flush()
        (peer,) = room.owner.amqp.peers
        await settled(lambda: not peer.transactions._open)
        assert active(room.owner) == 0


@in_loop
async def test_a_transaction_whose_owner_is_lost_can_only_be_rolled_back() -> None:
    async with servers() as room:
        client = await room.client()
        controller = await coordinator(client)
        sender = await client.sender("q")
        txn = await declare(client, controller)
        await send(client, sender, txn, b"m")
        for peer in list(room.owner.amqp.peers):
            peer.abort()
        await client.wait(LinkDetached, lambda event: event.link is sender)
        assert condition(await discharge(client, controller, txn)) == ROLLBACK
        # A new one works, over a new connection.
        again, txn = await client.sender("q"), await declare(client, controller)
        await send(client, again, txn, b"m")
        assert await discharge(client, controller, txn) == ACCEPTED
        assert active(room.owner) == 1


@in_loop
async def test_a_discharge_without_an_answer_is_told_as_what_it_is() -> None:
    async with servers() as room:
        client = await room.client()
        controller = await coordinator(client)
        sender = await client.sender("q")
        txn = await declare(client, controller)
        await send(client, sender, txn, b"m")
        (peer,) = room.owner.amqp.peers
        # It has got the discharge, and answers no more.
        room.owner.amqp.unit.namespace("ns").queues["q"].fragments[0].submit = lambda _: peer.abort()
        put(controller, discharge_message(txn))
        event = await client.wait(LinkDetached, lambda event: event.link is controller)
        assert event.error is not None
        assert "all of it or nothing" in str(event.error.description)


# -- via --------------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_link_via_an_entity_of_another_server_takes_part() -> None:
    async with servers() as room:
        room.owner.unit.namespace("ns").remote_entities = AllRemote()
        client = await room.client()
        controller = await coordinator(client)
        properties = {"com.microsoft:transfer-destination-address": "p"}
        sender = await client.sender("q")
        target = Target(address="q")
        via = client.session.attach_sender("via", Source(address="c"), target, properties=properties)
        while not via.sendable():
            await client.pump()
        txn = await declare(client, controller)
        await send(client, sender, txn, b"here")
        assert await send(client, via, txn, b"there") == TransactionalState(txn, ACCEPTED)
        assert await discharge(client, controller, txn) == ACCEPTED
        queue = room.owner.unit.namespace("ns").queues["q"]
        assert (active(room.owner), transfer_message_count(queue)) == (1, 1)


async def worked_across(room: Room, first: str, second: str) -> None:
    """Settle a message of one queue and send to another, in one transaction of a session for that."""
    for server in (room.first, room.owner, room.other):
        server.unit.namespace("ns").remote_entities = AllRemote()
    plain = await room.client()
    await plain.send(await plain.sender(first), b"input")
    client = await room.client()
    controller = await coordinator(client)
    receiver, sender = await client.receiver(first, credit=1), await client.sender(second)
    for is_rolled_back in (True, False):
        txn = await declare(client, controller)
        if is_rolled_back:
            delivery, _ = await client.receive(receiver)
        await settle(client, txn, delivery, ACCEPTED)
        assert await send(client, sender, txn, b"output") == TransactionalState(txn, ACCEPTED)
        assert await discharge(client, controller, txn, fail=is_rolled_back) == ACCEPTED
    # Outside of transactions the link is one like any other.
    assert await client.send(sender, b"plain") == ACCEPTED


def in_transit(server: Server, name: str) -> int:
    return transfer_message_count(server.amqp.unit.namespace("ns").queues[name])


@in_loop
async def test_across_entities_the_first_one_may_be_here_and_the_other_one_elsewhere() -> None:
    async with servers() as room:
        await worked_across(room, "own", "q")
        assert (active(room.first, "own"), in_transit(room.first, "own"), active(room.owner, "q")) == (0, 1, 1)


@in_loop
async def test_across_entities_the_first_one_may_be_elsewhere_and_the_other_one_here() -> None:
    async with servers() as room:
        await worked_across(room, "q", "own")
        assert (active(room.owner), in_transit(room.owner, "q"), active(room.first, "own")) == (0, 1, 1)


@in_loop
async def test_across_entities_both_may_be_elsewhere_and_with_different_owners() -> None:
    async with servers() as room:
        await worked_across(room, "q", "p")
        assert (active(room.owner), in_transit(room.owner, "q"), active(room.other, "p")) == (0, 1, 1)


@in_loop
async def test_across_entities_both_may_have_the_same_owner_elsewhere() -> None:
    async with servers() as room:
        await worked_across(room, "q", "near")
        # It was taken over at once, beside what was sent plainly.
        await settled(lambda: (active(room.owner), active(room.owner, "near")) == (0, 2))


@in_loop
async def test_a_session_for_transactions_across_entities_receives_from_its_first_one_only() -> None:
    async with servers() as room:
        for first, second in (("own", "q"), ("q", "own"), ("q", "p"), ("q", "near")):
            client = await room.client()
            await coordinator(client)
            await client.receiver(first)
            link = client.session.attach_receiver("second", Source(address=second), Target(address="c"))
            event = await client.wait(LinkDetached, lambda event, link=link: event.link is link)
            assert event.error is not None
            assert event.error.condition == "com.microsoft:operation-cancelled"


@in_loop
async def test_across_entities_the_destination_has_to_exist_where_it_is_sent_from() -> None:
    async with servers() as room:
        # The owner of the first does not know of the second, so the client's link is refused in its words.
        client = await room.client()
        await coordinator(client)
        await client.receiver("q")
        link = client.session.attach_sender("second", Source(address="c"), Target(address="own"))
        event = await client.wait(LinkDetached, lambda event: event.link is link)
        assert event.error is not None
        assert event.error.condition == "amqp:not-found"
        (peer,) = room.first.amqp.peers
        peer.tick(room.first.amqp.clock.now_ms(), room.first.amqp.clock.monotonic_ms())
        assert not any(isinstance(found, RemoteViaLink) for found in peer.router.node_links())


# -- silence ----------------------------------------------------------------------------------------------------------


@in_loop
async def test_servers_believe_in_a_silent_connection_between_them_for_seconds_only() -> None:
    async with servers() as room:
        client = await room.client()
        await client.sender("q")
        (near,), (remote,) = room.first.amqp.peers, room.owner.amqp.peers
        assert remote.engine.settings.idle_time_out_ms == IDLE_MS
        # The client's own connection is another matter.
        assert near.engine.settings.idle_time_out_ms > IDLE_MS
        now_ms = room.owner.amqp.clock.monotonic_ms()
        remote.tick(room.owner.amqp.clock.now_ms(), now_ms + IDLE_MS)
        assert not remote.engine.is_closed
        remote.tick(room.owner.amqp.clock.now_ms(), now_ms + 3 * IDLE_MS)
        assert remote.engine.is_closed


# -- order ------------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_discharge_does_not_overtake_a_message_that_takes_many_frames() -> None:
    large = QueueDescription(name="q", max_message_size_bytes=8 << 20)
    async with serving() as first, serving(large) as owner:
        for server in (first, owner):
            server.amqp.router_of = partial(ClusterRouter, owners=Map(server, {"q": owner}))
        client = await Room(first, owner, owner).client()
        controller = await coordinator(client)
        sender = await client.sender("q")
        txn = await declare(client, controller)
        sent = put(sender, message(b"m" * (4 << 20)), TransactionalState(txn))
        ended = put(controller, discharge_message(txn))
        assert await outcome(client, ended) == ACCEPTED
        assert await outcome(client, sent) == TransactionalState(txn, ACCEPTED)
        assert active(owner) == 1


@in_loop
async def test_what_is_dropped_before_it_is_written_to_the_owner_dooms_its_transaction() -> None:
    async with servers() as room:
        client = await room.client()
        controller = await coordinator(client)
        sender = await client.sender("q")
        txn = await declare(client, controller)
        await send(client, sender, txn, b"a")
        (peer,) = room.first.amqp.peers
        (upstream,) = peer.router._upstreams.values()
        for pair in upstream._sessions.values():
            # The owner takes nothing for now.
            pair.owner._remote_window = 0
        put(sender, message(b"b"), TransactionalState(txn), settled=True)
        await client.flush()
        await settled(lambda: any(pair.owner.has_waiting for pair in upstream._sessions.values()))
        sender.detach()
        assert condition(await discharge(client, controller, txn)) == ROLLBACK
        assert active(room.owner) == 0
