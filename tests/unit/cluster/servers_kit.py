"""Two servers with one store each, which hear of the catalog's changes as servers do, and topics over both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from clustered_kit import Owner

from duobus.broker import Queue, Topic
from duobus.broker.entities.topic import Subscription
from duobus.cluster.directory import Directory
from duobus.model.address import sharded_entity_of
from duobus.model.descriptions import RuleDescription, SubscriptionDescription, TopicDescription
from kits.broker import Hall, simulated_over

ALL = RuleDescription(name="$Default")


class Servers:
    """Two servers with one store each, which hear of the catalog's changes as servers do."""

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        for number in hall.disks:
            hall.catalog.add_store(number, f"store-{number}")
        self.owners = [Owner(hall) for _ in hall.disks]
        self.asleep: set[int] = set()
        self.pause_s = 0.01
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for number, owner in zip(self.hall.disks, self.owners, strict=True):
            await owner.adopt(number)
            owner.unit.namespace("n")
            owner.unit.sharded_entities.is_understood = lambda _placement: True
        self._task = asyncio.get_running_loop().create_task(self._hear())

    async def _hear(self) -> None:
        while True:
            await asyncio.sleep(self.pause_s)
            for index, owner in enumerate(self.owners):
                if index not in self.asleep:
                    await owner.unit.read_again()

    def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def creator(self, name: str = "t") -> Owner:
        store = Directory(self.hall.catalog.read()).store_for_new("n", name)
        return next(owner for owner in self.owners if store in owner.unit.brokers)

    async def create(self, name: str = "t", *names: str, **properties: Any) -> None:
        about = TopicDescription(
            name=name,
            enable_partitioning=True,
            subscriptions=tuple(SubscriptionDescription(name=one, rules=(ALL,)) for one in names),
            **properties,
        )
        await self.creator(name).unit.topics.create_topic("n", about)

    def shards(self, name: str = "t") -> list[Topic]:
        found = [
            topic
            for owner in self.owners
            for path, topic in owner.unit.namespace("n").topics.items()
            if sharded_entity_of(path) == name
        ]
        return sorted(found, key=lambda topic: topic.path)

    def parts(self, name: str, topic: str = "t") -> list[Subscription | None]:
        return [shard.subscriptions.get(name) for shard in self.shards(topic)]

    def rules(self, name: str) -> list[list[str]]:
        return [[] if part is None else sorted(rule.name for rule in part.about.rules) for part in self.parts(name)]

    def queues(self, name: str = "q") -> list[Queue]:
        """The shards of a queue, in order of the servers."""
        return [
            queue
            for owner in self.owners
            for path, queue in owner.unit.namespace("n").queues.items()
            if sharded_entity_of(path) == name
        ]

    def front(self, index: int, name: str) -> Subscription:
        return self.owners[index].unit.topics.subscription("n", "t", name)

    def states(self) -> dict[str, str]:
        return {row.path: row.state for row in self.hall.catalog.read().entities}


def served(test: Callable[[Servers], Awaitable[None]]) -> Callable[[], None]:
    """Run a test with two servers, in virtual time."""

    @simulated_over(2, time_limit_s=20_000)
    async def run(hall: Hall) -> None:
        servers = Servers(hall)
        await servers.start()
        try:
            await test(servers)
        finally:
            servers.stop()

    run.__name__ = test.__name__  # type: ignore[attr-defined]
    return run  # type: ignore[no-any-return]
