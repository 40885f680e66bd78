"""A primary one of whose messaging stores is away: what is diverted, when, and what goes on (PN3, PE17, IN2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from itertools import count
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import ServiceBusServerBusyError

from duobus.ha.aio import ActiveReplicationSender, PassiveReplicationSender
from duobus.ha.errors import NotDiverted
from duobus.ha.events import (
    FailoverEngaged,
    PingSent,
    PrimaryHealthy,
    ReplicaFailed,
    RolesSwapped,
    SendFailed,
    Syphoned,
)
from duobus.ha.failover import State
from kits.virtual_pair import World, in_virtual_time

SLOTS = 16
#: When a syphon tries a destination again.
RETRY_S = 30


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        in_virtual_time(lambda: test(*args, **kwargs))

    return run


def world_with_a_partitioned_queue() -> World:
    world = World("orders", "bills")
    world.primary.fragments["orders"] = SLOTS
    return world


def key_in(world: World, *slots: int, but: tuple[str, ...] = ()) -> str:
    """A key that belongs to one of these fragments of the queue."""
    return next(key for key in map(str, count()) if world.primary.slot_of("orders", key) in slots and key not in but)


def keyed(text: str, key: str) -> ServiceBusMessage:
    return ServiceBusMessage(text, partition_key=key)


async def until_diverted(sender: Any, message: ServiceBusMessage, number: int = 6) -> None:
    """Fail every ten seconds, for the failover interval."""
    for _ in range(number):
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(message)
        await asyncio.sleep(10)


@pytest.mark.parametrize("classifier", ["outage", "documented", "legacy"])
@virtual
async def test_a_plain_queue_whose_store_is_away_fails_over_and_returns_with_the_store(classifier: str) -> None:
    world = World("orders", "bills")
    async with await world.pair(classifier=classifier) as pair:
        orders, bills = pair.get_queue_sender("orders"), pair.get_topic_sender("bills")
        world.primary.lose("orders")
        with pytest.raises(ServiceBusServerBusyError):
            await orders.send_messages(ServiceBusMessage("to its caller"))
        assert pair.state("orders") is State.SUSPECT
        await asyncio.sleep(60.1)
        await orders.send_messages(ServiceBusMessage("diverted"))
        await bills.send_messages(ServiceBusMessage("as ever"))
        assert world.kept() == ["diverted"]
        await asyncio.sleep(200)
        assert {event.fragment for event in world.of(PingSent)} == {""}
        assert all("StoreUnavailable:orders" in event.error for event in world.of(PingSent))
        assert pair.state("orders") is State.FAILED_OVER
        world.primary.lost.clear()
        await asyncio.sleep(62)
        await orders.send_messages(ServiceBusMessage("direct"))
        assert world.primary.texts("orders") == ["direct"]
        assert world.primary.texts("bills") == ["as ever"]


@virtual
async def test_a_key_whose_store_is_away_is_diverted_although_other_sends_of_the_queue_succeed() -> None:
    world = world_with_a_partitioned_queue()
    async with await world.pair(enable_syphon=True) as pair:
        sick, well, keyless = (pair.get_queue_sender("orders") for _ in range(3))
        lost, there = key_in(world, 2, 3), key_in(world, 4)
        await sick.send_messages(keyed("before", lost))
        world.primary.lose("orders", 2, 3)
        for number in range(12):
            await keyless.send_messages(ServiceBusMessage("keyless"))
            await well.send_messages(keyed("well", there))
            if number < 6:
                with pytest.raises(ServiceBusServerBusyError):
                    await sick.send_messages(keyed("raised", lost))
            else:
                await sick.send_messages(keyed(f"diverted {number}", lost))
            await asyncio.sleep(10)
        assert pair.state("orders") is State.HEALTHY
        (fragment,) = pair.fragment_states("orders")
        assert pair.fragment_states("orders") == {fragment: State.FAILED_OVER}
        assert fragment == f"{world.primary.slot_of('orders', lost)}/{SLOTS}"
        (failed,), (engaged,) = world.of(SendFailed), world.of(FailoverEngaged)
        assert failed.fragment == engaged.fragment == fragment
        assert engaged.after_ms == 60_000
        assert sorted(world.kept()) == sorted(f"diverted {number}" for number in range(6, 12))
        assert world.primary.texts("orders").count("keyless") == world.primary.texts("orders").count("well") == 12
        world.primary.lost.clear()
        # The ping, and the syphon's next try.
        await asyncio.sleep(125)
        (healthy,) = world.of(PrimaryHealthy)
        assert (healthy.reason, healthy.was_diverted, healthy.fragment) == ("ping", True, fragment)
        assert pair.fragment_states("orders") == {}
        await sick.send_messages(keyed("after", lost))
        found = [text for text in world.primary.texts("orders") if text not in ("keyless", "well")]
        assert found == ["before", *(f"diverted {number}" for number in range(6, 12)), "after"]


@virtual
async def test_while_a_group_of_keys_has_failed_over_no_message_of_it_goes_to_the_primary() -> None:
    world = world_with_a_partitioned_queue()
    async with await world.pair(ping_primary_interval=timedelta(minutes=30)) as pair:
        sender = pair.get_queue_sender("orders")
        lost = key_in(world, 2)
        another = key_in(world, 2, but=(lost,))
        world.primary.lose("orders", 2)
        await until_diverted(sender, keyed("raised", lost))
        await asyncio.sleep(0.1)
        tried = len(world.primary.sends())
        # The store is back, and nobody has been told: none may overtake those before it.
        world.primary.lost.clear()
        batch = ServiceBusMessageBatch()
        batch.add_message(keyed("in a batch", lost))
        await sender.send_messages(keyed("one", lost))
        await sender.send_messages(keyed("of another key", another))
        await sender.send_messages([keyed("in", another), keyed("a list", another)])
        await sender.send_messages(batch)
        await sender.send_messages(ServiceBusMessage("of a session", session_id=lost))
        assert len(world.primary.sends()) == tried
        assert sorted(world.kept()) == sorted(["one", "of another key", "in", "a list", "in a batch", "of a session"])
        pair.mark_path_healthy("orders")
        await sender.send_messages(keyed("direct", lost))
        assert world.primary.texts("orders") == ["direct"]


@virtual
async def test_a_success_of_any_key_of_the_group_ends_the_suspicion_and_no_other_success_does() -> None:
    world = world_with_a_partitioned_queue()
    async with await world.pair() as pair:
        sender = pair.get_queue_sender("orders")
        lost = key_in(world, 2)
        another = key_in(world, 2, but=(lost,))
        world.primary.lose("orders", 2)
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(keyed("raised", lost))
        await sender.send_messages(ServiceBusMessage("keyless"))
        await sender.send_messages(keyed("elsewhere", key_in(world, 5)))
        assert pair.fragment_states("orders") == {"2/16": State.SUSPECT}
        world.primary.lost.clear()
        await sender.send_messages(keyed("there again", another))
        assert pair.fragment_states("orders") == {}
        await asyncio.sleep(120)
        assert world.of(FailoverEngaged) == []


@virtual
async def test_each_group_of_keys_has_its_own_interval_and_its_own_pings() -> None:
    world = world_with_a_partitioned_queue()
    async with await world.pair() as pair:
        sender = pair.get_queue_sender("orders")
        one, two = key_in(world, 2), key_in(world, 3)
        world.primary.lose("orders", 2, 3)
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(keyed("raised", one))
        await asyncio.sleep(30)
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(keyed("raised", two))
        await asyncio.sleep(30.1)
        assert pair.fragment_states("orders") == {"2/16": State.FAILED_OVER, "3/16": State.SUSPECT}
        await asyncio.sleep(90)
        world.primary.lose("orders", 3)
        await asyncio.sleep(61)
        assert pair.fragment_states("orders") == {"3/16": State.FAILED_OVER}
        said = {(event.fragment, not event.error) for event in world.of(PingSent)}
        assert said == {("2/16", False), ("2/16", True), ("3/16", False)}


@virtual
async def test_a_queue_all_of_whose_stores_are_away_fails_over_as_a_whole() -> None:
    world = world_with_a_partitioned_queue()
    async with await world.pair() as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.lose("orders")
        await until_diverted(sender, ServiceBusMessage("raised"))
        await sender.send_messages(ServiceBusMessage("keyless"))
        await sender.send_messages(keyed("with a key", "any"))
        assert sorted(world.kept()) == ["keyless", "with a key"]
        assert pair.state("orders") is State.FAILED_OVER


@virtual
async def test_a_schedule_with_a_number_is_not_diverted_and_one_in_the_message_is() -> None:
    world = world_with_a_partitioned_queue()
    later = datetime.now(UTC) + timedelta(days=1)
    async with await world.pair() as pair:
        sender = pair.get_queue_sender("orders")
        lost = key_in(world, 2)
        world.primary.lose("orders", 2)
        with pytest.raises(ServiceBusServerBusyError):
            await sender.schedule_messages(keyed("raised", lost), later)
        await asyncio.sleep(60.1)
        with pytest.raises(NotDiverted):
            await sender.schedule_messages(iter([keyed("not diverted", lost)]), later)
        assert await sender.schedule_messages(iter([keyed("there", key_in(world, 7))]), later) == [1]
        assert await sender.schedule_messages(ServiceBusMessage("keyless"), later) == [1]
        message = keyed("scheduled", lost)
        message.scheduled_enqueue_time_utc = later
        await sender.send_messages(message)
        assert world.kept() == ["scheduled"]


@virtual
async def test_a_schedule_that_is_refused_by_a_share_of_the_queue_says_something_of_its_key_alone() -> None:
    world = World()
    async with await world.pair(failover_interval=timedelta(0)) as pair:
        sender = pair.get_queue_sender("orders")
        away = "A store is away. StoreUnavailable:orders/~share/2 TrackingId:x"
        world.primary.faults["orders"] = lambda: ServiceBusServerBusyError(message=away)
        with pytest.raises(ServiceBusServerBusyError):
            await sender.schedule_messages(keyed("to its caller", "k"), datetime(2030, 1, 1, tzinfo=UTC))
        world.primary.faults.clear()
        for message in (keyed("diverted", "k"), keyed("direct", "another"), ServiceBusMessage("direct, too")):
            await sender.send_messages(message)
        assert world.kept() == ["diverted"]
        assert world.primary.texts("orders") == ["direct", "direct, too"]


@virtual
async def test_with_an_interval_of_zero_the_message_of_the_lost_fragment_itself_is_diverted() -> None:
    world = world_with_a_partitioned_queue()
    async with await world.pair(failover_interval=timedelta(0)) as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.lose("orders", 2)
        await sender.send_messages(keyed("diverted", key_in(world, 2)))
        await sender.send_messages(ServiceBusMessage("direct"))
        assert world.kept() == ["diverted"]
        assert world.primary.texts("orders") == ["direct"]


@virtual
async def test_a_store_that_stalls_is_an_outage_like_one_that_fails() -> None:
    world = world_with_a_partitioned_queue()
    world.primary.stall_s = 3.0
    async with await world.pair() as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.lose("orders", 2)
        await until_diverted(sender, keyed("raised", key_in(world, 2)), 5)
        await asyncio.sleep(1)
        await sender.send_messages(keyed("diverted", key_in(world, 2)))
        assert world.kept() == ["diverted"]


@virtual
async def test_keys_whose_store_is_away_hold_up_no_others_of_their_queue_in_the_backlog() -> None:
    world = world_with_a_partitioned_queue()
    async with await world.pair(enable_syphon=True) as pair:
        sender = pair.get_queue_sender("orders")
        lost, there = key_in(world, 2), key_in(world, 5)
        world.primary.lose("orders")
        await until_diverted(sender, ServiceBusMessage("raised"))
        await sender.send_messages(keyed("lost", lost))
        await sender.send_messages(keyed("there", there))
        await sender.send_messages(ServiceBusMessage("keyless"))
        world.primary.lose("orders", 2)
        await asyncio.sleep(180)
        assert sorted(world.primary.texts("orders")) == ["keyless", "there"]
        assert world.kept() == ["lost"]
        world.primary.lost.clear()
        await asyncio.sleep(90)
        assert sorted(world.primary.texts("orders")) == ["keyless", "lost", "there"]


@virtual
async def test_what_waited_for_its_store_is_tried_again_in_time_and_waits_for_no_lock() -> None:
    world = World()
    async with await world.pair(enable_syphon=True) as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.lose("orders")
        await until_diverted(sender, ServiceBusMessage("raised"))
        began_s = world.loop.time()
        await sender.send_messages(ServiceBusMessage("diverted"))
        # Tried at once, and again after half a minute, in vain.
        await asyncio.sleep(RETRY_S + 10)
        world.primary.lost.clear()
        await asyncio.sleep(RETRY_S)
        assert world.primary.texts("orders") == ["diverted"]
        (home_s,) = world.at(Syphoned)
        assert home_s - began_s == pytest.approx(2 * RETRY_S, abs=1)


@virtual
async def test_no_message_of_a_key_overtakes_another_that_was_held_before() -> None:
    world = World("orders", "bills", backlogs=1)
    async with await world.pair(enable_syphon=True, failover_interval=timedelta(0)) as pair:
        orders, bills = pair.get_queue_sender("orders"), pair.get_queue_sender("bills")
        world.primary.lose("orders")
        world.primary.lose("bills")
        await orders.send_messages(ServiceBusMessage("first"))
        await asyncio.sleep(RETRY_S - 5)
        # The syphon is busy with something else when the time of the first message comes, and finds a second one.
        world.primary.stall_s = 10.0
        await bills.send_messages(ServiceBusMessage("slow"))
        await asyncio.sleep(1)
        await orders.send_messages(ServiceBusMessage("second"))
        world.primary.lost.clear()
        await asyncio.sleep(3 * RETRY_S)
        assert world.primary.texts("orders") == ["first", "second"]


@virtual
async def test_passive_replication_goes_to_the_backup_when_the_store_of_the_active_one_is_away() -> None:
    world = World()
    world.secondary.queues["orders"] = []
    events: list[Any] = []
    senders: list[Any] = [world.primary.get_queue_sender("orders"), world.secondary.get_queue_sender("orders")]
    async with PassiveReplicationSender(senders, on_event=events.append) as sender:
        world.primary.lose("orders")
        await sender.send_messages(ServiceBusMessage("copied"))
        (swapped,) = events
        assert isinstance(swapped, RolesSwapped)
        assert sender.active == world.secondary.fully_qualified_namespace
        world.primary.lost.clear()
        world.secondary.lose("orders")
        await sender.send_messages(ServiceBusMessage("back"))
        world.primary.lose("orders")
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage("both away"))
        assert sender.active == world.primary.fully_qualified_namespace, "roles unchanged"
        world.primary.lost.clear()
        world.primary.fault = ServiceBusServerBusyError
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage("busy, and no more"))
        assert len(events) == 2
    assert world.secondary.texts("orders") == ["copied"]
    assert world.primary.texts("orders") == ["back"]


@virtual
async def test_active_replication_goes_on_with_the_namespace_whose_store_is_there() -> None:
    world = World()
    world.secondary.queues["orders"] = []
    events: list[Any] = []
    senders: list[Any] = [world.primary.get_queue_sender("orders"), world.secondary.get_queue_sender("orders")]
    async with ActiveReplicationSender(senders, on_event=events.append) as sender:
        world.primary.lose("orders")
        await sender.send_messages(ServiceBusMessage("one copy"))
    (failed,) = events
    assert isinstance(failed, ReplicaFailed)
    assert "StoreUnavailable:orders" in failed.error
    assert world.secondary.texts("orders") == ["one copy"]
