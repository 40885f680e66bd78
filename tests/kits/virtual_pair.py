"""Two namespaces that exist in virtual time only: clients of the SDK's surface over queues in memory.

Messages go through the SDK's own encoder and decoder, so that what comes back has lost the types that it loses there.
Each namespace can be taken away, be slow, refuse, or be cut off with the answer on its way.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusConnectionError, ServiceBusServerBusyError

from duobus.broker import slot_of, string_key
from duobus.errors import StoreUnavailable
from duobus.ha.aio import PairedNamespace, pair_namespace
from duobus.ha.aio.backlog_queues import paths
from duobus.ha.events import Event
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sdk import listed
from duobus.ha.transfer import PING_CONTENT_TYPE
from simulation.world.clock import SeededEntropy, SimulatedClock
from simulation.world.loop import SimulationLoop

LOCK_S = 60.0
LATENCY_S = 0.005
#: When the cloud ends a link on which nothing moves.
IDLE_S = 600.0
BATCH_BYTES = 262_144

T = TypeVar("T")


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Run a test's coroutine in virtual time."""
    loop = SimulationLoop(seed)
    try:
        loop.run(test())
    finally:
        loop.close()


def wire(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    """What the SDK sends."""
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw)))


def key_of(payload: bytes) -> str | None:
    """The key that places a message; of a ping the partition key alone."""
    found = decode_payload(memoryview(payload))
    key = (found.message_annotations or {}).get(b"x-opt-partition-key")
    if key is None and found.properties is not None and found.properties.content_type != PING_CONTENT_TYPE.encode():
        key = found.properties.group_id
    return None if key is None else key.decode() if isinstance(key, bytes) else key


class Stored:
    """A message in a queue: its bytes, and who holds it until when."""

    def __init__(self, number: int, payload: bytes, enqueued_s: float) -> None:
        self.number = number
        self.payload = payload
        self.enqueued_s = enqueued_s
        self.locked_until_s = 0.0
        self.holder: object = None

    def decoded(self) -> Received:
        return Received(self)


class Received(AmqpAnnotatedMessage):
    """A message as a receiver has it."""

    def __init__(self, stored: Stored) -> None:
        super().__init__(message=decode_payload(memoryview(stored.payload)))
        self.stored = stored
        self.sequence_number = stored.number
        self.locked_until_s = stored.locked_until_s

    @property
    def enqueued_time_utc(self) -> datetime:
        # Clocks of simulated nodes begin there, as in simulation.world.clock.
        return datetime.fromtimestamp(1_704_067_200 + self.stored.enqueued_s, UTC)

    @property
    def text(self) -> str:
        return b"".join(self.body).decode()


class Namespace:
    """A client, and the namespace behind it.

    Attributes:
        fault: Raised by every operation while it is set.
        faults: The same for one path.
        fragments: How many each partitioned queue has; others have one.
        lost: Slots of a queue whose store is away.
        stall_s: How long it takes until that is said.
        is_unanswered: Sends are stored, and then fail all the same.
        latency_s: Of every operation.
        opening_s, closing_s: What the opening and the closing of a sender's link take besides.
        is_silent: A link that is opened meanwhile never is.
        log: (time, what, path, number of messages) of every operation that was tried.
    """

    def __init__(self, host: str, queues: Iterable[str] = ()) -> None:
        self.fully_qualified_namespace = host
        self.queues: dict[str, list[Stored]] = {path: [] for path in queues}
        self.dead: dict[str, list[tuple[Stored, str]]] = {path: [] for path in queues}
        self.fault: Callable[[], Exception] | None = None
        self.faults: dict[str, Callable[[], Exception]] = {}
        self.fragments: dict[str, int] = {}
        self.lost: dict[str, set[int]] = {}
        self.stall_s = 0.0
        self.is_unanswered = False
        self.latency_s = LATENCY_S
        self.opening_s = self.closing_s = 0.0
        self.is_silent = False
        self.log: list[tuple[float, str, str, int]] = []
        self.pings: list[tuple[float, str]] = []
        self.completed: list[tuple[float, str, str]] = []
        self.is_closed = False
        self._numbers = itertools.count(1)
        self._more = asyncio.Event()

    def get_queue_sender(self, path: str, **_: Any) -> Sender:
        return Sender(self, path)

    get_topic_sender = get_queue_sender

    def get_queue_receiver(self, path: str, **_: Any) -> Receiver:
        return Receiver(self, path)

    async def close(self) -> None:
        self.is_closed = True

    def away(self) -> None:
        """Take it away: every operation fails as it does when the connection breaks."""
        self.fault = lambda: ServiceBusConnectionError(message="away")

    def back(self) -> None:
        self.fault = None

    def lose(self, path: str, *slots: int) -> None:
        """Take the stores of some fragments away, or of all of them."""
        self.lost[path] = set(slots or range(self.fragments.get(path, 1)))

    def slot_of(self, path: str, key: str) -> int:
        """Where a key belongs, as the broker computes it."""
        return slot_of(string_key(key), self.fragments.get(path, 1))

    async def place(self, path: str, payloads: list[bytes]) -> None:
        """Refuse messages whose fragment is away, with the text of the broker."""
        lost, count = self.lost.get(path, set()), self.fragments.get(path, 1)
        if not lost:
            return
        keys = {key for payload in payloads if (key := key_of(payload)) is not None}
        slots = {self.slot_of(path, key) for key in keys} if count > 1 else set()
        if not slots and len(lost) < count:
            return
        if slots and not slots & lost:
            return
        slot = min(slots, default=None)
        error = StoreUnavailable("A store is away.", None if slot is None else (slot, slot, count))
        await asyncio.sleep(self.stall_s)
        raise ServiceBusServerBusyError(message=f"{error}{error.mark(path)} TrackingId:x")

    async def operate(self, what: str, path: str, number: int = 1) -> None:
        """What every operation begins with."""
        loop = asyncio.get_running_loop()
        self.log.append((loop.time(), what, path, number))
        await asyncio.sleep(self.latency_s)
        fault = self.faults.get(path, self.fault)
        if fault is not None:
            raise fault()

    def store(self, path: str, payload: bytes) -> None:
        now_s = asyncio.get_running_loop().time()
        properties = decode_payload(memoryview(payload)).properties
        if properties is not None and properties.content_type == PING_CONTENT_TYPE.encode():
            self.pings.append((now_s, path))
            return
        self.queues[path].append(Stored(next(self._numbers), payload, now_s))
        self._more.set()

    def texts(self, path: str) -> list[str]:
        """What a queue holds."""
        return [stored.decoded().text for stored in self.queues[path]]

    def sends(self, *what: str) -> list[tuple[float, str, str, int]]:
        return [entry for entry in self.log if entry[1] in (what or ("send",))]

    def take(self, path: str, number: int, holder: object) -> list[Stored]:
        now_s = asyncio.get_running_loop().time()
        free = [stored for stored in self.queues.get(path, ()) if stored.locked_until_s <= now_s][:number]
        for stored in free:
            stored.locked_until_s, stored.holder = now_s + LOCK_S, holder
        return free

    async def wait(self, limit_s: float) -> None:
        self._more.clear()
        try:
            async with asyncio.timeout(limit_s):
                await self._more.wait()
        except TimeoutError:
            pass


class Link:
    def __init__(self, namespace: Namespace, path: str) -> None:
        self.namespace = namespace
        self.path = path
        self.entity_name = self.entity_path = path
        self.fully_qualified_namespace = namespace.fully_qualified_namespace
        self.client_identifier = "virtual"

    async def __aenter__(self: T) -> T:
        await self.namespace.operate("attach", self.path)  # type: ignore[attr-defined]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        pass


class Sender(Link):
    is_open = False

    async def __aenter__(self) -> Sender:
        namespace = self.namespace
        await namespace.operate("attach", self.path)
        await asyncio.sleep(float("inf") if namespace.is_silent else namespace.opening_s)
        self.is_open = True
        return self

    async def close(self) -> None:
        if self.is_open:
            await asyncio.sleep(self.namespace.closing_s)

    async def send_messages(self, message: Any, timeout: float | None = None, **_: Any) -> None:  # noqa: ASYNC109
        if isinstance(message, ServiceBusMessageBatch):
            message = list(message._messages)
        messages = message if isinstance(message, list) else [message]
        payloads = [wire(one) for one in messages]
        is_ping = any(PING_CONTENT_TYPE.encode() in payload for payload in payloads)
        namespace = self.namespace
        await namespace.operate("ping" if is_ping else "send", self.path, len(payloads))
        await namespace.place(self.path, payloads)
        for payload in payloads:
            namespace.store(self.path, payload)
        if namespace.is_unanswered and not is_ping:
            raise ServiceBusConnectionError(message="the answer was lost")

    async def schedule_messages(self, messages: Any, *_: Any, **__: Any) -> list[int]:
        await self.namespace.operate("schedule", self.path)
        await self.namespace.place(self.path, [wire(one) for one in listed(messages)])
        return [1]

    async def cancel_scheduled_messages(self, *_: Any, **__: Any) -> None:
        await self.namespace.operate("cancel", self.path)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch(max_size_in_bytes or BATCH_BYTES)


class Receiver(Link):
    """The SDK lets the credit of a receive stand, so that what is given back comes over the same link at once.

    The SDK gives back once more what arrives between two receives, so that the order is any.
    """

    def __init__(self, namespace: Namespace, path: str) -> None:
        super().__init__(namespace, path)
        self._credit = 0
        self._arrived: list[Stored] = []

    async def receive_messages(self, number: int = 1, max_wait_time: float = 60.0) -> list[Received]:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + max_wait_time
        idle_s = loop.time() + IDLE_S
        await self.namespace.operate("receive", self.path)
        self._credit = number - len(self._arrived)
        while not self._fill():
            now_s = loop.time()
            if now_s >= ends_s:
                return []
            if now_s >= idle_s:
                raise ServiceBusConnectionError(message="the link was idle for 10 minutes")
            locked = [one.locked_until_s for one in self.namespace.queues.get(self.path, ())]
            await self.namespace.wait(min(ends_s, idle_s, *locked) - now_s)
        arrived, self._arrived = self._arrived, []
        return [stored.decoded() for stored in arrived]

    def _fill(self) -> bool:
        """Let come what the credit allows; tell whether there is anything."""
        arrived = self.namespace.take(self.path, self._credit, self)
        self._credit -= len(arrived)
        self._arrived += arrived
        return bool(self._arrived)

    def _come_back(self) -> None:
        self._fill()
        self._arrived.sort(key=lambda stored: -stored.number)
        self.namespace._more.set()

    async def _settle(self, message: Received) -> list[Stored]:
        await self.namespace.operate("settle", self.path)
        queue = self.namespace.queues[self.path]
        stored = message.stored
        now_s = asyncio.get_running_loop().time()
        if stored not in queue or stored.holder is not self or stored.locked_until_s <= now_s:
            raise MessageLockLostError
        return queue

    async def complete_message(self, message: Received) -> None:
        (await self._settle(message)).remove(message.stored)
        self.namespace.completed.append((asyncio.get_running_loop().time(), self.path, message.text))

    async def abandon_message(self, message: Received) -> None:
        await self._settle(message)
        message.stored.locked_until_s = 0.0
        asyncio.get_running_loop().call_later(LATENCY_S, self._come_back)

    async def dead_letter_message(self, message: Received, reason: str, error_description: str) -> None:
        (await self._settle(message)).remove(message.stored)
        self.namespace.dead[self.path].append((message.stored, reason))


class World:
    """A primary and a secondary, and the pair between them.

    Args:
        entities: Queues of the primary.
        backlogs: How many backlog queues the secondary has.
    """

    def __init__(self, *entities: str, backlogs: int = 3, seed: int = 1) -> None:
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, SimulationLoop)
        self.clock = SimulatedClock(self.loop)
        self.primary = Namespace("contoso.example.net", entities or ("orders",))
        self.backlogs = paths("contoso", backlogs)
        self.secondary = Namespace("fabrikam.example.net", self.backlogs)
        self.entropy = SeededEntropy(seed)
        self.events: list[tuple[float, Event]] = []

    async def pair(self, **options: Any) -> PairedNamespace:
        return await pair_namespace(
            self.primary,  # type: ignore[arg-type]
            SendAvailabilityPairedNamespaceOptions(
                self.secondary,  # type: ignore[arg-type]
                **{"backlog_queue_count": len(self.backlogs), **options},
                clock=self.clock,
                entropy=self.entropy,
                on_event=lambda event: self.events.append((self.loop.time(), event)),
            ),
        )

    def of(self, kind: type[T]) -> list[T]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def at(self, kind: type[Event]) -> list[float]:
        """When events of a kind happened."""
        return [time for time, event in self.events if isinstance(event, kind)]

    def kept(self) -> list[str]:
        """Texts of what all backlog queues hold."""
        return [text for path in self.backlogs for text in self.secondary.texts(path)]
