"""ScaleUnit: one server process: its message brokers, its namespaces, and what concerns several of them.

It creates entities (intent in the catalog, rows in the stores, live in the catalog; resumed after a crash, I31),
and finds another place for runs whose store failed (I27).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from duobus.broker.entities.bulk_creation import (
    NotCreated,
    create_fragments,
    create_somewhere,
    differences,
    drop_from_stores,
    plans_of,
    withdrawn_path,
)
from duobus.broker.entities.catalog_records import RecordKeeping
from duobus.broker.entities.destination import check_targets
from duobus.broker.entities.idle_tracking import IdleDeletion
from duobus.broker.entities.namespace import Namespace
from duobus.broker.entities.queue import COUNT_BITS, Queue
from duobus.broker.entities.relay import HybridConnection, RelayLife
from duobus.broker.entities.topic import Subscription, Topic
from duobus.broker.entities.topic_management import TopicLife
from duobus.broker.forwarding.service import ForwardingService
from duobus.broker.fragment_handle import FragmentHandle
from duobus.broker.fragment_moves.coordinator import FragmentMoves
from duobus.broker.message_broker import MessageBroker
from duobus.broker.pager import MEMORY_BYTES_MAX, MemoryRoom
from duobus.broker.protocols import LateRefusal
from duobus.clock import BrokerTime, Entropy
from duobus.errors import (
    EntityAlreadyExists,
    QuotaExceeded,
    RowsExist,
    ServerBusy,
    ServiceBusError,
    StoreFailed,
    StoreForeign,
    StoreUnavailable,
)
from duobus.fragment.fragment import Fragment
from duobus.fragment.send import Rerun, Run
from duobus.model.address import not_found, sharded_entity_of
from duobus.model.assigned_ids import MessageIds
from duobus.model.descriptions import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    QueueDescription,
    check_queue_update,
    from_json,
    to_json,
)
from duobus.model.quotas import Quotas
from duobus.model.relay.description import RELAY
from duobus.model.tiers import CLOUD, Profile
from duobus.storage import catalog_identity as belonging
from duobus.storage.catalog_rows import LIVE, CatalogContents, EntityRow, SlotRow
from duobus.storage.interface import StoreContents, Tombstone
from duobus.storage.postgres.address import is_postgres
from duobus.storage.writer_pool import REFUSAL_S, RERUN_S

if TYPE_CHECKING:
    from duobus.storage.catalog.interface import Catalog

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
        relays: Makes, changes and deletes relays.
        new_id: Gives ``newid()`` of rules its values.
        message_ids: For messages that come without one.
        memory_room: What messages of all its stores may take in memory.
        partitions: Fragments of a partitioned entity that is created from now on.
        strays: Store id to the fragments, by entity id and number, that it has and the catalog does not know.
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
        self.memory_room = MemoryRoom(MEMORY_BYTES_MAX)
        self.forwarding = ForwardingService(self.namespace)
        self.catalog = catalog
        self.strays: dict[int, set[tuple[int, int]]] = {}
        # Those of stores in files: a database that has failed over may have lost the last ones, and is gone on with.
        self._generations: dict[int, int] = {}
        self._tombstones: dict[int, list[Tombstone]] = {}
        # Tombstones for which no store is there, with the refusals that wait for them.
        self._homeless: list[tuple[Tombstone, LateRefusal]] = []
        self._followers: list[Callable[[Queue], None]] = []
        self.idle_watch = IdleDeletion(self._queues, lambda: self.time, self._delete_idle)
        self.moves = FragmentMoves(self)
        self.topics = TopicLife(self)
        self.relays = RelayLife(self)
        self._records = RecordKeeping(catalog, self.brokers)
        self.new_id: Callable[[], uuid.UUID] = new_id or Entropy().uuid
        self.message_ids = MessageIds(self.new_id)
        self._deletions: set[asyncio.Task[None]] = set()
        # Entities that are gone for clients, of which a store that failed still holds something.
        self._unfinished: list[Queue] = []

    # -- start and stop -----------------------------------------------------------------------------------------

    async def start(self, contents: CatalogContents) -> None:
        """Open every store and recover what lives there; a store that does not open is retried in the background.

        ``brokers`` must be complete and ``contents`` be what the catalog held.

        Raises:
            StoreForeign: A store and the catalog do not belong together; nothing was changed.
        """
        self._generations = dict(contents.generations)
        for broker in self.brokers.values():
            broker.store.mark = self.catalog.mark
        for space in contents.namespaces:
            self.namespace(space.name)
        entities = [row for row in contents.entities if row.kind == QUEUE]
        self.topics.found(contents.entities)
        for row in contents.entities:
            if row.kind not in (QUEUE, TOPIC, SUBSCRIPTION, RELAY):
                self.namespace(row.namespace).unbuilt[row.path.lower()] = row.kind
        self.relays.found(contents.entities)
        for row in entities:
            if row.state in (LIVE, "intent"):
                self._add_queue(row)
        await self._open_stores(contents)
        await self.moves.resume(contents.moves)
        for row in entities:
            await self._resume(row)
        await self.topics.resume([row for row in contents.entities if row.kind in (TOPIC, SUBSCRIPTION)])
        for queue in self._queues():
            self.idle_watch.begin(queue)
            self.forwarding.begin(queue, queue.source_no)

    async def _open_stores(self, known: CatalogContents) -> None:
        """All stores are opened before any is recovered: a tombstone may lie in any of the others."""
        opened: dict[int, StoreContents] = {}
        for store_id, broker in self.brokers.items():
            try:
                found = await broker.call(broker.store.open)
                self.demand_own(broker, found)
                await self._records.begin(broker, known)
            except StoreForeign:
                # Before any of them was touched.
                raise
            except StoreFailed as error:
                self.store_failed(broker, error)
                broker.lifecycle.reopen_later(error)
                continue
            opened[store_id] = found
            for tombstone in found.tombstones:
                self._tombstones.setdefault(tombstone.store_id, []).append(tombstone)
        recorded_ms = max((found.broker_ms for found in opened.values()), default=0)
        for store_id in opened:
            # Before anything asks for the time: the clock may be wrong.
            self.brokers[store_id].begin_time(recorded_ms)
        for store_id, found in opened.items():
            broker = self.brokers[store_id]
            try:
                await broker.recover(found)
            except StoreFailed as error:
                self.store_failed(broker, error)
                broker.lifecycle.reopen_later(error)

    async def stop(self) -> None:
        """Finish what waits and close every store."""
        self.idle_watch.stop()
        self.forwarding.stop()
        await self.moves.stop()
        await asyncio.gather(*self._deletions)
        await self._records.stop()
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
        for path in list(home.relays):
            self.relays.delete(home.name, path)
        del self.namespaces[name.lower()]

    async def time_moved(self) -> None:
        """Broker time has jumped ahead: do what is due by now and return when it is stored (only tests do that)."""
        for broker in self.brokers.values():
            broker.time_moved()
        self.idle_watch.check()
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
            StoreUnavailable: No store that could hold it is there, or several failed on it one after the other.
        """
        home = self.namespace(namespace)
        key = description.name.lower()
        if home.is_taken(key):
            raise EntityAlreadyExists(f"The entity '{description.name}' exists already. Choose another name.")
        if demand_targets:
            check_targets(home, description)
        encoded = to_json(description)

        async def attempt() -> Queue:
            slots = self.place(home, description.name, is_partitioned=description.enable_partitioning)
            entity_id = self.catalog.begin_create(home.name, QUEUE, description.name, encoded, slots)
            row = EntityRow(entity_id, home.name, QUEUE, description.name, encoded, "intent", len(slots), slots)
            made = self.make_queue(row)
            try:
                await create_fragments(plans_of(made))
            except RowsExist:
                # To undo it would delete what is another's: the intent stays, and holds the name.
                raise
            except (StoreFailed, ServiceBusError) as error:
                self.withdraw(made)
                raise NotCreated(made, error) from error
            self.catalog.mark_live(entity_id)
            return made

        queue = await create_somewhere(attempt)
        home.queues[key] = queue
        self.report_left_out(queue)
        self.idle_watch.begin(queue)
        self.forwarding.begin(queue)
        return queue

    def withdraw(self, entity: Queue) -> None:
        """Undo a creation that a store has failed; what other stores have of it goes at once, the rest when it is back.

        Its name is free from now on, for another try elsewhere.
        """
        if isinstance(entity, (Topic, Subscription)):
            self.topics.withdraw(entity)
        else:
            self.catalog.withdraw(entity.entity_id, withdrawn_path(entity.path, entity.entity_id))
        self._clear_beside(entity, f"what there was of {entity.kind} '{entity.path}', which a store has failed on")

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
        queue.demand_all_online()
        wanted = msgspec.structs.replace(wanted, updated_at_ms=self.now_ms())
        try:
            self.catalog.update_description(queue.entity_id, to_json(wanted))
        except StoreFailed as error:
            raise ServerBusy(f"The properties of '{queue.path}' cannot be changed now: {error}") from error
        queue.change(wanted)
        self.idle_watch.begin(queue)
        self.forwarding.begin(queue)
        self.notify(queue)
        return queue

    def follow(self, follower: Callable[[Queue], None]) -> None:
        """Have ``follower`` called with every queue that has changed or is deleted, at once."""
        self._followers.append(follower)

    def unfollow(self, follower: Callable[[Queue], None]) -> None:
        """Call it no more."""
        if follower in self._followers:
            self._followers.remove(follower)

    def notify(self, queue: Queue) -> None:
        """An entity has other properties, or is gone."""
        for follower in list(self._followers):
            follower(queue)

    @property
    def time(self) -> BrokerTime:
        """What gives broker time."""
        return next(iter(self.brokers.values())).commit_loop.time

    def now_ms(self) -> int:
        """Broker time."""
        return self.time.now_ms()

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
        """Where the fragments of a new queue or topic belong: evenly in all stores that are there (decision 0046).

        Raises:
            QuotaExceeded: The namespace has as many entities as it may.
            StoreUnavailable: All stores are away.
        """
        self._demand_room(home, name, is_partitioned=is_partitioned)
        there = [broker for broker in self.brokers.values() if broker.state == "open"]
        if not there:
            raise next(iter(self.brokers.values())).unavailable()
        store_ids = sorted(broker.store_id for broker in [one for one in there if not one.is_late] or there)
        count = self.partitions if is_partitioned else 1
        # The first fragment of each entity starts one store further, so that plain entities spread too.
        offset = sum(len(space.queues) + len(space.topics) for space in self.namespaces.values())
        return tuple(SlotRow(slot, slot, store_ids[(offset + slot) % len(store_ids)]) for slot in range(count))

    def report_left_out(self, entity: Queue) -> None:
        """Log the stores that have nothing of a new entity only because they are away: it may be moved there."""
        used = {handle.store.store_id for handle in entity.fragments}
        if len(used) >= min(len(entity.fragments), len(self.brokers)):
            return
        for store_id, broker in self.brokers.items():
            if store_id not in used and (broker.state != "open" or broker.is_late):
                why = f"{entity.kind} '{entity.path}' was created without it; when it is back: duobus fragment move"
                self.store_events(store_id, "left out", why)

    def _demand_room(self, home: Namespace, name: str, *, is_partitioned: bool) -> None:
        others = len(home.relays) + len(home.unbuilt)
        kinds, limit, kind = len(home.queues) + len(home.topics) + others, self.quotas.entities, "entities"
        are_few = is_partitioned and self.partitions == FRAGMENTS_STANDARD
        if kinds < (min(limit, self.quotas.partitioned_entities) if are_few else limit):
            # To look at each of thousands for each that is created would take longer than to create it.
            return
        entities = [
            one for one in (*home.queues.values(), *home.topics.values()) if sharded_entity_of(one.path) is None
        ]
        number = len(entities) + others
        # Where every entity is partitioned, they are counted as entities (Azure: quotas).
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
        queue.demand_all_online()
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
        self.notify(queue)

    async def _clear(self, queue: Queue) -> None:
        """Delete what the stores hold of a queue that was taken away."""
        await drop_from_stores(queue)
        self.catalog.finish_delete(queue.entity_id)

    def report_differences(self, entity: Queue | HybridConnection, kept: msgspec.Struct, asked: msgspec.Struct) -> None:
        """Log in which properties an entity that exists differs from what a configuration asks for."""
        names = differences(kept, asked)
        if names:
            self.store_events(0, "left alone", f"{entity.kind} '{entity.path}' differs in {', '.join(names)}")

    def _add_queue(self, row: EntityRow) -> None:
        queue = self.make_queue(row)
        if row.state == LIVE:
            self.namespace(row.namespace).queues[row.path.lower()] = queue
        for plan in plans_of(queue):
            plan.handle.plan(plan)

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
                    await self.brokers[store_id].host.drop_entity(row.entity_id)
                self.catalog.finish_delete(row.entity_id)
        except (StoreFailed, StoreUnavailable, RowsExist) as error:
            # A store is away: the intent stays in the catalog for the next start.
            self.store_events(0, "unfinished", f"{row.state} of '{row.path}': {error}")

    # -- what message brokers report (Watcher) ------------------------------------------------------------------

    def demand_own(self, broker: MessageBroker, contents: StoreContents) -> None:
        """Compare a store that was just opened with the catalog; see Watcher."""
        mark = self.catalog.mark
        belonging.demand_own(mark, contents, f"Messaging store {broker.store_id}")
        seen = self._generations.get(broker.store_id, 0)
        if mark.identity and contents.generation < seen:
            raise StoreForeign(
                f"Messaging store {broker.store_id} is at generation {contents.generation}, and has been at {seen}: an "
                "older copy of it was put in its place, and what was given out since would be given out again. "
                + _replace_advice(broker.store_id)
            )
        # What is set aside for a move is there, whoever it belongs to.
        found = {(abs(row.entity_id), row.fragment_no) for row in contents.fragments}
        if not mark.identity or found == broker.plans.keys():
            return
        try:
            known = self.catalog.read()
        except StoreFailed as error:
            self.store_events(broker.store_id, "not compared", f"the catalog cannot be read: {error}")
            return
        missing = belonging.missing_from(known, broker.store_id, found)
        if missing:
            raise StoreForeign(
                f"Messaging store {broker.store_id} lacks {len(missing)} fragments that the catalog says are there "
                f"({_some(missing)}): it is an older copy of that store. " + _replace_advice(broker.store_id)
            )
        strays = self.strays[broker.store_id] = belonging.unknown_to(known, broker.store_id, found)
        if strays:
            names = _some([f"fragment {number} of entity {entity_id}" for entity_id, number in sorted(strays)])
            self.store_events(
                broker.store_id,
                "unknown fragments",
                f"{names}: the catalog does not know these. They are left alone, and nobody is handed what is in them. "
                "Was an older copy of this store put in its place?",
            )

    def store_opened(self, broker: MessageBroker, contents: StoreContents) -> None:
        """Log it, and see to the tombstones that waited for a store."""
        self.store_events(broker.store_id, "opened", f"generation {broker.generation}")
        self._note_generation(broker)
        self.forwarding.store_opened(broker)
        self.moves.store_opened()
        self._records.store_opened(broker)
        unfinished, self._unfinished = self._unfinished, []
        for entity in unfinished:
            self._clear_beside(entity, f"{entity.kind} '{entity.path}' had been deleted when a store failed")
        homeless, self._homeless = self._homeless, []
        self.tombstones_lost([one for one in homeless if one[0].store_id != broker.store_id])
        for tombstone, refusal in homeless:
            # The store was recovered without the run, unless another server owned it meanwhile, which knew nothing of
            # the tombstone. Then the sender hears that the outcome is not known.
            if tombstone.store_id == broker.store_id and tombstone.generation == contents.generation:
                refusal.settled(tombstone)

    def _note_generation(self, broker: MessageBroker) -> None:
        """The store's new generation is durable; from now on an older copy of it is known."""
        if is_postgres(broker.place) or self._generations.get(broker.store_id) == broker.generation:
            return
        self._generations[broker.store_id] = broker.generation
        try:
            self.catalog.note_generations({broker.store_id: broker.generation})
        except StoreFailed as error:
            # The next opening notes it.
            self.store_events(broker.store_id, "not noted", f"generation {broker.generation}: {error}")

    def store_failed(self, broker: MessageBroker, error: BaseException) -> None:
        """Log it; its messages are in memory no more."""
        self.memory_room.left(broker.store_id)
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

    def run_lost(self, broker: MessageBroker, run: Run, tombstones: list[Tombstone]) -> None:
        """Send a keyless run elsewhere; answer a keyed one with its definite, retriable error (I28)."""
        for tombstone in tombstones:
            self._tombstones.setdefault(tombstone.store_id, []).append(tombstone)
        tombstones = run.tombstones + tombstones
        error: ServiceBusError = run.handle.home.unavailable(broker)
        loop = asyncio.get_running_loop()
        since_s = run.since_s if isinstance(run, Rerun) else loop.time()
        # Stores that come back and fail again at once must not keep it on its way between them for ever.
        if run.placement is not None and (broker.state == "open" or loop.time() - since_s < RERUN_S):
            try:
                handle = run.placement.keyless(run.batch.bytes_total)
            except StoreUnavailable as none_left:
                error = none_left
            else:
                handle.submit(Rerun(run, handle, tombstones, since_s))
                return
        refusal = LateRefusal(run, tombstones, error)
        if tombstones:
            self.tombstones_lost([(tombstone, refusal) for tombstone in tombstones])
            loop.call_later(REFUSAL_S, refusal.give_up)
        else:
            refusal.give()

    def tombstones_lost(self, tombstones: list[tuple[Tombstone, LateRefusal]]) -> None:
        """A refused run must not appear later (I38), not even after a crash: another store is to remember that."""
        for tombstone, refusal in tombstones:
            for broker in self.brokers.values():
                if broker.state == "open" and broker.store_id != tombstone.store_id:
                    broker.commit_loop.keep_tombstone(tombstone, refusal)
                    break
            else:
                self._homeless.append((tombstone, refusal))

    def tombstones_of(self, store_id: int, generation: int) -> list[Tombstone]:
        """Those of exactly this life of the store; a later life has acted upon earlier ones already."""
        return [tombstone for tombstone in self._tombstones.get(store_id, []) if tombstone.generation == generation]

    def forget_tombstones(self, store_id: int, generation: int) -> None:
        """Forget tombstones of that life and earlier ones, here and in the stores that hold them."""
        tombstones = self._tombstones.pop(store_id, [])
        if tombstones:
            for broker in self.brokers.values():
                if broker.store_id != store_id and broker.state == "open":
                    broker.commit_loop.forget_tombstones(store_id, generation)


#: Fragments that one line of the log, or one refusal, names.
_NAMED: Final = 5


def _replace_advice(store_id: int) -> str:
    """What to do about a store that is older than it was."""
    return (
        "Put the right one back, or restore a whole backup into an empty folder (duobus restore), or give the store up "
        f"(duobus store replace {store_id} --although-readable)."
    )


def _some(names: Sequence[str]) -> str:
    """The first few of them."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
