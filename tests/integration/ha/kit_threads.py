"""A pair without asyncio in a test: clients, events that can be waited for, and what a queue holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage

from duobus.ha.events import Event
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sdk import prompt_client
from duobus.ha.sync import PairedNamespace, pair_namespace
from duobus.testing.server import ServerProcess
from kits.pair import BACKLOGS, Bus

LIMIT_S = 60.0
#: For what a pair tells: what was on its way over a link that ended comes again when its lock ends (BACKLOG_LOCK), and
#: elsewhere, in a namespace that somebody else has made, after a minute.
TOLD_S = 90.0
E = TypeVar("E", bound=Event)


def client_of(server: ServerProcess) -> ServiceBusClient:
    """The SDK's client, without retries of its own."""
    return prompt_client(ServiceBusClient.from_connection_string(server.connection_string, retry_total=0))


def taken(server: ServerProcess, queue: str, **how: Any) -> list[ServiceBusReceivedMessage]:
    """Take out of a queue what it holds."""
    found: list[ServiceBusReceivedMessage] = []
    with client_of(server) as sdk, sdk.get_queue_receiver(queue, receive_mode="receiveanddelete", **how) as receiver:
        while messages := receiver.receive_messages(100, max_wait_time=0.5):
            found += messages
    return found


class Told(list[Event]):
    """What a pair told, from any thread; wait for something of it."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.append(event)
            self._changed.notify_all()

    def of(self, kind: type[E]) -> list[E]:
        """Those of one kind."""
        return [event for event in list(self) if isinstance(event, kind)]

    def story(self) -> str:
        """How many of each kind there are, how many messages with them, and the last of each."""
        lines = []
        for kind in {type(event): None for event in list(self)}:
            there = self.of(kind)
            lines.append(f"{len(there)} with {sum(getattr(event, 'messages', 0) for event in there)}: {there[-1]}")
        return "\n".join(lines)

    def wait(self, kind: type[E], number: int = 1, *, messages: int = 0) -> E:
        """Return the ``number``-th of a kind, once it has come, and so many messages with those of the kind."""

        def is_there() -> bool:
            there = self.of(kind)
            return len(there) >= number and sum(getattr(event, "messages", 0) for event in there) >= messages

        with self._changed:
            assert self._changed.wait_for(is_there, TOLD_S), f"no {kind.__name__} in {TOLD_S:g} s, but {self.story()}"
        return self.of(kind)[number - 1]


@contextmanager
def paired_in_threads(bus: Bus, **options: Any) -> Iterator[tuple[PairedNamespace, Told]]:
    """A pair of the two namespaces of a test, with a short failover interval."""
    told = Told()
    options = {
        "backlog_queue_count": BACKLOGS,
        "failover_interval": timedelta(milliseconds=300),
        "ping_primary_interval": timedelta(seconds=1),
        "primary_name": bus.name,
        **options,
    }
    there = SendAvailabilityPairedNamespaceOptions(client_of(bus.secondary), on_event=told, **options)
    with pair_namespace(client_of(bus.primary), there) as pair:
        yield pair, told
