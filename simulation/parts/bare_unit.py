"""A scale unit without a wire: its disks and catalog outlive its processes, which end between two instructions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from duobus.broker import MessageBroker, ScaleUnit
from duobus.clock import BrokerTime
from duobus.model.batches import Mailbox
from duobus.storage.catalog.memory import MemoryCatalog
from simulation.world.clock import SeededEntropy, SimulatedClock
from simulation.world.loop import SimulationLoop
from simulation.world.stores import CrashingStore, Disk, DiskFaults, SimulatedWriter


class Box(Mailbox):
    """Wakes whoever waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def wake(self) -> None:
        """See Mailbox."""
        self.event.set()


class BareUnit:
    """Disks and a catalog, and the scale unit of the moment.

    Args:
        seed: Of everything.
        loop: Virtual time.
        stores: How many there are.
        chances: Faults of each disk, and how likely one is.

    Attributes:
        unit: The scale unit of the present process.
        lives: How many processes there have been.
        work: What is under way in the process, and ends with it.
    """

    def __init__(self, seed: int, loop: SimulationLoop, stores: int, chances: Mapping[str, float]) -> None:
        self.seed = seed
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.catalog = MemoryCatalog()
        self.disks = {
            number: Disk(f"{seed}:{number}", DiskFaults(dict(chances), slow_s=(0.1, 0.5)))
            for number in range(1, stores + 1)
        }
        self.lives = 0
        self.work: set[asyncio.Task[object]] = set()
        self.unit: ScaleUnit
        self.time: BrokerTime
        self._writers: list[SimulatedWriter] = []

    async def start(self) -> None:
        """A new process over what the disks hold."""
        self.lives += 1
        entropy = SeededEntropy(f"{self.seed}:{self.lives}")
        self.unit = ScaleUnit(self.catalog, lambda *_: None, None, entropy.uuid)
        self.time = BrokerTime(self.clock)
        self._writers = []
        for number, disk in self.disks.items():
            store = CrashingStore(disk)
            writer = SimulatedWriter(self.loop, store, random.Random(f"{self.seed}:{self.lives}:{number}"))
            self._writers.append(writer)
            broker = MessageBroker(number, store, writer, time=self.time, entropy=entropy, watcher=self.unit)
            self.unit.brokers[number] = broker
        await self.unit.start(self.catalog.read())

    def kill(self, *, power: bool) -> None:
        """The process ends between two instructions, or the machine does."""
        tasks = [*self.work, *self.unit._deletions]
        # Of the loop's own tasks, a move of a fragment is one that the process would take along.
        tasks += [task for task in (self.unit.moves._task,) if task is not None]
        for task in tasks:
            task.cancel()
        self.work = set()
        for writer in self._writers:
            writer.kill()
        for broker in self.unit.brokers.values():
            # Nothing that it has still on the loop finds it alive.
            broker.lifecycle.life += 1
            broker.lifecycle.state = "closed"
            broker.commit_loop.timers.clear()
            broker.lifecycle.watchdog.end()
            reopening = getattr(broker.lifecycle, "_reopening", None)
            if reopening is not None:
                reopening.cancel()
        self.unit.idle_watch.stop()
        for disk in self.disks.values():
            if power:
                disk.power_cut()
            else:
                disk.kill()

    def calm(self) -> None:
        """No disk fails any more."""
        for disk in self.disks.values():
            disk.faults.calm()

    def rows(self) -> int:
        """Messages that the stores hold."""
        return sum(len(found) for disk in self.disks.values() for found in disk.seen.messages.values())
