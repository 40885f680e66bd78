"""Message brokers in virtual time over memory stores, with a writer that waits to be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from fragment_kit import Box

from duobus.broker import MessageBroker, Queue, ScaleUnit
from duobus.clock import BrokerTime
from duobus.errors import StoreFailed
from duobus.model.columns import SendBatch
from duobus.model.description import QueueDescription
from duobus.model.special import Special
from duobus.stores.catalog import MemoryCatalog
from duobus.stores.memory import MemoryStore
from duobus.testing.clock import SeededEntropy, SimulatedClock
from duobus.testing.loop import SimulationLoop


class HeldWriter:
    """Runs calls at once, or one by one when held; can fail the next call before or after it is done."""

    def __init__(self, loop: SimulationLoop, store: MemoryStore) -> None:
        self.is_held = False
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()
        self.fail_next = ""
        self._loop = loop
        self._store = store

    def submit(self, call: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """See Writer."""
        self.waiting.append((call, done))
        if not self.is_held:
            self._loop.call_soon(self.step)

    def step(self) -> None:
        """Do the oldest call."""
        if not self.waiting:
            return
        call, done = self.waiting.popleft()
        how, self.fail_next = self.fail_next, ""
        if how == "before":
            self._store.close()
            done(None, StoreFailed("planted"))
            return
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - handed on, as a store's thread does
            done(None, error)
            return
        if how == "after":
            self._store.close()
            done(None, StoreFailed("planted"))
        else:
            done(result, None)

    def release(self) -> None:
        """Hold no more."""
        self.is_held = False
        for _ in range(len(self.waiting)):
            self._loop.call_soon(self.step)


class Hall:
    """A scale unit with its stores, writers and time."""

    def __init__(self, loop: SimulationLoop, stores: int = 1, disks: dict[int, MemoryStore] | None = None) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.catalog = MemoryCatalog()
        self.disks = disks if disks is not None else {number: MemoryStore(number) for number in range(1, stores + 1)}
        self.build()

    def build(self) -> None:
        """Put a new process together over the same stores and catalog."""
        self.events: list[tuple[int, str, str]] = []
        self.unit = ScaleUnit(self.catalog, lambda *event: self.events.append(event))
        self.writers: dict[int, HeldWriter] = {}
        for number, store in self.disks.items():
            store.close()
            writer = self.writers[number] = HeldWriter(self.loop, store)
            self.unit.brokers[number] = MessageBroker(
                number,
                store,
                writer,
                time=BrokerTime(self.clock),
                entropy=SeededEntropy(f"{number}-{self.loop.time()}"),
                watcher=self.unit,
            )

    async def start(self) -> None:
        """Start it."""
        await self.unit.start(self.catalog.read())

    async def again(self) -> None:
        """What a crash and a new process come to."""
        # Timers end with their process.
        self.unit.idle_watch.stop()
        self.build()
        await self.start()

    def queue(self, name: str = "q") -> Queue:
        """A queue that exists."""
        return self.unit.namespace("n").queues[name]

    async def create(self, name: str = "q", **properties: Any) -> Queue:
        """A new queue."""
        return await self.unit.create_queue("n", QueueDescription(name=name, **properties))


def batch(*payloads: bytes, key: bytes | None = None, **special: Any) -> SendBatch:
    """Messages to send, with a mailbox of their own."""
    made = SendBatch(0, list(payloads), True, Box())
    if key is not None:
        made.keys = [key] * len(payloads)
    if special:
        made.extra = {index: Special(**special) for index in range(len(payloads))}
    return made


def answers(made: SendBatch) -> list[Any]:
    """What came back for a batch so far: None for each accepted run, else the error."""
    return [found.error for found in made.reply.ready]
