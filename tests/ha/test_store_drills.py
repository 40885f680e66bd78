"""Real brokers one of whose stores fails or stalls: pairs, replication and outboxes go on (PN3, IN2, IN9, PE17)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusServerBusyError
from kit_drills import INTERVAL, LIMIT_S, SICK, Drilled, drilled, message, until_taken
from kit_pair import Events, bounded
from kit_ways import GOING, LATER, LOST, paired_in, sendings

from duobus.ha.aio import ActiveReplicationSender, OutboxSender, PassiveReplicationSender, pair_namespace
from duobus.ha.errors import NotDiverted
from duobus.ha.events import Diverted, FailoverEngaged, PrimaryHealthy, ReplicaFailed, RolesSwapped, Syphoned
from duobus.ha.failover import State
from duobus.ha.outbox.queue import Outbox


@pytest.fixture
def place() -> Iterator[Drilled]:
    with drilled() as found:
        yield found


@pytest.mark.parametrize("flavour", ["asyncio", "threads"])
@pytest.mark.parametrize("how", ["fail", "stall"])
@bounded
async def test_what_lies_in_a_lost_store_is_diverted_after_the_interval_and_all_else_goes_on(
    place: Drilled, how: str, flavour: str
) -> None:
    async with paired_in(flavour, place) as (pair, events):
        lost = sendings(place, LOST, pair, lost=True)
        going = sendings(place, GOING, pair, lost=False)
        for one in (*lost, *going):
            await one.send()
        with place.drill.away(SICK, how):
            over = asyncio.Event()
            rounds = asyncio.gather(*(one.go_on(over) for one in going))
            # Each of these was raised, and was diverted when the interval had passed.
            for refused, took_s in await asyncio.gather(*(until_taken(one.send) for one in lost)):
                assert refused
                assert took_s >= INTERVAL.total_seconds()
            for one in lost:
                await one.send()
                with pytest.raises(NotDiverted):
                    await one.schedule()
            over.set()
            await rounds
            for path in (place.parts, place.sessions, place.news, place.visits):
                assert pair.state(path) is State.HEALTHY
                assert set(pair.fragment_states(path).values()) == {State.FAILED_OVER}
            count = sum(event.messages for event in events.of(Diverted))
            assert count == sum(len(one.sent) for one in lost) * 2 // 3
        await events.wait(PrimaryHealthy, len(LOST))
        await carried(events, count)
        for one in lost:
            await one.send()
            assert pair.state(one.path) is State.HEALTHY
            assert pair.fragment_states(one.path) == {}
        assert len(events.of(FailoverEngaged)) == len(LOST)
        assert all(event.was_diverted for event in events.of(PrimaryHealthy))
    place.advance(2 * LATER)
    for one in lost:
        found = one.found(place)
        assert sorted(found) == sorted(one.sent)
        # What was diverted comes behind what was sent before, and in front of what is sent after the return.
        step = len(found) // 4
        if one.way.form != "scheduled":
            assert (found[:step], found[-step:]) == (one.sent[:step], one.sent[-step:])
    for one in going:
        found = one.found(place)
        # Messages without a key lie in any fragments.
        assert (found if one.way.keyed else sorted(found)) == (one.sent if one.way.keyed else sorted(one.sent))


async def carried(events: Events, number: int) -> None:
    """Wait until the syphon has brought so many messages home."""
    for batches in range(1, number + 1):
        await events.wait(Syphoned, batches)
        if sum(event.messages for event in events.of(Syphoned)) >= number:
            return


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
