"""Queues that are spread over the stores of several servers, whatever befalls these (``servers.py``, 0029).

Clients, faults and checkers are the same; every scenario has a partitioned queue, and its fragments lie in the stores
of all servers. To the history a share's fragment is one of the whole queue's.
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from duobus.broker import MessageBroker, Queue
from duobus.broker.entities.placement import slot_of, string_key
from duobus.cluster.shards import find_sharded_entities
from duobus.model.address import sharded_entity_of
from duobus.model.descriptions import QueueDescription
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.catalog_rows import SlotRow
from simulation.parts.sharded_idleness import ShardedIdlenessClients
from simulation.parts.sharded_topics import ShardedTopicClients
from simulation.scenarios.servers import NOT_ASKED, PEACE_MS, Outcome, ServersRun, ServersScenario, ServersWorld, play
from simulation.world.database import STUCK_S
from simulation.world.world import NAMESPACE, Grant

#: Not asked either: while a share has no owner the others have its turns (I26), and histories don't tell when that is.
TURNS: Final = frozenset({26})


class NotifyingCatalog(MemoryCatalog):
    """Raises the revision that servers see, as a shared catalog does with every change."""

    def __init__(self, world: ShardedWorld) -> None:
        super().__init__()
        self._world = world

    def changed(self) -> None:
        """Have every server see it."""
        self._world.leases.revision += 1

    def begin_create(
        self, namespace: str, kind: str, path: str, description: bytes, slots: Any, needed_id: int | None = None
    ) -> int:
        """See Catalog."""
        self.changed()
        return super().begin_create(namespace, kind, path, description, tuple(slots), needed_id)

    def finish_delete(self, entity_id: int) -> None:
        """See Catalog."""
        self.changed()
        super().finish_delete(entity_id)

    def _change(self, entity_id: int, **changes: object) -> None:
        self.changed()
        super()._change(entity_id, **changes)


class _ShardedEntityView:
    """All of a sharded queue, for whoever counts what is in it."""

    def __init__(self, shares: list[Queue]) -> None:
        self.fragments = [handle for share in shares for handle in share.fragments]
        self._shares = shares

    def numbers(self) -> tuple[list[int], int]:
        """As Queue.numbers."""
        found = [share.numbers() for share in self._shares]
        return [sum(column) for column in zip(*(numbers for numbers, _ in found), strict=True)], sum(
            size for _, size in found
        )


class ShardedWorld(ServersWorld):
    """Servers that spread."""

    is_spreading = True
    catalog_type = NotifyingCatalog
    # Every store has fragments of every queue, up to 64 here, and is opened with hundreds of calls: 3.4 s were
    # measured, and one of the calls may have been stuck when the faults ended.
    peace_ms = PEACE_MS + round(STUCK_S[1] * 1000)

    def __init__(self, seed: int, queues: list[QueueDescription], stores: int) -> None:
        super().__init__(seed, queues, stores)
        kept = self.catalog.read()
        self.catalog = self.catalog_type(self)
        self.catalog.identify(kept.identity)
        for namespace in kept.namespaces:
            self.catalog.put_namespace(namespace)
        for store in kept.stores:
            self.catalog.add_store(store.store_id, store.path)

    def _shares_of(self, entity: str) -> list[str]:
        sharded_entity = find_sharded_entities(self.catalog.read().entities).get((NAMESPACE, entity))
        return [] if sharded_entity is None else [row.path.lower() for row in sharded_entity.shares]

    def queue(self, entity: str) -> Queue | None:
        """See World; of one that is spread, what all servers have of it."""
        paths = self._shares_of(entity)
        if not paths:
            return super().queue(entity)
        shares = [super(ShardedWorld, self).queue(path) for path in paths]
        found = [share for share in shares if share is not None]
        return _ShardedEntityView(found) if len(found) == len(paths) else None  # type: ignore[return-value]

    def fragment_of(self, entity: str, key: str | None) -> int | None:
        """See World: the share has the slot of the key, and has a place for it among its own."""
        sharded_entity = find_sharded_entities(self.catalog.read().entities).get((NAMESPACE, entity))
        if key is None or sharded_entity is None:
            # Where its fragments are going to be is not known before there is a queue.
            return None
        slots: tuple[SlotRow, ...] = sharded_entity.shares[sharded_entity.of_key(string_key(key))].slots
        return slots[slot_of(string_key(key), len(slots))].fragment_no

    def path_of(self, handle: object) -> str:
        """See World."""
        path = super().path_of(handle)
        return sharded_entity_of(path) or path

    def fragments_of(self, broker: MessageBroker) -> frozenset[tuple[str, int]]:
        """See World; what was created half and undone has no name any more."""
        known = {row.entity_id for row in self.catalog.read().entities}
        plans = [plan for plan in broker.plans.values() if plan.handle.entity_id in known]
        return frozenset((self.path_of(plan.handle), plan.handle.number) for plan in plans)

    def grant(self, entity: str, seq: int, until_ms: int) -> Grant:
        """See World: by the share that has the fragment."""
        for row in self.catalog.read().entities:
            if (sharded_entity_of(row.path) or row.path) != entity:
                continue
            if not until_ms and (row.entity_id, seq) in self._removed:
                return self._removed[row.entity_id, seq]
            if until_ms and self._grants.get((row.entity_id, seq, until_ms)):
                return self._grants[row.entity_id, seq, until_ms].pop(0)
        if until_ms:
            raise KeyError((entity, seq, until_ms))
        return Grant(self.broker_ms(), 0, None)


class ShardedScenario(ServersScenario):
    """What a seed has drawn: every queue is partitioned, those that forward in half of the seeds."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.queues = [
            msgspec.structs.replace(queue, enable_partitioning=True, name="parted" if index else "plain")
            for index, queue in enumerate(self.queues[:2])
        ]
        rng = random.Random(f"sharding:{seed}")
        if self.sessions is not None:
            self.sessions = msgspec.structs.replace(self.sessions, enable_partitioning=True)
        if rng.random() < 0.5:
            self.forwarding = [msgspec.structs.replace(one, enable_partitioning=True) for one in self.forwarding]


class ShardedRun(ServersRun):
    """The clients of one run, with those of a topic in every second one, and of a queue that deletes itself."""

    _topics: ShardedTopicClients | None = None
    _idleness: ShardedIdlenessClients | None = None

    def more_jobs(self) -> list[Any]:
        """See SimulatedRun."""
        if self.world.seed % 2:
            self._idleness = ShardedIdlenessClients(self.world, self._client, lambda: self.in_phase)
            return self._idleness.jobs()
        self._topics = ShardedTopicClients(self.world, self._client, lambda: self.in_phase)
        return self._topics.jobs()

    async def _come_to_rest(self) -> None:
        await super()._come_to_rest()
        if self._topics is not None:
            await self._topics.drain()
            self.world.stale += self._topics.problems()
        if self._idleness is not None:
            self.world.stale += self._idleness.problems()


def run(seed: int) -> Outcome:
    """Run one seed."""
    scenario = ShardedScenario(seed)
    world = ShardedWorld(seed, scenario.all_queues, scenario.stores)
    return play(scenario, world, NOT_ASKED | TURNS, ShardedRun)
