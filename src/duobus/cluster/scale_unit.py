"""A scale unit whose stores come and go: one of several servers that share a catalog (decision 0024)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from duobus.broker import fragment_host
from duobus.broker.entities.namespace import Namespace
from duobus.broker.entities.queue import Queue
from duobus.broker.entities.topic import Subscription, Topic
from duobus.broker.message_broker import MessageBroker
from duobus.broker.protocols import LateRefusal
from duobus.broker.scale_unit import ScaleUnit
from duobus.clock import BrokerTime, Clock
from duobus.cluster.directory import Directory, subscriptions_of
from duobus.cluster.forwarding.receiver import ForwardReceiver
from duobus.cluster.forwarding.sender import RemoteForwarder
from duobus.cluster.moves.coordinator import ClusterMoves
from duobus.cluster.moves.copies import IncomingCopies
from duobus.cluster.sharding.entities import ShardedEntities, is_shard_to_make
from duobus.cluster.sharding.idle import ToldIdle
from duobus.cluster.sharding.topics import ShardedTopicLife
from duobus.errors import StoreFailed, StoreForeign, StoreUnavailable
from duobus.model.descriptions import QUEUE, SUBSCRIPTION, TOPIC, QueueDescription, TopicDescription
from duobus.model.quotas import Quotas
from duobus.model.tiers import CLOUD, Profile
from duobus.storage.catalog_rows import INTENT, LIVE, CatalogContents, EntityRow, SlotRow
from duobus.storage.interface import StoreContents, Tombstone

if TYPE_CHECKING:
    from duobus.storage.catalog.interface import Catalog

#: For how long clients may still send after their credit is taken back, and how long what was taken may take to be
#: stored, in seconds. What takes longer is not answered: its clients are detached and send it again.
LAST_SENDS_S: Final = 0.02
FINISH_S: Final = 1.0
#: For how long a store that moves waits for receivers to settle what they hold, in seconds, and how often it looks.
#: Their locks end with the move, and until then nobody gets anything new.
SETTLE_S: Final = 0.5
_SETTLE_LOOK_S: Final = 0.02


class LeasedTime(BrokerTime):
    """Broker time for one store, which stands still where its lease ends.

    Whatever a message broker decides begins with a look at the time. A process that was stopped and goes on behind the
    end of its lease meets this first, whichever event comes first: nothing is locked, delivered or released (I55).

    Args:
        inner: Broker time.
        clock: Whose monotonic time leases are counted on.
        ends_ms: Until when the lease lasts, there.
    """

    __slots__ = ("_ends_ms", "_inner", "_leased_clock")

    def __init__(self, inner: BrokerTime, clock: Clock, ends_ms: Callable[[], int]) -> None:
        super().__init__(clock)
        self._inner = inner
        self._leased_clock = clock
        self._ends_ms = ends_ms

    @property
    def has_ended(self) -> bool:
        """See BrokerTime."""
        return self._leased_clock.monotonic_ms() >= self._ends_ms()

    def raise_to(self, committed_ms: int) -> None:
        """See BrokerTime."""
        self._inner.raise_to(committed_ms)

    def now_ms(self) -> int:
        """See BrokerTime.

        Raises:
            StoreUnavailable: The lease has ended.
        """
        if self.has_ended:
            raise StoreUnavailable("The lease of this messaging store has ended; another server has it. Try again.")
        return self._inner.now_ms()


class ClusteredScaleUnit(ScaleUnit):
    """The entities of those stores that this server owns now.

    Attributes:
        directory: Where all entities are.
        adopted: Stores that are served here, with everything in them.
        remote, receiver: What is forwarded to entities of other servers, and from these.
        copies: What is brought into the stores here of fragments that move.
        entity_moves: Its own moves of entities, and what the catalog asks for because of others'.
        absent: Numbers of entities that the catalog may say are here and that nobody can use here at this moment.
        sharded_entities: What is spread over all stores.
    """

    def __init__(
        self,
        catalog: Catalog,
        log: Callable[[int, str, str], None],
        quotas: Quotas,
        new_id: Callable[[], uuid.UUID],
        time: BrokerTime,
    ) -> None:
        super().__init__(catalog, log, quotas, new_id)
        self.directory = Directory(CatalogContents((), (), ()))
        # Called whenever the catalog was read again, at once.
        self.seen: Callable[[Directory], None] = lambda directory: None
        self.adopted: set[int] = set()
        self.receiver = ForwardReceiver(self, self._is_adopted)
        self.remote = RemoteForwarder(self.receiver, lambda: self.directory)
        self.forwarding.remote_entities = self.remote
        self.sharded_entities = ShardedEntities(self)
        self.topics = ShardedTopicLife(self, self.sharded_entities)
        self.copies = IncomingCopies(self)
        self.absent: set[int] = set()
        self.moves = self.entity_moves = ClusterMoves(self)
        # What other servers did meanwhile is known to nobody here, so that a clock that is ahead cannot be told; and to
        # start again with the first store that comes would set back what locks of others were given by.
        time.is_begun = True
        self._time = time
        self._adopting = asyncio.Lock()

    @property
    def time(self) -> BrokerTime:
        """What gives broker time, also while no store is here."""
        return self._time

    def _is_adopted(self, entity_id: int) -> bool:
        return self.directory.store_of_id(entity_id) in self.adopted and entity_id not in self.absent

    def namespace(self, name: str) -> Namespace:
        """See ScaleUnit; others have entities of it, too."""
        home = super().namespace(name)
        home.is_shared = True
        home.remote_entities = self.remote
        return home

    async def stop(self) -> None:
        """See ScaleUnit."""
        self.remote.stop()
        await super().stop()

    # -- coming and going ---------------------------------------------------------------------------------------

    async def adopt(self, broker: MessageBroker, directory: Directory) -> None:
        """Open a store whose lease this server has got, and serve what lives in it.

        Raises:
            StoreFailed, StoreUnavailable: It cannot be opened; nothing is served of it.
        """
        async with self._adopting:
            rows = self.sharded_entities.as_wanted(directory.entities_of(broker.store_id), directory)
            self.brokers[broker.store_id] = broker
            self.catalog.mark.see(directory.contents)
            broker.store.mark = self.catalog.mark
            self.entity_moves.give_up(directory.contents, broker.store_id)
            try:
                for space in directory.contents.namespaces:
                    self.namespace(space.name)
                queues = [row for row in rows if row.kind == QUEUE]
                for row in queues:
                    if row.state in (LIVE, INTENT):
                        self._add_queue(row)
                self.topics.found(rows)
                self.sharded_entities.idleness.adopted(self._of(broker.store_id), directory)
                await broker.open()
                self._forget_deleted(broker.store_id)
                for row in queues:
                    await self._resume(row)
                # A shard that is an intent is made below, with the subscriptions that the topic is to have by now.
                await self.topics.resume(
                    [row for row in rows if row.kind in (TOPIC, SUBSCRIPTION) and not is_shard_to_make(row)]
                )
                for queue in self._of(broker.store_id):
                    self._begin(queue)
            except BaseException:
                self.drop(broker.store_id, "it could not be opened")
                raise
            if self.brokers.get(broker.store_id) is broker:
                # It was not lost while it was opened.
                self.adopted.add(broker.store_id)
            newest = self._newer(directory)
            await self.entity_moves.settle(newest.contents)
            await self.sharded_entities.see(newest, broker.store_id)

    def is_opening(self, store_id: int) -> bool:
        """Whether a store is this server's, and not all of it can be used yet."""
        return store_id in self.brokers and store_id not in self.adopted

    def _forget_deleted(self, store_id: int) -> None:
        """Take away subscriptions that a store has no more: the server before has deleted them.

        While the catalog is away, what is known of it may be older than the store.
        """
        for queue in self._of(store_id):
            parts = queue.fragments
            if isinstance(queue, Subscription) and any(
                part.fragment is not None and queue.source_no not in part.fragment.sources for part in parts
            ):
                queue.topic.detach(queue)
                for part in parts:
                    fragment_host.forget_source(part, queue.source_no)

    def demand_own(self, broker: MessageBroker, contents: StoreContents) -> None:
        """See Watcher; another server may have changed the catalog, and told the store, after it was read here."""
        try:
            super().demand_own(broker, contents)
        except StoreForeign:
            self.catalog.read()
            super().demand_own(broker, contents)

    def store_opened(self, broker: MessageBroker, contents: StoreContents) -> None:
        """See ScaleUnit; what could not be done in the store while it was away is done now."""
        super().store_opened(broker, contents)
        if broker.store_id in self.adopted:
            task = asyncio.get_running_loop().create_task(self.see(self.directory), name="see-again")
            self._deletions.add(task)
            task.add_done_callback(self._deletions.discard)

    def _note_generation(self, broker: MessageBroker) -> None:
        """Do nothing: a database that has failed over may have lost the last one, and others may have had the store."""

    def drop(self, store_id: int, why: str) -> MessageBroker | None:
        """Serve a store no more, from this moment: its memory is gone, links of its entities are detached."""
        self.adopted.discard(store_id)
        broker = self.brokers.pop(store_id, None)
        if broker is None:
            return None
        for queue in list(self._of_broker(broker)):
            self._let_go(queue)
        # Not to be opened again: whoever wants it back makes a message broker of its own.
        broker.lifecycle.fail_for_good(StoreFailed(why))
        self.memory_room.left(store_id)
        for in_flight, group in self.forwarding.stranded(broker):
            self.remote.submit(in_flight, group, is_in_doubt=True)
        return broker

    async def leave(self, store_id: int, why: str) -> MessageBroker | None:
        """Serve a store no more, in good order: what was taken is committed and answered first."""
        broker = self.brokers.get(store_id)
        if broker is not None:
            await self._take_leave(self._of_broker(broker), broker)
        return self.drop(store_id, why)

    async def take_leave(self, entity_id: int) -> None:
        """An entity is about to move: clients are to settle what they hold, and what was taken is committed."""
        leaving = self._of_entity(entity_id)
        if leaving:
            await self._take_leave(leaving, leaving[0].fragments[0].broker)

    async def _take_leave(self, leaving: list[Queue], broker: MessageBroker) -> None:
        for queue in leaving:
            queue.is_leaving = True
            for scheduler in queue.schedulers.values():
                scheduler.is_paused = True
            self.notify(queue)
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                # What clients sent before they learn of it is still on its way here.
                await asyncio.sleep(LAST_SENDS_S)
                await self._await_settlements(leaving)
                await broker.finish()

    async def _await_settlements(self, holding: list[Queue]) -> None:
        """Wait until nobody holds a locked message of these, for a while."""
        for _ in range(round(SETTLE_S / _SETTLE_LOOK_S)):
            holding = [queue for queue in holding if queue.locked()]
            if not holding:
                return
            await asyncio.sleep(_SETTLE_LOOK_S)

    def _of(self, store_id: int) -> list[Queue]:
        broker = self.brokers.get(store_id)
        return [] if broker is None else self._of_broker(broker)

    def _of_broker(self, broker: MessageBroker) -> list[Queue]:
        return [queue for queue in self._queues() if queue.fragments and queue.fragments[0].broker is broker]

    def _delete_idle(self, queue: Queue) -> None:
        if queue.is_shard:
            self.sharded_entities.idleness.tell(queue)
        else:
            super()._delete_idle(queue)

    def _of_entity(self, entity_id: int) -> list[Queue]:
        """A queue, or a topic with its subscriptions."""
        return [queue for queue in self._queues() if queue.fragments and queue.fragments[0].entity_id == entity_id]

    def let_go(self, entity_id: int) -> None:
        """Serve an entity here no more: its links are detached, and attach again where it is."""
        for queue in self._of_entity(entity_id):
            self._let_go(queue)

    def has(self, row: EntityRow) -> bool:
        """Whether a queue or topic of the catalog is served here."""
        home = self.namespaces.get(row.namespace.lower())
        key = row.path.lower()
        found = None if home is None else home.queues.get(key) or home.topics.get(key)
        return found is not None and found.entity_id == row.entity_id

    def plan_entity(self, row: EntityRow, contents: CatalogContents) -> None:
        """Have what came into a store of this server by a move under its name; its fragments are brought in next."""
        if row.kind == QUEUE:
            self._add_queue(row)
        else:
            self.topics.found([row, *subscriptions_of(row, contents.entities)])
        self.sharded_entities.idleness.adopted(self._of_entity(row.entity_id), Directory(contents))

    async def begin_entity(self, row: EntityRow, contents: CatalogContents) -> None:
        """Its fragments are there: do what goes on in it by itself."""
        if row.kind == TOPIC:
            await self.topics.resume(subscriptions_of(row, contents.entities))
        for queue in self._of_entity(row.entity_id):
            self._begin(queue)
            self.notify(queue)

    def _begin(self, queue: Queue) -> None:
        """Do what goes on by itself in what is served here."""
        if not isinstance(queue.idle, ToldIdle):
            self.idle_watch.begin(queue)
        self.forwarding.begin(queue, queue.source_no)

    def _let_go(self, queue: Queue) -> None:
        home = self.namespace(queue.namespace)
        if isinstance(queue, Topic):
            home.topics.pop(queue.path.lower(), None)
        elif not isinstance(queue, Subscription):
            home.queues.pop(queue.path.lower(), None)
        queue.has_moved = True
        queue.idle = None
        self.forwarding.end(queue, queue.source_no)
        self.notify(queue)

    # -- sharded queues ---------------------------------------------------------------------------------

    async def see(self, directory: Directory) -> None:
        """The catalog was read again: know where everything is, and do what is asked of the stores here."""
        if self._newer(directory) is not directory:
            # Somebody else has read it meanwhile, and acts on that.
            return
        if directory.contents.revision >= self.catalog.mark.revision:
            # From the moment at which clients are led here they find either the entity or that it is not there yet.
            self.absent |= self.entity_moves.missing(directory.contents)
        self.directory = directory
        # What other servers have created, this one may be about to make in its stores.
        self.catalog.mark.see(directory.contents)
        self.seen(directory)
        # Every server has all relays.
        self.relays.refresh(row for row in directory.contents.entities if row.state == LIVE)
        async with self._adopting:
            newest = self._newer(directory)
            await self.entity_moves.settle(newest.contents)
            await self.sharded_entities.see(newest)

    def _newer(self, directory: Directory) -> Directory:
        """What was read of the catalog last, by whoever did: what is older may lack what was done here since."""
        return self.directory if directory.contents.revision < self.directory.contents.revision else directory

    async def read_again(self) -> None:
        """Read the catalog, and act on it."""
        await self.see(Directory(self.catalog.read()))

    async def resume_queue(self, row: EntityRow) -> None:
        """Make a queue that the catalog has as an intent."""
        await self._resume(row)
        queue = self.namespace(row.namespace).queues.get(row.path.lower())
        if queue is not None:
            self.idle_watch.begin(queue)
            self.forwarding.begin(queue)

    def demand_room(self, home: Namespace, name: str, *, is_partitioned: bool) -> None:
        """Raise QuotaExceeded when the namespace has as many entities as it may."""
        self._demand_room(home, name, is_partitioned=is_partitioned)

    async def create_queue(
        self, namespace: str, description: QueueDescription, *, demand_targets: bool = True
    ) -> Queue:
        """See ScaleUnit."""
        if self.sharded_entities.takes(description):
            home = self.namespace(namespace)
            return await self.sharded_entities.create_queue(home, description, demand_targets=demand_targets)
        queue = await super().create_queue(namespace, description, demand_targets=demand_targets)
        self.report_one_store(queue, description)
        return queue

    def report_one_store(self, entity: Queue, about: QueueDescription | TopicDescription) -> None:
        """Log why a partitioned entity lies in one store."""
        why = self.sharded_entities.in_one_store(about)
        if why:
            place = entity.fragments[0].store.store_id
            self.store_events(place, f"has all of a {entity.kind}", f"'{entity.path}': {why}")

    async def update_queue(self, namespace: str, description: QueueDescription, *, profile: Profile = CLOUD) -> Queue:
        """See ScaleUnit."""
        queue = self.namespace(namespace).queues.get(description.name.lower())
        if queue is not None and queue.is_sharded:
            return await self.sharded_entities.update_queue(queue, description, profile)
        return await super().update_queue(namespace, description, profile=profile)

    async def delete_queue(self, namespace: str, path: str) -> None:
        """See ScaleUnit."""
        home = self.namespace(namespace)
        queue = home.queues.get(path.lower())
        if queue is not None and queue.is_sharded:
            await self.sharded_entities.delete(home, queue)
        else:
            await super().delete_queue(namespace, path)

    # -- what is otherwise with an owner ------------------------------------------------------------------------

    def place(self, home: Namespace, name: str, *, is_partitioned: bool) -> tuple[SlotRow, ...]:
        """Where the fragments of a new entity belong: all in one store, which its name picks.

        Raises:
            QuotaExceeded: The namespace has as many entities as it may.
            StoreUnavailable: The store is not here.
        """
        self._demand_room(home, name, is_partitioned=is_partitioned)
        store_id = self.directory.store_for_new(home.name, name.lower())
        broker = None if store_id is None else self.brokers.get(store_id)
        if store_id is None or broker is None or broker.state != "open":
            raise StoreUnavailable(
                f"Messaging store {store_id}, where '{name}' belongs, moves between servers. Try again soon."
            )
        count = self.partitions if is_partitioned else 1
        return tuple(SlotRow(slot, slot, store_id) for slot in range(count))

    def store_failed(self, broker: MessageBroker, error: BaseException) -> None:
        """See ScaleUnit; what moves to another server has not failed."""
        if self.brokers.get(broker.store_id) is broker:
            super().store_failed(broker, error)

    def tombstones_lost(self, tombstones: list[tuple[Tombstone, LateRefusal]]) -> None:
        """Keep them until the store itself is back here; where it moves away, its clients are detached unanswered.

        Another store could not tell the next owner in time: it may have an owner of its own.
        """
        for tombstone, refusal in tombstones:
            if tombstone.store_id in self.brokers:
                self._homeless.append((tombstone, refusal))
            else:
                # Given to links that are detached: they count it, and tell nobody.
                refusal.settled(tombstone)
