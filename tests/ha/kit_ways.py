"""Ways to send to a primary one of whose stores is away: of each kind of entity, with and without asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from azure.servicebus import ServiceBusMessage
from kit_drills import Drilled
from kit_pair import Events

from duobus.ha import sync
from duobus.ha.aio import pair_namespace

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


class InThreads:
    """A blocking object of which every call is made in some thread, and awaited."""

    def __init__(self, blocking: Any) -> None:
        self.blocking = blocking

    def __getattr__(self, name: str) -> Any:
        return partial(asyncio.to_thread, getattr(self.blocking, name))


def with_threads() -> None:
    """Let as many calls of blocking objects be under way as a test has senders."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))


def events_of_threads() -> tuple[Events, Any]:
    """Events that can be awaited, and what takes them from any thread."""
    events = Events()
    return events, partial(asyncio.get_running_loop().call_soon_threadsafe, events)


@asynccontextmanager
async def paired_in(flavour: str, place: Drilled, **options: Any) -> AsyncIterator[tuple[Any, Events]]:
    """A pair for ``asyncio`` or for ``threads``, and what it tells."""
    if flavour == "asyncio":
        events = Events()
        primary, secondary = place.clients()
        async with await pair_namespace(primary, place.options(secondary, on_event=events, **options)) as pair:
            yield pair, events
        return
    with_threads()
    events, tell = events_of_threads()
    here, there = place.blocking_clients()
    threaded = await asyncio.to_thread(sync.pair_namespace, here, place.options(there, on_event=tell, **options))
    try:
        yield threaded, events
    finally:
        await asyncio.to_thread(threaded.close)


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

    def _message(self, text: str) -> ServiceBusMessage:
        more = (
            {} if not self.way.keyed else {"session_id" if self.way.keyed == "session" else "partition_key": self._key}
        )
        if self.way.form == "scheduled":
            more["scheduled_enqueue_time_utc"] = self._later
        return ServiceBusMessage(text, **more)


def sendings(place: Drilled, ways: Iterable[Way], clients: Any, *, lost: bool) -> list[Sending]:
    """A sender for each way.

    Args:
        place: Where to.
        ways: How.
        clients: A pair or a client of the SDK, with asyncio or without.
        lost: Whether keys belong to the sick store; each sender of an entity has a fragment of its own.
    """
    keys: dict[str, list[str]] = {}
    made = []
    for way in ways:
        path = getattr(place, way.entity)
        sender = clients.get_topic_sender(path) if place.is_topic(path) else clients.get_queue_sender(path)
        key = None
        if way.keyed:
            if path not in keys:
                keys[path] = place.keys(path, lost=lost)
            key = keys[path].pop(0)
        made.append(Sending(way, path, sender if _is_awaited(sender) else InThreads(sender), key))
    return made


def _is_awaited(sender: Any) -> bool:
    return asyncio.iscoroutinefunction(sender.send_messages)
