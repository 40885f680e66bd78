"""Invariants of the syphon and of replication in virtual time (I10, I44, I47, I51, I52)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
)

from duobus.ha.aio import ActiveReplicationSender, PassiveReplicationSender, ReplicatedReceiver, Syphon
from duobus.ha.deduplication import SeenMessages
from duobus.ha.errors import BacklogUnavailable
from duobus.ha.events import RolesSwapped, Syphoned
from kits.virtual_pair import Namespace, Received, World, in_virtual_time, wire

MOMENT = datetime(2026, 11, 21, 12, 30, 15, 250_000, tzinfo=UTC)
NUMBER = 12


def full(number: int) -> ServiceBusMessage:
    """A message with a value in everything that the way through a backlog queue could lose."""
    properties: dict[str | bytes, Any] = {"n": number, "text": "grün", "half": number / 2, "x-ms-path": "mine"}
    return ServiceBusMessage(
        f"m{number}",
        message_id=f"m{number}",
        session_id=f"s{number % 3}",
        time_to_live=timedelta(hours=1),
        scheduled_enqueue_time_utc=MOMENT if number % 2 else None,
        subject="subject",
        application_properties=properties,
    )


@contextlib.asynccontextmanager
async def at_work(syphon: Syphon) -> AsyncIterator[None]:
    task = asyncio.create_task(syphon.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def timeless(payload: bytes) -> Any:
    """A message without the two times that the SDK takes from the wall clock at the moment of each send."""
    decoded = decode_payload(memoryview(payload))
    properties = decoded.properties._replace(creation_time=None, absolute_expiry_time=None)
    return decoded._replace(properties=properties)


async def diverted(world: World) -> dict[str, bytes]:
    """Divert messages with all properties; return what a direct send of each would have been, byte by byte."""
    async with await world.pair(failover_interval=timedelta(0)) as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.away()
        for number in range(NUMBER):
            await sender.send_messages(full(number))
        world.primary.back()
    return {f"m{number}": wire(full(number)) for number in range(NUMBER)}


# Every operation takes five milliseconds, so that these are all the places at which a kill makes a difference.
@pytest.mark.parametrize("after_ms", range(1, 45, 3))
def test_i10_a_syphon_that_is_killed_at_any_point_loses_nothing_and_completes_only_what_was_accepted(
    after_ms: int,
) -> None:
    async def play() -> None:
        world = World(backlogs=2)
        sent = await diverted(world)
        for pause_s in (after_ms / 1000, 200):
            syphon = Syphon(world.primary, world.secondary, world.backlogs, clock=world.clock)  # type: ignore[arg-type]
            async with at_work(syphon):
                await asyncio.sleep(pause_s)
        stored = world.primary.queues["orders"]
        accepted: dict[str, float] = {}
        for one in stored:
            text = one.decoded().text
            accepted.setdefault(text, one.enqueued_s)
            assert timeless(one.payload) == timeless(sent[text]), "every property and the body, as if sent directly"
        assert accepted.keys() == sent.keys()
        assert len(stored) <= 2 * NUMBER, "at least once: a second time after a kill, and no oftener"
        assert world.kept() == []
        assert len(world.secondary.completed) == NUMBER
        for time_s, _, text in world.secondary.completed:
            assert accepted[text] <= time_s, "completed after it was accepted"

    in_virtual_time(play)


def test_i10_any_number_of_syphons_side_by_side_bring_each_message_once() -> None:
    async def play() -> None:
        world = World(backlogs=3)
        sent = await diverted(world)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                syphon = Syphon(world.primary, world.secondary, world.backlogs, clock=world.clock)  # type: ignore[arg-type]
                await stack.enter_async_context(at_work(syphon))
            await asyncio.sleep(10)
        assert sorted(world.primary.texts("orders")) == sorted(sent)

    in_virtual_time(play)


@pytest.mark.parametrize("is_late", [False, True])
def test_i47_session_life_schedule_and_path_move_aside_and_come_back_over_the_whole_way(is_late: bool) -> None:
    async def play() -> None:
        world = World()
        sent = await diverted(world)
        for path in world.backlogs:
            for one in world.secondary.queues[path]:
                message = one.decoded()
                properties: Any = message.application_properties
                assert properties[b"x-ms-path"] == b"orders"
                assert properties[b"x-duobus-user-x-ms-path"] == b"mine", "no collision"
                assert message.properties is None or message.properties.group_id is None
                assert properties[b"x-ms-sessionid"].startswith(b"s")
        await asyncio.sleep(1_800 if is_late else 0)
        syphon = Syphon(
            world.primary,  # type: ignore[arg-type]
            world.secondary,  # type: ignore[arg-type]
            world.backlogs,
            clock=world.clock,
            ttl_mode="remaining" if is_late else "restart",
        )
        async with at_work(syphon):
            await asyncio.sleep(1)
        for one in world.primary.queues["orders"]:
            message = one.decoded()
            if is_late:
                assert message.header is not None
                assert 1_790_000 <= (message.header.time_to_live or 0) <= 1_800_000
            else:
                # The SDK writes the second in which it encodes, and the two were not encoded at once.
                assert timeless(one.payload) == timeless(sent[message.text])
        assert len(world.primary.queues["orders"]) == NUMBER

    in_virtual_time(play)


def test_i44_backlog_queues_beyond_the_count_are_neither_used_nor_emptied() -> None:
    async def play() -> None:
        world = World(backlogs=5)
        surplus = world.backlogs[3:]
        for path in surplus:
            world.secondary.store(path, wire(ServiceBusMessage("old", application_properties={"x-ms-path": "orders"})))
        async with await world.pair(backlog_queue_count=3, failover_interval=timedelta(0), enable_syphon=True) as pair:
            world.primary.away()
            for _ in range(50):
                await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
            world.primary.back()
            await asyncio.sleep(200)
            assert sum(event.messages for event in world.of(Syphoned)) == 50
        assert [world.secondary.texts(path) for path in surplus] == [["old"], ["old"]]

    in_virtual_time(play)


# -- replication ------------------------------------------------------------------------------------------------


class Two:
    """Two namespaces with a queue each, and what an application does with them."""

    def __init__(self) -> None:
        self.sides = [Namespace("one.example.net", ["q"]), Namespace("two.example.net", ["q"])]

    def senders(self) -> list[Any]:
        return [side.get_queue_sender("q") for side in self.sides]

    def receivers(self) -> list[Any]:
        return [side.get_queue_receiver("q") for side in self.sides]

    async def work_off(self, seen: SeenMessages, *, stop_after: int = 1_000, seconds: float = 300) -> list[str]:
        """Receive and complete; leave without a word after so many messages were handed out."""
        done: list[str] = []
        async with ReplicatedReceiver(self.receivers(), seen) as receiver:
            while messages := await receiver.receive_messages(1, max_wait_time=seconds):
                for message in messages:
                    assert isinstance(message, Received)
                    done.append(message.text)
                    if len(done) == stop_after:
                        return done
                    await receiver.complete_message(message)
        return done


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[SeenMessages]:
    with SeenMessages(tmp_path / "seen.db") as found:
        yield found


@pytest.mark.parametrize("away", [None, 0, 1])
def test_i51_with_either_namespace_alive_each_message_is_handed_out_once(away: int | None, seen: SeenMessages) -> None:
    async def play() -> None:
        two = Two()
        sender = ActiveReplicationSender(two.senders())
        for number in range(10):
            if away is not None and number == 5:
                two.sides[away].away()
            await sender.send_messages(ServiceBusMessage(str(number)))
        copies = Counter(text for side in two.sides for text in side.texts("q"))
        assert sum(copies.values()) == (20 if away is None else 15), "both alive: two copies of each"
        if away is not None:
            two.sides[away].back()
        assert sorted(await two.work_off(seen), key=int) == [str(number) for number in range(10)]
        assert [side.texts("q") for side in two.sides] == [[], []]

    in_virtual_time(play)


def test_i51_what_was_done_is_known_to_the_receiver_after_it_died(seen: SeenMessages) -> None:
    async def play() -> None:
        two = Two()
        sender = ActiveReplicationSender(two.senders())
        for number in range(6):
            await sender.send_messages(ServiceBusMessage(str(number)))
        first = await two.work_off(seen, stop_after=4)
        rest = await two.work_off(seen)
        # The last one before the death was at work and is not done: it comes again, and nothing else does.
        assert sorted(first[:-1] + rest) == [str(number) for number in range(6)]

    in_virtual_time(play)


OUTAGES = [ServiceBusConnectionError(message="away"), OperationTimeoutError(message="late"), OSError("broken")]
BUSINESS = [ServiceBusQuotaExceededError(), MessageSizeExceededError(), MessagingEntityNotFoundError()]


@pytest.mark.parametrize("error", OUTAGES, ids=lambda error: type(error).__name__)
def test_i52_an_outage_of_the_active_one_swaps_the_roles_when_the_backup_took_the_same_id(error: Exception) -> None:
    async def play() -> None:
        two, told = Two(), []
        sender = PassiveReplicationSender(two.senders(), on_event=told.append)
        two.sides[0].fault = lambda: error
        await sender.send_messages(ServiceBusMessage("m", message_id="id"))
        assert two.sides[1].texts("q") == ["m"]
        assert [type(event) for event in told] == [RolesSwapped]
        number = len(two.sides[0].log)
        await sender.send_messages(ServiceBusMessage("n"))
        assert len(two.sides[0].log) == number, "the backup is the active one now, and one operation is enough"
        assert two.sides[1].texts("q") == ["m", "n"]

    in_virtual_time(play)


@pytest.mark.parametrize("error", BUSINESS, ids=lambda error: type(error).__name__)
def test_i52_an_error_of_the_sender_itself_never_swaps(error: Exception) -> None:
    async def play() -> None:
        two, told = Two(), []
        sender = PassiveReplicationSender(two.senders(), on_event=told.append)
        two.sides[0].fault = lambda: error
        with pytest.raises(type(error)):
            await sender.send_messages(ServiceBusMessage("m"))
        two.sides[0].back()
        await sender.send_messages(ServiceBusMessage("n"))
        assert (two.sides[0].texts("q"), two.sides[1].log, told) == (["n"], [], [])

    in_virtual_time(play)


def test_i52_when_both_fail_the_roles_stay_and_the_caller_is_told() -> None:
    async def play() -> None:
        two, told = Two(), []
        sender = PassiveReplicationSender(two.senders(), on_event=told.append)
        for side in two.sides:
            side.away()
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("m"))
        for side in two.sides:
            side.back()
        await sender.send_messages(ServiceBusMessage("n"))
        assert (two.sides[0].texts("q"), two.sides[1].texts("q"), told) == (["n"], [], [])

    in_virtual_time(play)


# -- the rest of what a sender of a pair is asked for -------------------------------------------------------------


def test_schedule_and_cancel_go_to_a_healthy_primary_and_say_so_when_it_failed_over() -> None:
    async def play() -> None:
        world = World()
        async with await world.pair() as pair:
            sender = pair.get_queue_sender("orders")
            assert await sender.schedule_messages(ServiceBusMessage("later"), MOMENT) == [1]
            await sender.cancel_scheduled_messages([1])
            assert [entry[1] for entry in world.primary.log] == ["schedule", "cancel"]
            world.primary.away()
            for call in (sender.schedule_messages(ServiceBusMessage("x"), MOMENT), sender.cancel_scheduled_messages(1)):
                with pytest.raises(ServiceBusConnectionError):
                    await call
            await asyncio.sleep(61)
            for call in (sender.schedule_messages(ServiceBusMessage("x"), MOMENT), sender.cancel_scheduled_messages(1)):
                with pytest.raises(Exception, match="has failed over"):
                    await call
            await sender.send_messages(ServiceBusMessage("by its property", scheduled_enqueue_time_utc=MOMENT))
            assert world.kept() == ["by its property"]

    in_virtual_time(play)


def test_a_silent_primary_is_given_up_after_a_minute_and_counts_as_an_outage() -> None:
    async def play() -> None:
        world = World()
        async with await world.pair(failover_interval=timedelta(0)) as pair:
            world.primary.latency_s = float("inf")
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
            assert world.loop.time() == pytest.approx(60, abs=0.1)
            world.primary.latency_s = world.secondary.latency_s = float("inf")
            with pytest.raises(BacklogUnavailable):
                await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("y"), timeout=1)
            world.primary.latency_s = world.secondary.latency_s = 0.0

    in_virtual_time(play)
