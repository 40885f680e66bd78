"""Messages that run out of life while nobody remembers whether they were forwarded: here or there, never both (I14).

A new life of an origin, at the same server or another, knows nothing of batches that were under way. What it found lets
it expire only when the destination has said what of it is there.
"""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest
from msgspec.structs import replace
from test_cluster_forwarding import Side, Town, _there

from duobus.broker import DEAD_LETTER, TRANSFER_DEAD_LETTER
from duobus.broker.forwarding.batches import origin_of
from duobus.cluster.forwarding.protocol import ReceivedQuery
from duobus.errors import StoreUnavailable
from duobus.fragment.message import MAIN, sub_queue_of
from duobus.model.descriptions import DISABLED, RECEIVE_DISABLED, QueueDescription
from duobus.model.metadata import MessageMetadata
from kits.broker import Hall, batch, payloads, receiver, simulated_over, turns

TTL_MS = 10_000


async def _town(hall: Hall) -> tuple[Town, str, str]:
    """What lives for a while is forwarded from one server to the other, and is a dead letter when it expires before."""
    town = Town(hall)
    await town.give(town.a, 1)
    await town.give(town.b, 2)
    source, target = town.names_of(1, 1)[0], town.names_of(2, 1)[0]
    await town.b.owner.unit.create_queue("n", QueueDescription(name=target))
    await town.a.refresh()
    about = QueueDescription(
        name=source,
        forward_to=target,
        default_message_time_to_live_ms=TTL_MS,
        dead_lettering_on_message_expiration=True,
    )
    await town.a.owner.unit.create_queue("n", about)
    await town.a.refresh()
    await town.b.refresh()
    return town, source, target


async def _left_in_doubt(hall: Hall) -> tuple[Town, str, str]:
    """The destination has taken a message, which is locked there, and nobody has heard that when the origin ends."""
    town, source, target = await _town(hall)
    line = await town.a.get("b", "n")
    town.a.owner.queue(source).send(batch(b"0"))
    await asyncio.sleep(0.5)
    line.late = []
    town.a.owner.queue(source).send(batch(b"1"))
    await asyncio.sleep(0.5)
    assert await _there(town.b, target) == [b"0", b"1"]
    # Locked there, it does not expire.
    _, box = receiver(town.b.owner.queue(target), 2)
    await turns()
    assert payloads(box) == [b"0", b"1"]
    town.a.owner.unit.drop(1, "its lease has ended")
    line.cut()
    return town, source, target


async def _places(town: Town, side: Side, source: str, target: str) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """What the origin has, what it has as dead letters, and what the destination has."""
    return _kept(side, source), _kept(side, source, DEAD_LETTER), _kept(town.b, target)


def _kept(side: Side, name: str, sub_queue: int = MAIN) -> list[bytes]:
    """What is there, be it locked or out of life."""
    fragment = side.owner.queue(name).fragments[0].fragment
    assert fragment is not None
    messages = fragment.sources[0].by_count.values()
    return [message.payload for message in messages if sub_queue_of(message.state) == sub_queue]


@pytest.mark.parametrize("seconds", [TTL_MS / 2000, 2 * TTL_MS / 1000])
@pytest.mark.parametrize("name", ["a", "b"])
def test_what_was_taken_before_its_origin_ended_is_at_the_destination_alone(name: str, seconds: float) -> None:
    @simulated_over(2, 3600)
    async def story(hall: Hall) -> None:
        town, source, target = await _left_in_doubt(hall)
        await asyncio.sleep(seconds)
        side = town.sides[name]
        await town.give(side, 1)
        await asyncio.sleep(3)
        assert await _places(town, side, source, target) == ([], [], [b"0", b"1"])

    story()


@pytest.mark.parametrize("name", ["a", "b"])
def test_what_was_never_taken_expires_once_the_destination_has_said_so(name: str) -> None:
    @simulated_over(2, 3600)
    async def story(hall: Hall) -> None:
        town, source, target = await _town(hall)
        town.away.add("b")
        town.a.owner.queue(source).send(batch(b"0"))
        town.a.owner.queue(source).send(batch(b"1", ttl_ms=1_000))
        await asyncio.sleep(0.5)
        town.a.owner.unit.drop(1, "its lease has ended")
        await asyncio.sleep(2 * TTL_MS / 1000)
        side = town.sides[name]
        await town.give(side, 1)
        if name == "a":
            # Nobody can be asked yet, so it stays.
            await asyncio.sleep(2 * TTL_MS / 1000)
            assert await _places(town, side, source, target) == ([b"0", b"1"], [], [])
        town.away.clear()
        await asyncio.sleep(8)
        assert await _places(town, side, source, target) == ([], [b"0", b"1"], [])

    story()


@simulated_over(2, 3600)
async def test_what_comes_after_a_change_of_owner_expires_in_its_time_while_nobody_can_be_asked(hall: Hall) -> None:
    town, source, target = await _town(hall)
    town.away.add("b")
    town.a.owner.queue(source).send(batch(b"0"))
    await asyncio.sleep(0.5)
    town.a.owner.unit.drop(1, "its lease has ended")
    await town.give(town.a, 1)
    town.a.owner.queue(source).send(batch(b"1"))
    await asyncio.sleep(TTL_MS / 1000 + 10)
    assert await _places(town, town.a, source, target) == ([b"0"], [b"1"], [])


@simulated_over(2, 3600)
async def test_the_answer_comes_in_parts_when_it_is_long(hall: Hall) -> None:
    with (
        mock.patch("duobus.cluster.forwarding.receiver.ASKED_MAX", 2),
        mock.patch("duobus.cluster.forwarding.sender.ASKED_MAX", 2),
    ):
        town, source, _ = await _town(hall)
        line = await town.a.get("b", "n")
        town.a.owner.queue(source).send(batch(b"0"))
        await asyncio.sleep(0.5)
        line.late = []
        town.a.owner.queue(source).send(batch(*(b"%d" % number for number in range(1, 6))))
        await asyncio.sleep(0.5)
        town.a.owner.unit.drop(1, "its lease has ended")
        line.cut()
        await asyncio.sleep(2 * TTL_MS / 1000)
        await town.give(town.a, 1)
        await asyncio.sleep(3)
        asked = [one.first for one in town.a.lines["b"].requests if isinstance(one, ReceivedQuery)]
        # Six messages, the one that its origin had heard of included.
        assert asked == [0, 3, 5, 7]
        assert await _there(town.a, source, DEAD_LETTER) == []


@simulated_over(2, 3600)
async def test_what_is_known_to_be_there_leaves_though_the_destination_is_disabled_for_long(hall: Hall) -> None:
    town, source, target = await _left_in_doubt(hall)
    unit = town.b.owner.unit
    await unit.update_queue("n", QueueDescription(name=target, status=DISABLED))
    await town.give(town.b, 1)
    await asyncio.sleep(20 * 60)
    assert await _there(town.b, source) == await _there(town.b, source, DEAD_LETTER) == []
    assert await _there(town.b, source, TRANSFER_DEAD_LETTER) == []


@simulated_over(2, 3600)
async def test_a_destination_that_is_gone_has_nothing(hall: Hall) -> None:
    town, source, target = await _left_in_doubt(hall)
    await town.b.owner.unit.delete_queue("n", target)
    await asyncio.sleep(2 * TTL_MS / 1000)
    await town.give(town.b, 1)
    await asyncio.sleep(3)
    assert await _there(town.b, source, DEAD_LETTER) == [b"1"]


@pytest.mark.parametrize("status", ["Active", RECEIVE_DISABLED])
def test_what_expired_in_doubt_expires_when_it_is_forwarded_no_more(status: str) -> None:
    @simulated_over(2, 3600)
    async def story(hall: Hall) -> None:
        town, source, _ = await _town(hall)
        unit = town.a.owner.unit
        town.away.add("b")
        about = town.a.owner.queue(source).description
        about = replace(about, default_message_time_to_live_ms=None, status=status)
        await unit.update_queue("n", about)
        town.a.owner.queue(source).send(batch(b"0", ttl_ms=TTL_MS))
        await asyncio.sleep(0.5)
        unit.drop(1, "its lease has ended")
        await asyncio.sleep(2 * TTL_MS / 1000)
        await town.give(town.a, 1)
        await asyncio.sleep(30)
        assert _kept(town.a, source) == [b"0"]
        await unit.update_queue("n", replace(about, forward_to=None))
        await asyncio.sleep(3)
        assert _kept(town.a, source, DEAD_LETTER) == [b"0"]

    story()


@simulated_over(2, 3600)
async def test_a_forward_request_of_a_former_owner_comes_too_late_when_its_origin_is_here(hall: Hall) -> None:
    town, source, target = await _town(hall)
    town.away.add("b")
    town.a.owner.queue(source).send(batch(b"0"))
    await asyncio.sleep(0.5)
    handle = town.a.owner.queue(source).fragments[0]
    assert handle.fragment is not None
    origin = origin_of(handle, 0)
    registration = town.b.owner.unit.receiver.register("n", target, origin, handle.fragment.epoch)
    town.a.owner.unit.drop(1, "its lease has ended")
    await town.give(town.b, 1)
    # Taken in, removed here, and forgotten there.
    await asyncio.sleep(5)
    assert await _there(town.b, target) == [b"0"]
    with pytest.raises(StoreUnavailable):
        await town.b.owner.unit.receiver.take(registration, [1], [b"0"], [MessageMetadata()])


@simulated_over(2, 3600)
async def test_a_message_that_expires_while_its_server_is_down_between_the_two_commits_is_in_one_place(
    hall: Hall,
) -> None:
    # One server, two stores: the destination's commit is there, the origin's is not.
    await hall.start()
    target = await hall.create("to", enable_partitioning=True)
    about = QueueDescription(
        name="from", default_message_time_to_live_ms=TTL_MS, dead_lettering_on_message_expiration=True
    )
    source = await hall.unit.create_queue("n", about)
    home = source.fragments[0].store.store_id
    for number in range(8):
        source.send(batch(b"%d" % number))
        await asyncio.sleep(0.01)
    hall.writers[home].is_held = True
    forwards = asyncio.ensure_future(hall.unit.update_queue("n", replace(about, forward_to="to")))
    await asyncio.sleep(0.5)
    assert forwards.done()
    in_others = [one for one in target.fragments if one.store.store_id != home]
    taken = [
        message.payload for one in in_others if one.fragment for message in one.fragment.sources[0].by_count.values()
    ]
    assert taken, "accepted by the other store, and not removed yet"
    await asyncio.sleep(2 * TTL_MS / 1000)
    await hall.again()
    await asyncio.sleep(10)
    dead = [message.payload for _, message in await hall.queue("from").peek(DEAD_LETTER, 1, 10)]
    assert sorted(dead + taken) == [b"%d" % number for number in range(8)]
