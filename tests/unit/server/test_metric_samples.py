"""The samples of many entities, taken with pauses in between in which entities come and go."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from duobus.model.address import shard_path
from duobus.model.descriptions import SubscriptionDescription, TopicDescription
from duobus.server.monitoring.metric_samples import samples
from duobus.server.monitoring.whole_entities import whole_entities
from kits.broker import Hall, batch, simulated, turns


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


@simulated
async def test_shards_of_an_entity_are_told_as_the_entity_that_clients_know(hall: Hall) -> None:
    await hall.start()
    for name in ("orders", shard_path("orders", 1), shard_path("orders", 2), "plain"):
        queue = await hall.create(name)
        if name != "orders":
            queue.send(batch(b"one", b"two", b"three"))
    await turns()
    found = {
        sample.labels: sample.value
        for sample in samples(hall.unit, cast("Any", amqp()), 0, {})
        if sample.name == "duobus_messages" and sample.labels[2] == "active"
    }
    assert found == {("n", "orders", "active"): 6, ("n", "plain", "active"): 3}


@simulated
async def test_a_shard_that_is_deleted_while_samples_are_taken_is_left_out_and_the_others_are_told(hall: Hall) -> None:
    await hall.start()
    for name in ("first", shard_path("orders", 1), shard_path("orders", 2)):
        await hall.create(name)
    wholes = whole_entities(hall.unit.namespace("n"))
    assert next(wholes).path == "first"
    await hall.unit.delete_queue("n", shard_path("orders", 1))
    (orders,) = wholes
    assert (orders.path, [part.path for part in orders.parts]) == ("orders", [shard_path("orders", 2)])
    assert orders.about is orders.parts[0]
