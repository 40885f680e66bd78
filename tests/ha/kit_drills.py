"""A primary whose messaging stores fail or stall when a test says so, and a secondary with backlog queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Final

from azure.servicebus import ServiceBusClient as BlockingClient
from azure.servicebus import ServiceBusMessage
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

#: The store that goes away.
SICK: Final = 2
BACKLOGS: Final = 2
INTERVAL: Final = timedelta(milliseconds=300)
PING: Final = timedelta(seconds=1)
#: A hang is a failure.
LIMIT_S: Final = 30.0


class Drilled:
    """Two namespaces of two brokers; the stores of the first one can be taken away.

    Attributes:
        drill: Of the primary.
        topic, queue, plain: Entities of it; the last two lie in the sick store, of the partitioned ones some fragments.
        there: The secondary.
        parts, sessions: Partitioned queues, the second with sessions.
    """

    def __init__(self, primary: Broker, here: Namespace, there: Namespace) -> None:
        self.drill = Drill(primary)
        self._here, self.there = here, there
        self.queue = self._plain("queue", here.create_queue)
        self.topic = self._plain("topic", lambda name: here.create_topic(name, subscriptions=["all"]))
        self.parts = here.create_queue("parts", enable_partitioning=True)
        self.sessions = here.create_queue("sessions", enable_partitioning=True, requires_session=True)
        for path in backlog.paths("contoso", BACKLOGS):
            there.create_queue(path, lock_duration=timedelta(seconds=5))

    def _plain(self, name: str, create: Callable[[str], str]) -> str:
        return next(
            path
            for path in (create(f"{name}-{number}") for number in count())
            if self.drill.fragments(self._here.name, path) == {0: SICK}
        )

    def key(self, entity: str, *, lost: bool, but: str = "") -> str:
        """A key whose fragment lies in the sick store, or does not."""
        stores = self.drill.fragments(self._here.name, entity)
        places = ((key, stores[slot_of(string_key(key), len(stores))]) for key in map(str, count()))
        return next(key for key, store in places if (store == SICK) is lost and key != but)

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
                "poll": PING,
                "enable_syphon": True,
                "primary_name": "contoso",
                **more,
            },
        )

    def texts(self, queue: str, *, state: str = "active") -> list[str]:
        """Bodies of what a queue of the primary holds, in the order of each fragment."""
        return [found.body.decode() for found in self._here.messages(queue) if found.state == state]


@contextmanager
def drilled() -> Iterator[Drilled]:
    """Two brokers in threads; every store is back at the end."""
    brokers = [Broker(BrokerThread()) for _ in range(2)]
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


def message(text: str, key: str | None = None, **more: Any) -> ServiceBusMessage:
    """A message, with a partition key if there is a key."""
    return ServiceBusMessage(text, partition_key=key, **more)
