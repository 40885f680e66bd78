"""Real brokers one of whose stores fails or stalls: pairs, replication and outboxes go on (PN3, IN2, IN9, PE17)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError
from kit_drills import INTERVAL, LIMIT_S, SICK, Drilled, drilled, message, until_taken
from kit_pair import Events, bounded

from duobus.ha import sync
from duobus.ha.aio import ActiveReplicationSender, OutboxSender, PassiveReplicationSender, pair_namespace
from duobus.ha.events import Diverted, Event, FailoverEngaged, PrimaryHealthy, ReplicaFailed, RolesSwapped, Syphoned
from duobus.ha.failover import State
from duobus.ha.outbox.queue import Outbox


@pytest.fixture
def place() -> Iterator[Drilled]:
    with drilled() as found:
        yield found


@pytest.mark.parametrize("how", ["fail", "stall"])
@bounded
async def test_what_lies_in_a_lost_store_is_diverted_after_the_interval_and_all_else_goes_on(
    place: Drilled, how: str
) -> None:
    events = Events()
    primary, secondary = place.clients()
    later = datetime.now(UTC) + timedelta(days=1)
    async with await pair_namespace(primary, place.options(secondary, on_event=events)) as pair:
        queue, topic = pair.get_queue_sender(place.queue), pair.get_topic_sender(place.topic)
        lost, there, keyless = (pair.get_queue_sender(place.parts) for _ in range(3))
        session = pair.get_queue_sender(place.sessions)
        sick, well = place.key(place.parts, lost=True), place.key(place.parts, lost=False)
        visit = place.key(place.sessions, lost=True)
        await lost.send_messages(message("lost 0", sick))
        with place.drill.away(SICK, how):
            going = asyncio.create_task(go_on(there, keyless, well))
            # Each of these was raised, and was diverted when the interval had passed.
            waits = await asyncio.gather(
                until_taken(lambda: queue.send_messages(message("queue 1"))),
                until_taken(lambda: topic.send_messages(message("topic 1"))),
                until_taken(lambda: lost.send_messages(message("lost 1", sick))),
                until_taken(lambda: session.send_messages(ServiceBusMessage("visit 1", session_id=visit))),
            )
            for refused, took_s in waits:
                assert refused
                assert took_s >= INTERVAL.total_seconds()
            await lost.send_messages([message("lost 2", sick), message("lost 3", sick)])
            batch = await keyless.create_message_batch()
            batch.add_message(message("lost 4", sick))
            await keyless.send_messages(batch)
            await lost.send_messages(message("scheduled", sick, scheduled_enqueue_time_utc=later))
            assert pair.state(place.parts) is State.HEALTHY
            assert set(pair.fragment_states(place.parts).values()) == {State.FAILED_OVER}
            assert await going == 20
            count = sum(event.messages for event in events.of(Diverted))
            assert count == 8
        await events.wait(PrimaryHealthy, 4)
        await carried(events, count)
        await lost.send_messages(message("lost 5", sick))
        await queue.send_messages(message("queue 2"))
        assert pair.state(place.queue) is State.HEALTHY
        assert len(events.of(FailoverEngaged)) == 4
    assert place.texts(place.queue) == ["queue 1", "queue 2"]
    assert place.texts(f"{place.topic}/subscriptions/all") == ["topic 1"]
    assert place.texts(place.sessions) == ["visit 1"]
    found = place.texts(place.parts)
    of_key = [text for text in found if text.startswith("lost")]
    # What was diverted comes among itself in any order: it may lie in several backlog queues.
    assert sorted(of_key) == [f"lost {number}" for number in range(6)]
    assert (of_key[0], of_key[-1]) == ("lost 0", "lost 5")
    assert sorted(text for text in found if not text.startswith("lost")) == sorted([*["there"] * 20, *["keyless"] * 20])
    assert place.texts(place.parts, state="scheduled") == ["scheduled"]


async def carried(events: Events, number: int) -> None:
    """Wait until the syphon has brought so many messages home."""
    for batches in range(1, number + 1):
        await events.wait(Syphoned, batches)
        if sum(event.messages for event in events.of(Syphoned)) >= number:
            return


async def go_on(there: Any, keyless: Any, key: str) -> int:
    """Send to what is there; nothing of that may fail, or be diverted."""
    for _ in range(20):
        await there.send_messages(message("there", key))
        await keyless.send_messages(message("keyless"))
        await asyncio.sleep(0.02)
    return 20


def test_threads_divert_what_lies_in_a_lost_store_as_tasks_do(place: Drilled) -> None:
    healthy, carried = threading.Event(), threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, PrimaryHealthy) and event.was_diverted:
            healthy.set()
        if isinstance(event, Syphoned):
            carried.set()

    primary, secondary = place.blocking_clients()
    sick, well = place.key(place.parts, lost=True), place.key(place.parts, lost=False)
    with sync.pair_namespace(primary, place.options(secondary, on_event=on_event)) as pair:
        lost, there = pair.get_queue_sender(place.parts), pair.get_queue_sender(place.parts)
        going = threading.Event()
        with place.drill.away(SICK):
            refused = 0
            while not going.wait(0.05):
                there.send_messages([message("there", well)])
                there.send_messages(message("keyless"))
                try:
                    lost.send_messages(message("diverted", sick))
                except ServiceBusServerBusyError:
                    refused += 1
                else:
                    going.set()
            assert refused
        assert healthy.wait(LIMIT_S)
        assert carried.wait(LIMIT_S)
        lost.send_messages(message("direct", sick))
    found = [text for text in place.texts(place.parts) if text not in ("there", "keyless")]
    assert found == ["diverted", "direct"]


@pytest.mark.parametrize("how", ["fail", "stall"])
@bounded
async def test_replication_goes_on_with_the_namespace_whose_store_is_there(place: Drilled, how: str) -> None:
    events = Events()
    primary, secondary = place.clients()
    path = place.there.create_queue(place.queue)
    async with primary, secondary:
        senders: list[Any] = [primary.get_queue_sender(place.queue), secondary.get_queue_sender(path)]
        more: list[Any] = [primary.get_queue_sender(place.queue), secondary.get_queue_sender(path)]
        async with (
            PassiveReplicationSender(senders, on_event=events) as passive,
            ActiveReplicationSender(more, on_event=events) as active,
        ):
            with place.drill.away(SICK, how):
                await passive.send_messages(message("one copy"))
                assert len(events.of(RolesSwapped)) == 1
                await active.send_messages(message("of two"))
                assert len(events.of(ReplicaFailed)) == 1
                await passive.send_messages(message("at once"))
            await active.send_messages(message("both"))
    assert [found.body.decode() for found in place.there.messages(path)] == ["one copy", "of two", "at once", "both"]
    assert place.texts(place.queue) == ["both"]


@bounded
async def test_an_outbox_over_a_pair_is_empty_before_the_store_is_back_and_everything_is_delivered_then(
    place: Drilled, tmp_path: Path
) -> None:
    events = Events()
    primary, secondary = place.clients()
    sick, well = place.key(place.parts, lost=True), place.key(place.parts, lost=False)
    async with await pair_namespace(primary, place.options(secondary, on_event=events)) as pair:
        with Outbox(tmp_path / "outbox") as outbox:
            async with OutboxSender(lambda: pair.get_queue_sender(place.parts), outbox) as sender:
                with place.drill.away(SICK):
                    for number in range(10):
                        await sender.send_messages(message(f"{sick} {number}", sick))
                        await sender.send_messages(message(f"{well} {number}", well))
                        await sender.send_messages(message(f"keyless {number}"))
                    assert await sender.flush(LIMIT_S), "it waits for no store"
                    assert outbox.depth.messages == 0
                    assert not outbox.set_aside()
                    diverted = sum(event.messages for event in events.of(Diverted))
                    assert diverted == 10
                await carried(events, diverted)
    found = place.texts(place.parts)
    assert sorted(found) == sorted(f"{key} {number}" for key in (sick, well, "keyless") for number in range(10))
    # What went through backlog queues came in any order.
    assert [text for text in found if text.startswith(f"{well} ")] == [f"{well} {number}" for number in range(10)]
