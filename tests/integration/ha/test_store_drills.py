"""Real brokers one of whose stores fails or stalls: pairs, replication and outboxes go on (PN3, IN2, IN9, PE17)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit_drills import INTERVAL, LIMIT_S, SICK, Drilled, drilled, until_taken
from kit_senders import GOING, GOING_LISTS, LATER, LOST, LOST_LISTS, Flavour, Sending, awaited, sendings

from duobus.ha.deduplication import SeenMessages
from duobus.ha.errors import NotDiverted
from duobus.ha.events import Diverted, FailoverEngaged, OutboxWaits, PrimaryHealthy, ReplicaFailed, RolesSwapped
from duobus.ha.failover import State
from duobus.ha.outbox.queue import Outbox
from kits.pair import body, bounded

#: The SDK leaves sockets unclosed whose opening is given up.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

#: Messages of each sender of an outbox while the store is away.
NUMBER = 5


@pytest.fixture
def place() -> Iterator[Drilled]:
    with drilled() as found:
        yield found


def assert_all_in_order(place: Drilled, sender: Sending) -> None:
    """What one sender has sent to a key, or to an entity of one fragment, is there once, in its order."""
    found = sender.found(place)
    # Messages without a key lie in any fragment of a partitioned entity, and those that become due come in any order.
    is_ordered = sender.way.form != "scheduled" and (sender.way.keyed or sender.way.entity in ("queue", "topic"))
    assert (found if is_ordered else sorted(found)) == (sender.sent if is_ordered else sorted(sender.sent))


def assert_diverted_between(place: Drilled, sender: Sending) -> None:
    """All of four sends are there, and the two that were diverted between the first and the last one."""
    found = sender.found(place)
    assert sorted(found) == sorted(sender.sent)
    end = len(found) // 4
    if sender.way.form != "scheduled":
        assert (found[:end], found[-end:]) == (sender.sent[:end], sender.sent[-end:])


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
@pytest.mark.parametrize("how", ["fail", "stall"])
@bounded
async def test_what_lies_in_a_lost_store_is_diverted_after_the_interval_and_all_else_goes_on(
    place: Drilled, how: str, kind: str
) -> None:
    flavour = Flavour(kind, place)
    events = flavour.events
    async with flavour.paired() as pair:
        lost = sendings(place, LOST, partial(flavour.sender, pair), lost=True)
        going = sendings(place, GOING, partial(flavour.sender, pair), lost=False)
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
        await flavour.carried(count)
        for one in lost:
            await one.send()
            assert pair.state(one.path) is State.HEALTHY
            assert pair.fragment_states(one.path) == {}
        assert len(events.of(FailoverEngaged)) == len(LOST)
        assert all(event.was_diverted for event in events.of(PrimaryHealthy))
    place.advance(2 * LATER)
    for one in lost:
        assert_diverted_between(place, one)
    for one in going:
        assert_all_in_order(place, one)


@pytest.mark.parametrize(("how", "kind"), [("fail", "threads"), ("stall", "asyncio")])
@bounded
async def test_replication_goes_on_with_the_namespace_whose_store_is_there(
    place: Drilled, how: str, kind: str, tmp_path: Path
) -> None:
    flavour = Flavour(kind, place)
    events, tell = flavour.events, flavour.tell
    place.double()
    async with flavour.clients() as clients:

        def made(name: str, *, lost: bool) -> list[Sending]:
            def make(path: str) -> Any:
                both = [flavour.sender(client, path) for client in clients]
                return getattr(flavour.ha, f"{name}ReplicationSender")(both, on_event=tell)

            ways = [way._replace(name=f"{name} {way.name}") for way in (LOST_LISTS if lost else GOING_LISTS)]
            return sendings(place, ways, make, lost=lost)

        async def send() -> None:
            await asyncio.gather(*(one.send() for one in every))

        passive, active = made("Passive", lost=True), made("Active", lost=True)
        passive_there, active_there = made("Passive", lost=False), made("Active", lost=False)
        every = [*passive, *active, *passive_there, *active_there]
        await send()
        assert events == []
        with place.drill.away(SICK, how):
            for number in (1, 2):
                await send()
                assert len(events.of(RolesSwapped)) == len(passive), "once each"
                assert len(events.of(ReplicaFailed)) == number * len(active)
        await send()
        for one in every:
            await one.close()
        place.advance(2 * LATER)
        for one in (*active, *active_there):
            assert sorted(one.found(place, copies=True)) == sorted(one.sent)
        for one in (*active_there, *passive_there):
            assert_all_in_order(place, one)
        for one in passive:
            end = len(one.sent) // 4
            assert sorted(one.found(place)) == sorted(one.sent[:end])
            assert sorted(one.found(place, copies=True)) == sorted(one.sent[end:])
        for one in active:
            end = len(one.sent) // 4
            assert sorted(one.found(place)) == sorted(one.sent[:end] + one.sent[-end:])
        for one in passive_there:
            assert one.found(place, copies=True) == []
        with SeenMessages(tmp_path / "seen.db") as seen:
            for path in (place.parts, place.news):
                both = [flavour.receiver(client, path) for client in clients]
                got = await worked_off(flavour.ha.ReplicatedReceiver(both, seen))
                assert sorted(got) == sorted(text for one in every if one.path == path for text in one.sent)


async def worked_off(receiver: Any) -> list[str]:
    """Receive and complete until nothing comes any more, in this thread: the file of what was seen belongs to it."""
    found = []
    while messages := await ended(receiver.receive_messages(50, max_wait_time=0.5)):
        for message in messages:
            found.append(body(message))
            await ended(receiver.complete_message(message))
    await ended(receiver.close())
    return found


async def ended(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


class Outboxes:
    """An outbox for each entity that is asked for."""

    def __init__(self, flavour: Flavour, folder: Path, clients: Any) -> None:
        self._flavour = flavour
        self._folder = folder
        self._clients = clients
        self.files: dict[str, Outbox] = {}
        self.senders: dict[str, Any] = {}

    def sender(self, path: str) -> Any:
        if path not in self.senders:
            self.files[path] = outbox = Outbox(self._folder / path, retry_first_ms=50, retry_last_ms=200)
            make = partial(self._flavour.sender, self._clients, path)
            self.senders[path] = self._flavour.ha.OutboxSender(make, outbox, on_event=self._flavour.tell)
        return self.senders[path]

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        senders = [awaited(sender) for sender in self.senders.values()]
        try:
            for sender in senders:
                await sender.open()
            yield
        finally:
            for sender in senders:
                await sender.close()
            for outbox in self.files.values():
                outbox.close()

    async def flushed(self) -> bool:
        return all([await awaited(sender).flush(LIMIT_S) for sender in self.senders.values()])

    def depth(self) -> int:
        return sum(outbox.depth.messages for outbox in self.files.values())

    def set_aside(self) -> list[Any]:
        return [one for outbox in self.files.values() for one in outbox.set_aside()]


async def send_all(senders: list[Sending], number: int) -> int:
    """Send so many times; tell how many messages that were."""
    before = sum(len(one.sent) for one in senders)
    for _ in range(number):
        await asyncio.gather(*(one.send() for one in senders))
    return sum(len(one.sent) for one in senders) - before


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            if holds():
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("how", "kind"), [("fail", "threads"), ("stall", "asyncio")])
@bounded
async def test_an_outbox_over_a_pair_is_empty_before_the_store_is_back_and_everything_is_delivered_then(
    place: Drilled, how: str, kind: str, tmp_path: Path
) -> None:
    flavour = Flavour(kind, place)
    async with flavour.paired() as pair:
        outboxes = Outboxes(flavour, tmp_path, pair)
        lost = sendings(place, LOST_LISTS, outboxes.sender, lost=True)
        going = sendings(place, GOING_LISTS, outboxes.sender, lost=False)
        async with outboxes.sending():
            await send_all([*lost, *going], 1)
            assert await outboxes.flushed()
            with place.drill.away(SICK, how):
                number = await send_all(lost, NUMBER)
                await send_all(going, NUMBER)
                assert await outboxes.flushed(), "they wait for no store"
                assert sum(event.messages for event in flavour.events.of(Diverted)) == number
            await flavour.events.wait(PrimaryHealthy, len(LOST_LISTS))
            await flavour.carried(number)
            await send_all([*lost, *going], 1)
            assert await outboxes.flushed()
            assert outboxes.set_aside() == []
    place.advance(2 * LATER)
    for one in lost:
        # What went through backlog queues came in any order.
        assert sorted(one.found(place)) == sorted(one.sent)
    for one in going:
        assert_all_in_order(place, one)


@pytest.mark.parametrize(("how", "kind"), [("fail", "asyncio"), ("stall", "threads")])
@bounded
async def test_an_outbox_without_a_pair_keeps_what_waits_for_its_store_and_delivers_it_in_order_at_the_return(
    place: Drilled, how: str, kind: str, tmp_path: Path
) -> None:
    flavour = Flavour(kind, place)
    async with flavour.clients() as (client, _):
        outboxes = Outboxes(flavour, tmp_path, client)
        lost = sendings(place, LOST_LISTS, outboxes.sender, lost=True)
        going = sendings(place, GOING_LISTS, outboxes.sender, lost=False)
        async with outboxes.sending():
            await send_all([*lost, *going], 1)
            assert await outboxes.flushed()
            with place.drill.away(SICK, how):
                number = await send_all(lost, NUMBER)
                await send_all(going, NUMBER)
                for path in {one.path for one in lost}:
                    await until(lambda path=path: path in {event.entity for event in flavour.events.of(OutboxWaits)})
                await until(lambda: outboxes.depth() == number)
            await send_all([*lost, *going], 1)
            assert await outboxes.flushed()
            assert outboxes.set_aside() == []
    place.advance(2 * LATER)
    for one in (*lost, *going):
        assert_all_in_order(place, one)
