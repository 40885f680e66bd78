"""Back at the primary: at most one ping after it is healthy, and not with links of before (PN9, I46)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError
from kit_threads import paired_in_threads

from duobus.ha.aio.pinger import AHEAD_MS, PAUSE_MS
from duobus.ha.events import FailoverEngaged, PingSent, PrimaryHealthy
from duobus.ha.options import PINGS_WAITING_MAX
from kits.pair import Bus, bounded, client, drain
from kits.virtual_pair import Sender, World, in_virtual_time

#: What the SDK takes to open a link, and to close it, whatever the service.
LINK_S = 0.5
INTERVAL_S = 1.0

real = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.mark.parametrize("moment_s", [tenth / 10 for tenth in range(10)])
def test_the_return_takes_one_ping_interval_at_most_though_links_take_half_of_it(moment_s: float) -> None:
    async def play() -> None:
        world = World()
        world.primary.opening_s = world.primary.closing_s = LINK_S
        async with await world.pair(
            failover_interval=timedelta(0), ping_primary_interval=timedelta(seconds=INTERVAL_S)
        ) as pair:
            world.primary.away()
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("diverted"))
            await asyncio.sleep(5 + moment_s)
            world.primary.back()
            returned_s = world.loop.time()
            await asyncio.sleep(3 * INTERVAL_S)
            (healthy_s,) = world.at(PrimaryHealthy)
            assert healthy_s - returned_s <= INTERVAL_S + 0.01
            assert len(world.primary.pings) == 1

    in_virtual_time(play)


def test_a_ping_that_hangs_holds_up_none_that_come_after_it() -> None:
    async def play() -> None:
        world = World()
        world.primary.opening_s = world.primary.closing_s = LINK_S
        async with await world.pair(
            failover_interval=timedelta(0), ping_primary_interval=timedelta(seconds=INTERVAL_S)
        ) as pair:
            world.primary.away()
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("diverted"))
            world.primary.back()
            world.primary.is_silent = True
            await asyncio.sleep(60)
            begun = [time for time, what, _, _ in world.primary.log if what == "attach"]
            assert len(begun) <= 60 / INTERVAL_S + 1
            assert len([time for time in begun if time > world.loop.time() - 11]) <= PINGS_WAITING_MAX
            world.primary.is_silent = False
            returned_s = world.loop.time()
            await asyncio.sleep(3 * INTERVAL_S)
            (healthy_s,) = world.at(PrimaryHealthy)
            assert healthy_s - returned_s <= INTERVAL_S + min(AHEAD_MS / 1000, INTERVAL_S), "the first one begun after"
            number = len(world.of(PingSent))
            await asyncio.sleep(30)
            assert len([event for event in world.of(PingSent)[number:] if not event.error]) == 0

    in_virtual_time(play)


def test_a_ping_that_nobody_wants_any_more_is_not_sent() -> None:
    async def play() -> None:
        world = World()
        async with await world.pair(
            failover_interval=timedelta(0), ping_primary_interval=timedelta(seconds=20)
        ) as pair:
            world.primary.away()
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("diverted"))
            await asyncio.sleep(19)
            world.primary.back()
            await asyncio.sleep(0.5)
            pair.mark_path_healthy("orders")
            await asyncio.sleep(60)
            assert world.primary.pings == []
            assert world.of(PingSent) == []

    in_virtual_time(play)


@pytest.mark.parametrize(
    ("latency_s", "tries"),
    [
        (0.0, [number * PAUSE_MS / 1000 for number in range(9)]),
        # A link that fails a millisecond before the ping is due is tried once more.
        (1.999, [0.0, 2.0]),
    ],
)
def test_the_link_of_a_ping_is_tried_in_pauses_from_two_seconds_before_it_is_due_until_then(
    latency_s: float, tries: list[float]
) -> None:
    async def play() -> None:
        world = World()
        async with await world.pair(failover_interval=timedelta(0), ping_primary_interval=timedelta(minutes=1)) as pair:
            world.primary.away()
            began_s = world.loop.time()
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("diverted"))
            world.primary.latency_s = latency_s
            await asyncio.sleep(70)
            attached = [time for time, what, _, _ in world.primary.log if what == "attach"]
            assert attached[0] - began_s == pytest.approx(58, abs=0.05)
            assert [time - attached[0] for time in attached] == pytest.approx(tries, abs=1e-6)

    in_virtual_time(play)


def test_a_new_link_has_the_name_of_the_old_one_where_the_old_one_had_a_name() -> None:
    async def play() -> None:
        world = World()
        made: list[dict[str, Any]] = []

        def named(path: str, **options: Any) -> Sender:
            made.append(options)
            return Sender(world.primary, path)

        def nameless(path: str, **options: Any) -> Sender:
            sender = named(path, **options)
            del sender.client_identifier
            return sender

        async with await world.pair() as pair:
            for make in (named, nameless):
                world.primary.get_queue_sender = make  # type: ignore[method-assign, assignment]
                pair.get_queue_sender("orders")._renew()
        assert made == [{}, {"client_identifier": "virtual"}, {}, {}]

    in_virtual_time(play)


def test_after_a_suspicion_that_a_success_ended_every_sender_keeps_its_link() -> None:
    async def play() -> None:
        world = World()
        async with await world.pair() as pair:
            senders = [pair.get_queue_sender("orders") for _ in range(2)]
            before = [sender._primary for sender in senders]
            world.primary.away()
            with pytest.raises(ServiceBusConnectionError):
                await senders[0].send_messages(ServiceBusMessage("lost to its caller"))
            world.primary.back()
            for sender in (*senders, *senders):
                await sender.send_messages(ServiceBusMessage("direct"))
            assert world.of(PrimaryHealthy)
            assert [sender._primary for sender in senders] == before

    in_virtual_time(play)


def test_a_link_that_gave_no_answer_is_not_used_again() -> None:
    async def play() -> None:
        world = World()
        async with await world.pair() as pair:
            sender = pair.get_queue_sender("orders")
            before = sender._primary
            world.primary.latency_s = 3_600
            with pytest.raises(TimeoutError, match="gave no answer within 6 seconds"):
                await sender.send_messages(ServiceBusMessage("lost to its caller"), timeout=5)
            world.primary.latency_s = 0
            await sender.send_messages(ServiceBusMessage("direct"))
            assert sender._primary is not before

    in_virtual_time(play)


def test_after_a_failover_every_sender_opens_one_new_link_and_closes_the_old_one() -> None:
    async def play() -> None:
        world = World()
        async with await world.pair(failover_interval=timedelta(0)) as pair:
            senders = [pair.get_queue_sender("orders") for _ in range(3)]
            before = [sender._primary for sender in senders]
            await senders[0].send_messages(ServiceBusMessage("direct"))
            assert senders[0]._primary is before[0], "a healthy pair never does"
            world.primary.away()
            await senders[0].send_messages(ServiceBusMessage("diverted"))
            world.primary.back()
            pair.mark_path_healthy("orders")
            for sender in senders:
                await sender.send_messages(ServiceBusMessage("direct"))
            after = [sender._primary for sender in senders]
            assert all(one is not other for one, other in zip(before, after, strict=True))
            for sender in senders:
                await sender.send_messages(ServiceBusMessage("direct"))
            assert [sender._primary for sender in senders] == after

    in_virtual_time(play)


class TestOverTheWire:
    pytestmark = real

    def test_a_sender_that_stood_idle_through_the_outage_sends_at_once(self, bus: Bus) -> None:
        @bounded
        async def play() -> None:
            async with bus.paired() as (pair, events):
                idle, busy = pair.get_queue_sender(bus.orders), pair.get_queue_sender(bus.orders)
                for sender in (idle, busy):
                    await sender.send_messages(ServiceBusMessage("before"))
                bus.primary.kill()
                with pytest.raises(ServiceBusConnectionError):
                    await busy.send_messages(ServiceBusMessage("lost to its caller"))
                await events.wait(FailoverEngaged)
                bus.primary.start()
                await events.wait(PrimaryHealthy)
                await idle.send_messages(ServiceBusMessage("after"))
                await busy.send_messages(ServiceBusMessage("after"))

        play()

    def test_the_sdks_own_sender_that_stood_idle_fails_once(self, bus: Bus) -> None:
        """Why a pair makes new links: this is what it would hand on."""

        @bounded
        async def play() -> None:
            async with client(bus.primary) as sdk, sdk.get_queue_sender(bus.orders) as sender:
                await sender.send_messages(ServiceBusMessage("before"))
                bus.primary.kill()
                bus.primary.start()
                with pytest.raises(ServiceBusConnectionError):
                    await sender.send_messages(ServiceBusMessage("refused"))
                await sender.send_messages(ServiceBusMessage("after"))
            assert len(await drain(bus.primary, bus.orders)) == 2

        play()

    def test_a_thread_that_stood_idle_through_the_outage_sends_at_once(self, bus: Bus) -> None:
        with paired_in_threads(bus) as (pair, told):
            idle, busy = pair.get_queue_sender(bus.orders), pair.get_queue_sender(bus.orders)
            for sender in (idle, busy):
                sender.send_messages(ServiceBusMessage("before"))
            bus.primary.kill()
            with pytest.raises(Exception):  # noqa: B017, PT011 - the SDK has several for a server that is away
                busy.send_messages(ServiceBusMessage("lost to its caller"))
            told.wait(FailoverEngaged)
            bus.primary.start()
            told.wait(PrimaryHealthy)
            idle.send_messages(ServiceBusMessage("after"))
            busy.send_messages(ServiceBusMessage("after"))
