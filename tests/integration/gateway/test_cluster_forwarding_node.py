"""The way on which servers hand each other forwarded messages: who may use it, and what it does with nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from duobus.amqp import LinkAttached, LinkDetached, Source, Target
from duobus.broker.entities.destination import Unfit
from duobus.clock import Clock
from duobus.cluster.forwarding.connections import AmqpClusterConnections
from duobus.cluster.forwarding.endpoint import CHALLENGE, PROOF, ForwardingEndpoint, proof_of
from duobus.cluster.forwarding.protocol import ForwardRequest, OriginQuery, RegisterOrigin
from duobus.errors import ServiceBusError, StoreUnavailable
from duobus.fragment.forward_dedup import Origin
from duobus.gateway.amqp.router import FORWARDING_NODE
from duobus.model.descriptions import AccessRule, Right
from duobus.model.metadata import MessageMetadata
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, serving, settled

ORIGIN = (7, 1, 0)
RULE = AccessRule(name="root", primary_key="secret", secondary_key="other", rights=int(Right.MANAGE))
SENDER = AccessRule(name="sender", primary_key="weak", secondary_key="weaker", rights=int(Right.SEND))


class FakeForwardReceiver:
    """Takes everything in but what is called ``bad``."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.landed: list[tuple[str, str, Origin, int]] = []

    def register(self, namespace: str, path: str, origin: Origin, epoch: int) -> object:
        if path == "elsewhere":
            raise StoreUnavailable("It is not here.")
        self.landed.append((namespace, path, origin, epoch))
        return path

    def is_current(self, registration: object) -> bool:
        return True

    def take(
        self, registration: object, counts: list[int], payloads: list[bytes], all_metadata: list[MessageMetadata]
    ) -> asyncio.Future[ServiceBusError | None]:
        done: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()
        if payloads == [b""]:
            raise Unfit("Because", "It is bad.")
        self.taken += payloads
        done.set_result(None)
        return done

    def gone(self, origin: Origin, counts: list[int]) -> list[int]:
        return counts[:1]


@contextmanager
def connections(key: str = "secret") -> Iterator[AmqpClusterConnections]:
    rule = AccessRule(name="root", primary_key=key, secondary_key=key, rights=int(Right.MANAGE))
    made = AmqpClusterConnections("me", None, Clock(), lambda namespace: [SENDER, rule])
    try:
        yield made
    finally:
        made.close()


def opened(server: Server, rules: Iterable[AccessRule] = (SENDER, RULE)) -> FakeForwardReceiver:
    receiver = FakeForwardReceiver()
    forwarding = ForwardingEndpoint(receiver, lambda namespace: rules, None)  # type: ignore[arg-type]
    server.amqp.nodes[FORWARDING_NODE] = forwarding.attach
    return receiver


def _address(server: Server) -> str:
    return f"127.0.0.1:{server.port('amqp')}"


@pytest.mark.parametrize("key", ["secret", "other"])
@in_loop
async def test_requests_and_their_answers_travel_between_servers(key: str) -> None:
    async with serving() as server:
        receiver = opened(server)
        with connections(key) as wires:
            wire = await wires.get(_address(server), "ns")
            landed = await wire.ask(lambda number: RegisterOrigin(number, ORIGIN, 3, "q"))
            assert landed.error() is None
            assert receiver.landed == [("ns", "q", ORIGIN, 3)]
            payload = b"\x00\x53\x75\xa0\x01x"

            def load(number: int, *payloads: bytes) -> ForwardRequest:
                counts = list(range(len(payloads)))
                return ForwardRequest(
                    number, landed.registration_no, counts, list(payloads), [MessageMetadata() for _ in payloads]
                )

            big = b"\x00\x53\x75\xb0" + (3 << 20).to_bytes(4, "big") + bytes(3 << 20)
            assert (await wire.ask(lambda number: load(number, payload, big))).error() is None
            assert receiver.taken == [payload, big]
            refused = (await wire.ask(lambda number: load(number, b""))).error()
            assert isinstance(refused, Unfit)
            assert refused.reason == "Because"
            assert (await wire.ask(lambda number: OriginQuery(number, ORIGIN, [4, 5]))).gone == [4]
            moved = (await wire.ask(lambda number: RegisterOrigin(number, ORIGIN, 3, "elsewhere"))).error()
            assert isinstance(moved, StoreUnavailable)
            unknown = await wire.ask(lambda number: ForwardRequest(number, 99, [1], [payload], [MessageMetadata()]))
            assert isinstance(unknown.error(), StoreUnavailable)
            # One connection serves all of it.
            assert await wires.get(_address(server), "NS") is wire
            asked = wire.ask(lambda number: RegisterOrigin(number, ORIGIN, 3, "q"))
            wire.fail("cut")
            with pytest.raises(ConnectionError, match="cut"):
                await asked
            assert await wires.get(_address(server), "ns") is not wire


@pytest.mark.parametrize("key", ["wrong", "weak"])
@in_loop
async def test_who_has_no_key_with_manage_hands_nothing_over(key: str) -> None:
    async with serving() as server:
        receiver = opened(server)
        with connections(key) as wires:
            with pytest.raises(ConnectionError, match="share this one's catalog"):
                await wires.get(_address(server), "ns")
            # It is not tried again at once.
            with pytest.raises(ConnectionError, match="share this one's catalog"):
                await wires.get(_address(server), "ns")
        assert receiver.landed == []


@in_loop
async def test_a_server_that_shares_its_catalog_with_nobody_takes_nothing_from_servers() -> None:
    async with serving() as server:
        with connections() as wires, pytest.raises(ConnectionError, match="shares its catalog with no others"):
            await wires.get(_address(server), "ns")


@in_loop
async def test_a_connection_ends_with_the_key_that_it_was_proved_with() -> None:
    async with serving() as server:
        rules = [SENDER, RULE]
        opened(server, rules)
        with connections("secret") as old, connections("other") as new:
            wires = [await one.get(_address(server), "ns") for one in (old, new)]
            rules[1] = AccessRule(name="root", primary_key="new", secondary_key="other", rights=int(Right.MANAGE))
            server.amqp.rules_changed("ns")
            await settled(lambda: wires[0].is_gone)
            assert (await wires[1].ask(lambda number: RegisterOrigin(number, ORIGIN, 3, "q"))).error() is None
            with pytest.raises(ConnectionError, match="share this one's catalog"):
                await old.get(_address(server), "ns")


@in_loop
async def test_a_challenge_is_answered_once_and_is_another_each_time() -> None:
    async with serving() as server:
        opened(server)
        challenges = []
        for _ in range(2):
            client = Client(await TcpStream.connect(server.port("amqp") or 0))
            replies = client.session.attach_receiver("r", Source(address=FORWARDING_NODE), Target(address="r"))
            event = await client.wait(LinkAttached, lambda event, link=replies: event.link is link)
            assert event.link.remote is not None
            found = {str(name): value for name, value in (event.link.remote.properties or {}).items()}
            challenges.append(found[CHALLENGE])
            for number, proof in enumerate((b"guess", proof_of("secret", challenges[-1]))):
                link = client.session.attach_sender(
                    f"s{number}", Source(address="s"), Target(address=FORWARDING_NODE), properties={PROOF: proof}
                )
                detached = await client.wait(LinkDetached, lambda event, link=link: event.link is link)
                assert detached.error is not None
                assert str(detached.error.condition) == "amqp:unauthorized-access"
        assert challenges[0] != challenges[1]


@in_loop
async def test_what_cannot_be_decoded_ends_the_link() -> None:
    async with serving() as server:
        receiver = opened(server)
        client = Client(await TcpStream.connect(server.port("amqp") or 0))
        replies = client.session.attach_receiver("r", Source(address=FORWARDING_NODE), Target(address="r"))
        await client.wait(LinkAttached, lambda event: event.link is replies)
        assert replies.remote is not None
        found = {str(name): value for name, value in (replies.remote.properties or {}).items()}
        proof = {PROOF: proof_of("secret", found[CHALLENGE])}
        link = client.session.attach_sender("s", Source(address="s"), Target(address=FORWARDING_NODE), properties=proof)
        await client.wait(LinkAttached, lambda event: event.link is link)
        while not link.sendable():
            await client.pump()
        link.send_one(b"t", b"\xc1 nonsense", settled=True)
        detached = await client.wait(LinkDetached, lambda event: event.link is link)
        assert detached.error is not None
        assert receiver.landed == []
