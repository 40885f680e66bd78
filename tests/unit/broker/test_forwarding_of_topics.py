"""Forwarding from subscriptions and to topics (I14, I41)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from duobus.broker import COUNT_BITS, DEAD_LETTER, MAIN, Queue, QueuedMessage, Topic
from duobus.codec import build_message
from duobus.codec.sections import application_properties
from duobus.errors import ArgumentInvalid
from duobus.fragment.settlement import DEAD_LETTER_OUTCOME, SettleBatch, SettleDetail
from duobus.model.descriptions import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from kits.broker import Hall, batch
from kits.fragment import Box
from simulation.world.loop import SimulationLoop

Story = Callable[[Hall], Coroutine[Any, Any, None]]


def run(story: Story, stores: int = 1) -> None:
    """Run a story in virtual time."""
    loop = SimulationLoop(7)

    async def play() -> None:
        hall = Hall(loop, stores)
        await hall.start()
        await story(hall)

    try:
        loop.run(play(), time_limit_s=100_000.0)
    finally:
        loop.close()


async def queue_of(hall: Hall, name: str, **properties: Any) -> Queue:
    return await hall.unit.create_queue("n", QueueDescription(name=name, **properties))


async def topic_of(hall: Hall, name: str, *subscriptions: SubscriptionDescription, **properties: Any) -> Topic:
    about = TopicDescription(name=name, subscriptions=subscriptions, **properties)
    return await hall.unit.topics.create_topic("n", about)


async def payloads(queue: Queue, sub_queue: int = MAIN) -> list[bytes]:
    return [message.payload for message in await queued_messages(queue, sub_queue)]


async def queued_messages(queue: Queue, sub_queue: int = MAIN) -> list[QueuedMessage]:
    return [message for _, message in await queue.peek(sub_queue, 1, 10_000)]


async def settled() -> None:
    """Whatever is on its way arrives."""
    await asyncio.sleep(5)


@pytest.mark.parametrize("stores", [1, 3])
@pytest.mark.parametrize("partitioned", [False, True])
def test_what_a_subscription_gets_goes_on_to_its_queue(stores: int, partitioned: bool) -> None:
    async def story(hall: Hall) -> None:
        target = await queue_of(hall, "target")
        topic = await topic_of(
            hall,
            "t",
            SubscriptionDescription(name="on", forward_to="target"),
            SubscriptionDescription(name="stays"),
            enable_partitioning=partitioned,
        )
        sent = [b"m%d" % number for number in range(20)]
        for payload in sent:
            topic.send(batch(payload))
            await asyncio.sleep(0.01)
        await settled()
        assert sorted(await payloads(target)) == sorted(sent)
        assert await payloads(topic.subscriptions["on"]) == []
        assert sorted(await payloads(topic.subscriptions["stays"])) == sorted(sent)

    run(story, stores)


def rule(name: str, expression: str, action: str | None = None) -> RuleDescription:
    return RuleDescription(name=name, filter_type="Sql", sql_filter=expression, sql_action=action)


@pytest.mark.parametrize("stores", [1, 3])
def test_what_an_action_changed_goes_on_and_the_next_topics_rules_see_it(stores: int) -> None:
    async def story(hall: Hall) -> None:
        mark = rule("mark", "n = 1", "SET n = n + 1; SET mark = 'x'; REMOVE gone")
        seen = SubscriptionDescription(name="seen", rules=(rule("two", "n = 2 AND mark = 'x'"),))
        missed = SubscriptionDescription(name="missed", rules=(rule("one", "n = 1 OR EXISTS(gone)"),))
        last = await topic_of(hall, "last", seen, missed)
        hop = SubscriptionDescription(name="hop", forward_to="last", rules=(mark,))
        first = await topic_of(hall, "first", hop)
        first.send(batch(build_message(application_properties={"n": 1, "gone": True}, data=b"body")))
        await settled()
        (arrived,) = await payloads(last.subscriptions["seen"])
        assert application_properties(arrived) == {"n": 2, "mark": "x", "RuleName": "mark"}
        assert await payloads(last.subscriptions["missed"]) == []

    run(story, stores)


@pytest.mark.parametrize("stores", [1, 3])
def test_a_copy_that_goes_on_keeps_the_number_that_its_topic_gave_it(stores: int) -> None:
    async def story(hall: Hall) -> None:
        target = await queue_of(hall, "target")
        hop = SubscriptionDescription(name="hop", forward_to="target", rules=(rule("two", "n = 2"),))
        topic = await topic_of(hall, "t", hop, SubscriptionDescription(name="all"))
        for number in (1, 2):
            topic.send(batch(build_message(application_properties={"n": number}, data=b"body")))
        await settled()
        (arrived,) = await queued_messages(target)
        assert arrived.metadata is not None
        # The first of its subscription, the second of its topic.
        assert (arrived.metadata.enqueued_sequence_number or 0) & ((1 << COUNT_BITS) - 1) == 2

    run(story, stores)


@pytest.mark.parametrize("stores", [1, 3])
def test_a_body_that_no_subscription_needs_any_more_is_gone(stores: int) -> None:
    async def story(hall: Hall) -> None:
        await queue_of(hall, "target")
        both = (SubscriptionDescription(name=name, forward_to="target") for name in ("one", "two"))
        topic = await topic_of(hall, "t", *both)
        topic.send(batch(b"x" * 1000))
        await settled()
        assert topic.numbers()[1] == 0
        for name in ("one", "two"):
            assert topic.subscriptions[name].numbers()[1] == 0

    run(story, stores)


@pytest.mark.parametrize("stores", [1, 3])
def test_a_queue_forwards_to_a_topic_whose_subscriptions_choose(stores: int) -> None:
    async def story(hall: Hall) -> None:
        topic = await topic_of(hall, "t", SubscriptionDescription(name="one"), SubscriptionDescription(name="two"))
        origin = await queue_of(hall, "origin", forward_to="t")
        origin.send(batch(b"a", b"b"))
        await settled()
        assert await payloads(origin) == []
        for name in ("one", "two"):
            assert await payloads(topic.subscriptions[name]) == [b"a", b"b"]

    run(story, stores)


@pytest.mark.parametrize("stores", [1, 3])
def test_a_chain_of_topics_survives_a_crash_in_the_middle(stores: int) -> None:
    async def story(hall: Hall) -> None:
        await topic_of(hall, "last", SubscriptionDescription(name="end"))
        first = await topic_of(hall, "first", SubscriptionDescription(name="hop", forward_to="last"))
        for number in range(10):
            first.send(batch(b"m%d" % number))
        await asyncio.sleep(0.02)
        await hall.again()
        await settled()
        end = hall.unit.namespace("n").topics["last"].subscriptions["end"]
        arrived = await payloads(end)
        assert sorted(arrived) == [b"m%d" % number for number in range(10)]

    run(story, stores)


def test_dead_letters_of_a_subscription_go_where_it_says() -> None:
    async def story(hall: Hall) -> None:
        dead = await queue_of(hall, "grave")
        topic = await topic_of(hall, "t", SubscriptionDescription(name="s", forward_dead_lettered_messages_to="grave"))
        subscription = topic.subscriptions["s"]
        topic.send(batch(b"bad"))
        await settled()
        box = Box()
        receiver = subscription.open_receiver(MAIN, box, removing=False)
        receiver.request(1)
        await asyncio.sleep(0.05)
        (found,) = box.taken()
        command = SettleBatch(
            found.fragment,
            subscription.source_no,
            Box(),
            prefix=found.prefix,
            outcome=DEAD_LETTER_OUTCOME,
            ranges=[(found.first_lock, 1)],
        )
        command.detail = SettleDetail(None, "why", "because")
        subscription.settle(command)
        await settled()
        (message,) = await queued_messages(dead)
        assert message.payload == b"bad"
        assert message.metadata is not None
        assert message.metadata.dead_letter_source == "t/Subscriptions/s"
        assert await payloads(subscription, DEAD_LETTER) == []

    run(story)


def test_a_subscription_that_is_to_forward_to_nothing_is_refused() -> None:
    async def story(hall: Hall) -> None:
        with pytest.raises(ArgumentInvalid, match="does not exist"):
            await topic_of(hall, "t", SubscriptionDescription(name="s", forward_to="nowhere"))
        topic = await topic_of(hall, "t")
        with pytest.raises(ArgumentInvalid, match="does not exist"):
            await hall.unit.topics.create_subscription(
                "n", "t", SubscriptionDescription(name="s", forward_to="nowhere")
            )
        assert topic.subscriptions == {}

    run(story)


def test_a_subscription_begins_to_forward_and_stops_while_messages_are_there() -> None:
    async def story(hall: Hall) -> None:
        target = await queue_of(hall, "target")
        topic = await topic_of(hall, "t", SubscriptionDescription(name="s"))
        topic.send(batch(b"before"))
        await settled()
        forwarding = SubscriptionDescription(name="s", forward_to="target")
        await hall.unit.topics.update_subscription("n", "t", forwarding)
        await settled()
        assert await payloads(target) == [b"before"]
        await hall.unit.topics.update_subscription("n", "t", SubscriptionDescription(name="s"))
        topic.send(batch(b"after"))
        await settled()
        assert await payloads(target) == [b"before"]
        assert await payloads(topic.subscriptions["s"]) == [b"after"]

    run(story)
