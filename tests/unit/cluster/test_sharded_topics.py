"""Topics that lie in several stores: every shard has the same subscriptions and rules once that is answered (I24)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from unittest import mock

import msgspec
import pytest
from servers_kit import ALL, Servers, served

from duobus.broker import Topic, fragment_host
from duobus.cluster.sharding import entities
from duobus.cluster.sharding.front import ShardedSubscription, ShardedTopic
from duobus.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    QuotaExceeded,
    ServerBusy,
    StoreFailed,
    StoreUnavailable,
)
from duobus.model.address import shard_path, sharded_entity_of, whole_path
from duobus.model.descriptions import (
    SUBSCRIPTIONS_PER_TOPIC_MAX,
    RuleDescription,
    SubscriptionDescription,
)
from duobus.storage.catalog_rows import DELETING, INTENT, LIVE
from kits.broker import batch, payloads, receiver, turns

EVEN = RuleDescription(name="even", filter_type="Sql", sql_filter="n % 2 = 0")


@served
async def test_a_topic_and_its_subscriptions_are_in_every_store_when_they_are_answered(servers: Servers) -> None:
    await servers.create("t", "a")
    assert [len(shard.fragments) for shard in servers.shards()] == [8, 8]
    assert all(part is not None and len(part.fragments) == 8 for part in servers.parts("a"))
    assert set(servers.states().values()) == {LIVE}
    await asyncio.sleep(0.1)
    for owner in servers.owners:
        topic = owner.unit.namespace("n").topics["t"]
        assert isinstance(topic, ShardedTopic)
        assert isinstance(topic.subscriptions["a"], ShardedSubscription)
        assert topic.partitions == topic.subscriptions["a"].partitions == 16
    with pytest.raises(EntityAlreadyExists):
        await servers.create("t")


class TopicsWithSender(dict[str, Topic]):
    """The topics of a server, where each shard gets a message as soon as there is one."""

    def __setitem__(self, path: str, topic: Topic) -> None:
        super().__setitem__(path, topic)
        if sharded_entity_of(path) is not None:
            topic.send(batch(f"first of {path}".encode()))


def with_senders(servers: Servers) -> None:
    for owner in servers.owners:
        owner.unit.namespace("n").topics = TopicsWithSender()


async def demand_first(servers: Servers, *names: str) -> None:
    """Each subscription of each shard has what was sent to the shard first."""
    for name in names:
        for shard, part in zip(servers.shards(), servers.parts(name), strict=True):
            assert part is not None
            _, box = receiver(part, 5)
            await turns()
            assert payloads(box) == [f"first of {shard.path}".encode()]


@served
async def test_what_is_sent_to_a_shard_before_the_topic_is_answered_is_in_all_of_its_subscriptions(
    servers: Servers,
) -> None:
    with_senders(servers)
    await servers.create("t", "a", "b")
    await demand_first(servers, "a", "b")


@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_next_owner_makes_a_shard_with_its_subscriptions_when_a_store_has_failed_on_it(is_recorded: bool) -> None:
    @served
    async def run(servers: Servers) -> None:
        with_senders(servers)
        other = next(owner for owner in servers.owners if owner is not servers.creator())
        (store_id,) = other.unit.brokers
        index = servers.owners.index(other)
        servers.asleep.add(index)
        creation = asyncio.ensure_future(servers.create("t", "a", "b"))
        await asyncio.sleep(0.1)
        if is_recorded:
            # The subscriptions of its shard are in the catalog, and the store fails on the rest.
            failing = mock.AsyncMock(side_effect=StoreFailed("the disk is gone"))
            with mock.patch("duobus.broker.entities.topic_management.create_fragments", failing):
                await other.unit.read_again()
            failing.assert_awaited_once()
        states = servers.states()
        assert INTENT in states.values()
        assert len(states) == 7 + 2 * is_recorded
        other.unit.drop(store_id, "its owner is gone")
        servers.asleep.discard(index)
        await other.adopt(store_id)
        await creation
        await demand_first(servers, "a", "b")
        assert set(servers.states().values()) == {LIVE}

    run()


@served
async def test_a_subscription_is_in_every_shard_when_its_creation_is_answered(servers: Servers) -> None:
    await servers.create()
    for owner, name in zip(servers.owners, ("a", "b"), strict=True):
        made = await owner.unit.topics.create_subscription("n", "t", SubscriptionDescription(name=name, rules=(ALL,)))
        assert isinstance(made, ShardedSubscription)
        assert all(part is not None for part in servers.parts(name))
        for number, shard in enumerate(servers.shards()):
            shard.send(batch(f"{name}{number}".encode()))
        await turns()
        for number, part in enumerate(servers.parts(name)):
            assert part is not None
            _, box = receiver(part, 5)
            await turns()
            assert payloads(box) == [f"{name}{number}".encode()]
    with pytest.raises(EntityAlreadyExists):
        await servers.owners[0].unit.topics.create_subscription("n", "t", SubscriptionDescription(name="B"))


@served
async def test_rules_and_properties_hold_in_every_shard_when_their_change_is_answered(servers: Servers) -> None:
    await servers.create("t", "a")
    await asyncio.sleep(0.1)
    first, second = (owner.unit.topics for owner in servers.owners)
    await first.add_rule(servers.front(0, "a"), EVEN)
    assert servers.rules("a") == [["$Default", "even"]] * 2
    await asyncio.sleep(0.1)
    await second.remove_rule(servers.front(1, "a"), "$default")
    assert servers.rules("a") == [["even"]] * 2
    wanted = msgspec.structs.replace(servers.front(1, "a").about, max_delivery_count=3)
    await second.update_subscription("n", "t", wanted)
    assert [part and part.description.max_delivery_count for part in servers.parts("a")] == [3, 3]
    await asyncio.sleep(0.1)
    with pytest.raises(EntityNotFound):
        await first.remove_rule(servers.front(0, "a"), "$Default")
    for shard in servers.shards():
        assert [rule.name for rule in shard.subscriptions["a"].rules] == ["even"]


@served
async def test_a_deleted_subscription_is_in_no_shard_when_that_is_answered(servers: Servers) -> None:
    await servers.create("t", "a")
    await asyncio.sleep(0.1)
    for shard in servers.shards():
        shard.send(batch(b"kept"))
    await turns()
    await servers.owners[1].unit.topics.delete_subscription("n", "t", "a")
    assert servers.parts("a") == [None, None]
    await asyncio.sleep(0.1)
    assert not [path for path in servers.states() if "Subscriptions" in path]
    with pytest.raises(EntityNotFound):
        servers.front(0, "a")
    # One of the same name has nothing of the former.
    await servers.owners[0].unit.topics.create_subscription("n", "t", SubscriptionDescription(name="a", rules=(ALL,)))
    for part in servers.parts("a"):
        assert part is not None
        _, box = receiver(part, 5)
        await turns()
        assert payloads(box) == []


@served
async def test_a_change_is_refused_at_once_while_a_shard_has_no_server_and_nothing_is_changed(servers: Servers) -> None:
    await servers.create("t", "a")
    await asyncio.sleep(0.1)
    before = servers.states()
    topics = servers.owners[0].unit.topics
    servers.owners[0].unit.sharded_entities.is_served = lambda store_id: store_id != 2
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await topics.create_subscription("n", "t", SubscriptionDescription(name="b"))
    with pytest.raises(StoreUnavailable):
        await topics.add_rule(servers.front(0, "a"), EVEN)
    with pytest.raises(StoreUnavailable):
        await topics.remove_rule(servers.front(0, "a"), "$Default")
    with pytest.raises(StoreUnavailable):
        await topics.delete_subscription("n", "t", "a")
    assert servers.states() == before
    assert servers.rules("a") == [["$Default"]] * 2


@served
async def test_a_change_whose_owner_is_lost_meanwhile_is_busy_and_comes_to_its_end_later(servers: Servers) -> None:
    await servers.create("t", "a")
    await asyncio.sleep(0.1)
    first, second = servers.owners
    servers.asleep.add(1)
    with pytest.raises(ServerBusy, match="not in force in every part"):
        await first.unit.topics.add_rule(servers.front(0, "a"), EVEN)
    with pytest.raises(ServerBusy, match="not in every part"):
        await first.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="b", rules=(ALL,)))
    # Until it is everywhere it is nowhere, to clients.
    assert servers.states()["t/Subscriptions/b"] == INTENT
    with pytest.raises(EntityNotFound):
        servers.front(0, "b")
    with pytest.raises(ServerBusy, match="still being created"):
        await first.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="b", rules=(ALL,)))
    servers.asleep.clear()
    await asyncio.sleep(0.2)
    assert servers.rules("a") == [["$Default", "even"]] * 2
    assert servers.rules("b") == [["$Default"]] * 2
    assert servers.front(0, "b").entity_id == servers.front(1, "b").entity_id
    servers.asleep.add(1)
    with pytest.raises(ServerBusy, match="being deleted"):
        await first.unit.topics.delete_subscription("n", "t", "b")
    assert servers.states()["t/Subscriptions/b"] == DELETING
    servers.asleep.clear()
    await asyncio.sleep(0.2)
    assert servers.parts("b") == [None, None]
    assert "t/Subscriptions/b" not in servers.states()
    assert second.unit.namespace("n").topics["t"].subscriptions.keys() == {"a"}


@served
async def test_the_next_owner_of_a_store_has_the_rules_that_are_to_be_before_it_takes_messages(
    servers: Servers,
) -> None:
    await servers.create("t", "a", "b")
    await asyncio.sleep(0.1)
    first, second = servers.owners
    servers.asleep.add(1)
    with suppress(ServerBusy):
        await first.unit.topics.add_rule(servers.front(0, "a"), EVEN)
    with suppress(ServerBusy):
        await first.unit.topics.delete_subscription("n", "t", "b")
    second.unit.drop(2, "its lease has ended")
    seen: list[tuple[set[str], list[str]]] = []
    see = first.unit.sharded_entities.see

    async def looked(*arguments: Any) -> None:
        (shard,) = (one for one in servers.shards() if one.fragments[0].store.store_id == 2)
        rules = [rule.name for rule in shard.subscriptions["a"].rules]
        seen.append((set(shard.subscriptions), rules))
        await see(*arguments)

    first.unit.sharded_entities.see = looked  # type: ignore[method-assign]
    await first.adopt(2)
    assert seen[0] == ({"a"}, ["$Default", "even"])


@served
async def test_a_deletion_that_the_next_owner_fails_on_at_first_comes_to_its_end(servers: Servers) -> None:
    await servers.create("t", "a")
    await asyncio.sleep(0.1)
    first, second = servers.owners
    servers.asleep.add(1)
    with suppress(ServerBusy):
        await first.unit.topics.delete_subscription("n", "t", "a")
    second.unit.drop(2, "its lease has ended")
    with mock.patch.object(fragment_host, "drop_source", side_effect=StoreFailed("the disk is away")):
        await first.adopt(2)
    await asyncio.sleep(0.2)
    assert not [path for path in servers.states() if "Subscriptions" in path]


@served
async def test_two_servers_that_change_rules_at_a_time_lose_none(servers: Servers) -> None:
    await servers.create("t", "a")
    await asyncio.sleep(0.1)

    async def add(index: int, name: str) -> None:
        rule = msgspec.structs.replace(EVEN, name=name)
        while True:
            try:
                await servers.owners[index].unit.topics.add_rule(servers.front(index, "a"), rule)
            except ServerBusy:
                await asyncio.sleep(0.02)
            else:
                return

    await asyncio.gather(*(add(number % 2, f"r{number}") for number in range(6)))
    assert servers.rules("a") == [["$Default", *(f"r{number}" for number in range(6))]] * 2


@served
async def test_other_properties_of_the_topic_reach_every_shard(servers: Servers) -> None:
    await servers.create("t", "a")
    await asyncio.sleep(0.1)
    topic = servers.owners[1].unit.namespace("n").topics["t"]
    await servers.owners[1].unit.topics.update_topic(
        "n", msgspec.structs.replace(topic.about, default_message_time_to_live_ms=60_000)
    )
    await asyncio.sleep(0.1)
    assert [shard.about.default_message_time_to_live_ms for shard in servers.shards()] == [60_000] * 2
    assert all(part and part.description.default_message_time_to_live_ms == 60_000 for part in servers.parts("a"))


@served
async def test_a_deleted_topic_goes_with_its_shards_and_subscriptions(servers: Servers) -> None:
    await servers.create("t", "a", "b")
    await asyncio.sleep(0.1)
    await servers.owners[1].unit.topics.delete_topic("n", "t")
    await asyncio.sleep(0.2)
    assert servers.states() == {}
    assert not any(owner.unit.namespace("n").topics for owner in servers.owners)
    await servers.create("t", "a")
    assert all(part is not None for part in servers.parts("a"))


@served
async def test_limits_and_wrong_rules_are_refused_before_anything_is_recorded(servers: Servers) -> None:
    await servers.create("t", "a")
    await asyncio.sleep(0.1)
    before = servers.states()
    topics = servers.owners[0].unit.topics
    wrong = RuleDescription(name="wrong", filter_type="Sql", sql_filter="n =")
    with pytest.raises(ArgumentInvalid):
        await topics.create_subscription("n", "t", SubscriptionDescription(name="b", rules=(wrong,)))
    with pytest.raises(ArgumentInvalid):
        await topics.add_rule(servers.front(0, "a"), wrong)
    with pytest.raises(EntityAlreadyExists):
        await topics.add_rule(servers.front(0, "a"), ALL)
    topic = servers.owners[0].unit.namespace("n").topics["t"]
    topic.subscriptions.update(
        {f"s{number}": topic.subscriptions["a"] for number in range(SUBSCRIPTIONS_PER_TOPIC_MAX)}
    )
    with pytest.raises(QuotaExceeded):
        await topics.create_subscription("n", "t", SubscriptionDescription(name="b", rules=(ALL,)))
    assert servers.states() == before


@served
async def test_a_partitioned_topic_lies_in_one_store_while_a_server_does_not_know_better(servers: Servers) -> None:
    for owner in servers.owners:
        owner.unit.sharded_entities.is_understood = lambda placement: placement < 2
    await servers.create("t", "a")
    (topic,) = (owner.unit.namespace("n").topics["t"] for owner in servers.owners if owner.unit.namespace("n").topics)
    assert not topic.is_sharded
    assert len(topic.fragments) == 16
    assert any("earlier version" in text for owner in servers.owners for *_, text in owner.events)
    # It stays where it is.
    for owner in servers.owners:
        owner.unit.sharded_entities.is_understood = lambda _placement: True
    await asyncio.sleep(0.1)
    await servers.creator().unit.topics.create_subscription("n", "t", SubscriptionDescription(name="b", rules=(ALL,)))
    assert set(topic.subscriptions) == {"a", "b"}


def test_a_subscription_of_a_shard_is_called_by_the_topic_that_clients_know() -> None:
    path = f"{shard_path('a/t', 2)}/Subscriptions/S"
    assert whole_path(path) == "a/t/Subscriptions/S"
    assert sharded_entity_of(path.lower()) == "a/t/subscriptions/s"
    assert sharded_entity_of("a/t/subscriptions/s") is None


def test_a_change_waits_for_longer_than_a_store_is_without_an_owner() -> None:
    assert entities.CONFIRM_S > 3
