"""Links on a sharded queue over the stores of several servers, through a server that has none of them."""

from __future__ import annotations

import uuid
from typing import Any
from unittest.mock import patch

from sharding_kit import ShardedRoom, names_in, sharded_entities

from duobus.amqp import (
    ACCEPTED,
    Coordinator,
    Dispositions,
    Link,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    Modified,
    Rejected,
    Source,
    Target,
    Transfers,
)
from duobus.broker import slot_of, string_key
from duobus.cluster.sharding import sender as sharded_sender
from duobus.cluster.sharding.link import ShardedLink
from duobus.codec import BATCH_FORMAT, Symbol, build_message
from duobus.model.descriptions import RECEIVE_DISABLED
from kits.gateway import cut, in_loop, message, settled, stop_reading

DETACH_FORCED = "amqp:link:detach-forced"


def _sharded_links(room: ShardedRoom) -> list[ShardedLink]:
    """The clients' links to the sharded queue, at the server in front."""
    endpoints = [one for peer in room.front.amqp.peers for one in peer._endpoints.values()]
    return [one for one in endpoints if isinstance(one, ShardedLink)]


def _keyed(key: str, body: bytes = b"m") -> bytes:
    return build_message([uuid.uuid4().hex], data=body, annotations={Symbol("x-opt-partition-key"): key})


async def _put(room: ShardedRoom, link: Link, payload: bytes, message_format: int = 0) -> Any:
    """Send one encoded message and return the outcome."""
    first = link.send_one(uuid.uuid4().bytes, payload, False, message_format)
    event = await room.client.wait(Dispositions, lambda event: event.role and event.ranges[0][0] == first)
    return event.ranges[0][3]


async def _drain(room: ShardedRoom, link: Link, credit: int) -> list[tuple[int, bytes]]:
    """What comes for a credit that is to be given back."""
    link.grant(credit, drain=True)
    await room.client.flush()
    await room.client.wait(LinkFlow, lambda event: event.link is link)
    found: list[tuple[int, bytes]] = []
    for event in [event for event in room.client.events if isinstance(event, Transfers) and event.link is link]:
        room.client.events.remove(event)
        found += [(event.first_delivery_id + index, payload) for index, payload in enumerate(event.payloads)]
    return found


async def _take(room: ShardedRoom, link: Link, number: int) -> list[tuple[int, bytes]]:
    """So many deliveries, of credit that was given."""
    found: list[tuple[int, bytes]] = []
    while len(found) < number:
        event = await room.client.wait(Transfers, lambda event: event.link is link)
        found += [(event.first_delivery_id + index, payload) for index, payload in enumerate(event.payloads)]
    return found


@in_loop
async def test_messages_without_a_key_go_to_all_shares_by_turns() -> None:
    async with sharded_entities() as room:
        sender = await _sender_to_both(room)
        for number in range(10):
            assert await room.client.send(sender, b"%d" % number) == ACCEPTED
        assert room.numbers() == [5, 5]


@in_loop
async def test_a_key_belongs_to_one_share_and_is_accepted_nowhere_else() -> None:
    async with sharded_entities() as room:
        sender = await room.client.sender("q")
        keys = [f"key-{number}" for number in range(40)]
        expected = [room.about.sharded_entity.of_key(b"s" + key.encode()) for key in keys]  # type: ignore[union-attr]
        for key in keys:
            assert await _put(room, sender, _keyed(key)) == ACCEPTED
        assert room.numbers() == [expected.count(0), expected.count(1)]
        assert min(room.numbers()) > 5


@in_loop
async def test_a_batch_stays_a_batch_and_may_not_part() -> None:
    async with sharded_entities() as room:
        sender = await room.client.sender("q")
        same = [key for key in map(str, range(40)) if room.about.sharded_entity.of_key(b"s" + key.encode()) == 0]  # type: ignore[union-attr]
        other = next(key for key in map(str, range(40)) if key not in same)

        def batch(*payloads: bytes) -> bytes:
            return b"".join(b"\x00\x53\x75\xb0" + len(one).to_bytes(4, "big") + one for one in payloads)

        assert await _put(room, sender, batch(message(b"a"), message(b"b")), BATCH_FORMAT) == ACCEPTED
        assert sorted(room.numbers()) == [0, 2]
        assert await _put(room, sender, batch(_keyed(same[0]), _keyed(same[0])), BATCH_FORMAT) == ACCEPTED
        outcome = await _put(room, sender, batch(_keyed(same[0]), _keyed(other)), BATCH_FORMAT)
        assert isinstance(outcome, Rejected)
        assert "different fragments" in str(outcome.error.description)
        assert sum(room.numbers()) == 4


@in_loop
async def test_a_receiver_gets_what_every_share_has_and_settles_it_there() -> None:
    async with sharded_entities(max_delivery_count=10) as room:
        sender = await room.client.sender("q")
        for number in range(10):
            await room.client.send(sender, b"%d" % number)
        receiver = await room.client.receiver("q", credit=10)
        receiver.tags = []
        found = await _take(room, receiver, 10)
        assert sorted(payload[-1:] for _, payload in found) == [b"%d" % number for number in range(10)]
        for delivery_id, _ in found[:6]:
            receiver.settle(delivery_id, delivery_id, ACCEPTED)
        for delivery_id, _ in found[6:]:
            receiver.settle(delivery_id, delivery_id, Modified(True, None, None))
        receiver.grant(4)
        await room.client.flush()
        again = await _take(room, receiver, 4)
        for delivery_id, _ in again:
            receiver.settle(delivery_id, delivery_id, Rejected(None))
        await room.client.flush()
        await settled(lambda: room.numbers() == [0, 0] and sum(room.numbers(1)) == 4)
        forgotten = await room.client.receiver("q/$deadletterqueue", credit=4)
        assert len(await _take(room, forgotten, 4)) == 4


@in_loop
async def test_one_credit_is_good_for_whichever_share_has_a_message_and_never_passed() -> None:
    async with sharded_entities() as room:
        receiver = await room.client.receiver("q", credit=1)
        sender = await room.client.sender("q")
        for number in range(6):
            await room.client.send(sender, b"%d" % number)
            (found,) = await _take(room, receiver, 1)
            assert receiver.credit == 0
            receiver.settle(found[0], found[0], ACCEPTED)
            receiver.grant(1)
            await room.client.flush()
        await settled(lambda: room.numbers() == [0, 0])


@in_loop
async def test_messages_that_come_later_wake_a_receiver_that_waits() -> None:
    async with sharded_entities() as room:
        receiver = await room.client.receiver("q", credit=10)
        for share in (1, 2):
            sender = await room.client.sender("q")
            while room.numbers()[share - 1] == 0:
                await room.client.send(sender, b"m")
        await _take(room, receiver, sum(room.numbers()))


@in_loop
async def test_a_drain_gives_what_there_is_and_is_answered() -> None:
    async with sharded_entities() as room:
        sender = await room.client.sender("q")
        for number in range(5):
            await room.client.send(sender, b"%d" % number)
        receiver = await room.client.receiver("q", credit=1)
        await _take(room, receiver, 1)
        assert len(await _drain(room, receiver, 100)) == 4
        assert receiver.credit == 0
        assert await _drain(room, receiver, 100) == []


@in_loop
async def test_receive_and_delete_removes_at_once() -> None:
    async with sharded_entities() as room:
        sender = await room.client.sender("q")
        for number in range(6):
            await room.client.send(sender, b"%d" % number)
        link = room.client.session.attach_receiver("r", Source(address="q"), Target(address="c"), snd_settle_mode=1)
        await room.client.wait(LinkAttached, lambda event: event.link is link)
        link.grant(6)
        await _take(room, link, 6)
        await settled(lambda: room.numbers() == [0, 0])


@in_loop
async def test_two_receivers_share_what_there_is() -> None:
    async with sharded_entities() as room:
        first, second = await room.client.receiver("q", credit=5), await room.client.receiver("q", credit=5)
        sender = await room.client.sender("q")
        for number in range(10):
            await room.client.send(sender, b"%d" % number)
        assert len(await _take(room, first, 5)) == len(await _take(room, second, 5)) == 5


@in_loop
async def test_what_a_lost_client_held_is_there_again_at_once() -> None:
    async with sharded_entities() as room:
        sender = await room.client.sender("q")
        for number in range(4):
            await room.client.send(sender, b"%d" % number)
        receiver = await room.client.receiver("q", credit=4)
        await _take(room, receiver, 4)
        room.client.stream.drop()  # type: ignore[union-attr]
        room.client = await room.again()
        receiver = await room.client.receiver("q", credit=4)
        await _take(room, receiver, 4)


@in_loop
async def test_a_share_without_an_owner_is_passed_over_and_taken_up_again() -> None:
    async with sharded_entities() as room:
        room.about.away = {1}
        sender = await room.client.sender("q")
        for number in range(4):
            assert await room.client.send(sender, b"%d" % number) == ACCEPTED
        assert room.numbers() == [0, 4]
        key = next(key for key in map(str, range(40)) if room.about.sharded_entity.of_key(b"s" + key.encode()) == 0)  # type: ignore[union-attr]
        outcome = await _put(room, sender, _keyed(key))
        assert isinstance(outcome, Rejected)
        assert str(outcome.error.condition) == "com.microsoft:server-busy"
        # It says for which keys that is so.
        sharded_entity = room.about.sharded_entity
        assert sharded_entity is not None
        first, last, slots = sharded_entity.slots_of(0)
        assert f" StoreUnavailable:q, Fragment:{first}-{last}/{slots} TrackingId:" in str(outcome.error.description)
        for other in map(string_key, map(str, range(40))):
            assert (first <= slot_of(other, slots) <= last) == (sharded_entity.of_key(other) == 0)
        room.about.away = set()
        await settled(lambda: len(room.owners[1].amqp.peers) == 1)
        while room.numbers()[0] == 0:
            assert await room.client.send(sender, b"m") == ACCEPTED
        assert await _put(room, sender, _keyed(key)) == ACCEPTED


@in_loop
async def test_the_loss_of_an_idle_owner_leaves_the_link_alone() -> None:
    async with sharded_entities() as room:
        sender = await _sender_to_both(room)
        for number in range(4):
            await room.client.send(sender, b"%d" % number)
        _lose(room, 2)
        await settled(lambda: not room.owners[2].amqp.peers)
        for number in range(4):
            assert await room.client.send(sender, b"%d" % number) == ACCEPTED
        assert room.numbers() == [6, 2]
        assert sender.is_attached


@in_loop
async def test_a_receiver_that_holds_messages_of_a_lost_owner_is_told_to_come_again() -> None:
    async with sharded_entities() as room:
        sender = await _sender_to_both(room)
        for number in range(4):
            await room.client.send(sender, b"%d" % number)
        receiver = await room.client.receiver("q", credit=4)
        await _take(room, receiver, 4)
        _lose(room, 2)
        event = await room.client.wait(LinkDetached, lambda event: event.link is receiver)
        assert event.error is not None
        assert event.error.condition == DETACH_FORCED


def _lose(room: ShardedRoom, *numbers: int) -> None:
    """The servers of these stores are gone."""
    room.about.away = set(numbers)
    for number in numbers:
        cut(room.owners[number])


def _outcome_of(room: ShardedRoom, delivery_id: int) -> Any:
    return room.client.wait(Dispositions, lambda event: event.role and event.ranges[0][0] == delivery_id)


@in_loop
async def test_what_a_lost_owner_has_not_answered_is_rejected_as_unknown_and_the_sharded_link_goes_on() -> None:
    async with sharded_entities() as room:
        sender = await _sender_to_both(room)
        stop_reading(room.owners[2])
        first = sender.send_one(b"tag", _keyed(names_in(room, 1)[0]), False)
        await room.client.flush()
        await settled(lambda: room.about.proxied_messages == 1)
        _lose(room, 2)
        outcome = (await _outcome_of(room, first)).ranges[0][3]
        assert isinstance(outcome, Rejected)
        assert str(outcome.error.condition) == "com.microsoft:timeout"
        assert await _put(room, sender, _keyed(names_in(room, 0)[0])) == ACCEPTED
        assert sender.is_attached
        assert [peer._carried for peer in room.front.amqp.peers] == [0]


@in_loop
async def test_a_message_whose_shard_has_lost_its_owner_waits_for_the_next_one() -> None:
    async with sharded_entities() as room:
        sender = await _sender_to_both(room)
        _lose(room, 2)
        await settled(lambda: not room.owners[2].amqp.peers)
        first = sender.send_one(b"tag", _keyed(names_in(room, 1)[0]), False)
        await room.client.flush()
        await settled(lambda: any(one.owes for one in _sharded_links(room)))
        room.about.away = set()
        assert (await _outcome_of(room, first)).ranges[0][3] == ACCEPTED
        assert room.numbers() == [0, 1]


@in_loop
async def test_a_message_is_refused_when_its_shard_gets_no_owner() -> None:
    async with sharded_entities() as room:
        sender = await _sender_to_both(room)
        with patch.object(sharded_sender, "MOVING_S", 0.1):
            _lose(room, 2)
            await settled(lambda: not room.owners[2].amqp.peers)
            outcome = await _put(room, sender, _keyed(names_in(room, 1)[0]))
        assert isinstance(outcome, Rejected)
        assert str(outcome.error.condition) == "com.microsoft:server-busy"
        # From now on it is refused at once.
        assert isinstance(await _put(room, sender, _keyed(names_in(room, 1)[0])), Rejected)
        assert [peer._carried for peer in room.front.amqp.peers] == [0]


@in_loop
async def test_a_message_without_a_key_waits_when_no_shard_has_an_owner() -> None:
    async with sharded_entities() as room:
        sender = await _sender_to_both(room)
        _lose(room, 1, 2)
        await settled(lambda: not room.owners[1].amqp.peers and not room.owners[2].amqp.peers)
        first = sender.send_one(b"tag", build_message(["id"], data=b"m"), False)
        await room.client.flush()
        await settled(lambda: any(one.owes for one in _sharded_links(room)))
        room.about.away = {1}
        assert (await _outcome_of(room, first)).ranges[0][3] == ACCEPTED
        assert room.numbers() == [0, 1]


@in_loop
async def test_a_sharded_link_of_a_client_that_does_transactions_ends_when_an_owner_is_lost_with_a_message() -> None:
    async with sharded_entities() as room:
        coordinator = room.client.session.attach_sender("c", Source(address="c"), Coordinator())
        await room.client.wait(LinkAttached, lambda event: event.link is coordinator)
        sender = await _sender_to_both(room)
        stop_reading(room.owners[2])
        sender.send_one(b"tag", _keyed(names_in(room, 1)[0]), False)
        await room.client.flush()
        await settled(lambda: room.about.proxied_messages == 1)
        _lose(room, 2)
        assert (await _refusal(room, sender))[0] == DETACH_FORCED


@in_loop
async def test_a_receiver_that_holds_nothing_of_a_lost_owner_stays_and_receives_from_the_others() -> None:
    async with sharded_entities() as room:
        sender = await _sender_to_both(room)
        receiver = await room.client.receiver("q", credit=10)
        await settled(lambda: all(len(one.open_branches) == 2 for one in _sharded_links(room)))
        for number in range(4):
            await room.client.send(sender, b"%d" % number)
        for delivery_id, _ in await _take(room, receiver, 4):
            receiver.settle(delivery_id, delivery_id, ACCEPTED)
        await room.client.flush()
        await settled(lambda: room.numbers() == [0, 0])
        sessions = [part.session for one in _sharded_links(room) for part in one.parts()]
        await settled(lambda: not any(session is not None and session.holds for session in sessions))
        _lose(room, 2)
        await settled(lambda: not room.owners[2].amqp.peers)
        await room.client.send(sender, b"m")
        await _take(room, receiver, 1)
        assert receiver.is_attached


async def _sender_to_both(room: ShardedRoom) -> Link:
    """A sender whose messages go to both shares by turns."""
    sender = await room.client.sender("q")
    # The client's link is there with the first share's; until the other one's is, all would go to the first.
    await settled(lambda: all(len(one.open_branches) == 2 for one in _sharded_links(room)))
    return sender


async def _refusal(room: ShardedRoom, link: Link) -> tuple[str, str]:
    event = await room.client.wait(LinkDetached, lambda event: event.link is link)
    assert event.error is not None
    return str(event.error.condition), str(event.error.description)


@in_loop
async def test_what_an_owner_refuses_is_refused_in_its_words() -> None:
    async with sharded_entities(status=RECEIVE_DISABLED) as room:
        link = room.client.session.attach_receiver("r", Source(address="q"), Target(address="c"))
        condition, text = await _refusal(room, link)
        assert condition == "com.microsoft:entity-disabled"
        assert RECEIVE_DISABLED in text


@in_loop
async def test_what_is_not_offered_over_shares_is_refused() -> None:
    async with sharded_entities() as room:
        filters = {Symbol("com.microsoft:session-filter"): None}
        link = room.client.session.attach_receiver("r", Source(address="q", filter=filters), Target(address="c"))
        assert "session" in (await _refusal(room, link))[1]
        link = room.client.session.attach_sender("d", Source(address="c"), Target(address="q/$deadletterqueue"))
        assert "dead-letter" in (await _refusal(room, link))[1]


@in_loop
async def test_what_is_sent_via_a_spread_queue_goes_where_its_link_says() -> None:
    async with sharded_entities() as room:
        # Of the owners one alone knows where that is.
        properties = {Symbol("com.microsoft:transfer-destination-address"): "one"}
        link = room.client.session.attach_sender("s", Source(address="c"), Target(address="q"), properties=properties)
        await room.client.wait(LinkAttached, lambda event: event.link is link)
        while not link.sendable():
            await room.client.pump()
        for _ in range(4):
            assert await room.client.send(link, b"m") == ACCEPTED
        there = room.owners[1].unit.namespace("ns").queues["one"]
        await settled(lambda: there.numbers()[0][0] == 4)
        assert room.numbers() == [0, 0]


@in_loop
async def test_links_end_when_the_queue_is_deleted() -> None:
    async with sharded_entities() as room:
        sender = await room.client.sender("q")
        room.about.sharded_entity = None
        assert (await _refusal(room, sender))[0] == "amqp:not-found"
