"""AutoDeleteOnIdle of what lies in several stores: every shard has to be idle, and no use that was answered is lost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from servers_kit import ALL, Servers, served

from duobus.broker import Queue
from duobus.cluster.directory import Directory
from duobus.cluster.sharding.idle import IDLE_SHARD, ToldIdle
from duobus.errors import EntityNotFound, ServerBusy, StoreFailed
from duobus.model.batches import Refusal
from duobus.model.descriptions import QueueDescription, SubscriptionDescription
from duobus.storage.catalog_rows import DELETING
from kits.broker import answers, batch, turns

LIMIT_MS = 300_000
LIMIT_S = LIMIT_MS / 1000


async def _with_queue(servers: Servers, **properties: object) -> list[Queue]:
    """Two shards of a queue, whose servers hear of changes within seconds."""
    about = QueueDescription(name="q", enable_partitioning=True, **properties)  # type: ignore[arg-type]
    await servers.creator("q").unit.create_queue("n", about)
    await asyncio.sleep(0.1)
    servers.pause_s = 2.0
    return servers.queues()


async def _send(shard: Queue) -> object:
    """The error of a send, or None."""
    sent = batch(b"a")
    shard.send(sent)
    await turns()
    return sent.reply.ready[0].error if isinstance(sent.reply.ready[0], Refusal) else answers(sent)[0]


def _told(servers: Servers) -> list[str]:
    return sorted(row.path for row in servers.hall.catalog.read().entities if row.kind == IDLE_SHARD)


@served
async def test_a_queue_is_deleted_once_all_of_its_shards_were_idle(servers: Servers) -> None:
    first, second = await _with_queue(servers, auto_delete_on_idle_ms=LIMIT_MS)
    await asyncio.sleep(LIMIT_S / 2)
    assert await _send(second) is None
    # The one that nobody used is idle, and the whole stays.
    await asyncio.sleep(LIMIT_S * 0.75)
    assert _told(servers) == [f"{first.path}#idle"]
    assert servers.states()["q"] == "live"
    await asyncio.sleep(LIMIT_S)
    assert not servers.states()
    assert not any(owner.unit.namespace("n").queues for owner in servers.owners)
    assert any("was idle for 5 minutes" in text for owner in servers.owners for *_, text in owner.events)


@served
async def test_a_shard_that_was_told_as_idle_is_used_once_that_is_taken_back(servers: Servers) -> None:
    first, second = await _with_queue(servers, auto_delete_on_idle_ms=LIMIT_MS)
    for _ in range(4):
        await asyncio.sleep(LIMIT_S * 0.6)
        assert await _send(second) is None
    assert isinstance(first.idle, ToldIdle)
    assert await _send(first) is None
    assert not isinstance(first.idle, ToldIdle)
    assert _told(servers) == []
    # Its time begins anew.
    await asyncio.sleep(LIMIT_S * 0.9)
    assert _told(servers) == [f"{second.path}#idle"] or _told(servers) == []
    assert servers.states()["q"] == "live"


@served
async def test_whoever_comes_first_wins_the_use_or_the_deletion(servers: Servers) -> None:
    first, second = await _with_queue(servers, auto_delete_on_idle_ms=LIMIT_MS)
    servers.asleep = {0, 1}
    await asyncio.sleep(LIMIT_S * 1.1)
    assert len(_told(servers)) == 2
    late = Directory(servers.hall.catalog.read())
    assert await _send(first) is None
    # Somebody has read the catalog before that, and would delete.
    servers.owners[1].unit.sharded_entities.idleness.decide(late)
    assert servers.states()["q"] == "live"
    await asyncio.sleep(LIMIT_S * 1.1)
    servers.owners[1].unit.sharded_entities.idleness.decide(Directory(servers.hall.catalog.read()))
    assert servers.states()["q"] == DELETING
    assert isinstance(await _send(first), EntityNotFound)
    with pytest.raises(EntityNotFound):
        second.open_receiver(0, batch(b"").reply, removing=False)


@served
async def test_a_use_is_refused_while_nobody_knows_whether_the_whole_was_deleted(servers: Servers) -> None:
    first, _ = await _with_queue(servers, auto_delete_on_idle_ms=LIMIT_MS)
    servers.asleep = {0, 1}
    await asyncio.sleep(LIMIT_S * 1.1)
    read = servers.hall.catalog.read

    def away() -> object:
        raise StoreFailed("the catalog is away")

    servers.hall.catalog.read = away  # type: ignore[method-assign, assignment]
    assert isinstance(await _send(first), ServerBusy)
    servers.hall.catalog.read = read  # type: ignore[method-assign]
    assert await _send(first) is None


@served
async def test_the_next_owner_of_a_store_stands_by_what_the_former_has_told(servers: Servers) -> None:
    first, second = await _with_queue(servers, auto_delete_on_idle_ms=LIMIT_MS)
    await asyncio.sleep(LIMIT_S / 2)
    assert await _send(second) is None
    await asyncio.sleep(LIMIT_S * 0.75)
    assert _told(servers) == [f"{first.path}#idle"]
    former, following = servers.owners
    servers.asleep.add(0)
    former.unit.drop(1, "its lease has ended")
    await following.adopt(1)
    taken = following.unit.namespace("n").queues[first.path]
    assert isinstance(taken.idle, ToldIdle)
    assert await _send(taken) is None
    assert _told(servers) == []


@served
async def test_it_can_be_set_later_changed_and_taken_away(servers: Servers) -> None:
    first, _ = await _with_queue(servers)
    unit = servers.owners[0].unit
    about = unit.namespace("n").queues["q"].description
    await asyncio.sleep(2 * LIMIT_S)
    await unit.update_queue("n", msgspec.structs.replace(about, auto_delete_on_idle_ms=LIMIT_MS))
    servers.asleep = {0, 1}
    for owner in servers.owners:
        await owner.unit.read_again()
    await asyncio.sleep(LIMIT_S * 1.1)
    assert len(_told(servers)) == 2
    # With another limit what was told does not count, whoever hears of it last.
    await unit.update_queue("n", msgspec.structs.replace(about, auto_delete_on_idle_ms=3 * LIMIT_MS))
    assert servers.states()["q"] == "live"
    servers.asleep.clear()
    await asyncio.sleep(LIMIT_S)
    assert _told(servers) == []
    assert first.idle is not None
    await unit.update_queue("n", msgspec.structs.replace(about, auto_delete_on_idle_ms=None))
    await asyncio.sleep(4 * LIMIT_S)
    assert servers.states()["q"] == "live"


@served
async def test_a_topic_and_a_subscription_delete_themselves_and_use_of_one_is_one_of_both(
    servers: Servers,
) -> None:
    await servers.create("t", "b", auto_delete_on_idle_ms=3 * LIMIT_MS)
    short = SubscriptionDescription(name="a", rules=(ALL,), auto_delete_on_idle_ms=LIMIT_MS)
    await servers.owners[0].unit.topics.create_subscription("n", "t", short)
    await asyncio.sleep(0.1)
    servers.pause_s = 2.0
    for _ in range(3):
        await asyncio.sleep(LIMIT_S * 0.8)
        part = servers.parts("a")[1]
        assert part is not None
        await part.peek(0, 1, 1)
    assert servers.parts("a")[0] is not None
    await asyncio.sleep(LIMIT_S * 1.3)
    assert servers.parts("a") == [None, None]
    assert all(part is not None for part in servers.parts("b"))
    await asyncio.sleep(3 * LIMIT_S)
    assert not servers.states()


@served
async def test_a_deletion_is_written_down_once_and_not_done_when_it_cannot_be(servers: Servers) -> None:
    await _with_queue(servers, auto_delete_on_idle_ms=LIMIT_MS)
    heard: list[str | None] = []
    refuses = True

    def journal(queue: Queue) -> object:
        if refuses:
            raise ServerBusy("the audit log is full")
        assert queue.path == "q"
        return heard.append

    for owner in servers.owners:
        owner.unit.idle_watch.journal = journal  # type: ignore[assignment]
    await asyncio.sleep(2 * LIMIT_S)
    assert servers.states()["q"] == "live"
    refuses = False
    await asyncio.sleep(LIMIT_S)
    assert not servers.states()
    assert heard == [None]
