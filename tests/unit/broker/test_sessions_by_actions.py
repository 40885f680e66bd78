"""Actions that change the session id of a copy: on a partitioned topic a session lives in one fragment (I4, I36)."""

from __future__ import annotations

import asyncio

from duobus.broker import DEAD_LETTER, MAIN, Subscription
from duobus.codec import build_message
from duobus.fragment.topics.fanout import SESSION_ELSEWHERE
from duobus.model.descriptions import RuleDescription, SubscriptionDescription, TopicDescription
from duobus.model.metadata import MessageMetadata
from kits.broker import Hall, batch, simulated_over

simulated = simulated_over(2)


async def subscribed(hall: Hall, action: str, *, partitioned: bool, sessions: bool = True) -> Subscription:
    """The one subscription of a topic, whose one rule has this action."""
    await hall.start()
    about = TopicDescription(name="t", enable_partitioning=partitioned)
    await hall.unit.topics.create_topic("n", about)
    rule = RuleDescription(name="r", filter_type="Sql", sql_filter="1 = 1", sql_action=action)
    one = SubscriptionDescription(name="s", requires_session=sessions, rules=(rule,))
    return await hall.unit.topics.create_subscription("n", "t", one)


async def publish(hall: Hall, metadata: MessageMetadata) -> None:
    """One message, placed as a server of the gateway would place it."""
    made = batch(build_message(None, {"group": "g"}, data=b"m"))
    made.extra = {0: metadata}
    key = metadata.session_id or metadata.partition_key
    made.keys = None if key is None else [key.encode()]
    hall.unit.namespace("n").topics["t"].send(made)
    await asyncio.sleep(1)


async def kept(subscription: Subscription) -> tuple[list[str | None], list[str | None]]:
    """Sessions that have messages, and the reasons of dead letters."""
    dead = [message.metadata.reason for _, message in await subscription.peek(DEAD_LETTER, 1, 10)]
    return sorted(subscription.sessions_in_use()), dead


@simulated
async def test_a_message_of_one_session_joins_no_other_over_fragments(hall: Hall) -> None:
    subscription = await subscribed(hall, "SET sys.SessionId = group; REMOVE sys.PartitionKey", partitioned=True)
    await publish(hall, MessageMetadata(session_id="own"))
    await publish(hall, MessageMetadata(session_id="own", partition_key="own"))
    assert await kept(subscription) == ([], [SESSION_ELSEWHERE, SESSION_ELSEWHERE])


@simulated
async def test_a_message_that_lies_anywhere_joins_no_session_over_fragments(hall: Hall) -> None:
    subscription = await subscribed(hall, "SET sys.SessionId = group", partitioned=True)
    await publish(hall, MessageMetadata())
    assert await kept(subscription) == ([], [SESSION_ELSEWHERE])


@simulated
async def test_a_partition_key_may_become_the_session(hall: Hall) -> None:
    subscription = await subscribed(hall, "SET sys.SessionId = sys.PartitionKey", partitioned=True)
    await publish(hall, MessageMetadata(partition_key="k"))
    assert await kept(subscription) == (["k"], [])


@simulated
async def test_actions_about_other_things_leave_the_session_alone(hall: Hall) -> None:
    subscription = await subscribed(hall, "SET sys.Label = group", partitioned=True)
    await publish(hall, MessageMetadata(session_id="own"))
    assert await kept(subscription) == (["own"], [])


@simulated
async def test_a_topic_of_one_fragment_groups_by_the_new_session(hall: Hall) -> None:
    subscription = await subscribed(hall, "SET sys.SessionId = group", partitioned=False)
    await publish(hall, MessageMetadata(session_id="own"))
    assert await kept(subscription) == (["g"], [])


@simulated
async def test_without_sessions_a_session_id_is_a_property_like_others(hall: Hall) -> None:
    subscription = await subscribed(hall, "SET sys.SessionId = group", partitioned=True, sessions=False)
    await publish(hall, MessageMetadata(session_id="own"))
    assert len(await subscription.peek(MAIN, 1, 10)) == 1
