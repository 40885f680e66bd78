"""Entities are created, changed and deleted while some stores are away or stall (PE4, PE18, IN2; decision 0046)."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from duobus.broker.entities.bulk_creation import CREATION_S
from duobus.errors import StoreFailed, StoreUnavailable
from duobus.model.descriptions import (
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from duobus.model.quotas import STORE_TIMEOUT_S
from duobus.storage.catalog_rows import LIVE
from kits.broker import Hall, answers, batch, simulated, turns

SICK = 2


async def lose(hall: Hall, number: int = SICK) -> None:
    """Let a store fail, as the server knows, and not open any more."""

    def fails() -> None:
        raise StoreFailed("planted")

    hall.disks[number].open = fails  # type: ignore[assignment,method-assign]
    hall.writers[number].fail_next = "before"
    hall.unit.brokers[number].lifecycle.show_how_it_is()
    await turns()
    assert hall.unit.brokers[number].state == "failed"


def stores_of(entity: object) -> Counter[int]:
    return Counter(handle.store.store_id for handle in entity.fragments)  # type: ignore[attr-defined]


@simulated
async def test_plain_queues_and_topics_are_created_in_the_stores_that_are_there(hall: Hall) -> None:
    await hall.start()
    await lose(hall)
    stores: Counter[int] = Counter()
    for number in range(6):
        stores += stores_of(await hall.create(f"q{number}"))
        topic = TopicDescription(name=f"t{number}", subscriptions=(SubscriptionDescription(name="s"),))
        stores += stores_of(await hall.unit.topics.create_topic("n", topic))
    assert stores == {1: 4, 3: 4, 4: 4}
    made = batch(b"m")
    hall.queue("q0").send(made)
    await turns()
    assert answers(made) == [None]


@simulated
async def test_fragments_are_spread_evenly_over_the_stores_that_are_there_and_the_log_names_the_others(
    hall: Hall,
) -> None:
    await hall.start()
    await lose(hall)
    queue = await hall.create(enable_partitioning=True)
    assert sorted(stores_of(queue).values()) == [5, 5, 6]
    assert SICK not in stores_of(queue)
    (told,) = [text for store, kind, text in hall.events if (store, kind) == (SICK, "left out")]
    assert "queue 'q'" in told
    # It stays so over a restart, with the store back.
    where = [handle.store.store_id for handle in queue.fragments]
    del hall.disks[SICK].open
    await hall.again()
    assert [handle.store.store_id for handle in hall.queue().fragments] == where
    healthy = await hall.create("later", enable_partitioning=True)
    assert set(stores_of(healthy).values()) == {4}


@simulated
async def test_what_lives_in_well_stores_is_changed_and_deleted_and_the_rest_refused_unchanged(hall: Hall) -> None:
    await hall.start()
    queues = [await hall.create(f"q{number}") for number in range(4)]
    away = next(queue for queue in queues if SICK in stores_of(queue))
    topics = [await hall.unit.topics.create_topic("n", TopicDescription(name=f"t{number}")) for number in range(4)]
    well = next(topic for topic in topics if SICK not in stores_of(topic))
    await lose(hall)
    for queue in queues:
        wanted = msgspec.structs.replace(queue.description, max_delivery_count=3)
        if queue is away:
            with pytest.raises(StoreUnavailable):
                await hall.unit.update_queue("n", wanted)
            with pytest.raises(StoreUnavailable):
                await hall.unit.delete_queue("n", queue.path)
        else:
            await hall.unit.update_queue("n", wanted)
            await hall.unit.delete_queue("n", queue.path)
    assert set(hall.unit.namespace("n").queues) == {away.path}
    life = hall.unit.topics
    subscription = await life.create_subscription("n", well.path, SubscriptionDescription(name="s"))
    await life.add_rule(subscription, RuleDescription(name="r"))
    await life.remove_rule(subscription, "r")
    wanted_s = msgspec.structs.replace(subscription.about, max_delivery_count=3)
    await life.update_subscription("n", well.path, wanted_s)
    await life.update_topic("n", well.about)
    await life.delete_subscription("n", well.path, "s")
    await life.delete_topic("n", well.path)
    assert well.path not in hall.unit.namespace("n").topics


@simulated
async def test_stores_that_stall_delay_a_creation_by_their_timeout_and_do_not_end_it(hall: Hall) -> None:
    await hall.start()
    for number in (1, 2, 3):
        hall.writers[number].is_held = True
    began_s = hall.loop.time()
    parted = await hall.create("parted", enable_partitioning=True)
    assert stores_of(parted) == {4: 16}
    assert hall.loop.time() - began_s < STORE_TIMEOUT_S + 0.5
    assert stores_of(await hall.create()) == {4: 1}
    assert hall.loop.time() - began_s < STORE_TIMEOUT_S + 0.5


@simulated
async def test_when_all_stores_stall_a_creation_is_refused_within_a_bound(hall: Hall) -> None:
    await hall.start()
    for writer in hall.writers.values():
        writer.is_held = True
    began_s = hall.loop.time()
    with pytest.raises(StoreUnavailable):
        await hall.create()
    assert hall.loop.time() - began_s < CREATION_S + STORE_TIMEOUT_S


@simulated
async def test_a_store_that_fails_on_a_creation_is_left_out_and_the_name_is_taken_once(hall: Hall) -> None:
    await hall.start()
    hall.writers[1].fail_next = "after"
    queue = await hall.create()
    topic = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="s"),), enable_partitioning=True)
    hall.writers[3].fail_next = "after"
    made = await hall.unit.topics.create_topic("n", topic)
    assert 1 not in stores_of(queue)
    assert 3 not in stores_of(made)
    await asyncio.sleep(5)
    # The stores that failed are back, and nothing is left of the first tries.
    assert {broker.state for broker in hall.unit.brokers.values()} == {"open"}
    rows = {(row.path, row.state) for row in hall.catalog.read().entities}
    assert rows == {("q", LIVE), ("t", LIVE), ("t/Subscriptions/s", LIVE)}
    for number, disk in hall.disks.items():
        disk.close()
        found = {row.entity_id for row in disk.open().fragments}
        live = {entity.entity_id for entity in (queue, made) if number in stores_of(entity)}
        assert found == live


@simulated
async def test_a_creation_that_was_refused_can_be_asked_for_again_at_once(hall: Hall) -> None:
    await hall.start()
    topic = await hall.unit.topics.create_topic("n", TopicDescription(name="t"))
    (home,) = stores_of(topic)
    hall.writers[home].fail_next = "before"
    with pytest.raises(StoreUnavailable):
        await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="s"))
    await asyncio.sleep(2)
    subscription = await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="s"))
    made = batch(b"m")
    topic.send(made)
    await turns()
    assert answers(made) == [None]
    assert subscription.numbers()[0][0] == 1


@simulated
async def test_with_every_store_away_a_creation_is_refused_and_leaves_nothing(hall: Hall) -> None:
    await hall.start()
    for number in hall.disks:
        await lose(hall, number)
    with pytest.raises(StoreUnavailable):
        await hall.create()
    with pytest.raises(StoreUnavailable):
        await hall.unit.topics.create_topic("n", TopicDescription(name="t"))
    assert hall.catalog.read().entities == ()


@simulated
async def test_what_could_not_be_created_is_forgotten_by_the_next_start_with_all_that_belonged_to_it(
    hall: Hall,
) -> None:
    await hall.start()
    for writer in hall.writers.values():
        writer.fail_next = "after"
    topic = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="s"),), enable_partitioning=True)
    with pytest.raises(StoreUnavailable):
        await hall.unit.topics.create_topic("n", topic)
    assert hall.catalog.read().entities != ()
    await hall.again()
    assert hall.catalog.read().entities == ()
    assert all(disk.usage().rows == 0 for disk in hall.disks.values())
    assert (await hall.unit.topics.create_topic("n", topic)).subscriptions.keys() == {"s"}
