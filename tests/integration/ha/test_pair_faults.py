"""Traffic through a pair whose primary is killed, stopped, cut off, refused and slowed (I1, I10, I12, I43 to I49).

Against two brokers of its own; or against any two namespaces (``kit_pair_place``). Then the faults that need a process
are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage
from kit_pair_place import Place, address
from kit_relay import Relay

from duobus.ha.aio import PairedNamespace, pair_namespace
from duobus.ha.events import Diverted, FailoverEngaged, PrimaryHealthy, Syphoned
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from kits.pair import BACKLOGS, LIMIT_S, Events, bounded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

INTERVAL = timedelta(milliseconds=500)
SEND_S = 1.0
#: Messages before the fault, and after it.
DIRECT = 30
DIVERTED_MIN = 20
SENDERS = 3


class Traffic:
    """Senders that try each message until it is accepted, and what became of each."""

    def __init__(self, pair: PairedNamespace, queue: str) -> None:
        self._pair = pair
        self._queue = queue
        self.accepted: list[str] = []
        self.unknown: set[str] = set()
        self.diverted: set[str] = set()
        self.is_over = False
        self._more = asyncio.Event()
        self._sending: dict[asyncio.Task[object] | None, str] = {}

    def hear(self, event: object) -> None:
        if isinstance(event, Diverted):
            self.diverted.add(self._sending.get(asyncio.current_task(), ""))

    async def send(self, who: int) -> None:
        async with self._pair.get_queue_sender(self._queue) as sender:
            number = 0
            while not self.is_over:
                text = f"{os.getpid()}-{id(self)}-{who}-{number}"
                number += 1
                self._sending[asyncio.current_task()] = text
                while not await self._is_accepted(sender, text):  # noqa: ASYNC110 - it is not a poll
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.01)

    async def _is_accepted(self, sender: object, text: str) -> bool:
        try:
            await sender.send_messages(ServiceBusMessage(text, message_id=text), timeout=SEND_S)  # type: ignore[attr-defined]
        except (AzureError, OSError):
            self.unknown.add(text)
            return False
        self.accepted.append(text)
        self._more.set()
        return True

    async def wait(self, number: int) -> None:
        """Until so many messages are accepted."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.accepted) < number:
                self._more.clear()
                await self._more.wait()


@contextlib.asynccontextmanager
async def running(place: Place, relay: Relay) -> AsyncIterator[tuple[Traffic, Events]]:
    """A pair with traffic through it; at the end everything that was diverted is brought back."""
    events = Events()
    traffic: Traffic | None = None

    def hear(event: object) -> None:
        events(event)  # type: ignore[arg-type]
        if traffic is not None:
            traffic.hear(event)

    options = SendAvailabilityPairedNamespaceOptions(
        place.client(place.secondary),
        backlog_queue_count=BACKLOGS,
        failover_interval=INTERVAL,
        ping_primary_interval=timedelta(seconds=1),
        enable_syphon=True,
        primary_name=place.name,
        on_event=hear,
    )
    async with await pair_namespace(place.client(place.primary), options) as pair:
        traffic = Traffic(pair, place.queue)
        tasks = [asyncio.create_task(traffic.send(who)) for who in range(SENDERS)]
        yield traffic, events
        traffic.is_over = True
        await asyncio.gather(*tasks)
        async with asyncio.timeout(LIMIT_S):
            while pair.counts.get("Syphoned", 0) < pair.counts.get("Diverted", 0):
                await events.wait(Syphoned, len(events.of(Syphoned)) + 1)


async def take_all(place: Place, wanted: set[str]) -> Counter[str]:
    """What the primary's queue holds, until all that is wanted is there."""
    found: Counter[str] = Counter()
    async with (
        place.client(place.primary) as client,
        client.get_queue_receiver(place.queue, receive_mode="receiveanddelete") as receiver,
        asyncio.timeout(LIMIT_S),
    ):
        is_there = False
        while messages := await receiver.receive_messages(500, max_wait_time=1 if is_there else 5):
            found.update(message.message_id or "" for message in messages)
            is_there = wanted <= found.keys()
    return found


def kill(place: Place, relay: Relay) -> Callable[[], None]:
    assert place.bus is not None
    place.bus.primary.kill()
    return place.bus.primary.start


def stop(place: Place, relay: Relay) -> Callable[[], None]:
    assert place.bus is not None
    place.bus.primary.freeze()
    return place.bus.primary.thaw


def cut(place: Place, relay: Relay) -> Callable[[], None]:
    relay.is_cut = True
    return relay.heal


def refuse(place: Place, relay: Relay) -> Callable[[], None]:
    relay.refuse()
    return relay.heal


def slow(place: Place, relay: Relay) -> Callable[[], None]:
    relay.delay_s = 3 * SEND_S
    return relay.heal


@pytest.mark.parametrize("fault", [kill, stop, cut, refuse, slow], ids=lambda fault: fault.__name__)
def test_nothing_accepted_is_lost_and_only_what_may_be_is_there_twice_when_the_primary_is(
    fault: Callable[[Place, Relay], Callable[[], None]], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.bus is None and fault in (kill, stop):
        pytest.skip("not a process of ours")

    @bounded
    async def play() -> None:
        relay = Relay(*address(place.client(place.primary)))
        await relay.start(monkeypatch)
        async with running(place, relay) as (traffic, events):
            await traffic.wait(DIRECT)
            mend = fault(place, relay)
            try:
                await events.wait(FailoverEngaged)
                while sum(event.messages for event in events.of(Diverted)) < DIVERTED_MIN:
                    await events.wait(Diverted, len(events.of(Diverted)) + 1)
            finally:
                await asyncio.to_thread(mend)
            await events.wait(PrimaryHealthy)
            await traffic.wait(len(traffic.accepted) + DIRECT)
        accepted = set(traffic.accepted)
        found = await take_all(place, accepted)
        await relay.close()
        assert accepted - found.keys() == set(), "accepted and lost"
        assert len(traffic.diverted & accepted) >= DIVERTED_MIN
        twice = {text for text, number in found.items() if number > 1}
        assert twice <= traffic.unknown | traffic.diverted, "sent once, and neither diverted nor without an answer"
        (engaged, *_) = events.of(FailoverEngaged)
        assert engaged.after_ms <= INTERVAL.total_seconds() * 1000 + 1_000

    play()
