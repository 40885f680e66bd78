"""An action that makes a ping of an empty copy: nobody is ever given one (PN13)."""

from __future__ import annotations

import asyncio

from duobus.broker import MAIN
from duobus.codec import build_message
from duobus.model.batches import CONTENT_TYPE
from duobus.model.descriptions import RuleDescription, SubscriptionDescription, TopicDescription
from kits.broker import Hall, batch, simulated_over

simulated = simulated_over(1)


@simulated
async def test_a_copy_that_an_action_makes_a_ping_of_is_not_kept_and_one_with_a_body_is(hall: Hall) -> None:
    await hall.start()
    await hall.unit.topics.create_topic("n", TopicDescription(name="t"))
    action = f"SET sys.ContentType = '{CONTENT_TYPE}'"
    rule = RuleDescription(name="r", filter_type="Sql", sql_filter="1 = 1", sql_action=action)
    plain = RuleDescription(name="p", filter_type="True")
    pings = await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="s", rules=(rule,)))
    other = await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="o", rules=(plain,)))
    topic = hall.unit.namespace("n").topics["t"]
    # The same properties each time: what was found out about one message holds for others that are like it.
    for body in (b"", b"", b"x", b""):
        topic.send(batch(build_message(None, {"a": 1}, data=body)))
        await asyncio.sleep(1)
    assert len(await other.peek(MAIN, 1, 10)) == 4
    assert len(await pings.peek(MAIN, 1, 10)) == 1, "the one with a body"
