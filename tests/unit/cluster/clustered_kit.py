"""One of several scale units whose stores come and go, over the same memory stores."""

from __future__ import annotations

from duobus.broker import MessageBroker, Queue
from duobus.clock import BrokerTime
from duobus.cluster.directory import Directory
from duobus.cluster.scale_unit import ClusteredScaleUnit, LeasedTime
from duobus.model.quotas import Quotas
from kits.broker import Hall, HeldWriter
from simulation.world.clock import SeededEntropy


class Owner:
    """One server's unit; its leases are what the test says."""

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self.ends_ms = dict.fromkeys(hall.disks, 0)
        self.events: list[tuple[int, str, str]] = []
        self.told: list[tuple[Queue, bool, bool]] = []
        self.writers: dict[int, HeldWriter] = {}
        time = BrokerTime(hall.clock)
        entropy = SeededEntropy("owner")
        self.unit = ClusteredScaleUnit(
            hall.catalog, lambda *event: self.events.append(event), Quotas(), entropy.uuid, time
        )
        self.unit.follow(lambda queue: self.told.append((queue, queue.is_leaving, queue.has_moved)))

    async def adopt(self, *stores: int, reads: bool = True) -> None:
        """Open stores whose leases last for an hour; ``reads``: the catalog is there, and is read before."""
        if reads:
            self.unit.directory = Directory(self.hall.catalog.read())
        for number in stores:
            self.ends_ms[number] = self.hall.clock.monotonic_ms() + 3_600_000
            store = self.hall.disks[number]
            store.close()
            writer = self.writers[number] = HeldWriter(self.hall.loop, store)
            time = LeasedTime(BrokerTime(self.hall.clock), self.hall.clock, lambda number=number: self.ends_ms[number])
            entropy = SeededEntropy(f"{number}-{self.hall.loop.time()}")
            broker = MessageBroker(number, store, writer, time=time, entropy=entropy, watcher=self.unit)
            await self.unit.adopt(broker, self.unit.directory)

    def queue(self, name: str = "q") -> Queue:
        return self.unit.namespace("n").queues[name]
