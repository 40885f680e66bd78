"""Two namespaces in a test: clients with few retries, a pair, what an entity holds, and waiting for an event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import wraps
from itertools import count
from typing import Any, ParamSpec, TypeVar

from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from duobus.cli.remote import Remote
from duobus.ha.aio import PairedNamespace, pair_namespace
from duobus.ha.aio import backlog_queues as backlog
from duobus.ha.events import Event
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sdk import prompt_client
from duobus.testing.server import ServerProcess

#: A hang is a failure.
LIMIT_S = 60.0
BACKLOGS = 3
#: What others hold is there, too: after so long nothing more is waited for, in seconds.
DRAINED_S = 5.0
SHORT = timedelta(milliseconds=300)
SECOND = timedelta(seconds=1)
#: What was on its way over a link that ended comes again when its lock ends: well before a test gives up.
BACKLOG_LOCK = timedelta(seconds=10)

E = TypeVar("E", bound=Event)
P = ParamSpec("P")


def bounded(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in a loop of its own; one that hangs has failed."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(2 * LIMIT_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


def client(server: ServerProcess) -> ServiceBusClient:
    """The SDK's client, without retries of its own, so that a failure is seen at once."""
    return prompt_client(ServiceBusClient.from_connection_string(server.connection_string, retry_total=0))


class Events(list[Event]):
    """What a pair told; wait for something of it."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.append(event)
        self._more.set()

    def of(self, kind: type[E]) -> list[E]:
        """Those of one kind."""
        return [event for event in self if isinstance(event, kind)]

    async def wait(self, kind: type[E], number: int = 1) -> E:
        """Return the ``number``-th of a kind, once it has come."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.of(kind)) < number:
                self._more.clear()
                await self._more.wait()
        return self.of(kind)[number - 1]


class Bus:
    """A primary and a secondary, with a set of queues of its own."""

    _used = count()

    def __init__(self, primary: ServerProcess, secondary: ServerProcess) -> None:
        self.primary = primary
        self.secondary = secondary
        number = next(self._used)
        self.name = f"contoso-{number}"
        self.orders, self.bills, self.registrations = (f"{name}-{number}" for name in ("orders", "bills", "visits"))
        self.backlogs = backlog.paths(self.name, BACKLOGS)
        # Not in the configurations: a server with the queues of all tests would take seconds for each of its starts.
        with Remote(primary.connection_string, None, None).administration(self.orders) as administration:
            administration.create_queue(self.orders)
            administration.create_queue(self.bills)
            administration.create_queue(self.registrations, requires_session=True)
        with Remote(secondary.connection_string, None, None).administration(self.name) as administration:
            for path in self.backlogs:
                administration.create_queue(path, lock_duration=BACKLOG_LOCK)

    @asynccontextmanager
    async def paired(self, **options: Any) -> AsyncIterator[tuple[PairedNamespace, Events]]:
        """A pair of the two, with a short failover interval."""
        events = Events()
        options = {
            "backlog_queue_count": BACKLOGS,
            "failover_interval": SHORT,
            "ping_primary_interval": SECOND,
            "primary_name": self.name,
            **options,
        }
        there = SendAvailabilityPairedNamespaceOptions(client(self.secondary), on_event=events, **options)
        async with await pair_namespace(client(self.primary), there) as pair:
            yield pair, events

    async def kept(self) -> list[ServiceBusReceivedMessage]:
        """What is in the backlog queues; taken out of them."""
        there = await asyncio.gather(*(drain(self.secondary, path) for path in self.backlogs))
        return [message for messages in there for message in messages]


async def drain(server: ServerProcess, queue: str, **how: Any) -> list[ServiceBusReceivedMessage]:
    """Take out of a queue what it holds, on a busy machine, too, where one wait may be too short."""
    found: list[ServiceBusReceivedMessage] = []
    end_s = time.monotonic() + DRAINED_S
    async with (
        client(server) as sdk,
        sdk.get_queue_receiver(queue, receive_mode="receiveanddelete", **how) as receiver,
    ):
        while True:
            messages = await receiver.receive_messages(100, max_wait_time=0.3)
            found += messages
            if not messages and (time.monotonic() > end_s or not await _has_more(receiver)):
                return found


async def _has_more(receiver: ServiceBusReceiver) -> bool:
    """Whether anything is there that a receiver may get."""
    return any(message.state == ServiceBusMessageState.ACTIVE for message in await receiver.peek_messages(100))


def body(message: ServiceBusReceivedMessage) -> str:
    """The body as text."""
    return b"".join(message.body).decode()
