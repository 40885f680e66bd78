"""Entities that lie in the stores of a shared catalog: created, changed and deleted by all owners (0029, 0069).

No server asks another one to do something. The catalog says what there should be, and every server sees to the shards
that lie in its own stores whenever it has read the catalog again, or got a store: a shard that is an intent is made,
one whose entity is gone is deleted, one whose entity has other properties takes these on, and the subscriptions of a
topic are made, changed and deleted in each shard. So every step can be done again, and whatever a server leaves half
done when it dies, the next owner of the store finishes (I31).

What every shard must have before it is answered (subscriptions and rules, I24) is written into the entry of each shard
by its owner, behind a commit of the store: by that commit the next owner knows that it needs a catalog as new as this
one, and who is the owner no more cannot do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from duobus.broker.entities.bulk_creation import differences
from duobus.broker.entities.destination import check_targets
from duobus.broker.entities.queue import Queue
from duobus.broker.entities.topic import Subscription, Topic, subscription_path
from duobus.cluster.sharding.front import ShardedQueue, ShardedSubscription, ShardedTopic
from duobus.cluster.sharding.idle import ShardIdleness
from duobus.cluster.shards import (
    SHARD_KINDS,
    SHARDED,
    SHARDED_SUBSCRIPTION,
    SHARDED_TOPIC,
    ShardedEntityMap,
    assign_shards,
    topic_of,
)
from duobus.errors import (
    EntityAlreadyExists,
    NotImplementedYet,
    ServerBusy,
    ServiceBusError,
    StoreFailed,
    StoreUnavailable,
)
from duobus.model.address import shard_path, sharded_entity_of
from duobus.model.descriptions import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    check_queue_update,
    from_json,
    to_json,
)
from duobus.model.tiers import Profile
from duobus.storage.catalog.leases import PLACEMENT_OF_QUEUES, PLACEMENT_OF_TOPICS
from duobus.storage.catalog_rows import DELETING, INTENT, LIVE, EntityRow, SlotRow

if TYPE_CHECKING:
    from duobus.broker.entities.namespace import Namespace
    from duobus.cluster.directory import Directory
    from duobus.cluster.sharding.host import ShardHost

#: How long a change waits for the owners of all shards, in seconds: a store gets another owner within a lease.
CONFIRM_S: Final = 8.0
#: How often it reads the catalog itself meanwhile, in seconds; servers hear of changes sooner.
_LOOK_S: Final = 0.25

#: Namespace and lower-case path.
Place = tuple[str, str]
_Description = TypeVar("_Description", bound=QueueDescription | TopicDescription)


class ShardedEntities:
    """The sharded queues and topics, and their shards in the stores of this server.

    Attributes:
        is_understood: Whether every server that is alive knows all that a sharded entity of a placement can have. As
            long as one does not, a partitioned entity is laid into one store.
        is_served: Whether a store has an owner now.
        idleness: AutoDeleteOnIdle of these entities.
    """

    def __init__(self, unit: ShardHost) -> None:
        self.is_understood: Callable[[int], bool] = lambda placement: False
        self.is_served: Callable[[int], bool] = lambda store_id: True
        self.idleness = ShardIdleness(unit, self._whole_of, self._gone)
        self._unit = unit
        self._seen = asyncio.Event()
        # What the entities of this server's namespaces were made of.
        self._known: dict[Place, EntityRow] = {}

    # -- what clients ask for -----------------------------------------------------------------------------------

    def takes(self, about: QueueDescription | TopicDescription) -> bool:
        """Whether a new entity is to be laid over all stores."""
        are_several = len(self._unit.directory.contents.stores) > 1
        return about.enable_partitioning and are_several and not self.in_one_store(about)

    def in_one_store(self, about: QueueDescription | TopicDescription) -> str:
        """Why a new partitioned entity is to lie in one store; empty when nothing speaks for it."""
        if not about.enable_partitioning:
            return ""
        is_new = isinstance(about, TopicDescription) or about.auto_delete_on_idle_ms is not None
        needed = PLACEMENT_OF_TOPICS if is_new else PLACEMENT_OF_QUEUES
        return "" if self.is_understood(needed) else "a server of an earlier version is in the cluster"

    async def create_queue(self, home: Namespace, about: QueueDescription, *, demand_targets: bool = True) -> Queue:
        """Record a queue and its shards; each is made by the owner of its store.

        ``demand_targets``: see ``ScaleUnit.create_queue``.

        Raises:
            EntityAlreadyExists: The name is taken.
            QuotaExceeded: The namespace has as many entities as it may.
            StoreFailed: The catalog is lost; what was recorded is undone by the next owner of the store of this name.
            StoreUnavailable: That store is not here.
        """
        if home.is_taken(about.name):
            raise EntityAlreadyExists(f"The entity '{about.name}' exists already. Choose another name.")
        store_id = self._demand_place(home, about.name)
        if demand_targets:
            check_targets(home, about)
        entity_id = self._record(home, about, SHARDED, store_id)
        queue = home.queues[about.name.lower()] = ShardedQueue(entity_id, home.name, about, self._unit.partitions)
        await self._unit.read_again()
        return queue

    async def create_topic(self, home: Namespace, about: TopicDescription) -> Topic:
        """Record a topic that has been checked, its shards and its subscriptions; returns when all shards are there.

        Raises: as ``create_queue``, and

            ServerBusy: A shard is not there yet; the topic is, and the rest is made as soon as it can be.
        """
        store_id = self._demand_place(home, about.name)
        own = msgspec.structs.replace(about, subscriptions=())
        entity_id = self._record(home, own, SHARDED_TOPIC, store_id, about.subscriptions)
        place = (home.name.lower(), about.name.lower())
        wanted = [_of_subscription(place, one.name) for one in about.subscriptions]
        await self._unit.read_again()
        await self._until(
            lambda: all(self._is_live(one) for one in [*self._shards(place), *wanted]) and place in self._sharded,
            f"The topic '{about.name}' is there, but a part of it has no server yet. It is made as soon as it has one.",
        )
        topic = home.topics.get(place[1])
        if topic is None or topic.entity_id != entity_id:
            raise ServerBusy(f"The topic '{about.name}' was deleted while it was created.")
        return topic

    def _demand_place(self, home: Namespace, name: str) -> int:
        """The store whose owner creates what has this name: this server."""
        store_id = self._unit.directory.store_for_new(home.name, name.lower())
        if store_id is None or store_id not in self._unit.brokers:
            raise StoreUnavailable(f"'{name}' is created by another server from now on. Try again.")
        self._unit.demand_room(home, name, is_partitioned=True)
        return store_id

    def _record(
        self,
        home: Namespace,
        about: QueueDescription | TopicDescription,
        kind: str,
        store_id: int,
        subscriptions: tuple[SubscriptionDescription, ...] = (),
    ) -> int:
        """Have the catalog say what there is to be; nobody sees any of it before all is said."""
        unit, catalog = self._unit, self._unit.catalog
        entity_id = catalog.begin_create(home.name, kind, about.name, to_json(about), (SlotRow(0, 0, store_id),))
        stores = sorted(row.store_id for row in unit.directory.contents.stores)
        try:
            for index, slots in enumerate(assign_shards(unit.partitions, stores, entity_id % len(stores))):
                share = _of_shard(about, shard_path(about.name, index + 1))
                catalog.begin_create(home.name, SHARD_KINDS[kind], share.name, to_json(share), slots)
            for one in subscriptions:
                path = subscription_path(about.name, one.name)
                catalog.begin_create(home.name, SHARDED_SUBSCRIPTION, path, to_json(one), ())
            catalog.mark_live(entity_id)
        except (StoreFailed, ServiceBusError):
            catalog.begin_delete(entity_id)
            raise
        return entity_id

    async def update_queue(self, queue: Queue, wanted: QueueDescription, profile: Profile) -> Queue:
        """Change the properties of all of a queue; owners of its shards hear of it from the catalog.

        Raises:
            ArgumentInvalid, ArgumentOutOfRange: A property is wrong, or cannot be changed.
            NotImplementedYet: A server does not know such a property of what is spread.
            ServerBusy: The catalog is lost, or another server has changed the queue at the same moment.
        """
        wanted = check_queue_update(queue.description, wanted, profile)
        if wanted.auto_delete_on_idle_ms is not None and not self.is_understood(PLACEMENT_OF_TOPICS):
            raise NotImplementedYet(
                f"'{queue.path}' lies in the stores of several servers, one of which is of an earlier version and does "
                "not know AutoDeleteOnIdle of such a queue. Upgrade it first."
            )
        check_targets(self._unit.namespace(queue.namespace), wanted, queue.description)
        wanted = msgspec.structs.replace(wanted, updated_at_ms=self._unit.now_ms())
        await self.write(queue, queue.entity_id, to_json(wanted))
        return queue

    async def update_topic(self, topic: Topic, wanted: TopicDescription) -> None:
        """Change a topic that has been checked; raises as ``update_queue``."""
        await self.write(topic, topic.entity_id, to_json(wanted))

    async def write(self, entity: Queue, entity_id: int, description: bytes) -> None:
        """Replace the description of a sharded entity, if it is what this server knows, and act on it.

        Raises:
            ServerBusy: The catalog is lost, or another server has changed the entity at the same moment.
        """
        place = (entity.namespace.lower(), entity.path.lower())
        kept = self._known.get(place)
        try:
            is_done = kept is not None and self._unit.catalog.update_description(
                entity_id, description, kept.description
            )
        except StoreFailed as error:
            raise ServerBusy(f"The properties of '{entity.path}' cannot be changed now: {error}") from error
        await self._read_again(entity.path)
        if not is_done:
            raise ServerBusy(f"'{entity.path}' was changed by way of another server at this moment. Try again.")

    async def delete(self, home: Namespace, entity: Queue) -> None:
        """Delete a queue or topic with everything in it: gone for clients at once, its shards as their owners hear."""
        self._unit.catalog.begin_delete(entity.entity_id)
        self._gone(entity)
        await self._unit.read_again()

    # -- subscriptions, as all shards have them -----------------------------------------------------------------

    async def demand_ready(self, topic: Topic, subscription: Subscription | None = None) -> None:
        """Wait until every shard of a topic has an owner, and what was asked for before of a subscription is done.

        Raises:
            StoreUnavailable: A shard has no owner; nothing was changed.
            ServerBusy: The catalog is lost, or an earlier change is not in force everywhere yet; likewise.
        """
        await self._read_again(topic.path)
        place = (topic.namespace.lower(), topic.path.lower())
        try:
            await self._until(
                lambda: all(self.is_served(row.slots[0].store_id) for row in self._rows_of(place)),
                f"A part of '{topic.path}' has no server now, and nothing was changed. Try again in a few seconds.",
            )
        except ServerBusy as error:
            raise StoreUnavailable(str(error)) from None
        if subscription is not None:
            await self.confirm(subscription)

    async def create_subscription(self, topic: Topic, about: SubscriptionDescription) -> None:
        """Have every shard of a topic make a subscription that has been checked.

        Raises:
            EntityAlreadyExists: There is one of this name.
            ServerBusy: A shard does not have it yet. It is made everywhere as soon as all shards have a server.
        """
        path = subscription_path(topic.path, about.name)
        place = (topic.namespace.lower(), path.lower())
        left = self._unit.directory.entry(*place)
        if left is not None and left.state != LIVE:
            # Somebody has begun to create or delete it and was told that this takes longer.
            await self._until(
                lambda: (row := self._unit.directory.entry(*place)) is None or row.state == LIVE,
                f"'{path}' is still being created or deleted, as a part of it has no server now. Try again.",
            )
        entity_id = self._unit.catalog.begin_create(topic.namespace, SHARDED_SUBSCRIPTION, path, to_json(about), ())
        await self._read_again(path)
        await self._until(
            lambda: (
                (row := self._unit.directory.entry(*place)) is None or row.entity_id != entity_id or row.state == LIVE
            ),
            f"'{path}' is not in every part of the topic yet. It is made there as soon as these have a server.",
        )

    async def confirm(self, subscription: Subscription) -> None:
        """Wait until every shard has a subscription as the catalog says that it is to be.

        Raises:
            ServerBusy: A shard does not have it yet, and gets it as soon as it has a server.
        """
        place = (subscription.namespace.lower(), subscription.path.lower())
        await self._until(
            lambda: (wish := self._sharded.get(place)) is None or self._holds(wish.row, wish.topic),
            f"The change of '{subscription.path}' is recorded, but not in force in every part of the topic yet. It is "
            "as soon as these have a server.",
        )

    async def delete_subscription(self, subscription: Subscription) -> None:
        """Delete a subscription in every shard: when this returns nobody gets anything from it.

        Raises:
            ServerBusy: A shard may still give messages to those who receive from it; it is deleted there as soon as
                the shard has a server.
        """
        try:
            self._unit.catalog.begin_delete(subscription.entity_id)
        except StoreFailed as error:
            raise ServerBusy(f"'{subscription.path}' cannot be deleted now: {error}") from error
        topic, name = subscription.topic, subscription.about.name
        shards = (topic.namespace.lower(), topic.path.lower())
        await self._read_again(subscription.path)
        await self._until(
            lambda: not any(self._is_live(_of_subscription(one, name)) for one in self._shards(shards)),
            f"'{subscription.path}' is being deleted, and a part of it has no server now. It is deleted there as soon "
            "as that has one.",
        )

    async def _until(self, is_done: Callable[[], bool], why: str) -> None:
        """Wait until something holds in the catalog; raises ServerBusy, with the reason, when it takes too long."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + CONFIRM_S
        while not is_done():
            if loop.time() >= end_s:
                raise ServerBusy(why)
            self._seen.clear()
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._seen.wait()
            except TimeoutError:
                await self._read_again(why)

    async def _read_again(self, what: str) -> None:
        """Read the catalog, and act on it; raises ServerBusy while it is lost."""
        try:
            await self._unit.read_again()
        except StoreFailed as error:
            raise ServerBusy(
                f"{what}: the catalog is not reached, so what is asked for is done later. {error}"
            ) from error

    @property
    def _sharded(self) -> Mapping[Place, ShardedEntityMap]:
        return self._unit.directory.sharded

    def _rows_of(self, place: Place) -> list[EntityRow]:
        found = self._sharded.get(place)
        return [] if found is None else found.shares

    def _shards(self, place: Place) -> list[Place]:
        return [(place[0], row.path.lower()) for row in self._rows_of(place)]

    def _is_live(self, place: Place) -> bool:
        row = self._unit.directory.entry(*place)
        return row is not None and row.state == LIVE

    def _holds(self, wish: EntityRow, topic: ShardedEntityMap | None) -> bool:
        """Whether every shard of a topic has a subscription as it is to be."""
        name, namespace = wish.path.rpartition("/")[2], wish.namespace.lower()
        parts = [
            self._unit.directory.entry(*_of_subscription((namespace, share.path.lower()), name))
            for share in (() if topic is None else topic.shares)
        ]
        return all(part is not None and part.state == LIVE and _is_same(part, wish) for part in parts)

    # -- what the catalog says ----------------------------------------------------------------------------------

    async def see(self, directory: Directory, adopted: int | None = None) -> None:
        """Do for the stores that are open here what the catalog asks for; ``adopted``: one of them has just come."""
        self._know(directory)
        rows = directory.contents.entities
        wholes = {(row.namespace.lower(), row.path.lower()): row for row in rows if row.kind in SHARD_KINDS}
        wishes: dict[Place, dict[str, EntityRow]] = {}
        parts: dict[Place, dict[str, EntityRow]] = {}
        for row in rows:
            if row.kind in (SUBSCRIPTION, SHARDED_SUBSCRIPTION):
                found = wishes if row.kind == SHARDED_SUBSCRIPTION else parts
                name = row.path.rpartition("/")[2].lower()
                found.setdefault((row.namespace.lower(), topic_of(row.path)), {})[name] = row
        left: set[Place] = set()
        for row in rows:
            whole = sharded_entity_of(row.path.lower()) if row.kind in (QUEUE, TOPIC) and row.slots else None
            if whole is None:
                continue
            place = (row.namespace.lower(), whole)
            left.add(place)
            broker = self._unit.brokers.get(row.slots[0].store_id)
            if broker is not None and broker.state == "open":
                try:
                    own = parts.get((place[0], row.path.lower()), {})
                    await self._see_to(row, wholes.get(place), wishes.get(place, {}), own)
                except (StoreFailed, ServiceBusError) as error:
                    # The next look goes on with it.
                    self._unit.store_events(row.slots[0].store_id, "unfinished", f"'{row.path}': {error}")
        self._finish(directory, wholes, wishes, parts, left)
        self.idleness.decide(directory)
        for row in wholes.values():
            if row.state == INTENT and row.slots[0].store_id == adopted:
                # Whoever has this store creates queues of this name: who had it before has not come to an end.
                self._unit.catalog.begin_delete(row.entity_id)
        self._seen.set()

    def _finish(
        self,
        directory: Directory,
        wholes: Mapping[Place, EntityRow],
        wishes: Mapping[Place, dict[str, EntityRow]],
        parts: Mapping[Place, dict[str, EntityRow]],
        left: set[Place],
    ) -> None:
        """Take down what all owners have come to an end with; any server may, and several at a time do no harm."""
        over = [place for place, row in wholes.items() if row.state == DELETING and place not in left]
        for place, wanted in wishes.items():
            topic = directory.sharded.get(place)
            if place in over or place not in wholes:
                for wish in wanted.values():
                    self._unit.catalog.finish_delete(wish.entity_id)
            elif topic is not None:
                shares = [parts.get((place[0], share.path.lower()), {}) for share in topic.shares]
                for name, wish in wanted.items():
                    self._finish_subscription(wish, [share.get(name) for share in shares])
        # Last: its name is free by that, and so are those of its subscriptions.
        for place in over:
            self._unit.catalog.finish_delete(wholes[place].entity_id)

    def _finish_subscription(self, wish: EntityRow, parts: Sequence[EntityRow | None]) -> None:
        """Take down that a subscription is in every shard of its topic, or in none any more."""
        if wish.state == DELETING and not any(parts):
            self._unit.catalog.finish_delete(wish.entity_id)
        elif wish.state == INTENT and all(part is not None and part.state == LIVE for part in parts):
            self._begin(wish)

    def _begin(self, wish: EntityRow) -> None:
        """Every shard has a subscription: from now on it is there for clients."""
        try:
            self._unit.catalog.mark_live(wish.entity_id)
        except StoreFailed as error:
            # It may have gone with its topic meanwhile.
            self._unit.store_events(0, "unfinished", f"'{wish.path}': {error}")

    def as_wanted(self, rows: list[EntityRow], directory: Directory) -> list[EntityRow]:
        """Rows of a store that is about to be opened: subscriptions of shards as they are to be from the first message.

        Their former owner may have told that they are so, and have died before the entry said it.
        """
        found = []
        for row in rows:
            whole = sharded_entity_of(row.path.lower()) if row.kind == SUBSCRIPTION else None
            if whole is not None:
                wish = directory.entry(row.namespace.lower(), whole)
                if wish is None or wish.state == DELETING:
                    row = msgspec.structs.replace(row, state=DELETING)
                elif row.state != DELETING:
                    row = msgspec.structs.replace(row, description=wish.description)
            found.append(row)
        return found

    def _know(self, directory: Directory) -> None:
        """Have the entities of the catalog under their names here, with their properties."""
        for place, found in directory.sharded.items():
            if self._known.get(place) != found.row:
                self._take_on(place, found)
                self._known[place] = found.row
        for place in [place for place in self._known if place not in directory.sharded]:
            del self._known[place]
        for home in self._unit.namespaces.values():
            for entity in [one for one in home.entities() if one.is_sharded]:
                place = (home.name.lower(), entity.path.lower())
                if place not in directory.sharded and not self._is_left(directory, entity):
                    self._gone(entity)

    def _is_left(self, directory: Directory, entity: Queue) -> bool:
        """Whether a subscription that is being deleted is in a shard yet: whoever deletes it again waits for that."""
        row = directory.entry(entity.namespace, entity.path.lower())
        if not isinstance(entity, Subscription) or row is None or row.entity_id != entity.entity_id:
            return False
        topic = (entity.namespace.lower(), entity.topic.path.lower())
        return any(self._is_live(_of_subscription(shard, entity.about.name)) for shard in self._shards(topic))

    def _front(self, place: Place) -> Queue | None:
        home = self._unit.namespace(place[0])
        return home.queues.get(place[1]) or home.topics.get(place[1])

    def _whole_of(self, place: Place) -> Queue | None:
        """What this server has of a sharded queue, topic or subscription."""
        topic = self._unit.namespace(place[0]).topics.get(topic_of(place[1])) if "/" in place[1] else None
        return self._front(place) or (None if topic is None else topic.subscriptions.get(place[1].rpartition("/")[2]))

    def _take_on(self, place: Place, entity: ShardedEntityMap) -> None:
        """An entity is new, or has other properties."""
        unit = self._unit
        home, row = unit.namespace(place[0]), entity.row
        if entity.kind == SUBSCRIPTION:
            topic = home.topics[topic_of(row.path)]
            assert isinstance(topic, ShardedTopic)
            about = from_json(row.description, SubscriptionDescription)
            kept = topic.subscriptions.get(about.name.lower())
            if kept is not None and kept.entity_id == row.entity_id:
                kept.change_subscription(about)
                unit.notify(kept)
                return
            if kept is not None:
                self._gone(kept)
            topic.attach(ShardedSubscription(topic, row.entity_id, about))
            return
        front = self._front(place)
        if front is not None and front.is_sharded and front.entity_id != row.entity_id:
            self._gone(front)
            front = None
        if isinstance(front, ShardedTopic):
            front.slots = entity.slots
            front.change_topic(from_json(row.description, TopicDescription))
            unit.notify(front)
        elif isinstance(front, ShardedQueue):
            front.slots = entity.slots
            front.change(from_json(row.description, QueueDescription))
            unit.notify(front)
        elif entity.kind == TOPIC:
            made = from_json(row.description, TopicDescription)
            home.topics[place[1]] = ShardedTopic(row.entity_id, home.name, made, entity.slots, unit.new_id)
            unit.forwarding.entity_changed(made.name)
        else:
            about_queue = from_json(row.description, QueueDescription)
            home.queues[place[1]] = ShardedQueue(row.entity_id, home.name, about_queue, entity.slots)
            unit.forwarding.entity_changed(about_queue.name)

    def _gone(self, entity: Queue) -> None:
        """An entity is there no more for clients."""
        home, key = self._unit.namespace(entity.namespace), entity.path.lower()
        self._known.pop((home.name.lower(), key), None)
        if isinstance(entity, Subscription):
            entity.topic.detach(entity)
        elif isinstance(entity, Topic):
            for one in list(entity.subscriptions.values()):
                self._gone(one)
            home.topics.pop(key, None)
        else:
            home.queues.pop(key, None)
        entity.is_deleted = True
        self._unit.notify(entity)

    # -- shards of this server ----------------------------------------------------------------------------------

    async def _see_to(
        self,
        row: EntityRow,
        whole: EntityRow | None,
        wishes: Mapping[str, EntityRow],
        parts: Mapping[str, EntityRow],
    ) -> None:
        """Make, change or delete one shard in a store of this server.

        Args:
            row: The shard's entry.
            whole: That of what it is a shard of; None: it is gone.
            wishes: Of a topic: lower-case name to the subscriptions that the whole is to have.
            parts: Lower-case name to those that the shard has.
        """
        unit = self._unit
        home, key = unit.namespace(row.namespace), row.path.lower()
        share: Queue | None = home.queues.get(key) or home.topics.get(key)
        if whole is None or whole.state == DELETING:
            await self._delete_shard(row, share)
        elif whole.state != LIVE:
            # Not all of it is said yet.
            return
        elif share is None:
            if row.state == INTENT:
                await self._make(row, wishes, parts)
        elif isinstance(share, Topic):
            about = _of_shard(from_json(whole.description, TopicDescription), share.path)
            if differences(share.about, about):
                unit.topics.put_topic(share, about)
            await self._see_to_subscriptions(row, wishes, parts)
        else:
            self._change_queue(row, share, _of_shard(from_json(whole.description, QueueDescription), share.path))

    async def _make(self, row: EntityRow, wishes: Mapping[str, EntityRow], parts: Mapping[str, EntityRow]) -> None:
        """Make one shard; the arguments are those of ``_see_to``.

        Nobody can send to a topic's shard before it has the subscriptions that the topic is created with: what came by
        way of another server, while the topic's creation was not answered yet, would be in none or in some of them.
        """
        unit = self._unit
        if row.kind == QUEUE:
            await unit.resume_queue(row)
            return
        wanted = {name: wish for name, wish in wishes.items() if wish.state != DELETING}
        # Some may have been recorded before the store, or its owner, failed.
        own = [part for name, part in parts.items() if name in wanted and part.state != DELETING]
        topic = await unit.topics.begin_topic(row, own, [wish for name, wish in wanted.items() if name not in parts])
        for entity in (topic, *topic.subscriptions.values()):
            unit.idle_watch.begin(entity)
            unit.forwarding.begin(entity, entity.source_no)

    async def _delete_shard(self, row: EntityRow, share: Queue | None) -> None:
        unit = self._unit
        if isinstance(share, Topic):
            await unit.topics.delete_topic(row.namespace, share.path)
        elif share is not None:
            await unit.delete_queue(row.namespace, share.path)
        elif row.state == INTENT:
            unit.catalog.begin_delete(row.entity_id)
            unit.catalog.finish_delete(row.entity_id)

    def _change_queue(self, row: EntityRow, share: Queue, about: QueueDescription) -> None:
        unit = self._unit
        if differences(share.description, about):
            unit.catalog.update_description(row.entity_id, to_json(about))
            share.change(about)
            unit.forwarding.begin(share)
            unit.notify(share)
            unit.idle_watch.begin(share)

    async def _see_to_subscriptions(
        self, row: EntityRow, wishes: Mapping[str, EntityRow], parts: Mapping[str, EntityRow]
    ) -> None:
        """Make, change or delete the subscriptions of one shard; the arguments are those of ``_see_to``."""
        unit = self._unit
        topics, key = unit.namespace(row.namespace).topics, row.path.lower()
        share = topics.get(key)
        if share is None:
            return
        wanted = {name: wish for name, wish in wishes.items() if wish.state != DELETING}
        is_told = False
        for name in dict.fromkeys((*share.subscriptions, *wanted, *parts)):
            wish, part, own = wanted.get(name), parts.get(name), share.subscriptions.get(name)
            if own is not None and wish is not None and part is not None and _is_same(part, wish):
                continue
            if own is None and part is not None:
                # Its owner, or a store, has failed on it: what was begun comes to its end first.
                await unit.topics.resume([part if wish else msgspec.structs.replace(part, state=DELETING)])
                resumed = share.subscriptions.get(name)
                if resumed is not None:
                    unit.idle_watch.begin(resumed)
                    unit.forwarding.begin(resumed, resumed.source_no)
                continue
            if not is_told:
                # By this the next owner knows that there is a newer catalog; and a former one ends here.
                broker = unit.brokers[row.slots[0].store_id]
                await broker.use(broker.store.keep_records)
                is_told = True
            if topics.get(key) is not share or share.subscriptions.get(name) is not own:
                continue
            if wish is None:
                await unit.topics.delete_subscription(row.namespace, key, name)
            elif own is None:
                about = from_json(wish.description, SubscriptionDescription)
                await unit.topics.make_subscription(share, about, wish.entity_id)
            else:
                unit.topics.put_subscription(own, from_json(wish.description, SubscriptionDescription))


def _of_subscription(topic: Place, name: str) -> Place:
    """The place of a subscription of a topic, or of a shard."""
    return topic[0], subscription_path(topic[1], name).lower()


def is_shard_to_make(row: EntityRow) -> bool:
    """Whether an entry of a store is a topic's shard that has not been made yet."""
    return row.kind == TOPIC and row.state == INTENT and sharded_entity_of(row.path.lower()) is not None


def _is_same(part: EntityRow, wish: EntityRow) -> bool:
    """Whether a subscription of a shard is as the topic is to have it."""
    return part.description == wish.description or (
        from_json(part.description, SubscriptionDescription) == from_json(wish.description, SubscriptionDescription)
    )


def _of_shard(about: _Description, path: str) -> _Description:
    """The properties of a shard: those of the whole. The access rules every server knows by the whole itself."""
    return msgspec.structs.replace(about, name=path, authorization_rules=())
