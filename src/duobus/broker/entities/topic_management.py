"""TopicLife: making, changing and deleting topics, subscriptions and rules while clients are at work.

A subscription is an entry of its own in the catalog, whose id is the number of its source: it is never used again. As
with queues the intent comes first, then the rows in the stores, then the word that it is live; what a crash leaves half
done is finished at the next start (I31).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from duobus.broker import fragment_host
from duobus.broker.entities.bulk_creation import (
    NotCreated,
    create_fragments,
    create_somewhere,
    drop_from_stores,
    withdrawn_path,
)
from duobus.broker.entities.destination import check_targets
from duobus.broker.entities.topic import Subscription, Topic, count_filters, subscription_path, without_subscriptions
from duobus.broker.fragment_handle import FragmentHandle
from duobus.broker.protocols import FragmentPlan
from duobus.errors import (
    EntityAlreadyExists,
    EntityNotFound,
    QuotaExceeded,
    RowsExist,
    ServerBusy,
    ServiceBusError,
    StoreFailed,
    StoreUnavailable,
)
from duobus.model.address import not_found
from duobus.model.descriptions import (
    RULES_PER_SUBSCRIPTION_MAX,
    SUBSCRIPTION,
    SUBSCRIPTIONS_PER_TOPIC_MAX,
    TOPIC,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    check_subscription,
    check_subscription_update,
    check_topic,
    check_topic_update,
    from_json,
    to_json,
)
from duobus.model.tiers import CLOUD, Profile
from duobus.rules import Rule, compile_rule
from duobus.rules.ruleset import CORRELATION_RULES_MAX, SQL_RULES_MAX
from duobus.storage.catalog_rows import DELETING, INTENT, LIVE, EntityRow, SlotRow

if TYPE_CHECKING:
    from duobus.broker.entities.entity_host import EntityHost
    from duobus.broker.entities.namespace import Namespace


class TopicLife:
    """The topics of a scale unit, as those see them who manage entities."""

    __slots__ = ("_subscriptions", "_unit")

    def __init__(self, unit: EntityHost) -> None:
        self._unit = unit
        #: Rows of subscriptions that the start has found, by namespace and path of the topic.
        self._subscriptions: dict[tuple[str, str], list[EntityRow]] = {}

    # -- start --------------------------------------------------------------------------------------------------

    def found(self, rows: Sequence[EntityRow]) -> None:
        """Take in what the catalog holds of topics and subscriptions, before the stores are opened."""
        for row in rows:
            if row.kind == SUBSCRIPTION:
                topic = row.path.rsplit("/", 2)[0].lower()
                self._subscriptions.setdefault((row.namespace.lower(), topic), []).append(row)
        for row in rows:
            if row.kind == TOPIC and row.slots and row.state in (LIVE, INTENT):
                self._add(row)

    def _add(self, row: EntityRow) -> None:
        topic = self._make(row.entity_id, row.namespace, from_json(row.description, TopicDescription), row.slots)
        for found in self._subscriptions.get((row.namespace.lower(), row.path.lower()), []):
            if found.state != DELETING:
                about = from_json(found.description, SubscriptionDescription)
                subscription = Subscription(topic, found.entity_id, about)
                topic.sources[found.entity_id] = subscription.own_settings()
                if found.state == LIVE:
                    topic.attach(subscription)
        if row.state == LIVE:
            self._unit.namespace(row.namespace).topics[row.path.lower()] = topic
        self._plan(topic)

    async def resume(self, rows: Sequence[EntityRow]) -> None:
        """Finish what a crash left half done, once the stores are open."""
        for row in rows:
            try:
                if row.kind == TOPIC and not row.slots:
                    await self._build(row)
                elif row.kind == TOPIC and row.state == INTENT:
                    await self.begin_topic(row, self._found(row))
                elif row.kind == TOPIC and row.state == DELETING:
                    await self._end_topic(row)
            except (StoreFailed, ServiceBusError) as error:
                # A store is away: it stays as it is until the next start.
                self._unit.store_events(0, "unfinished", f"{row.state} of topic '{row.path}': {error}")
        for row in rows:
            if row.kind == SUBSCRIPTION and row.state != LIVE and not self._is_begun(row):
                try:
                    await self._resume_subscription(row)
                except (StoreFailed, StoreUnavailable, RowsExist) as error:
                    self._unit.store_events(0, "unfinished", f"{row.state} of subscription '{row.path}': {error}")
        self._subscriptions = {}

    async def _build(self, row: EntityRow) -> None:
        """An earlier version has kept the description of a topic, and nothing else."""
        self._unit.catalog.begin_delete(row.entity_id)
        self._unit.catalog.finish_delete(row.entity_id)
        if row.state != DELETING:
            await self.create_topic(row.namespace, from_json(row.description, TopicDescription))

    def _found(self, topic: EntityRow) -> list[EntityRow]:
        """The subscriptions that a topic of the catalog has or is to have."""
        found = self._subscriptions.get((topic.namespace.lower(), topic.path.lower()), [])
        return [row for row in found if row.state != DELETING]

    def _is_begun(self, row: EntityRow) -> bool:
        """Whether a subscription that is an intent has come to be there with its topic."""
        topic, _, name = row.path.rsplit("/", 2)
        found = self._unit.namespace(row.namespace).topics.get(topic.lower())
        own = None if found is None else found.subscriptions.get(name.lower())
        return row.state == INTENT and own is not None and own.source_no == row.entity_id

    async def begin_topic(
        self, row: EntityRow, subscriptions: Sequence[EntityRow], wishes: Sequence[EntityRow] = ()
    ) -> Topic:
        """Make a topic that the catalog has as an intent: nobody can send to it before it has its subscriptions.

        Args:
            row: The topic's entry.
            subscriptions: Entries of those that were begun with it.
            wishes: Entries of what asks for more of them; see ``make_subscription``.

        Raises:
            StoreFailed, StoreUnavailable: A store of it is away, or has failed on it; it stays an intent.
            RowsExist: A store has what is another's.
        """
        topic = self._make(row.entity_id, row.namespace, from_json(row.description, TopicDescription), row.slots)
        made = [
            Subscription(topic, own.entity_id, from_json(own.description, SubscriptionDescription))
            for own in subscriptions
        ]
        for subscription in made:
            topic.sources[subscription.source_no] = subscription.own_settings()
        with self._unit.catalog.together():
            for wish in wishes:
                about = from_json(wish.description, SubscriptionDescription)
                made.append(self._begin_subscription(topic, about, wish.entity_id))
        await self._finish(topic, made)
        self._unit.namespace(row.namespace).topics[row.path.lower()] = topic
        return topic

    async def _finish(self, topic: Topic, subscriptions: Sequence[Subscription]) -> None:
        """Have the stores hold a topic with its subscriptions, and then the catalog say that they are there."""
        for subscription in subscriptions:
            topic.attach(subscription)
        await create_fragments(FragmentPlan(handle, topic.settings(), topic.rules) for handle in topic.fragments)
        with self._unit.catalog.together():
            self._unit.catalog.mark_live(topic.entity_id)
            for subscription in subscriptions:
                self._unit.catalog.mark_live(subscription.source_no)

    async def _end_topic(self, row: EntityRow) -> None:
        unit = self._unit
        for store_id in {slot.store_id for slot in row.slots}:
            await unit.brokers[store_id].host.drop_entity(row.entity_id)
        self._forget(row.namespace, row.path)
        unit.catalog.finish_delete(row.entity_id)

    async def _resume_subscription(self, row: EntityRow) -> None:
        topic = self._unit.namespace(row.namespace).topics.get(row.path.rsplit("/", 2)[0].lower())
        if topic is None:
            # It has gone with its topic, or goes with it at the next start.
            return
        if row.state == DELETING:
            await fragment_host.drop_source(topic.fragments, topic.entity_id, row.entity_id)
            self._unit.catalog.finish_delete(row.entity_id)
            return
        subscription = Subscription(topic, row.entity_id, from_json(row.description, SubscriptionDescription))
        await self._create_sources(subscription)
        self._unit.catalog.mark_live(row.entity_id)
        topic.attach(subscription)

    # -- topics -------------------------------------------------------------------------------------------------

    async def create_topic(self, namespace: str, about: TopicDescription, *, profile: Profile = CLOUD) -> Topic:
        """Create a topic with all its subscriptions and return it once it is live.

        Raises:
            EntityAlreadyExists: The name is taken.
            ArgumentInvalid, ArgumentOutOfRange: A property or a rule is wrong; nothing was created.
            QuotaExceeded: The namespace has as many entities as it may, or the topic too many subscriptions or rules.
            StoreUnavailable: No store that could hold it is there, or several failed on it one after the other.
        """
        unit = self._unit
        home = unit.namespace(namespace)
        self.demand_free(home, about, profile)
        own = without_subscriptions(about)
        draft = self._make(0, home.name, own, unit.place(home, about.name, is_partitioned=about.enable_partitioning))
        demand_fit(home, draft, about.subscriptions)
        topic = await create_somewhere(lambda: self._try_to_create(home, own, about.subscriptions))
        home.topics[about.name.lower()] = topic
        unit.report_left_out(topic)
        for entity in (*topic.subscriptions.values(), topic):
            unit.idle_watch.begin(entity)
            unit.forwarding.begin(entity, entity.source_no)
        return topic

    def demand_free(self, home: Namespace, about: TopicDescription, profile: Profile) -> None:
        """Raise what ``create_topic`` does when a description is wrong or its name is taken."""
        check_topic(about, profile)
        _demand_distinct(about)
        if home.is_taken(about.name):
            raise EntityAlreadyExists(f"The entity '{about.name}' exists already. Choose another name.")

    async def _try_to_create(
        self, home: Namespace, about: TopicDescription, subscriptions: Sequence[SubscriptionDescription]
    ) -> Topic:
        """Create a topic with its subscriptions in stores that are there; raises NotCreated when one fails on it."""
        unit = self._unit
        slots = unit.place(home, about.name, is_partitioned=about.enable_partitioning)
        with unit.catalog.together():
            topic = self._make(
                unit.catalog.begin_create(home.name, TOPIC, about.name, to_json(about), slots), home.name, about, slots
            )
            made = [self._begin_subscription(topic, subscription) for subscription in subscriptions]
        try:
            await self._finish(topic, made)
        except RowsExist:
            # To undo it would delete what is another's: the intent stays, and holds the name.
            raise
        except (StoreFailed, ServiceBusError) as error:
            unit.withdraw(topic)
            raise NotCreated(topic, error) from error
        return topic

    async def update_topic(self, namespace: str, about: TopicDescription, *, profile: Profile = CLOUD) -> Topic:
        """Change a topic's properties, not those of its subscriptions; durable on return, and in force everywhere.

        Raises:
            EntityNotFound: There is no such topic.
            ArgumentInvalid, ArgumentOutOfRange: A property is wrong, or cannot be changed; nothing was.
            ServerBusy: The catalog is lost, or a store that holds part of it is away; nothing was changed.
        """
        topic = self._unit.namespace(namespace).topic(about.name)
        wanted = check_topic_update(topic.about, about, profile)
        topic.demand_all_online()
        self.put_topic(topic, msgspec.structs.replace(wanted, updated_at_ms=self._unit.now_ms()))
        return topic

    async def delete_topic(self, namespace: str, path: str) -> None:
        """Delete a topic with its subscriptions and everything in them.

        Raises:
            EntityNotFound: There is no such topic.
            StoreUnavailable: A store that holds part of it is away, and nothing was changed; or it failed on this, and
                the deletion is finished when it is back.
        """
        topic = self._unit.namespace(namespace).topic(path)
        topic.demand_all_online()
        self.take_away(topic)
        await self._unit.clear(topic)

    # -- subscriptions ------------------------------------------------------------------------------------------

    async def create_subscription(
        self, namespace: str, path: str, about: SubscriptionDescription, *, profile: Profile = CLOUD
    ) -> Subscription:
        """Create a subscription with its rules; it gets copies of what is published after this has returned.

        Raises: as ``create_topic``, and EntityNotFound when there is no such topic.
        """
        topic = self._unit.namespace(namespace).topic(path)
        self.demand_new(topic, about, profile)
        topic.demand_all_online()
        return await self.make_subscription(topic, about)

    def demand_new(self, topic: Topic, about: SubscriptionDescription, profile: Profile) -> None:
        """Raise what ``create_subscription`` does when a topic cannot have another subscription like this."""
        check_subscription(about, profile)
        if about.name.lower() in topic.subscriptions:
            raise EntityAlreadyExists(f"The topic '{topic.path}' has a subscription '{about.name}' already.")
        if len(topic.subscriptions) >= SUBSCRIPTIONS_PER_TOPIC_MAX:
            raise QuotaExceeded(
                f"The topic '{topic.path}' has {len(topic.subscriptions)} subscriptions, the most that it may have. "
                "Delete some."
            )
        wanted = Subscription(topic, 0, about)
        check_targets(self._unit.namespace(topic.namespace), wanted.description)
        _demand_filters([*topic.subscriptions.values(), wanted])

    async def make_subscription(
        self, topic: Topic, about: SubscriptionDescription, needed_id: int | None = None
    ) -> Subscription:
        """Create a subscription that has been checked; raises as ``create_subscription``, but for what is wrong.

        ``needed_id``: see ``Catalog.begin_create``.
        """
        unit = self._unit
        subscription = self._begin_subscription(topic, about, needed_id)
        try:
            await self._create_sources(subscription)
        except RowsExist:
            topic.sources.pop(subscription.source_no, None)
            raise
        except (StoreFailed, ServiceBusError) as error:
            unit.withdraw(subscription)
            raise NotCreated(subscription, error) from error
        unit.catalog.mark_live(subscription.source_no)
        if topic.is_deleted:
            raise not_found(f"sb://{topic.namespace}/{topic.path}")
        topic.attach(subscription)
        unit.idle_watch.begin(subscription)
        unit.forwarding.begin(subscription, subscription.source_no)
        return subscription

    async def update_subscription(
        self, namespace: str, path: str, about: SubscriptionDescription, *, profile: Profile = CLOUD
    ) -> Subscription:
        """Change a subscription's properties, not its rules; raises as ``update_topic``."""
        subscription = self.subscription(namespace, path, about.name)
        wanted = check_subscription_update(subscription.about, about, profile)
        described = Subscription(subscription.topic, 0, wanted).description
        check_targets(self._unit.namespace(namespace), described, subscription.description)
        subscription.demand_all_online()
        self.put_subscription(subscription, msgspec.structs.replace(wanted, updated_at_ms=self._unit.now_ms()))
        return subscription

    def put_subscription(self, subscription: Subscription, about: SubscriptionDescription) -> None:
        """Give a subscription properties and rules that have been checked; durable on return, and in force.

        Raises:
            ServerBusy: The catalog is lost; nothing was changed.
        """
        self._write(subscription, subscription.source_no, to_json(about))
        subscription.change_subscription(about)
        self._unit.forwarding.begin(subscription, subscription.source_no)
        self._unit.notify(subscription)
        self._unit.idle_watch.begin(subscription)

    def put_topic(self, topic: Topic, about: TopicDescription) -> None:
        """The same for a topic, its subscriptions apart."""
        self._write(topic, topic.entity_id, to_json(about))
        topic.change_topic(about)
        for entity in (topic, *topic.subscriptions.values()):
            self._unit.notify(entity)
        self._unit.idle_watch.begin(topic)

    async def delete_subscription(self, namespace: str, path: str, name: str) -> None:
        """Delete a subscription with its copies; bodies that others need stay.

        Raises: as ``delete_topic``.
        """
        subscription = self.subscription(namespace, path, name)
        subscription.demand_all_online()
        self.take_away(subscription)
        await self._unit.clear(subscription)

    def subscription(self, namespace: str, path: str, name: str) -> Subscription:
        """The subscription of this name; raises EntityNotFound."""
        topic = self._unit.namespace(namespace).topic(path)
        found = topic.subscriptions.get(name.lower())
        if found is None:
            raise not_found(f"sb://{topic.namespace}/{subscription_path(topic.path, name)}")
        return found

    # -- rules --------------------------------------------------------------------------------------------------

    async def add_rule(self, subscription: Subscription, rule: RuleDescription, *, replaces: bool = False) -> None:
        """Add a rule; in force for the next message, and durable on return.

        Args:
            subscription: Whose.
            rule: The rule.
            replaces: It takes the place of the one with its name.

        Raises:
            EntityAlreadyExists, EntityNotFound: There is one with this name, or (when it replaces) there is none.
            ArgumentInvalid, ArgumentOutOfRange: It is no rule; nothing was changed.
            QuotaExceeded: There are too many.
            ServerBusy: The catalog is lost; nothing was changed.
        """
        wanted, compiled = self.with_rule(subscription, rule, replaces=replaces)
        subscription.add_rule(self._written(subscription, wanted), compiled)

    def with_rule(
        self, subscription: Subscription, rule: RuleDescription, *, replaces: bool
    ) -> tuple[SubscriptionDescription, Rule]:
        """What a subscription becomes with a rule, and the rule compiled; raises as ``add_rule``."""
        rules = subscription.about.rules
        key = rule.name.lower()
        others = tuple(one for one in rules if one.name.lower() != key)
        if replaces and len(others) == len(rules):
            raise _no_rule(subscription, rule.name)
        if not replaces and len(others) < len(rules):
            raise EntityAlreadyExists(f"The subscription '{subscription.path}' has a rule '{rule.name}' already.")
        if len(others) >= RULES_PER_SUBSCRIPTION_MAX:
            raise QuotaExceeded(f"The subscription '{subscription.path}' has {len(others)} rules; delete some.")
        rule = msgspec.structs.replace(rule, created_at_ms=self._unit.now_ms())
        wanted = check_subscription(msgspec.structs.replace(subscription.about, rules=(*others, rule)))
        compiled = compile_rule(rule)
        subscription.topic.rules.rules.check_room(subscription.source_no, compiled)
        return wanted, compiled

    async def remove_rule(self, subscription: Subscription, name: str) -> None:
        """Remove a rule; raises EntityNotFound when there is none of this name."""
        subscription.remove_rule(self._written(subscription, self.without_rule(subscription, name)), name)

    def without_rule(self, subscription: Subscription, name: str) -> SubscriptionDescription:
        """What a subscription becomes without a rule; raises as ``remove_rule``."""
        rules = subscription.about.rules
        left = tuple(rule for rule in rules if rule.name.lower() != name.lower())
        if len(left) == len(rules):
            raise _no_rule(subscription, name)
        return msgspec.structs.replace(subscription.about, rules=left)

    # -- the end of one -----------------------------------------------------------------------------------------

    def take_away(self, entity: Topic | Subscription) -> None:
        """From now on it is gone for clients, also after a crash."""
        unit = self._unit
        if isinstance(entity, Subscription):
            unit.catalog.begin_delete(entity.source_no)
            entity.topic.detach(entity)
            unit.forwarding.end(entity, entity.source_no)
            unit.notify(entity)
            for part in entity.fragments:
                fragment_host.forget_source(part, entity.source_no)
            return
        unit.catalog.begin_delete(entity.entity_id)
        del unit.namespace(entity.namespace).topics[entity.path.lower()]
        entity.is_deleted = True
        entity.idle = None
        for subscription in list(entity.subscriptions.values()):
            subscription.is_deleted = True
            subscription.idle = None
            unit.forwarding.end(subscription, subscription.source_no)
            unit.notify(subscription)
        unit.forwarding.end(entity)
        unit.notify(entity)

    def withdraw(self, entity: Topic | Subscription) -> None:
        """Begin the deletion of what could not be created; see ``EntityHost.withdraw``."""
        catalog = self._unit.catalog
        if isinstance(entity, Subscription):
            catalog.withdraw(entity.source_no, withdrawn_path(entity.path, entity.source_no))
            entity.topic.sources.pop(entity.source_no, None)
            for handle, part in zip(entity.topic.fragments, entity.fragments, strict=True):
                part.fragment = handle.fragment
                fragment_host.forget_source(part, entity.source_no)
            return
        path = withdrawn_path(entity.path, entity.entity_id)
        with catalog.together():
            catalog.withdraw(entity.entity_id, path)
            for subscription in entity.subscriptions.values():
                catalog.withdraw(subscription.source_no, subscription_path(path, subscription.about.name))

    async def clear(self, entity: Topic | Subscription) -> None:
        """Delete what the stores hold of an entity that was taken away."""
        unit = self._unit
        if isinstance(entity, Subscription):
            await fragment_host.drop_source(entity.topic.fragments, entity.topic.entity_id, entity.source_no)
            unit.catalog.finish_delete(entity.source_no)
            return
        await drop_from_stores(entity)
        for subscription in entity.subscriptions.values():
            unit.catalog.finish_delete(subscription.source_no)
        unit.catalog.finish_delete(entity.entity_id)

    # -- parts --------------------------------------------------------------------------------------------------

    def _make(self, entity_id: int, namespace: str, about: TopicDescription, slots: Sequence[SlotRow]) -> Topic:
        handles = [FragmentHandle(self._unit.brokers[slot.store_id], entity_id, slot.fragment_no) for slot in slots]
        return Topic(entity_id, namespace, about, handles, self._unit.new_id)

    def _plan(self, topic: Topic) -> None:
        for handle in topic.fragments:
            handle.plan(FragmentPlan(handle, topic.settings(), topic.rules))

    def _begin_subscription(
        self, topic: Topic, about: SubscriptionDescription, needed_id: int | None = None
    ) -> Subscription:
        """Record the intent, with the number of its source; its settings are known to whoever recovers a fragment."""
        path = subscription_path(topic.path, about.name)
        number = self._unit.catalog.begin_create(topic.namespace, SUBSCRIPTION, path, to_json(about), (), needed_id)
        subscription = Subscription(topic, number, about)
        topic.sources[number] = subscription.own_settings()
        return subscription

    async def _create_sources(self, subscription: Subscription) -> None:
        settings = subscription.own_settings()
        subscription.topic.sources[subscription.source_no] = settings
        outcomes = await asyncio.gather(
            *(fragment_host.add_source(one, subscription.source_no, settings) for one in subscription.topic.fragments),
            return_exceptions=True,
        )
        # Only when all have come to their end: who is told of a failure takes all of it back.
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _written(self, subscription: Subscription, wanted: SubscriptionDescription) -> SubscriptionDescription:
        """A new description, durable."""
        wanted = msgspec.structs.replace(wanted, updated_at_ms=self._unit.now_ms())
        self._write(subscription, subscription.source_no, to_json(wanted))
        return wanted

    def _write(self, entity: Topic | Subscription, entity_id: int, encoded: bytes) -> None:
        try:
            self._unit.catalog.update_description(entity_id, encoded)
        except StoreFailed as error:
            raise ServerBusy(f"The properties of '{entity.path}' cannot be changed now: {error}") from error

    def _forget(self, namespace: str, path: str) -> None:
        for row in self._subscriptions.get((namespace.lower(), path.lower()), []):
            self._unit.catalog.finish_delete(row.entity_id)


def _demand_distinct(about: TopicDescription) -> None:
    seen: set[str] = set()
    for subscription in about.subscriptions:
        if subscription.name.lower() in seen:
            raise EntityAlreadyExists(f"Two subscriptions of '{about.name}' are called '{subscription.name}'.")
        seen.add(subscription.name.lower())


def demand_fit(home: Namespace, topic: Topic, wanted: Sequence[SubscriptionDescription]) -> None:
    """Raise what ``create_topic`` does when a new topic cannot have these subscriptions."""
    made = [Subscription(topic, 0, about) for about in wanted]
    for subscription in made:
        check_targets(home, subscription.description)
    _demand_filters(made)


def _demand_filters(subscriptions: Sequence[Subscription]) -> None:
    """Refuse more rules than a topic may have, of those that come together."""
    sql, correlations = count_filters(subscriptions)
    if sql > SQL_RULES_MAX:
        raise QuotaExceeded(
            f"The topic would have {sql} rules with an SQL, true or false filter, of at most {SQL_RULES_MAX}. Use "
            "correlation filters, or delete some."
        )
    if correlations > CORRELATION_RULES_MAX:
        raise QuotaExceeded(
            f"The topic would have {correlations} rules with a correlation filter, of at most {CORRELATION_RULES_MAX}. "
            "Delete some."
        )


def _no_rule(subscription: Subscription, name: str) -> EntityNotFound:
    return not_found(f"sb://{subscription.namespace}/{subscription.path}/Rules/{name}")


__all__ = ["TopicLife", "demand_fit"]
