"""Links that hold a session of which nothing is unsettled, when the lock ends: at the owner and passed to it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
from test_proxied_links import Elsewhere
from transaction_kit import Manager, keyed

from duobus.amqp import ACCEPTED, ATTACHED, Link, LinkAttached, LinkDetached, Source, Target, Transfers
from duobus.clock import Clock, Entropy
from duobus.cluster.router import ClusterRouter
from duobus.codec import Symbol
from duobus.fragment.sessions.sessions import GRACE_MS
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from duobus.server.settings import NamespaceConfig, Settings, load_settings
from duobus.testing.broker import MovableClock
from kits.gateway import Client, TcpStream, in_loop, settled

LOCK_MS = 5_000
QUEUE = QueueDescription(name="q", requires_session=True, lock_duration_ms=LOCK_MS)
LOST = "com.microsoft:session-lock-lost"
WAYS = pytest.mark.parametrize("is_proxied", [False, True], ids=["direct", "passed"])


class Room:
    """The owner of the queue, its broker time, and clients that may be connected to another server."""

    def __init__(self, owner: Server, clock: MovableClock, port: int) -> None:
        self.owner = owner
        self.clock = clock
        self.port = port

    async def client(self) -> Client:
        """One more connection."""
        return Client(await TcpStream.connect(self.port))

    async def pass_time(self, ms: int) -> None:
        """Broker time goes on; what is due has happened on return."""
        self.clock.moved_ms += ms
        await self.owner.unit.time_moved()

    async def send(self, client: Client, body: bytes) -> None:
        """Send a message of the session and wait until it is stored."""
        link = await client.sender()
        link.send_one(uuid.uuid4().bytes, keyed(body, session="s"), False)
        queue = self.owner.unit.namespace("ns").queues["q"]
        before = queue.numbers()[0][0]
        await client.flush()
        await settled(lambda: queue.numbers()[0][0] > before)


@asynccontextmanager
async def room(*, is_proxied: bool) -> AsyncIterator[Room]:
    clock = MovableClock()
    servers = [await _server(QUEUE, clock)]
    if is_proxied:
        servers.append(await _server(QueueDescription(name="own"), clock))
        servers[1].amqp.router_of = partial(ClusterRouter, owners=Elsewhere(servers[1], servers[0]))
    try:
        yield Room(servers[0], clock, servers[-1].port("amqp") or 0)
    finally:
        for server in reversed(servers):
            for peer in list(server.amqp.peers):
                peer.abort()
            await server.stop()


async def _server(queue: QueueDescription, broker_clock: Clock) -> Server:
    chosen = Settings(data=None, ephemeral=True, emulator=True, stores=1, port=0, tls_port=0, http_port=0)
    settings = load_settings(chosen)
    settings = msgspec.structs.replace(settings, namespaces=(NamespaceConfig(name="ns", queues=(queue,)),))
    server = Server(settings, Clock(), Entropy(), broker_clock=broker_clock)
    await server.start()
    return server


async def accept(client: Client, *, session: str | None = "s", removing: bool = False, credit: int = 10) -> Link:
    """Accept a session, or the next one."""
    source = Source(address="q", filter={Symbol("com.microsoft:session-filter"): session})
    options = {"snd_settle_mode": 1} if removing else {}
    link = client.session.attach_receiver(uuid.uuid4().hex, source, Target(address="c"), **options)
    await client.wait(LinkAttached, lambda event: event.link is link)
    if credit:
        link.grant(credit)
        await client.flush()
    return link


async def lost(client: Client, link: Link) -> str:
    """The condition with which the broker detaches a link."""
    event = await client.wait(LinkDetached, lambda event: event.link is link)
    assert event.error is not None
    return str(event.error.condition)


async def stays(client: Client, link: Link) -> bool:
    """Whether a link is attached after all that the broker has written so far."""
    other = await client.sender()
    other.detach()
    await client.wait(LinkDetached, lambda event: event.link is other)
    return link.state == ATTACHED


@WAYS
@in_loop
async def test_a_receive_and_delete_link_outlives_its_lock_by_some_seconds(is_proxied: bool) -> None:
    async with room(is_proxied=is_proxied) as place:
        client = await place.client()
        await place.send(client, b"1")
        link = await accept(client, removing=True)
        await client.wait(Transfers, lambda event: event.link is link)
        await place.pass_time(LOCK_MS + 1_000)
        assert await stays(client, link)
        await place.pass_time(GRACE_MS)
        assert await lost(client, link) == LOST


@WAYS
@in_loop
async def test_a_link_that_has_settled_everything_outlives_its_lock_and_one_with_a_message_does_not(
    is_proxied: bool,
) -> None:
    async with room(is_proxied=is_proxied) as place:
        client = await place.client()
        await place.send(client, b"1")
        link = await accept(client)
        event = await client.wait(Transfers, lambda event: event.link is link)
        client.session.disposition(True, event.first_delivery_id, event.first_delivery_id, ACCEPTED, False)
        await client.flush()
        await settled(lambda: place.owner.unit.namespace("ns").queues["q"].numbers()[0][0] == 0)
        await place.pass_time(LOCK_MS)
        assert await stays(client, link)
        manager = await Manager.attach(client)
        assert (await manager.ask("set-session-state", {"session-id": "s", "session-state": b"x"}))[:2] == (410, LOST)
        assert (await manager.ask("get-session-state", {"session-id": "s"}))[:2] == (410, LOST)
        assert (await manager.ask("renew-session-lock", {"session-id": "s"}))[0] == 200
        # Held again, it gets messages; and with one of them the lock's end is the link's.
        await place.send(await place.client(), b"2")
        await client.wait(Transfers, lambda event: event.link is link)
        await place.pass_time(LOCK_MS)
        assert await lost(client, link) == LOST


@WAYS
@pytest.mark.parametrize("session", ["s", None], ids=["by name", "next available"])
@in_loop
async def test_whoever_accepts_the_session_ends_the_link_of_its_former_holder(
    is_proxied: bool, session: str | None
) -> None:
    async with room(is_proxied=is_proxied) as place:
        client, other = await place.client(), await place.client()
        link = await accept(client)
        await place.pass_time(LOCK_MS)
        await place.send(other, b"1")
        # What came after its end is not the former holder's.
        assert await stays(client, link)
        heir = await accept(other, session=session)
        assert await lost(client, link) == LOST
        event = await other.wait(Transfers, lambda event: event.link is heir)
        assert event.payloads[0][-1:] == b"1"
        manager = await Manager.attach(client)
        assert (await manager.ask("renew-session-lock", {"session-id": "s"}))[:2] == (410, LOST)


@in_loop
async def test_one_client_may_accept_its_session_again_beside_the_link_that_lost_it() -> None:
    async with room(is_proxied=False) as place:
        client = await place.client()
        former = await accept(client)
        await place.pass_time(LOCK_MS)
        again = await accept(client)
        assert await lost(client, former) == LOST
        manager = await Manager.attach(client)
        assert (await manager.ask("renew-session-lock", {"session-id": "s"}))[0] == 200
        await place.pass_time(GRACE_MS - LOCK_MS)
        assert await stays(client, again)


@in_loop
async def test_nothing_is_kept_of_links_that_close_within_the_grace() -> None:
    async with room(is_proxied=False) as place:
        client = await place.client()
        links = [await accept(client, session=f"s{number}") for number in range(3)]
        await place.pass_time(LOCK_MS)
        queue = place.owner.unit.namespace("ns").queues["q"]
        assert queue.has_session_users
        links[0].detach()
        await client.flush()
        await asyncio.sleep(0)
        client.stream.drop()  # type: ignore[union-attr]  # it is a TcpStream
        await settled(lambda: not queue.has_session_users)
