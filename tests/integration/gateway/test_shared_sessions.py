"""Many links that hold sessions on one AMQP session: written to together, settled together, each with its own rules."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pytest
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
from duobus.gateway.amqp.links.session_writer import SessionWriter
from duobus.gateway.amqp.peer import Peer
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, serving, settled

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
    return server.amqp.unit.namespace("ns").queues["q"].numbers()[0][0]


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
        broker.lifecycle.fail(OSError("the disk is gone"))  # the tests' own hand
        one.client.session.disposition(True, 0, 19, ACCEPTED, False)
        assert all(isinstance(state, Rejected) for _, _, state in await one.answers(20))


@in_loop
async def test_a_session_writer_goes_with_its_last_link() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        peer = next(peer for peer in server.amqp.peers if peer.links == len(NAMES))
        (deliveries,) = peer._deliveries.values()
        assert [group.links for group in deliveries.writers.values()] == [len(NAMES)]
        for link in one.links.values():
            link.detach()
        await one.client.flush()
        await settled(lambda: not peer.links)
        assert deliveries.writers == {}


def writer_of(server: Server) -> SessionWriter:
    """That of the client's links."""
    (group,) = (
        group
        for peer in server.amqp.peers
        for deliveries in peer._deliveries.values()
        for group in deliveries.writers.values()
    )
    return group


def stop_reading(server: Server) -> Peer:
    """The socket of the client that holds the sessions takes nothing more."""
    (peer,) = (peer for peer in server.amqp.peers if peer.links == len(NAMES))
    peer.pause_writing()
    # What it sent is taken in all the same here, as what was read before is.
    assert peer._transport is not None
    peer._transport.resume_reading()
    return peer


@in_loop
@KINDS
async def test_what_comes_while_a_client_does_not_read_waits_and_is_written_in_order(queue: QueueDescription) -> None:
    async with serving(queue, stores=2) as server:
        one = await Sessions.held(server)
        peer = stop_reading(server)
        for turn in range(5):
            await one.send(*((name, b"%d" % turn) for name in NAMES))
        # More credit makes a link ask by itself, past what waits.
        one.links[NAMES[3]].grant(200)
        await one.client.flush()
        await one.send((NAMES[3], b"5"))
        assert writer_of(server).is_held
        peer.resume_writing()
        every = [b"%d" % turn for turn in range(5)]
        assert by_session(await one.receive(101)) == {name: every for name in NAMES if name != NAMES[3]} | {
            NAMES[3]: [*every, b"5"]
        }
        assert not writer_of(server).is_held
        await one.settle(0, 100, ACCEPTED)
        assert active(server) == 0


@in_loop
async def test_a_session_that_is_given_up_while_its_client_does_not_read_goes_on_uncounted() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        peer = stop_reading(server)
        await one.send((NAMES[3], b"3"), (NAMES[4], b"4"))
        await one.send((NAMES[3], b"5"), (NAMES[4], b"6"))
        one.links[NAMES[3]].detach()
        await one.client.flush()
        await settled(lambda: peer.links == len(NAMES) - 1)
        (handle,) = server.amqp.unit.namespace("ns").queues["q"].fragments
        assert handle.fragment is not None
        messages = handle.fragment.sources[0].by_count.values()
        assert [message.lock for message in messages if message.payload.endswith((b"3", b"5"))] == [0, 0]
        assert all(not message.deliveries for message in messages)
        peer.resume_writing()
        assert by_session(await one.receive(2)) == {NAMES[4]: [b"4", b"6"]}


@in_loop
async def test_a_client_that_goes_without_reading_has_not_had_what_was_never_written() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        peer = stop_reading(server)
        await one.send(*((name, b"x") for name in NAMES))
        peer.abort()
        await settled(lambda: peer not in server.amqp.peers)
        (handle,) = server.amqp.unit.namespace("ns").queues["q"].fragments
        assert handle.fragment is not None
        messages = handle.fragment.sources[0].by_count.values()
        await settled(lambda: all(not message.lock for message in messages))
        assert [message.deliveries for message in messages] == [0] * len(NAMES)


@in_loop
async def test_credit_that_was_taken_back_while_the_client_did_not_read_brings_nothing() -> None:
    async with serving(PLAIN) as server:
        one = await Sessions.held(server)
        peer = stop_reading(server)
        await one.send((NAMES[3], b"3"), (NAMES[4], b"4"))
        one.links[NAMES[3]].credit = 0
        one.links[NAMES[3]].flow()
        await one.client.flush()
        await settled(lambda: any(one.credit == 0 for one in peer._endpoints))
        peer.resume_writing()
        assert by_session(await one.receive(1)) == {NAMES[4]: [b"4"]}
        (handle,) = server.amqp.unit.namespace("ns").queues["q"].fragments
        assert handle.fragment is not None
        messages = handle.fragment.sources[0].by_count.values()
        assert [bool(message.lock) for message in messages] == [False, True]
        one.links[NAMES[3]].grant(10)
        await one.client.flush()
        assert by_session(await one.receive(1)) == {NAMES[3]: [b"3"]}
