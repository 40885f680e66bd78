"""Queues that are spread over the stores of a shared catalog: created, changed and deleted by all owners (0029).

No server asks another one to do something. The catalog says what there should be, and every server sees to the shards
that lie in its own stores whenever it has read the catalog again, or got a store: a shard that is an intent is made,
one whose queue is gone is deleted, one whose queue has other properties takes these on. So every step can be done
again, and whatever a server leaves half done when it dies, the next owner of the store finishes (I31).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from duobus.broker.delivery.credit_scheduler import Receiver
from duobus.broker.entities.bulk_creation import differences
from duobus.broker.entities.destination import check_targets
from duobus.broker.entities.queue import Queue
from duobus.broker.fragment_handle import FragmentHandle
from duobus.cluster.shards import SHARDED, assign_shards
from duobus.errors import (
    EntityAlreadyExists,
    NotImplementedYet,
    ServerBusy,
    ServiceBusError,
    StoreFailed,
    StoreUnavailable,
)
from duobus.fragment.message import NEVER, QueuedMessage
from duobus.model.address import shard_path, sharded_queue_of
from duobus.model.batches import Mailbox, Refusal, SendBatch
from duobus.model.descriptions import QUEUE, QueueDescription, check_queue_update, from_json, to_json
from duobus.model.tiers import Profile
from duobus.storage.catalog_rows import DELETING, INTENT, LIVE, EntityRow, SlotRow

if TYPE_CHECKING:
    from duobus.broker.entities.namespace import Namespace
    from duobus.cluster.directory import Directory
    from duobus.cluster.scale_unit import ClusteredScaleUnit


class ShardedQueue(Queue):
    """A sharded queue, as every server knows it: its name and properties. What is in it, its shards know."""

    __slots__ = ("slots",)

    is_sharded = True

    def __init__(self, entity_id: int, namespace: str, description: QueueDescription, slots: int) -> None:
        """``slots``: how many fragments its shards have together."""
        super().__init__(entity_id, namespace, description, ())
        self.slots = slots

    @property
    def partitions(self) -> int:
        """See Queue."""
        return self.slots

    @property
    def is_partitioned(self) -> bool:
        """See Queue."""
        return True

    def send(self, batch: SendBatch) -> None:
        """Refuse: messages go to the shards."""
        batch.reply.ready.append(Refusal(batch, None, self._elsewhere()))
        batch.reply.wake()

    def open_receiver(self, sub_queue: int, mailbox: Mailbox, *, removing: bool) -> Receiver:
        """Refuse: the shards have what there is."""
        raise self._elsewhere()

    async def peek(
        self,
        sub_queue: int,
        first_number: int,
        limit: int,
        size: int = NEVER,
        session_id: str | None = None,
        partition_key: str | None = None,
    ) -> list[tuple[FragmentHandle, QueuedMessage]]:
        """Refuse likewise."""
        raise self._elsewhere()

    def find_lock(self, token: bytes) -> tuple[FragmentHandle, bytes, int]:
        """Refuse likewise."""
        raise self._elsewhere()

    def _elsewhere(self) -> NotImplementedYet:
        return NotImplementedYet(
            f"'{self.path}' is spread over several servers: send to it, receive and look over AMQP."
        )


class ShardedQueues:
    """The sharded queues, and their shards in the stores of this server.

    Attributes:
        is_understood: Whether every server that is alive knows all that a sharded queue can have (decision 0066). As
            long as one does not, a partitioned queue is laid into one store.
    """

    def __init__(self, unit: ClusteredScaleUnit) -> None:
        self.is_understood: Callable[[], bool] = lambda: False
        self._unit = unit

    # -- what clients ask for -----------------------------------------------------------------------------------

    def takes(self, about: QueueDescription) -> bool:
        """Whether a new queue is to be laid over all stores."""
        are_several = len(self._unit.directory.contents.stores) > 1
        return about.enable_partitioning and are_several and not self.in_one_store(about)

    def in_one_store(self, about: QueueDescription) -> str:
        """Why a new partitioned queue is to lie in one store; empty when nothing speaks for it."""
        if not about.enable_partitioning:
            return ""
        if about.auto_delete_on_idle_ms:
            return "it has AutoDeleteOnIdle, which is not offered over several stores"
        return "" if self.is_understood() else "a server of an earlier version is in the cluster"

    async def create(self, home: Namespace, about: QueueDescription, *, demand_targets: bool = True) -> Queue:
        """Record a queue and its shards; each is made by the owner of its store.

        ``demand_targets``: see ``ScaleUnit.create_queue``.

        Raises:
            EntityAlreadyExists: The name is taken.
            QuotaExceeded: The namespace has as many entities as it may.
            StoreFailed: The catalog is lost; what was recorded is undone by the next owner of the store of this name.
            StoreUnavailable: That store is not here.
        """
        unit, catalog = self._unit, self._unit.catalog
        if home.is_taken(about.name):
            raise EntityAlreadyExists(f"The entity '{about.name}' exists already. Choose another name.")
        store_id = unit.directory.store_for_new(home.name, about.name.lower())
        if store_id is None or store_id not in unit.brokers:
            raise StoreUnavailable(f"'{about.name}' is created by another server from now on. Try again.")
        unit.demand_room(home, about.name, is_partitioned=True)
        if demand_targets:
            check_targets(home, about)
        entity_id = catalog.begin_create(home.name, SHARDED, about.name, to_json(about), (SlotRow(0, 0, store_id),))
        stores = sorted(row.store_id for row in unit.directory.contents.stores)
        try:
            for index, slots in enumerate(assign_shards(unit.partitions, stores, entity_id % len(stores))):
                share = _of_shard(about, shard_path(about.name, index + 1))
                catalog.begin_create(home.name, QUEUE, share.name, to_json(share), slots)
            catalog.mark_live(entity_id)
        except (StoreFailed, ServiceBusError):
            catalog.begin_delete(entity_id)
            raise
        queue = home.queues[about.name.lower()] = ShardedQueue(entity_id, home.name, about, unit.partitions)
        await unit.read_again()
        return queue

    def update(self, queue: Queue, wanted: QueueDescription, profile: Profile) -> Queue:
        """Change the properties of all of a queue; owners of its shards hear of it from the catalog.

        Raises:
            ArgumentInvalid, ArgumentOutOfRange: A property is wrong, or cannot be changed.
            NotImplementedYet: What is spread cannot have it.
            ServerBusy: The catalog is lost.
        """
        wanted = check_queue_update(queue.description, wanted, profile)
        if wanted.auto_delete_on_idle_ms:
            raise NotImplementedYet(
                f"'{queue.path}' lies in the stores of several servers: AutoDeleteOnIdle is not offered for it. Leave "
                "it out."
            )
        check_targets(self._unit.namespace(queue.namespace), wanted, queue.description)
        wanted = msgspec.structs.replace(wanted, updated_at_ms=self._unit.now_ms())
        try:
            self._unit.catalog.update_description(queue.entity_id, to_json(wanted))
        except StoreFailed as error:
            raise ServerBusy(f"The properties of '{queue.path}' cannot be changed now: {error}") from error
        queue.change(wanted)
        return queue

    async def delete(self, home: Namespace, key: str) -> None:
        """Delete a queue with everything in it: gone for clients at once, its shards as their owners hear of it."""
        queue = home.queues[key]
        self._unit.catalog.begin_delete(queue.entity_id)
        self._gone(home, key)
        await self._unit.read_again()

    # -- what the catalog says ----------------------------------------------------------------------------------

    async def see(self, directory: Directory, adopted: int | None = None) -> None:
        """Do for the stores that are open here what the catalog asks for; ``adopted``: one of them has just come."""
        self._know(directory)
        rows = directory.contents.entities
        wholes = {(row.namespace.lower(), row.path.lower()): row for row in rows if row.kind == SHARDED}
        left: set[tuple[str, str]] = set()
        for row in rows:
            whole = sharded_queue_of(row.path.lower()) if row.kind == QUEUE and row.slots else None
            if whole is None:
                continue
            place = (row.namespace.lower(), whole)
            left.add(place)
            broker = self._unit.brokers.get(row.slots[0].store_id)
            if broker is not None and broker.state == "open":
                try:
                    await self._see_to(row, wholes.get(place))
                except (StoreFailed, ServiceBusError) as error:
                    # The next look goes on with it.
                    self._unit.store_events(row.slots[0].store_id, "unfinished", f"'{row.path}': {error}")
        for place, row in wholes.items():
            if row.state == DELETING and place not in left:
                self._unit.catalog.finish_delete(row.entity_id)
            elif row.state == INTENT and row.slots[0].store_id == adopted:
                # Whoever has this store creates queues of this name: who had it before has not come to an end.
                self._unit.catalog.begin_delete(row.entity_id)

    def _know(self, directory: Directory) -> None:
        """Have the queues of the catalog under their names here, with their properties."""
        for (namespace, key), sharded_queue in directory.sharded.items():
            home = self._unit.namespace(namespace)
            about = from_json(sharded_queue.row.description, QueueDescription)
            kept = home.queues.get(key)
            if kept is None:
                home.queues[key] = ShardedQueue(sharded_queue.row.entity_id, home.name, about, sharded_queue.slots)
                self._unit.forwarding.entity_changed(about.name)
            elif isinstance(kept, ShardedQueue):
                # The catalog may have been read while another server was still recording its shards.
                kept.slots = sharded_queue.slots
                if differences(kept.description, about):
                    kept.change(about)
        for home in self._unit.namespaces.values():
            for key, queue in list(home.queues.items()):
                if isinstance(queue, ShardedQueue) and (home.name.lower(), key) not in directory.sharded:
                    self._gone(home, key)

    def _gone(self, home: Namespace, key: str) -> None:
        queue = home.queues.pop(key, None)
        if queue is not None:
            queue.is_deleted = True
            self._unit.notify(queue)

    async def _see_to(self, row: EntityRow, whole: EntityRow | None) -> None:
        """Make, change or delete one shard in a store of this server."""
        unit = self._unit
        home, key = unit.namespace(row.namespace), row.path.lower()
        share = home.queues.get(key)
        if whole is None or whole.state == DELETING:
            if share is not None:
                await unit.delete_queue(home.name, key)
            elif row.state == INTENT:
                unit.catalog.begin_delete(row.entity_id)
                unit.catalog.finish_delete(row.entity_id)
        elif whole.state == LIVE and share is None and row.state == INTENT:
            await unit.resume(row)
        elif whole.state == LIVE and share is not None:
            about = from_json(whole.description, QueueDescription)
            about = _of_shard(about, share.path)
            if differences(share.description, about):
                unit.catalog.update_description(row.entity_id, to_json(about))
                share.change(about)
                unit.idle_watch.begin(share)
                unit.forwarding.begin(share)
                unit.notify(share)


def _of_shard(about: QueueDescription, path: str) -> QueueDescription:
    """The properties of a shard: those of its queue. The access rules every server knows by the queue itself."""
    return msgspec.structs.replace(about, name=path, authorization_rules=())
