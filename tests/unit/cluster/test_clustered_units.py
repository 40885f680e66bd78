"""Scale units whose stores come and go: two of them over the same memory stores, in virtual time (I55)."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from clustered_kit import Owner

from duobus.broker import MessageBroker
from duobus.cluster.directory import Directory
from duobus.cluster.scale_unit import SETTLE_S
from duobus.errors import OperationTimeout, StoreUnavailable
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from kits.broker import Box, Hall, answers, batch, payloads, receiver, settlement, simulated, turns


async def _two(hall: Hall, **properties: Any) -> tuple[Owner, Owner, int]:
    """Two units, of which the first has all stores, with a queue; and the number of its store."""
    for number in hall.disks:
        hall.catalog.add_store(number, f"store-{number}")
    first, second = Owner(hall), Owner(hall)
    await first.adopt(*hall.disks)
    await first.unit.create_queue("n", QueueDescription(name="q", **properties))
    return first, second, first.queue().fragments[0].store.store_id


@simulated
async def test_what_one_owner_stored_the_next_one_gives_out(hall: Hall) -> None:
    first, second, number = await _two(hall)
    sent = batch(b"a", b"b")
    first.queue().send(sent)
    await turns()
    assert answers(sent) == [None]
    broker = await first.unit.leave(number, "it moves")
    assert broker is not None
    await broker.close()
    await second.adopt(number)
    _, box = receiver(second.queue(), 5)
    await turns()
    assert payloads(box) == [b"a", b"b"]
    assert "q" not in first.unit.namespace("n").queues


@simulated
async def test_what_is_in_doubt_is_not_refused_because_another_store_came_here(hall: Hall) -> None:
    """A tombstone in that store tells nothing to whichever server opens the failed one next (I38)."""
    first, second, number = await _two(hall)
    other = next(one for one in hall.disks if one != number)
    await first.unit.leave(other, "it moves")
    sent = batch(b"a")
    first.writers[number].fail_next = "after"
    first.queue().send(sent)
    await turns()
    assert first.unit.brokers[number].state == "failed"
    await first.adopt(other)
    assert answers(sent) == []
    first.unit.drop(number, "its lease has ended")
    await second.adopt(number)
    await asyncio.sleep(5)
    assert [type(error) for error in answers(sent)] == [OperationTimeout]
    _, box = receiver(second.queue(), 5)
    await turns()
    assert payloads(box) == [b"a"]


@simulated
async def test_a_store_is_served_though_a_subscription_was_deleted_since_the_catalog_was_read(hall: Hall) -> None:
    """The catalog is away when another server gets the store, and what that server knows of the catalog is older."""
    first, second, _ = await _two(hall)
    topic = await first.unit.topics.create_topic("n", TopicDescription(name="t"))
    for name in ("kept", "gone"):
        await first.unit.topics.create_subscription("n", "t", SubscriptionDescription(name=name))
    number = topic.fragments[0].store.store_id
    second.unit.directory = Directory(hall.catalog.read())
    await first.unit.topics.delete_subscription("n", "t", "gone")
    first.unit.drop(number, "its lease has ended")
    await second.adopt(number, reads=False)
    assert number in second.unit.adopted
    found = second.unit.namespace("n").topics["t"]
    assert list(found.subscriptions) == ["kept"]
    sent = batch(b"a")
    found.send(sent)
    await turns()
    assert answers(sent) == [None]
    _, box = receiver(found.subscriptions["kept"], 5)
    await turns()
    assert payloads(box) == [b"a"]


@simulated
async def test_a_store_that_is_being_opened_is_not_there_yet(hall: Hall) -> None:
    """Clients are led to it when what they send is taken."""
    first, second, number = await _two(hall)
    await first.unit.leave(number, "it moves")
    told: list[tuple[bool, bool]] = []
    original = MessageBroker.open

    async def opened(broker: MessageBroker) -> None:
        taken = second.unit.namespace("n").is_taken("q")
        told.append((taken, second.unit.is_opening(number)))
        await original(broker)

    with patch.object(MessageBroker, "open", opened):
        await second.adopt(number)
    assert told == [(True, True)]
    assert not second.unit.is_opening(number)


@simulated
async def test_what_was_taken_is_stored_and_answered_before_a_store_is_left(hall: Hall) -> None:
    first, _, number = await _two(hall)
    sent = batch(b"a")
    first.queue().send(sent)
    queue = first.queue()
    await first.unit.leave(number, "it moves")
    assert answers(sent) == [None]
    # First nothing new is taken in, then links are ended.
    assert first.told[-2:] == [(queue, True, False), (queue, True, True)]


@simulated
async def test_what_receivers_settle_soon_is_settled_before_a_store_is_left_and_they_get_no_more(
    hall: Hall,
) -> None:
    first, second, number = await _two(hall)
    queue = first.queue()
    queue.send(batch(b"a", b"b"))
    one, box = receiver(queue, 1)
    await turns()
    assert payloads(box) == [b"a"]
    leaving = hall.loop.create_task(first.unit.leave(number, "it moves"))
    await asyncio.sleep(0.1)
    one.request(5)
    reply = Box()
    queue.settle(settlement(box.ready[0], reply=reply))
    broker = await leaving
    assert [(done.error, done.lost) for done in reply.ready] == [(None, [])]
    assert payloads(box) == [b"a"]
    assert broker is not None
    await broker.close()
    await second.adopt(number)
    _, later = receiver(second.queue(), 5)
    await turns()
    assert payloads(later) == [b"b"]


@simulated
async def test_who_keeps_a_message_for_long_holds_up_a_move_for_half_a_second(hall: Hall) -> None:
    first, _, number = await _two(hall)
    first.queue().send(batch(b"a"))
    receiver(first.queue(), 1)
    await turns()
    begun = hall.loop.time()
    await first.unit.leave(number, "it moves")
    assert SETTLE_S <= hall.loop.time() - begun < SETTLE_S + 0.2


@simulated
async def test_a_store_that_stands_still_is_left_all_the_same(hall: Hall) -> None:
    first, _, number = await _two(hall)
    first.writers[number].is_held = True
    first.queue().send(batch(b"a"))
    begun = hall.loop.time()
    await first.unit.leave(number, "it moves")
    assert hall.loop.time() - begun < 2


@simulated
async def test_nothing_is_handed_out_behind_the_end_of_a_lease(hall: Hall) -> None:
    first, _, number = await _two(hall)
    first.queue().send(batch(b"a"))
    await turns()
    first.ends_ms[number] = hall.clock.monotonic_ms()
    # The process was stopped and goes on: what meets it first is a receiver.
    with pytest.raises(StoreUnavailable, match="lease"):
        receiver(first.queue(), 1)


@simulated
async def test_a_commit_of_a_stale_owner_is_refused_by_the_store_and_answers_nobody(hall: Hall) -> None:
    first, second, number = await _two(hall)
    first.writers[number].is_held = True
    sent = batch(b"stale")
    first.queue().send(sent)
    await turns()
    assert len(first.writers[number].waiting) == 1
    # It is stopped with its commit on the way; another owner opens the store.
    stale = first.writers[number].waiting.popleft()
    await second.adopt(number)
    second.queue().send(batch(b"fresh"))
    await turns()
    first.writers[number].waiting.append(stale)
    first.writers[number].step()
    await turns()
    first.unit.drop(number, "its lease has ended")
    assert None not in answers(sent)
    _, box = receiver(second.queue(), 5)
    await turns()
    assert payloads(box) == [b"fresh"]


@simulated
async def test_a_dropped_store_is_not_opened_again_by_itself(hall: Hall) -> None:
    first, _, number = await _two(hall)
    broker = first.unit.drop(number, "its lease has ended")
    assert broker is not None
    await asyncio.sleep(60)
    assert broker.state == "closed"
    assert number not in first.unit.brokers
    assert first.unit.drop(number, "again") is None


@simulated
async def test_a_partitioned_queue_lies_in_one_store_which_its_name_picks(hall: Hall) -> None:
    first, second, number = await _two(hall, enable_partitioning=True)
    assert {handle.store.store_id for handle in first.queue().fragments} == {number}
    assert first.unit.directory.store_for_new("n", "q") == number
    with pytest.raises(StoreUnavailable, match="moves"):
        await second.unit.create_queue("n", QueueDescription(name="other"))


@simulated
async def test_topics_move_with_their_subscriptions(hall: Hall) -> None:
    first, second, _ = await _two(hall)
    await first.unit.topics.create_topic("n", TopicDescription(name="t"))
    await first.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="s"))
    topic = first.unit.namespace("n").topics["t"]
    number = topic.fragments[0].store.store_id
    topic.send(batch(b"m"))
    await turns()
    broker = await first.unit.leave(number, "it moves")
    assert broker is not None
    await broker.close()
    await second.adopt(number)
    moved = second.unit.namespace("n").topics["t"].subscriptions["s"]
    _, box = receiver(moved, 1)
    await turns()
    assert payloads(box) == [b"m"]
