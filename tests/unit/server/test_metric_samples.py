"""The samples of many entities, taken with pauses in between in which entities come and go."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from duobus.model.descriptions import SubscriptionDescription, TopicDescription
from duobus.server.monitoring.metric_samples import samples
from kits.broker import Hall, simulated


def amqp() -> Any:
    """What the samples read of the AMQP side."""
    metering = SimpleNamespace(totals={})
    return SimpleNamespace(
        peers=[], connections_opened=0, budget=SimpleNamespace(used=0, limit=1), errors=Counter(), metering=metering
    )


@simulated
async def test_an_entity_that_is_deleted_between_two_samples_is_left_out_and_a_new_one_does_not_disturb(
    hall: Hall,
) -> None:
    await hall.start()
    for number in range(4):
        await hall.create(f"q{number}")
    about = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="Here"),))
    topic = await hall.unit.topics.create_topic("n", about)
    read = samples(hall.unit, cast("Any", amqp()), 0, {})
    entities: list[str] = []
    for sample in read:
        if sample.name != "duobus_messages_bytes":
            continue
        entities.append(sample.labels[1])
        if len(entities) == 1:
            await hall.unit.delete_queue("n", "q2")
            await hall.create("late")
    assert entities == ["q0", "q1", "q3", "t/Subscriptions/Here", "t"]
    home = hall.unit.namespace("n")
    assert home.serves(topic)
    assert home.serves(topic.subscriptions["here"])
    gone = topic.subscriptions["here"]
    await hall.unit.topics.delete_subscription("n", "t", "here")
    assert not home.serves(gone)
