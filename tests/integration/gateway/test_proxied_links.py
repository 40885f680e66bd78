"""Links on entities that another server has: two servers in one loop, of which the first has none of the entities."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from azure.servicebus._pyamqp._decode import decode_payload

from duobus.amqp import (
    ACCEPTED,
    Coordinator,
    Dispositions,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    Rejected,
    Session,
    Source,
    Target,
    Transfers,
)
from duobus.cluster.proxy import entity_link
from duobus.cluster.proxy.link import ProxiedLink, ProxiedSession
from duobus.cluster.router import HERE, MOVING, UNKNOWN, ClusterRouter
from duobus.codec import BATCH_FORMAT, Symbol, build_message, scan
from duobus.errors import DetachForced
from duobus.gateway.amqp.links import incoming_link
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, cut, in_loop, message, serving, settled, stop_reading

DETACH_FORCED = "amqp:link:detach-forced"


class Elsewhere:
    """Says of every entity of one server that another has it."""

    knows_catalog = True

    def __init__(self, here: Server, owner: Server | None) -> None:
        self.node_id = "first"
        self.context = None
        self.proxied_links = 0
        self.proxied_messages = 0
        self.entity_id = 1
        self.answer = UNKNOWN if owner is None else f"127.0.0.1:{owner.port('amqp')}"
        self.looked = 0
        self.after: str | None = None
        self._here = here

    def where(self, namespace: str, key: str) -> str:
        return HERE if self._here.unit.namespace(namespace).is_taken(key) else self.answer

    def sharded_entity_of(self, namespace: str, key: str) -> None:
        return None

    def home_of(self, namespace: str, key: str) -> tuple[int, str]:
        return self.entity_id, self.answer

    def address_of(self, store_id: int) -> str:
        return self.answer

    async def refresh(self) -> None:
        self.looked += 1
        await asyncio.sleep(0)
        self.answer = self.after or self.answer

    def numbers(self) -> Iterable[tuple[str, float]]:
        return ()


class Room:
    """The server that a client is connected to, the owner of queue ``q``, and the client."""

    def __init__(self, first: Server, owner: Server, elsewhere: Elsewhere, client: Client) -> None:
        self.first = first
        self.owner = owner
        self.elsewhere = elsewhere
        self.client = client


@asynccontextmanager
async def router() -> AsyncIterator[Room]:
    queue = QueueDescription(name="q", max_delivery_count=10)
    sessions = QueueDescription(name="s", requires_session=True)
    async with serving(QueueDescription(name="own")) as first, serving(queue, sessions) as owner:
        elsewhere = Elsewhere(first, owner)
        first.amqp.router_of = partial(ClusterRouter, owners=elsewhere)
        client = Client(await TcpStream.connect(first.port("amqp") or 0))
        yield Room(first, owner, elsewhere, client)


def _numbers(server: Server) -> list[int]:
    return server.unit.namespace("ns").queues["q"].numbers()[0]


async def _refusal(client: Client, address: str) -> tuple[str, str]:
    link = client.session.attach_sender("refused", Source(address="c"), Target(address=address))
    event = await client.wait(LinkDetached, lambda event: event.link is link)
    assert event.error is not None
    return str(event.error.condition), str(event.error.description)


@in_loop
async def test_messages_pass_in_both_directions_and_settlements_too() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        for number in range(5):
            assert await room.client.send(sender, b"%d" % number) == ACCEPTED
        assert _numbers(room.owner)[0] == 5
        receiver = await room.client.receiver("q")
        receiver.tags = []
        receiver.grant(3)
        await room.client.flush()
        got: list[bytes] = []
        while len(got) < 3:
            event = await room.client.wait(Transfers, lambda event: event.link is receiver)
            got += event.payloads
            last = event.first_delivery_id + len(event.payloads) - 1
            receiver.settle(event.first_delivery_id, last, ACCEPTED)
        await room.client.flush()
        assert [payload[-1:] for payload in got] == [b"0", b"1", b"2"]
        # Tags are lock tokens of the owner: fragment first, and all different.
        assert len(set(receiver.tags)) == 3
        assert {len(tag) for tag in receiver.tags} == {16}
        tokens = [decode_payload(memoryview(payload)).delivery_annotations for payload in got]
        assert tokens == [{b"x-opt-lock-token": uuid.UUID(bytes_le=tag)} for tag in receiver.tags]
        await settled(lambda: _numbers(room.owner)[0] == 2)
        assert room.elsewhere.proxied_messages == 8
        assert room.elsewhere.proxied_links == 2


@in_loop
async def test_what_is_removed_passes_with_empty_tags_and_the_sender_s_annotations() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        payload = build_message(["id"], data=b"m", delivery_annotations={"mine": 3})
        for number in range(3):
            sender.send_one(b"%d" % number, payload, True)
        await room.client.flush()
        await settled(lambda: _numbers(room.owner)[0] == 3)
        receiver = room.client.session.attach_receiver("r", Source(address="q"), Target(address="c"), snd_settle_mode=1)
        await room.client.wait(LinkAttached, lambda event: event.link is receiver)
        receiver.tags = []
        receiver.grant(3)
        await room.client.flush()
        got: list[bytes] = []
        while len(got) < 3:
            event = await room.client.wait(Transfers, lambda event: event.link is receiver)
            assert event.settled
            got += event.payloads
        assert receiver.tags == [b"", b"", b""]
        found = [scan(payload).delivery_annotations for payload in got]
        assert found == [{Symbol("mine"): 3}] * 3


@in_loop
async def test_credit_is_the_owner_s_and_a_batch_stays_a_batch() -> None:
    async with router() as room:
        own, proxied = await room.client.sender("own"), await room.client.sender("q")
        assert proxied.credit == own.credit
        batch = b"".join(b"\x00\x53\x75\xb0" + len(one).to_bytes(4, "big") + one for one in map(message, [b"a", b"b"]))
        proxied.send_one(b"tag", batch, False, BATCH_FORMAT)
        await room.client.flush()
        await settled(lambda: _numbers(room.owner)[0] == 2)


@in_loop
async def test_a_drained_link_hears_so_from_the_owner() -> None:
    async with router() as room:
        receiver = await room.client.receiver("q")
        receiver.grant(10, drain=True)
        await room.client.flush()
        await room.client.wait(LinkFlow, lambda event: event.link is receiver)
        assert receiver.credit == 0


@in_loop
async def test_what_a_lost_client_held_is_the_owner_s_again_at_once() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        await room.client.send(sender, b"m")
        receiver = await room.client.receiver("q", credit=1)
        await room.client.receive(receiver)
        room.client.stream.drop()
        again = Client(await TcpStream.connect(room.first.port("amqp") or 0))
        receiver = await again.receiver("q", credit=1)
        await again.receive(receiver)


def _holds(room: Room) -> bool:
    """Whether the client has messages of the owner that are not settled, as far as the server of the client knows."""
    (peer,) = room.first.amqp.peers
    links = [link for _, link in peer.endpoints() if isinstance(link, ProxiedLink)]
    return any(link.session is not None and link.session.holds for link in links)


def _carried(room: Room) -> int:
    """Bytes of messages that the server of the client holds for it."""
    (peer,) = room.first.amqp.peers
    return peer._carried


@in_loop
async def test_a_receiving_link_that_holds_a_message_ends_with_the_way_to_the_owner_and_can_be_attached_again() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        await room.client.send(sender, b"m")
        receiver = await room.client.receiver("q", credit=1)
        own = await room.client.sender("own")
        await room.client.receive(receiver)
        cut(room.owner)
        event = await room.client.wait(LinkDetached, lambda event: event.link is receiver)
        assert event.error is not None
        assert event.error.condition == DETACH_FORCED
        assert own.is_attached
        receiver = await room.client.receiver("q", credit=1)
        await room.client.receive(receiver)


@in_loop
async def test_a_receiving_link_that_holds_nothing_stays_with_its_credit_when_the_way_to_the_owner_ends() -> None:
    async with router() as room:
        sender, receiver = await room.client.sender("q"), await room.client.receiver("q", credit=5)
        await room.client.send(sender, b"0")
        delivery_id, _ = await room.client.receive(receiver)
        receiver.settle(delivery_id, delivery_id, ACCEPTED)
        await room.client.flush()
        await settled(lambda: not _holds(room))
        cut(room.owner)
        await settled(lambda: room.elsewhere.proxied_links == 4)
        for number in (1, 2):
            await room.client.send(sender, b"%d" % number)
            delivery_id, payload = await room.client.receive(receiver)
            assert payload[-1:] == b"%d" % number
            receiver.settle(delivery_id, delivery_id, ACCEPTED)
        await room.client.flush()
        await settled(lambda: _numbers(room.owner)[0] == 0)
        assert receiver.is_attached
        # Two of the five are left.
        receiver.grant(receiver.credit, drain=True)
        await room.client.flush()
        await room.client.wait(LinkFlow, lambda event: event.link is receiver)
        assert receiver.credit == 0


@in_loop
async def test_a_drain_of_a_receiving_link_is_answered_by_the_next_owner() -> None:
    async with router() as room:
        receiver = await room.client.receiver("q", credit=5)
        owner, room.elsewhere.answer = room.elsewhere.answer, MOVING
        cut(room.owner)
        await settled(lambda: not room.owner.amqp.peers)
        receiver.grant(5, drain=True)
        await room.client.flush()
        room.elsewhere.answer = owner
        await room.client.wait(LinkFlow, lambda event: event.link is receiver)
        assert receiver.credit == 0


@in_loop
async def test_a_receiver_of_a_session_ends_with_the_way_to_the_owner() -> None:
    async with router() as room:
        source = Source(address="s", filter={Symbol("com.microsoft:session-filter"): "one"})
        receiver = room.client.session.attach_receiver("session", source, Target(address="c"))
        await room.client.wait(LinkAttached, lambda event: event.link is receiver)
        cut(room.owner)
        await room.client.wait(LinkDetached, lambda event: event.link is receiver)


@in_loop
async def test_a_sending_link_stays_when_the_way_to_the_owner_ends() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        assert await room.client.send(sender, b"0") == ACCEPTED
        cut(room.owner)
        await settled(lambda: room.elsewhere.proxied_links == 2)
        assert await room.client.send(sender, b"1") == ACCEPTED
        assert sender.is_attached
        assert _numbers(room.owner)[0] == 2
        await settled(lambda: _carried(room) == 0)


@in_loop
async def test_a_sending_link_stays_when_the_owner_gives_the_link_up() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        (peer,) = room.owner.amqp.peers
        for link, _ in list(peer.endpoints()):
            peer.detach(link, DetachForced("It moves."), "q")
        peer.write_soon()
        await settled(lambda: room.elsewhere.proxied_links == 2)
        assert await room.client.send(sender, b"m") == ACCEPTED
        assert sender.is_attached


@in_loop
async def test_what_a_lost_owner_has_not_answered_is_rejected_as_unknown_and_the_link_goes_on() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        stop_reading(room.owner)
        first = sender.send_one(b"tag", message(b"m"), False)
        await room.client.flush()
        await settled(lambda: room.elsewhere.proxied_messages == 1)
        assert _carried(room) > 0
        cut(room.owner)
        event = await room.client.wait(Dispositions, lambda event: event.ranges[0][0] == first)
        outcome = event.ranges[0][3]
        assert isinstance(outcome, Rejected)
        assert outcome.error is not None
        assert outcome.error.condition == "com.microsoft:timeout"
        assert _carried(room) == 0
        assert await room.client.send(sender, b"m") == ACCEPTED


@in_loop
async def test_what_is_sent_while_there_is_no_owner_waits_for_the_next_one_in_order() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        owner, room.elsewhere.answer = room.elsewhere.answer, MOVING
        cut(room.owner)
        await settled(lambda: not room.owner.amqp.peers)
        with patch.object(incoming_link, "CREDIT", 4):
            first = 0
            for number in range(10):
                first = sender.send_one(b"%d" % number, message(b"%d" % number), False)
                await room.client.flush()
            await settled(lambda: _carried(room) > 0)
            room.elsewhere.answer = owner
            answered = 0
            while answered < 10:
                event = await room.client.wait(Dispositions, lambda event: event.role)
                answered += sum(last - low + 1 for low, last, _, state in event.ranges if state == ACCEPTED)
        assert sender.is_attached
        assert _carried(room) == 0
        assert first == 9
        receiver = await room.client.receiver("q", credit=10)
        got: list[bytes] = []
        while len(got) < 10:
            event = await room.client.wait(Transfers, lambda event: event.link is receiver)
            got += [payload[-1:] for payload in event.payloads]
        assert got == [b"%d" % number for number in range(10)]


@in_loop
async def test_a_sending_link_ends_when_there_is_no_next_owner() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        room.elsewhere.answer = MOVING
        with patch.object(entity_link, "MOVING_S", 0.1):
            cut(room.owner)
            await settled(lambda: not room.owner.amqp.peers)
            sender.send_one(b"tag", message(b"m"), False)
            await room.client.flush()
            event = await room.client.wait(LinkDetached, lambda event: event.link is sender)
        assert event.error is not None
        assert event.error.condition == DETACH_FORCED
        assert "has no other server now" in str(event.error.description)
        assert _carried(room) == 0


@in_loop
async def test_a_sending_link_does_not_stay_twice_in_a_row() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        cut(room.owner)
        await settled(lambda: room.elsewhere.proxied_links == 2)
        cut(room.owner)
        await room.client.wait(LinkDetached, lambda event: event.link is sender)


@in_loop
async def test_a_sending_link_does_not_go_on_at_another_entity_of_its_name() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        room.elsewhere.entity_id += 1
        cut(room.owner)
        event = await room.client.wait(LinkDetached, lambda event: event.link is sender)
        assert event.error is not None
        assert event.error.condition == DETACH_FORCED


@in_loop
async def test_a_sending_link_of_a_client_that_does_transactions_ends_with_the_way_to_the_owner() -> None:
    async with router() as room:
        coordinator = room.client.session.attach_sender("c", Source(address="c"), Coordinator())
        await room.client.wait(LinkAttached, lambda event: event.link is coordinator)
        sender = await room.client.sender("q")
        # It is gone before the link is, as when the owner is lost within a transaction.
        coordinator.detach()
        await room.client.flush()
        await room.client.wait(LinkDetached, lambda event: event.link is coordinator)
        cut(room.owner)
        await room.client.wait(LinkDetached, lambda event: event.link is sender)


@in_loop
async def test_a_client_that_goes_while_there_is_no_owner_leaves_nothing_behind() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        room.elsewhere.answer = MOVING
        cut(room.owner)
        await settled(lambda: not room.owner.amqp.peers)
        sender.send_one(b"tag", message(b"m"), False)
        sender.detach()
        await room.client.flush()
        await room.client.wait(LinkDetached, lambda event: event.link is sender)
        await settled(lambda: _carried(room) == 0)
        (peer,) = room.first.amqp.peers
        await settled(lambda: not peer._tasks)
        assert not list(peer.endpoints())


@in_loop
async def test_a_link_on_what_moves_for_long_is_told_to_come_again() -> None:
    async with router() as room:
        room.elsewhere.answer = MOVING
        assert (await _refusal(room.client, "q"))[0] == DETACH_FORCED


@in_loop
async def test_a_link_on_what_moves_is_attached_when_that_has_an_owner_again() -> None:
    async with router() as room:
        owner, room.elsewhere.answer = room.elsewhere.answer, MOVING
        looks = 0
        where = room.elsewhere.where

        def looked(namespace: str, key: str) -> str:
            nonlocal looks
            looks += 1
            if looks == 3:
                room.elsewhere.answer = owner
            return where(namespace, key)

        room.elsewhere.where = looked  # type: ignore[method-assign]
        sender = await room.client.sender("q")
        assert await room.client.send(sender, b"m") == ACCEPTED
        assert looks > 3


@in_loop
async def test_while_the_catalog_is_away_nobody_says_that_an_entity_does_not_exist() -> None:
    async with router() as room:
        room.elsewhere.answer, room.elsewhere.knows_catalog = UNKNOWN, False
        condition, text = await _refusal(room.client, "nowhere")
        assert condition == "com.microsoft:server-busy"
        assert "the catalog's database is not reached" in text


@in_loop
async def test_an_owner_that_cannot_be_reached_is_no_reason_to_give_up() -> None:
    async with router() as room:
        room.elsewhere.answer = "127.0.0.1:1"
        condition, text = await _refusal(room.client, "q")
        assert condition == DETACH_FORCED
        assert "cannot be reached" in text


@in_loop
async def test_what_is_not_known_is_looked_for_once_and_then_missing() -> None:
    async with router() as room:
        room.elsewhere.answer = UNKNOWN
        assert (await _refusal(room.client, "nowhere"))[0] == "amqp:not-found"
        assert room.elsewhere.looked == 1


@in_loop
async def test_what_was_created_a_moment_ago_is_found_by_looking_again() -> None:
    async with router() as room:
        room.elsewhere.after, room.elsewhere.answer = room.elsewhere.answer, UNKNOWN
        sender = await room.client.sender("q")
        assert await room.client.send(sender, b"m") == ACCEPTED


@in_loop
async def test_the_owner_s_own_words_come_back_when_it_refuses() -> None:
    async with router() as room:
        condition, text = await _refusal(room.client, "q/$DeadLetterQueue")
        assert condition == "amqp:not-allowed"
        assert "dead-letter queue" in text


@in_loop
async def test_a_connection_that_a_server_has_made_is_passed_on_no_further() -> None:
    async with router() as room:
        room.owner.amqp.router_of = partial(ClusterRouter, owners=Elsewhere(room.owner, room.first))
        room.first.amqp.router_of = partial(ClusterRouter, owners=room.elsewhere)
        condition, _ = await _refusal(room.client, "neither")
        assert condition == DETACH_FORCED


@in_loop
async def test_a_message_that_is_too_large_for_the_owner_is_refused_and_the_link_lives() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        outcome = await room.client.send(sender, bytes(2 << 20))
        assert isinstance(outcome, Rejected)
        assert await room.client.send(sender, b"m") == ACCEPTED


class _Wire:
    """A session that only notes what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[bool, int, int, Any, bool]] = []

    def disposition(self, role: bool, first: int, last: int, state: Any, settled: bool) -> None:
        self.said.append((role, first, last, state, settled))


def _pair() -> tuple[Any, _Wire, _Wire]:
    client, owner = _Wire(), _Wire()
    sessions: list[Session] = [client, owner]  # type: ignore[list-item]
    return ProxiedSession(*sessions), client, owner


def test_outcomes_of_the_owner_come_under_the_client_s_ids_in_ranges() -> None:
    pair, client, _ = _pair()
    pair.note_sent(100, 7, [b"ab", b"c", b"d"])
    pair.note_sent(103, 20, [b"e"])
    assert pair.owner_settles(100, 103, ACCEPTED) == 5
    assert client.said == [(True, 7, 9, ACCEPTED, True), (True, 20, 20, ACCEPTED, True)]
    assert pair.owner_settles(100, 103, ACCEPTED) == 0


def test_a_range_of_any_size_costs_no_more_than_what_is_known() -> None:
    pair, _, owner = _pair()
    pair.note_given(500, 3, 2)
    pair.client_settles(0, (1 << 31) - 1, ACCEPTED, settled=True)
    assert owner.said == [(True, 500, 501, ACCEPTED, True)]
    assert not pair._given


def test_what_the_client_has_not_settled_waits_for_the_owner_s_word() -> None:
    pair, client, owner = _pair()
    pair.note_given(500, 0xFFFFFFFF, 2)
    pair.client_settles(0xFFFFFFFF, 0, ACCEPTED, settled=False)
    assert owner.said == [(True, 500, 501, ACCEPTED, False)]
    pair.owner_answers(500, 501, ACCEPTED)
    assert sorted(client.said, key=lambda one: one[1]) == [
        (False, 0, 0, ACCEPTED, True),
        (False, 0xFFFFFFFF, 0xFFFFFFFF, ACCEPTED, True),
    ]


@pytest.mark.parametrize("number", [1, 3])
def test_ids_of_another_owner_are_left_alone(number: int) -> None:
    pair, client, owner = _pair()
    pair.client_settles(5, 5 + number, ACCEPTED, settled=True)
    pair.owner_answers(5, 5 + number, ACCEPTED)
    assert pair.owner_settles(5, 5 + number, ACCEPTED) == 0
    assert client.said == owner.said == []
