"""A shard moves to a store of another server, and is what it was for the whole (decisions 0069, 0070)."""

from __future__ import annotations

import asyncio

from clustered_kit import Owner
from neighbours_kit import LONG_S, connect
from servers_kit import ALL, Servers, served

from duobus.broker import Queue, Topic
from duobus.cluster.sharding.idle import IDLE_SHARD, ToldIdle
from duobus.model.address import sharded_entity_of
from duobus.model.descriptions import QueueDescription, RuleDescription, SubscriptionDescription
from kits.broker import answers, batch, payloads, receiver, turns

NEVER = RuleDescription(name="never", filter_type="False")
LIMIT_MS = 300_000


def owner_of(servers: Servers, shard: Queue) -> tuple[Owner, int]:
    """The server of a shard, and the store of the other one."""
    first, second = servers.owners
    numbers = list(servers.hall.disks)
    is_first = any(shard.fragments[0].broker is broker for broker in first.unit.brokers.values())
    return (first, numbers[1]) if is_first else (second, numbers[0])


async def move(servers: Servers, name: str, shard: Queue) -> None:
    """Move a shard to the other server, by one of its fragments, and let both hear of it."""
    owner, to = owner_of(servers, shard)
    owner.unit.moves.start("n", name, shard.fragments[-1].number, to)
    async with asyncio.timeout(LONG_S):
        await owner.unit.moves.wait()
    await asyncio.sleep(5)
    (status,) = owner.unit.moves.status()
    assert (status["state"], status["entity"]) == ("done", name), status


def shards_of(servers: Servers, name: str) -> list[Queue | Topic]:
    """By path, wherever they are now."""
    found = [
        shard
        for owner in servers.owners
        for path, shard in [*owner.unit.namespace("n").topics.items(), *owner.unit.namespace("n").queues.items()]
        if sharded_entity_of(path) == name
    ]
    return sorted(found, key=lambda shard: shard.path)


async def send(shard: Queue, text: bytes) -> None:
    sent = batch(text)
    shard.send(sent)
    await turns()
    assert answers(sent) == [None]


@served
async def test_a_shard_of_a_topic_goes_with_its_subscriptions_and_changes_reach_it_where_it_is(
    servers: Servers,
) -> None:
    connect(*servers.owners)
    await servers.create("t", "a")
    await asyncio.sleep(0.1)
    for shard in servers.shards():
        await send(shard, b"before")
    await move(servers, "t", servers.shards()[0])
    assert len({owner_of(servers, shard)[0] for shard in servers.shards()}) == 1
    for shard in servers.shards():
        await send(shard, b"after")
    first, second = (owner.unit.topics for owner in servers.owners)
    await first.create_subscription("n", "t", SubscriptionDescription(name="b", rules=(ALL,)))
    await asyncio.sleep(0.1)
    await second.add_rule(servers.front(1, "b"), NEVER)
    await second.remove_rule(servers.front(1, "b"), "$Default")
    assert servers.rules("b") == [["never"]] * 2
    for shard in servers.shards():
        await send(shard, b"last")
    for name, wanted in (("a", [b"before", b"after", b"last"]), ("b", [])):
        for part in servers.parts(name):
            assert part is not None
            _, box = receiver(part, 5)
            await turns()
            assert payloads(box) == wanted


@served
async def test_a_subscription_that_is_made_while_a_shard_moves_is_in_every_shard(servers: Servers) -> None:
    connect(*servers.owners)
    await servers.create("t", "a")
    await asyncio.sleep(0.1)
    shard = servers.shards()[0]
    owner, to = owner_of(servers, shard)
    owner.unit.moves.start("n", "t", shard.fragments[0].number, to)
    made = asyncio.ensure_future(
        servers.owners[0].unit.topics.create_subscription("n", "t", SubscriptionDescription(name="b", rules=(ALL,)))
    )
    async with asyncio.timeout(LONG_S):
        await owner.unit.moves.wait()
        await made
    for one in servers.shards():
        await send(one, b"after")
    await asyncio.sleep(5)
    for part in servers.parts("b"):
        assert part is not None
        _, box = receiver(part, 5)
        await turns()
        assert payloads(box) == [b"after"]


@served
async def test_a_shard_that_was_told_as_idle_and_moves_is_used_only_once_that_is_taken_back(servers: Servers) -> None:
    connect(*servers.owners)
    about = QueueDescription(name="q", enable_partitioning=True, auto_delete_on_idle_ms=LIMIT_MS)
    await servers.creator("q").unit.create_queue("n", about)
    await asyncio.sleep(0.1)
    servers.pause_s = 2.0
    idle, used = shards_of(servers, "q")
    for _ in range(3):
        await asyncio.sleep(LIMIT_MS * 0.6 / 1000)
        await send(used, b"used")
    assert isinstance(idle.idle, ToldIdle)
    await move(servers, "q", idle)
    idle, used = shards_of(servers, "q")
    await send(idle, b"moved")
    assert not [row.path for row in servers.hall.catalog.read().entities if row.kind == IDLE_SHARD]
    # From here on the other is idle, and nothing is deleted.
    for _ in range(4):
        await asyncio.sleep(LIMIT_MS * 0.6 / 1000)
        await send(idle, b"moved")
    assert servers.states()["q"] == "live"
