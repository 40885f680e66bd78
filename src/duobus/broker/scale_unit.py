"""ScaleUnit: one server process: its message brokers, its namespaces, and what concerns several of them.

It creates entities (intent in the catalog, rows in the stores, live in the catalog; resumed after a crash, I31),
and finds another place for runs whose store failed (I27).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from duobus.broker.destination import check_targets
from duobus.broker.differences import differences
from duobus.broker.forwarding import Forwarding
from duobus.broker.founding import create_fragments, plans_of
from duobus.broker.fragment.commands import Run
from duobus.broker.fragment.fragment import Fragment
from duobus.broker.handle import FragmentHandle
from duobus.broker.idle import IdleWatch
from duobus.broker.message_broker import MessageBroker
from duobus.broker.moves import Moves
from duobus.broker.namespace import Namespace
from duobus.broker.ports import LateRefusal
from duobus.broker.queue import COUNT_BITS, Queue
from duobus.broker.shares import whole_of
from duobus.broker.topic import Subscription, Topic
from duobus.broker.topic_life import TopicLife
from duobus.clock import Entropy
from duobus.errors import (
    EntityAlreadyExists,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    StoreFailed,
    StoreUnavailable,
)
from duobus.model.address import not_found
from duobus.model.description import (
    CLOUD,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Profile,
    QueueDescription,
    check_queue_update,
    from_json,
    to_json,
)
from duobus.model.quotas import Quotas
from duobus.stores.catalog import LIVE, CatalogContents, EntityRow, SlotRow
from duobus.stores.interface import StoreContents, Tombstone

if TYPE_CHECKING:
    from duobus.stores.catalog import Catalog

#: Fragments of a partitioned entity in the Standard profile (PE8).
FRAGMENTS_STANDARD = 16
#: Damaged messages that one line of the log names.
QUARANTINED_SHOWN = 20


class ScaleUnit:
    """Everything one server process hosts.

    Attributes:
        brokers: Store id to message broker.
        namespaces: Lower-case name to namespace; the first is the default one.
        quotas: What there may be at most.
        forwarding: What goes from one entity to another.
        catalog: Of all entities.
        idle_watch: Finds those that nobody uses.
        moves: Of fragments from one store to another.
        topics: Makes, changes and deletes topics and what belongs to them.
        new_id: Gives ``newid()`` of rules its values.
        partitions: Fragments of a partitioned entity that is created from now on.
        store_events: What happened to stores, for the log: called with (store id, "opened" or "failed", why).
    """

    def __init__(
        self,
        catalog: Catalog,
        log: Callable[[int, str, str], None],
        quotas: Quotas | None = None,
        new_id: Callable[[], uuid.UUID] | None = None,
    ) -> None:
        self.brokers: dict[int, MessageBroker] = {}
        self.namespaces: dict[str, Namespace] = {}
        self.store_events = log
        self.quotas = quotas or Quotas()
        self.partitions = FRAGMENTS_STANDARD
        self.forwarding = Forwarding(self.namespace)
        self.catalog = catalog
        self._tombstones: dict[int, list[Tombstone]] = {}
        # Tombstones for which no store is there, with the refusals that wait for them.
        self._homeless: list[tuple[Tombstone, LateRefusal]] = []
        self._followers: list[Callable[[Queue], None]] = []
        self.idle_watch = IdleWatch(self._queues, self.now_ms, self._delete_idle)
        self.moves = Moves(self)
        self.topics = TopicLife(self)
        self.new_id: Callable[[], uuid.UUID] = new_id or Entropy().uuid
        self._deletions: set[asyncio.Task[None]] = set()
        # Entities that are gone for clients, of which a store that failed still holds something.
        self._unfinished: list[Queue] = []

    # -- start and stop -----------------------------------------------------------------------------------------

    async def start(self, contents: CatalogContents) -> None:
        """Open every store and recover what lives there; a store that does not open is retried in the background.

        ``brokers`` must be complete and ``contents`` be what the catalog held.
        """
        for space in contents.namespaces:
            self.namespace(space.name)
        entities = [row for row in contents.entities if row.kind == QUEUE]
        self.topics.found(contents.entities)
        for row in contents.entities:
            if row.kind not in (QUEUE, TOPIC, SUBSCRIPTION):
                self.namespace(row.namespace).unbuilt[row.path.lower()] = row.kind
        for row in entities:
            if row.state in (LIVE, "intent"):
                self._add_queue(row)
        await self._open_stores()
        await self.moves.resume(contents.moves)
        for row in entities:
            await self._resume(row)
        await self.topics.resume([row for row in contents.entities if row.kind in (TOPIC, SUBSCRIPTION)])
        for queue in self._queues():
            self.idle_watch.begin(queue)
            self.forwarding.begin(queue, queue.source_no)

    async def _open_stores(self) -> None:
        """All stores are opened before any is recovered: a tombstone may lie in any of the others."""
        opened: dict[int, StoreContents] = {}
        for store_id, broker in self.brokers.items():
            try:
                found = await broker.call(broker.store.open)
            except StoreFailed as error:
                self.store_failed(broker, error)
                broker.reopen_later(error)
                continue
            opened[store_id] = found
            broker.raise_time(found.broker_ms)
            for stone in found.tombstones:
                self._tombstones.setdefault(stone.store_id, []).append(stone)
        for store_id, found in opened.items():
            broker = self.brokers[store_id]
            try:
                await broker.recover(found)
            except StoreFailed as error:
                self.store_failed(broker, error)
                broker.reopen_later(error)

    async def stop(self) -> None:
        """Finish what waits and close every store."""
        self.idle_watch.stop()
        self.forwarding.stop()
        await self.moves.stop()
        await asyncio.gather(*self._deletions)
        await asyncio.gather(*(broker.close() for broker in self.brokers.values()))

    # -- entities -----------------------------------------------------------------------------------------------

    def namespace(self, name: str) -> Namespace:
        """The namespace of this name, made when there is none."""
        return self.namespaces.setdefault(name.lower(), Namespace(name))

    async def drop_namespace(self, name: str) -> None:
        """Delete everything in a namespace and forget it; one that does not exist is no error.

        Raises:
            StoreUnavailable: A store that holds part of it is away; it goes on with the next call.
        """
        home = self.namespaces.get(name.lower())
        if home is None:
            return
        for path in list(home.queues):
            await self.delete_queue(home.name, path)
        for path in list(home.topics):
            await self.topics.delete_topic(home.name, path)
        del self.namespaces[name.lower()]

    async def time_moved(self) -> None:
        """Broker time has jumped ahead: do what is due by now and return when it is stored (only tests do that)."""
        for broker in self.brokers.values():
            broker.time_moved()
        self.idle_watch.look()
        await asyncio.gather(*self._deletions)
        await asyncio.gather(*(broker.finish() for broker in self.brokers.values()))

    async def create_queue(
        self, namespace: str, description: QueueDescription, *, demand_targets: bool = True
    ) -> Queue:
        """Create a queue and return it once it is live.

        ``demand_targets``: what it forwards to has to exist; a configuration may name what comes later in it.

        Raises:
            ArgumentInvalid: What it forwards to does not exist.
            EntityAlreadyExists: The name is taken.
            QuotaExceeded: The namespace has as many entities as it may.
            StoreUnavailable: A store that would hold part of it is away. The intent is undone at the next start.
        """
        home = self.namespace(namespace)
        key = description.name.lower()
        if home.is_taken(key):
            raise EntityAlreadyExists(f"The entity '{description.name}' exists already. Choose another name.")
        if demand_targets:
            check_targets(home, description)
        slots = self.place(home, description.name, is_partitioned=description.enable_partitioning)
        encoded = to_json(description)
        entity_id = self.catalog.begin_create(home.name, QUEUE, description.name, encoded, slots)
        row = EntityRow(entity_id, home.name, QUEUE, description.name, encoded, "intent", len(slots), slots)
        queue = self.make_queue(row)
        try:
            await create_fragments(plans_of(queue))
        except (StoreFailed, ServiceBusError) as error:
            self.catalog.begin_delete(entity_id)
            raise StoreUnavailable(f"The queue '{description.name}' could not be created: {error}") from error
        self.catalog.mark_live(entity_id)
        home.queues[key] = queue
        self.idle_watch.begin(queue)
        self.forwarding.begin(queue)
        return queue

    async def update_queue(self, namespace: str, description: QueueDescription, *, profile: Profile = CLOUD) -> Queue:
        """Change a queue's properties to ``description``; durable on return, and in force everywhere.

        Raises:
            EntityNotFound: There is no such queue.
            ArgumentInvalid, ArgumentOutOfRange: A property is wrong, or cannot be changed; nothing was.
            ServerBusy: The catalog is lost, or a store that holds part of it is away; nothing was changed.
        """
        home = self.namespace(namespace)
        queue = home.queues.get(description.name.lower())
        if queue is None:
            raise not_found(f"sb://{home.name}/{description.name}")
        wanted = check_queue_update(queue.description, description, profile)
        check_targets(home, wanted, queue.description)
        queue.demand_whole()
        wanted = msgspec.structs.replace(wanted, updated_at_ms=self.now_ms())
        try:
            self.catalog.update_description(queue.entity_id, to_json(wanted))
        except StoreFailed as error:
            raise ServerBusy(f"The properties of '{queue.path}' cannot be changed now: {error}") from error
        queue.change(wanted)
        self.idle_watch.begin(queue)
        self.forwarding.begin(queue)
        self.tell(queue)
        return queue

    def follow(self, follower: Callable[[Queue], None]) -> None:
        """Have ``follower`` called with every queue that has changed or is deleted, at once."""
        self._followers.append(follower)

    def unfollow(self, follower: Callable[[Queue], None]) -> None:
        """Call it no more."""
        if follower in self._followers:
            self._followers.remove(follower)

    def tell(self, queue: Queue) -> None:
        """An entity has other properties, or is gone."""
        for follower in list(self._followers):
            follower(queue)

    def now_ms(self) -> int:
        """Broker time."""
        return next(iter(self.brokers.values())).now_ms()

    def _queues(self) -> Iterator[Queue]:
        for space in self.namespaces.values():
            yield from space.entities()

    def _delete_idle(self, queue: Queue) -> None:
        """Gone for clients at once, so that nobody can use it meanwhile; then from the stores."""
        try:
            if isinstance(queue, (Topic, Subscription)):
                self.topics.take_away(queue)
            else:
                self._take_away(queue)
        except StoreFailed as error:
            # The catalog is lost; it is looked at again when the time has passed once more.
            self.idle_watch.begin(queue)
            self.store_events(0, "unfinished", f"deletion of '{queue.path}': {error}")
            return
        minutes = (queue.description.auto_delete_on_idle_ms or 0) / 60_000
        self._clear_beside(queue, f"{queue.kind} '{queue.path}' was idle for {minutes:g} minutes (AutoDeleteOnIdle)")

    def _clear_beside(self, entity: Queue, why: str) -> None:
        """``clear`` an entity while everything else goes on."""
        task = asyncio.get_running_loop().create_task(self._try_to_clear(entity, why), name="delete-entity")
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    async def _try_to_clear(self, entity: Queue, why: str) -> None:
        try:
            await self.clear(entity)
        except (StoreFailed, ServiceBusError) as error:
            self.store_events(0, "unfinished", f"{why}; the rest is deleted when the store is back: {error}")
        else:
            self.store_events(0, "deleted", why)

    def place(self, home: Namespace, name: str, *, is_partitioned: bool) -> tuple[SlotRow, ...]:
        """Where the fragments of a new queue or topic belong.

        Raises:
            QuotaExceeded: The namespace has as many entities as it may.
            StoreUnavailable: A store is away.
        """
        self._demand_room(home, name, is_partitioned=is_partitioned)
        away = [broker for broker in self.brokers.values() if broker.state != "open"]
        if away:
            raise away[0].unavailable()
        store_ids = sorted(self.brokers)
        count = self.partitions if is_partitioned else 1
        # The first fragment of each entity starts one store further, so that plain entities spread too.
        offset = sum(len(space.queues) + len(space.topics) for space in self.namespaces.values())
        return tuple(SlotRow(slot, slot, store_ids[(offset + slot) % len(store_ids)]) for slot in range(count))

    def _demand_room(self, home: Namespace, name: str, *, is_partitioned: bool) -> None:
        kinds, limit, kind = len(home.queues) + len(home.topics) + len(home.unbuilt), self.quotas.entities, "entities"
        are_few = is_partitioned and self.partitions == FRAGMENTS_STANDARD
        if kinds < (min(limit, self.quotas.partitioned_entities) if are_few else limit):
            # To look at each of thousands for each that is created would take longer than to create it.
            return
        entities = [one for one in (*home.queues.values(), *home.topics.values()) if whole_of(one.path) is None]
        number = len(entities) + len(home.unbuilt)
        # Where every entity is partitioned, they are counted as entities (HTTP contract A.6.1).
        if number < limit and are_few:
            number = sum(entity.is_partitioned for entity in entities)
            limit, kind = self.quotas.partitioned_entities, "partitioned entities"
        if number >= limit:
            raise QuotaExceeded(
                f"The namespace '{home.name}' has {number} {kind} of at most {limit}, so '{name}' cannot "
                "be created. Delete some, or raise the quota (--quota)."
            )

    async def delete_queue(self, namespace: str, path: str) -> None:
        """Delete a queue with everything in it.

        Raises:
            StoreUnavailable: A store that holds part of it is away, and nothing was changed; or it failed on this, and
                the deletion is finished when it is back.
        """
        queue = self.namespace(namespace).queues[path.lower()]
        queue.demand_whole()
        self._take_away(queue)
        await self.clear(queue)

    async def clear(self, entity: Queue) -> None:
        """Delete what the stores hold of an entity that was taken away; what fails is tried when a store is back."""
        try:
            if isinstance(entity, (Topic, Subscription)):
                await self.topics.clear(entity)
            else:
                await self._clear(entity)
        except (StoreFailed, ServiceBusError):
            self._unfinished.append(entity)
            raise

    def _take_away(self, queue: Queue) -> None:
        """From now on the queue is gone for clients, also after a crash."""
        self.catalog.begin_delete(queue.entity_id)
        del self.namespace(queue.namespace).queues[queue.path.lower()]
        queue.is_deleted = True
        queue.idle = None
        self.forwarding.end(queue)
        self.tell(queue)

    async def _clear(self, queue: Queue) -> None:
        """Delete what the stores hold of a queue that was taken away."""
        for broker in {handle.broker.store_id: handle.broker for handle in queue.fragments}.values():
            await broker.drop_entity(queue.entity_id)
        self.catalog.finish_delete(queue.entity_id)

    def report_differences(self, entity: Queue, kept: msgspec.Struct, asked: msgspec.Struct) -> None:
        """Log in which properties an entity that exists differs from what a configuration asks for (design 6)."""
        names = differences(kept, asked)
        if names:
            self.store_events(0, "left alone", f"{entity.kind} '{entity.path}' differs in {', '.join(names)}")

    def _add_queue(self, row: EntityRow) -> None:
        queue = self.make_queue(row)
        if row.state == LIVE:
            self.namespace(row.namespace).queues[row.path.lower()] = queue
        for plan in plans_of(queue):
            plan.handle.broker.plans[row.entity_id, plan.handle.number] = plan

    def make_queue(self, row: EntityRow) -> Queue:
        """The queue of a row of the catalog; its fragments are not there yet."""
        description = from_json(row.description, QueueDescription)
        handles = [FragmentHandle(self.brokers[slot.store_id], row.entity_id, slot.fragment_no) for slot in row.slots]
        return Queue(row.entity_id, row.namespace, description, handles)

    async def _resume(self, row: EntityRow) -> None:
        """Finish what a crash left half done: a creation goes through, a deletion too."""
        try:
            if row.state == "intent":
                queue = self.make_queue(row)
                await create_fragments(plans_of(queue))
                self.catalog.mark_live(row.entity_id)
                self.namespace(row.namespace).queues[row.path.lower()] = queue
            elif row.state == "deleting":
                for store_id in {slot.store_id for slot in row.slots}:
                    await self.brokers[store_id].drop_entity(row.entity_id)
                self.catalog.finish_delete(row.entity_id)
        except (StoreFailed, StoreUnavailable) as error:
            # A store is away: the intent stays in the catalog for the next start.
            self.store_events(0, "unfinished", f"{row.state} of '{row.path}': {error}")

    # -- what message brokers report (Watcher) ------------------------------------------------------------------

    def store_opened(self, broker: MessageBroker, contents: StoreContents) -> None:
        """Log it, and see to the tombstones that waited for a store."""
        self.store_events(broker.store_id, "opened", f"generation {broker.generation}")
        self.forwarding.store_opened(broker)
        self.moves.store_opened()
        unfinished, self._unfinished = self._unfinished, []
        for entity in unfinished:
            self._clear_beside(entity, f"{entity.kind} '{entity.path}' had been deleted when a store failed")
        homeless, self._homeless = self._homeless, []
        for stone, refusal in homeless:
            if stone.store_id == broker.store_id:
                # Recovered without the run.
                refusal.settled(stone)
            else:
                broker.keep_tombstone(stone, refusal)

    def store_failed(self, broker: MessageBroker, error: BaseException) -> None:
        """Log it."""
        self.store_events(broker.store_id, "failed", str(error))

    def messages_missing(self, broker: MessageBroker, fragment: Fragment, number: int) -> None:
        """Log it: so many messages count no more."""
        self.store_events(broker.store_id, "lacks messages", f"{number} in {self._name_of(fragment)}")

    def messages_quarantined(self, broker: MessageBroker, found: list[tuple[Fragment | None, int, str]]) -> None:
        """Log them by sequence number, up to a length that a line can have."""
        rows = [
            f"{count if fragment is None else fragment.number << COUNT_BITS | count} in "
            f"{'an entity that is gone' if fragment is None else self._name_of(fragment)} ({fault})"
            for fragment, count, fault in found[:QUARANTINED_SHOWN]
        ]
        more = f", and {len(found) - len(rows)} more" if len(found) > len(rows) else ""
        self.store_events(broker.store_id, "quarantined messages", "sequence numbers " + ", ".join(rows) + more)

    def _name_of(self, fragment: Fragment) -> str:
        entity_id = getattr(fragment.handle, "entity_id", None)
        for space in self.namespaces.values():
            for queue in (*space.queues.values(), *space.topics.values()):
                if queue.entity_id == entity_id:
                    return f"'{space.name}/{queue.path}'"
        return f"entity {entity_id}"

    def run_lost(self, broker: MessageBroker, run: Run, stones: list[Tombstone]) -> None:
        """Send a keyless run elsewhere; answer a keyed one with its definite, retriable error (I28)."""
        for stone in stones:
            self._tombstones.setdefault(stone.store_id, []).append(stone)
        error: ServiceBusError = broker.unavailable()
        if run.placement is not None:
            try:
                handle = run.placement.keyless(run.batch.bytes_total)
            except StoreUnavailable as none_left:
                error = none_left
            else:
                again = Run(handle, run.source_no, run.batch, run.indices, run.placement)
                again.tombstones = run.tombstones + stones
                handle.broker.submit(again)
                return
        stones = run.tombstones + stones
        refusal = LateRefusal(run, stones, error)
        if stones:
            self.stones_unkept([(stone, refusal) for stone in stones])
        else:
            refusal.give()

    def stones_unkept(self, stones: list[tuple[Tombstone, LateRefusal]]) -> None:
        """A refused run must not appear later (I38), not even after a crash: another store is to remember that."""
        for stone, refusal in stones:
            for broker in self.brokers.values():
                if broker.state == "open" and broker.store_id != stone.store_id:
                    broker.keep_tombstone(stone, refusal)
                    break
            else:
                self._homeless.append((stone, refusal))

    def tombstones_of(self, store_id: int, generation: int) -> list[Tombstone]:
        """Those of exactly this life of the store; a later life has acted upon earlier ones already."""
        return [stone for stone in self._tombstones.get(store_id, []) if stone.generation == generation]

    def bury(self, store_id: int, generation: int) -> None:
        """Forget tombstones of that life and earlier ones, here and in the stores that hold them."""
        stones = self._tombstones.pop(store_id, [])
        if stones:
            for broker in self.brokers.values():
                if broker.store_id != store_id and broker.state == "open":
                    broker.bury(store_id, generation)
