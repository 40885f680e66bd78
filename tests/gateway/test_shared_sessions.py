"""Many links that hold sessions on one AMQP session: written to together, settled together, each with its own rules."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pytest
from gateway_kit import Client, TcpStream, in_loop, serving, settled
from transaction_kit import keyed

from duobus.amqp import (
    ACCEPTED,
    DeliveryState,
    Dispositions,
    Link,
    LinkAttached,
    LinkDetached,
    Modified,
    Rejected,
    Source,
    Target,
    Transfers,
)
from duobus.codec import Symbol
from duobus.model.description import QueueDescription
from duobus.server.build import Server

PLAIN = QueueDescription(name="q", requires_session=True)
PARTED = QueueDescription(name="q", requires_session=True, enable_partitioning=True)
KINDS = pytest.mark.parametrize("queue", [PLAIN, PARTED], ids=["plain", "partitioned"])
NAMES = [f"session-{number}" for number in range(20)]


class Sessions:
    """A client that holds all of NAMES, and another that sends."""

    def __init__(self, client: Client, other: Client) -> None:
        self.client = client
        self.other = other
        self.links: dict[str, Link] = {}
        # Session, body and delivery-id of what came, in order.
        self.came: list[tuple[str, bytes, int]] = []

    @classmethod
    async def held(cls, server: Server, credit: int = 100) -> Sessions:
        port = server.port("amqp") or 0
        found = cls(Client(await TcpStream.connect(port)), Client(await TcpStream.connect(port)))
        for name in NAMES:
            source = Source(address="q", filter={Symbol("com.microsoft:session-filter"): name})
            link = found.client.session.attach_receiver(name, source, Target(address="c"))
            await found.client.wait(LinkAttached, lambda event, link=link: event.link is link)  # type: ignore[misc]
            if credit:
                link.grant(credit)
            found.links[name] = link
        await found.client.flush()
        return found

    async def send(self, *messages: tuple[str, bytes]) -> None:
        """Send messages in one write: the broker sees them in one turn."""
        link = await self.other.sender()
        first = [link.send_one(uuid.uuid4().bytes, keyed(body, session=name), False) for name, body in messages]
        told = 0
        while told < len(first):
            event = await self.other.wait(Dispositions)
            told += sum(last - start + 1 for start, last, _, state in event.ranges if state is ACCEPTED)

    async def receive(self, number: int) -> list[tuple[str, bytes, int]]:
        """The next so many messages."""
        names = {link: name for name, link in self.links.items()}
        while len(self.came) < number:
            event = await self.client.wait(Transfers)
            for offset, payload in enumerate(event.payloads):
                body = payload[payload.rfind(b"\x53\x75") + 4 :]
                self.came.append((names[event.link], body, event.first_delivery_id + offset))
        found, self.came = self.came[:number], self.came[number:]
        return found

    async def settle(self, first: int, last: int, state: DeliveryState) -> list[tuple[int, int, DeliveryState | None]]:
        """Settle a range with one disposition; the (first, last, state) of what was answered."""
        self.client.session.disposition(True, first, last, state, False)
        return await self.answers(last - first + 1)

    async def answers(self, number: int) -> list[tuple[int, int, DeliveryState | None]]:
        """What was answered of so many deliveries."""
        found: list[tuple[int, int, DeliveryState | None]] = []
        while sum(last - first + 1 for first, last, _ in found) < number:
            event = await self.client.wait(Dispositions, lambda event: not event.role)
            found += [(first, last, state) for first, last, _, state in event.ranges]
        return found


def active(server: Server) -> int:
    """Active messages of the queue, locked ones among them."""
    return server.door.unit.namespace("ns").queues["q"].numbers()[0][0]


def by_session(came: Iterable[tuple[str, bytes, int]]) -> dict[str, list[bytes]]:
    """Bodies of each session, in the order in which they came."""
    found: dict[str, list[bytes]] = {}
    for name, body, _ in came:
        found.setdefault(name, []).append(body)
    return found


@in_loop
@KINDS
async def test_one_disposition_settles_deliveries_of_many_links_and_is_answered_at_once(
    queue: QueueDescription,
) -> None:
    async with serving(queue, stores=2) as server:
        one = await Sessions.held(server)
        await one.send(*((name, b"%d" % turn) for turn in range(3) for name in NAMES))
        came = await one.receive(60)
        assert by_session(came) == {name: [b"0", b"1", b"2"] for name in NAMES}
        assert sorted(delivery for _, _, delivery in came) == list(range(60))
        answers = await one.settle(0, 59, ACCEPTED)
        assert all(state is ACCEPTED for _, _, state in answers)
        assert active(server) == 0
        if queue is PLAIN:
            assert [(first, last) for first, last, _ in answers] == [(0, 59)]


@in_loop
async def test_a_link_without_credit_waits_and_holds_up_no_other() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server, credit=1)
        await one.send(*((name, b"%d" % turn) for turn in range(2) for name in NAMES))
        assert by_session(await one.receive(20)) == {name: [b"0"] for name in NAMES}
        one.links[NAMES[3]].grant(1)
        assert by_session(await one.receive(1)) == {NAMES[3]: [b"1"]}


@in_loop
async def test_an_abandon_over_many_links_brings_each_message_back_to_its_own() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        await one.send(*((name, name.encode()) for name in NAMES))
        await one.receive(20)
        answers = await one.settle(0, 19, Modified(True, None, None))
        assert all(isinstance(state, Modified) for _, _, state in answers)
        assert by_session(await one.receive(20)) == {name: [name.encode()] for name in NAMES}


@in_loop
async def test_the_outcome_of_a_shared_settlement_is_told_before_a_detach_is_answered() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        await one.send(*((name, b"x") for name in NAMES))
        await one.receive(20)
        one.client.session.disposition(True, 0, 19, ACCEPTED, False)
        leaving = one.links[NAMES[5]]
        leaving.detach()
        await one.answers(20)
        # It was not among what came before the outcomes.
        assert await one.client.wait(LinkDetached, lambda event: event.link is leaving)
        assert active(server) == 0


@in_loop
async def test_what_a_link_that_closed_had_unsettled_is_not_settled_by_a_range_over_it() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        await one.send(*((name, b"x") for name in NAMES))
        came = await one.receive(20)
        (gone,) = (delivery for name, _, delivery in came if name == NAMES[7])
        leaving = one.links[NAMES[7]]
        leaving.detach()
        await one.client.wait(LinkDetached, lambda event: event.link is leaving)
        one.client.session.disposition(True, 0, 19, ACCEPTED, False)
        told = await one.answers(19)
        assert all(not first <= gone <= last for first, last, _ in told)
        assert active(server) == 1


@in_loop
async def test_a_drain_is_answered_after_the_outcomes_of_shared_settlements() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        await one.send(*((name, b"x") for name in NAMES))
        await one.receive(20)
        one.client.session.disposition(True, 0, 19, ACCEPTED, False)
        draining = one.links[NAMES[0]]
        draining.grant(99, drain=True)
        await one.answers(20)
        while draining.drain:
            await one.client.pump()
        assert draining.credit == 0


@in_loop
async def test_a_store_that_fails_refuses_each_delivery_of_a_shared_settlement() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        await one.send(*((name, b"x") for name in NAMES))
        await one.receive(20)
        (broker,) = server.unit.brokers.values()
        broker._fail(OSError("the disk is gone"))  # the tests' own hand
        one.client.session.disposition(True, 0, 19, ACCEPTED, False)
        assert all(isinstance(state, Rejected) for _, _, state in await one.answers(20))


@in_loop
async def test_an_outlet_goes_with_its_last_link() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        peer = next(peer for peer in server.door.peers if peer.links == len(NAMES))
        (deliveries,) = peer._deliveries.values()
        assert [outlet.links for outlet in deliveries.outlets.values()] == [len(NAMES)]
        for link in one.links.values():
            link.detach()
        await one.client.flush()
        await settled(lambda: not peer.links)
        assert deliveries.outlets == {}
