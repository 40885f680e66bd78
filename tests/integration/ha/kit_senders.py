"""Ways to send to a primary one of whose stores is away: of each kind of entity, with and without asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from azure.servicebus import ServiceBusMessage
from kit_drills import SUBSCRIPTION, Drilled

from duobus.ha import aio, sync
from duobus.ha.events import Event, Syphoned
from kits.pair import Events

#: Between two sends of a sender that nothing may happen to, seconds.
PAUSE_S: Final = 0.1
ROUNDS_MAX: Final = 40
#: When what is scheduled is due.
LATER: Final = timedelta(hours=1)
#: Threads for the calls of blocking senders: more than there are senders.
THREADS: Final = 64


class Way(NamedTuple):
    """One sender.

    Attributes:
        name: How its messages begin.
        entity: Attribute of ``Drilled`` that has the path.
        form: ``one`` message at a time; two as a ``list`` or a ``batch``; ``scheduled`` by a property of the message;
            ``numbered``: scheduled by a call that returns the sequence number.
        keyed: Nothing, ``key`` or ``session``.
    """

    name: str
    entity: str
    form: str = "one"
    keyed: str = ""


#: What has no other place than the store that is away. Each sender has a fragment of its own, and so its own interval.
LOST: Final = (
    Way("queue", "queue"),
    Way("batch to topic", "topic", "batch"),
    Way("key", "parts", keyed="key"),
    Way("list of key", "parts", "list", "key"),
    Way("batch of key", "parts", "batch", "key"),
    Way("scheduled key", "parts", "scheduled", "key"),
    Way("session", "sessions", keyed="session"),
    Way("key to topic", "news", keyed="key"),
    Way("batch of key to topic", "news", "batch", "key"),
    Way("session to topic", "visits", "list", "session"),
)
#: What goes on in the other stores, to the same partitioned entities.
GOING: Final = (
    Way("keyless", "parts"),
    Way("keyless batch", "parts", "batch"),
    Way("keyless number", "parts", "numbered"),
    Way("key elsewhere", "parts", keyed="key"),
    Way("session elsewhere", "sessions", keyed="session"),
    Way("keyless to topic", "news"),
    Way("scheduled key elsewhere to topic", "news", "scheduled", "key"),
    Way("session elsewhere to topic", "visits", keyed="session"),
)


#: The same, for senders that know no batches, and with fewer of each kind.
LOST_LISTS: Final = (
    Way("queue", "queue"),
    Way("list to topic", "topic", "list"),
    Way("key", "parts", keyed="key"),
    Way("scheduled key", "parts", "scheduled", "key"),
    Way("session", "sessions", keyed="session"),
    Way("list of key to topic", "news", "list", "key"),
    Way("session to topic", "visits", keyed="session"),
)
GOING_LISTS: Final = (
    Way("keyless", "parts"),
    Way("list of key elsewhere", "parts", "list", "key"),
    Way("session elsewhere", "sessions", keyed="session"),
    Way("keyless to topic", "news"),
)


class InThreads:
    """A blocking object of which every call is made in some thread, and awaited."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        return partial(asyncio.to_thread, getattr(self._blocking, name))


def awaited(found: Any) -> Any:
    """A sender or receiver to await, of either kind."""
    call = getattr(found, "send_messages", None) or found.receive_messages
    return found if asyncio.iscoroutinefunction(call) else InThreads(found)


class Flavour:
    """One of the two kinds of clients, used by a test with asyncio.

    Attributes:
        ha: The package for them.
        events: What was told to ``tell``, from any thread.
    """

    def __init__(self, name: str, place: Drilled) -> None:
        self.ha: Any = {"asyncio": aio, "threads": sync}[name]
        self.events = Events()
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._is_async = name == "asyncio"
        if not self._is_async:
            self._loop.set_default_executor(ThreadPoolExecutor(THREADS))

    def tell(self, event: Event) -> None:
        """Take an event."""
        if self._is_async:
            self.events(event)
        else:
            self._loop.call_soon_threadsafe(self.events, event)

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[tuple[Any, Any]]:
        """Of the SDK, for the primary and the secondary."""
        if self._is_async:
            one, two = self._place.clients()
            async with one, two:
                yield one, two
        else:
            here, there = self._place.blocking_clients()
            with here, there:
                yield here, there

    @asynccontextmanager
    async def paired(self) -> AsyncIterator[Any]:
        """A pair with short intervals and a syphon."""
        if self._is_async:
            primary, secondary = self._place.clients()
            async with await aio.pair_namespace(primary, self._place.options(secondary, on_event=self.tell)) as pair:
                yield pair
            return
        here, there = self._place.blocking_clients()
        options = self._place.options(there, on_event=self.tell)
        threaded = await asyncio.to_thread(sync.pair_namespace, here, options)
        try:
            yield threaded
        finally:
            await asyncio.to_thread(threaded.close)

    def sender(self, clients: Any, path: str) -> Any:
        """A sender of a pair or a client, as that makes them."""
        return clients.get_topic_sender(path) if self._place.is_topic(path) else clients.get_queue_sender(path)

    def receiver(self, client: Any, path: str) -> Any:
        """A receiver of a client, as that makes them."""
        if self._place.is_topic(path):
            return client.get_subscription_receiver(path, SUBSCRIPTION)
        return client.get_queue_receiver(path)

    async def carried(self, number: int) -> None:
        """Wait until the syphon has brought so many messages home."""
        for batches in range(1, number + 1):
            await self.events.wait(Syphoned, batches)
            if sum(event.messages for event in self.events.of(Syphoned)) >= number:
                return


class Sending:
    """A sender that sends one way, its texts numbered.

    Attributes:
        way: Which.
        path: Of its entity.
        sent: Texts that were taken, in their order.
        numbers: Sequence numbers that were returned.
    """

    def __init__(self, way: Way, path: str, sender: Any, key: str | None) -> None:
        self.way, self.path = way, path
        self.sent: list[str] = []
        self.numbers: list[int] = []
        self._sender = sender
        self._key = key
        self._next = count()
        self._waits: list[str] = []
        self._later = datetime.now(UTC) + LATER

    async def send(self) -> None:
        """Send what comes next; after an error that is the same again."""
        way, sender = self.way, self._sender
        if not self._waits:
            number = 2 if way.form in ("list", "batch") else 1
            self._waits = [f"{way.name}: {next(self._next)}" for _ in range(number)]
        messages = [self._message(text) for text in self._waits]
        if way.form == "numbered":
            self.numbers += await sender.schedule_messages(messages, self._later)
        elif way.form == "batch":
            batch = await sender.create_message_batch()
            for one in messages:
                batch.add_message(one)
            await sender.send_messages(batch)
        else:
            await sender.send_messages(messages if way.form == "list" else messages[0])
        self.sent += self._waits
        self._waits = []

    async def schedule(self) -> list[int]:
        """Ask for a sequence number."""
        return list(await self._sender.schedule_messages(self._message("scheduled by call"), self._later))

    async def go_on(self, over: asyncio.Event) -> None:
        """Send until it is over; nothing of that may fail."""
        for _ in range(ROUNDS_MAX):
            if over.is_set():
                break
            await self.send()
            await asyncio.sleep(PAUSE_S)

    def found(self, place: Drilled, *, copies: bool = False) -> list[str]:
        """Texts of this sender that its entity holds, in their order."""
        return [text for text in place.texts(self.path, copies=copies) if text.startswith(f"{self.way.name}: ")]

    async def close(self) -> None:
        """Close the sender."""
        await self._sender.close()

    def _message(self, text: str) -> ServiceBusMessage:
        more = (
            {} if not self.way.keyed else {"session_id" if self.way.keyed == "session" else "partition_key": self._key}
        )
        if self.way.form == "scheduled":
            more["scheduled_enqueue_time_utc"] = self._later
        return ServiceBusMessage(text, **more)


def sendings(place: Drilled, ways: Iterable[Way], make: Callable[[str], Any], *, lost: bool) -> list[Sending]:
    """A sender for each way.

    Args:
        place: Where to.
        ways: How.
        make: Returns a sender for a path.
        lost: Whether keys belong to the sick store; each sender of an entity has a fragment of its own.
    """
    keys: dict[str, list[str]] = {}
    made = []
    for way in ways:
        path = getattr(place, way.entity)
        key = keys.setdefault(path, place.keys(path, lost=lost)).pop(0) if way.keyed else None
        made.append(Sending(way, path, awaited(make(path)), key))
    return made
