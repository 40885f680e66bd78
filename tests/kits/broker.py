"""Message brokers in virtual time over memory stores, with a writer that waits to be told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from duobus.broker import COMPLETE, SOURCE, MessageBroker, Queue, Receiver, ScaleUnit, SettleBatch
from duobus.clock import BrokerTime, Witness
from duobus.compiled import compiled_rooms
from duobus.errors import StoreFailed
from duobus.model.batches import SendBatch
from duobus.model.descriptions import QueueDescription
from duobus.model.metadata import MessageMetadata
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.memory import MemoryStore
from kits.fragment import Box
from simulation.world.clock import SeededEntropy, SimulatedClock
from simulation.world.loop import SimulationLoop


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


HallTest = Callable[["Hall"], Coroutine[Any, Any, None]]


class Hall:
    """A scale unit with its stores, writers and time."""

    def __init__(self, loop: SimulationLoop, stores: int = 1, disks: dict[int, MemoryStore] | None = None) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.catalog = MemoryCatalog()
        #: What the next life knows of time beside what the stores recorded.
        self.witness: Witness | None = None
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
                time=BrokerTime(self.clock, witness=self.witness),
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
        self.unit.forwarding.stop()
        self.build()
        await self.start()

    def queue(self, name: str = "q") -> Queue:
        """A queue that exists."""
        return self.unit.namespace("n").queues[name]

    async def create(self, name: str = "q", **properties: Any) -> Queue:
        """A new queue."""
        return await self.unit.create_queue("n", QueueDescription(name=name, **properties))


def simulated_over(stores: int, time_limit_s: int = 600) -> Callable[[HallTest], Callable[[], None]]:
    """Run a test in virtual time over so many stores."""

    def decorate(test: HallTest) -> Callable[[], None]:
        @wraps(test)
        def run() -> None:
            loop = SimulationLoop()

            async def whole() -> None:
                await test(Hall(loop, stores))

            try:
                loop.run(whole(), time_limit_s=time_limit_s)
            finally:
                loop.close()

        del run.__wrapped__  # type: ignore[attr-defined]  # or pytest asks for a fixture called "hall"
        return run

    return decorate


#: Run a test in virtual time over four stores.
simulated = simulated_over(4)


async def turns(number: int = 10) -> None:
    """Let what is ready happen; no time passes."""
    for _ in range(number):
        await asyncio.sleep(0)


def receiver(queue: Queue, credit: int, *, removing: bool = False) -> tuple[Receiver, Box]:
    """A receiver with credit."""
    box = Box()
    made = queue.open_receiver(0, box, removing=removing)
    made.request(credit)
    return made, box


def payloads(box: Box) -> list[bytes]:
    """What a receiver has got."""
    return [message.payload for delivered in box.ready for message in delivered.messages]


def settlement(delivered: Any, *, number: int = 1, strict: bool = False, reply: Box | None = None) -> SettleBatch:
    """Complete the first messages of a delivery."""
    command = SettleBatch(
        delivered.fragment,
        SOURCE,
        reply,
        prefix=delivered.prefix,
        outcome=COMPLETE,
        ranges=[(delivered.first_lock, number)],
    )
    command.strict = strict
    return command


#: For tests that set constants of the fragment: compiled code has their values inside (decision 0008).
sets_constants = pytest.mark.skipif(
    "fragment" in compiled_rooms(), reason="a compiled fragment does not see constants that are replaced"
)


def batch(*payloads: bytes, key: bytes | None = None, **metadata: Any) -> SendBatch:
    """Messages to send, with a mailbox of their own."""
    made = SendBatch(0, list(payloads), True, Box())
    if key is not None:
        made.keys = [key] * len(payloads)
    if metadata:
        made.extra = {index: MessageMetadata(**metadata) for index in range(len(payloads))}
    return made


def answers(made: SendBatch) -> list[Any]:
    """What came back for a batch so far: None for each accepted run, else the error."""
    return [found.error for found in made.reply.ready]
