"""A primary whose messaging stores fail or stall when a test says so, and a secondary with backlog queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, Final

from azure.servicebus import ServiceBusClient as BlockingClient
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusServerBusyError

from duobus.broker import slot_of, string_key
from duobus.clock import Clock
from duobus.ha.aio import backlog_queues as backlog
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sdk import prompt_client
from duobus.testing.broker import BrokerThread
from duobus.testing.drills import Drill
from duobus.testing.namespace import Broker, Namespace

STORES: Final = 4
#: The store that goes away.
SICK: Final = 2
SUBSCRIPTION: Final = "all"
BACKLOGS: Final = 2
INTERVAL: Final = timedelta(milliseconds=300)
PING: Final = timedelta(seconds=1)
#: Longer than a busy machine takes to bring a batch home; what a link that ended had on its way comes again after it.
BACKLOG_LOCK: Final = timedelta(seconds=15)
#: No poll ends in a test, so that the syphon keeps its links.
POLL: Final = timedelta(minutes=1)
#: A hang is a failure.
LIMIT_S: Final = 60.0


class Drilled:
    """Two namespaces of two brokers; any of the four stores of the first one can be taken away.

    Each topic has one subscription, which takes everything.

    Attributes:
        drill: Of the primary.
        queue, topic: Plain entities of the primary, which lie in the sick store.
        parts, sessions: Partitioned queues, the second with sessions; four of their sixteen fragments lie there.
        news, visits: Partitioned topics, the same way; the subscription of the second has sessions.
        there: The secondary.
    """

    def __init__(self, primary: Broker, here: Namespace, there: Namespace) -> None:
        self.drill = Drill(primary)
        self._here, self.there = here, there
        self.queue = self._plain("queue", here.create_queue)
        self.topic = self._plain("topic", partial(_with_topic, here))
        self.parts, self.sessions, self.news, self.visits = _with_partitioned(here)
        for path in backlog.paths("contoso", BACKLOGS):
            there.create_queue(path, lock_duration=BACKLOG_LOCK)

    def _plain(self, name: str, create: Callable[[str], str]) -> str:
        return next(
            path
            for path in (create(f"{name}-{number}") for number in count())
            if self.drill.fragments(self._here.name, path) == {0: SICK}
        )

    def double(self) -> None:
        """Make the same entities in the secondary, for replication."""
        self.there.create_queue(self.queue)
        _with_topic(self.there, self.topic)
        _with_partitioned(self.there)

    def keys(self, entity: str, *, lost: bool) -> list[str]:
        """A key of each fragment that lies in the sick store, or of each one that does not."""
        stores = self.drill.fragments(self._here.name, entity)
        found: dict[int, str] = {}
        for key in map(str, count()):
            found.setdefault(slot_of(string_key(key), len(stores)), key)
            if len(found) == len(stores):
                return [found[slot] for slot, store in stores.items() if (store == SICK) is lost]
        raise AssertionError

    def key(self, entity: str, *, lost: bool) -> str:
        """A key whose fragment lies in the sick store, or does not."""
        return self.keys(entity, lost=lost)[0]

    def clients(self) -> tuple[ServiceBusClient, ServiceBusClient]:
        """Of both namespaces, without retries of their own."""
        one, two = (
            prompt_client(ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0))
            for namespace in (self._here, self.there)
        )
        return one, two

    def blocking_clients(self) -> tuple[BlockingClient, BlockingClient]:
        """The same without asyncio."""
        one, two = (
            prompt_client(BlockingClient.from_connection_string(namespace.connection_string, retry_total=0))
            for namespace in (self._here, self.there)
        )
        return one, two

    def options(self, secondary: Any, **more: Any) -> SendAvailabilityPairedNamespaceOptions:
        """Of a pair of them, with short intervals."""
        return SendAvailabilityPairedNamespaceOptions(
            secondary,
            **{
                "backlog_queue_count": BACKLOGS,
                "failover_interval": INTERVAL,
                "ping_primary_interval": PING,
                "poll": POLL,
                "enable_syphon": True,
                "primary_name": "contoso",
                **more,
            },
        )

    def advance(self, time: timedelta) -> None:
        """Move the time of both namespaces ahead, so that what was scheduled until then becomes active."""
        for namespace in (self._here, self.there):
            namespace.advance(time.total_seconds())

    def is_topic(self, entity: str) -> bool:
        """Tell whether messages lie in a subscription of the entity."""
        return entity in (self.topic, self.news, self.visits)

    def texts(self, entity: str, *, copies: bool = False) -> list[str]:
        """Bodies of what an entity of the primary, or of the secondary, holds, in the order of each fragment."""
        where = self.there if copies else self._here
        queue = f"{entity}/subscriptions/{SUBSCRIPTION}" if self.is_topic(entity) else entity
        return [found.body.decode() for found in where.messages(queue) if found.state == "active"]


def _with_topic(namespace: Namespace, name: str) -> str:
    return namespace.create_topic(name, subscriptions=[SUBSCRIPTION])


def _with_partitioned(namespace: Namespace) -> tuple[str, str, str, str]:
    """Make the partitioned entities."""
    parts = namespace.create_queue("parts", enable_partitioning=True)
    sessions = namespace.create_queue("sessions", enable_partitioning=True, requires_session=True)
    news = namespace.create_topic("news", subscriptions=[SUBSCRIPTION], enable_partitioning=True)
    visits = namespace.create_topic("visits", enable_partitioning=True)
    namespace.create_subscription(visits, SUBSCRIPTION, requires_session=True)
    return parts, sessions, news, visits


@contextmanager
def drilled() -> Iterator[Drilled]:
    """Two brokers in threads; every store is back at the end."""
    brokers = [Broker(BrokerThread(stores)) for stores in (STORES, 1)]
    for broker in brokers:
        broker.start()
    try:
        with brokers[0].namespace() as here, brokers[1].namespace() as there:
            place = Drilled(brokers[0], here, there)
            try:
                yield place
            finally:
                place.drill.heal()
    finally:
        for broker in brokers:
            broker.stop()


async def until_taken(send: Callable[[], Awaitable[Any]]) -> tuple[int, float]:
    """Send again and again until it is taken; tell how often it was refused, and for how long."""
    clock = Clock()
    refused, first_ms = 0, 0
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await send()
            except ServiceBusServerBusyError:
                first_ms = first_ms or clock.monotonic_ms()
                refused += 1
                await asyncio.sleep(0.05)
            else:
                return refused, (clock.monotonic_ms() - first_ms) / 1000
