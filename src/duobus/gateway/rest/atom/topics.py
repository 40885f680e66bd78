"""Topics, subscriptions and rules behind the management API (Azure: Service Bus REST API)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from duobus.broker import Queue, ScaleUnit, Subscription, Topic
from duobus.broker.entities.namespace import Namespace
from duobus.broker.entities.topic import count_filters
from duobus.clock import Clock
from duobus.errors import ServerBusy, StoreFailed, StoreUnavailable
from duobus.gateway.rest.atom.last_known_counts import LastKnownCounts
from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.atom.xml.entity import (
    Filters,
    default_rule_of,
    read_subscription,
    read_topic,
    write_subscription,
    write_topic,
)
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.gateway.rest.atom.xml.rule import read_rule
from duobus.model.address import check_entity_name, check_subscription_name, not_found, whole_path
from duobus.model.descriptions import (
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    check_new,
    check_subscription,
    check_tier,
    check_topic,
)
from duobus.model.tiers import Tier


class Topics:
    """The topics of all namespaces, with what belongs to them."""

    def __init__(
        self, unit: ScaleUnit, clock: Clock, tier: Tier, numbers: LastKnownCounts, new_key: Callable[[], str]
    ) -> None:
        self._unit = unit
        self._clock = clock
        self._tier = tier
        self._numbers = numbers
        self._new_key = new_key

    # -- topics -------------------------------------------------------------------------------------------------

    def find(self, home: Namespace, name: str) -> Topic:
        """The topic of a name; raises EntityNotFound."""
        return home.topic(_checked(name))

    def wanted(self, node: Element, name: str, kept: Topic | None) -> TopicDescription:
        """The topic that a request describes, checked; nothing is done."""
        old = None if kept is None else kept.about
        count = None if kept is None else kept.partitions
        topic = read_topic(node, check_entity_name(name), old, self._new_key, self._clock.now_ms(), self._tier, count)
        check_topic(topic, self._tier.profile)
        check_tier(topic, self._tier)
        if kept is None:
            check_new(topic, self._tier)
        return topic

    async def put(self, home: Namespace, about: TopicDescription, kept: Topic | None) -> Topic:
        """Create a topic, or change the one that there is."""
        if kept is not None:
            demand_all(kept)
            return await self._unit.topics.update_topic(home.name, about, profile=self._tier.profile)
        try:
            return await self._unit.topics.create_topic(home.name, about, profile=self._tier.profile)
        except StoreFailed as error:
            raise ServerBusy(f"The topic '{about.name}' cannot be created now: {error}") from error

    async def delete(self, home: Namespace, topic: Topic) -> None:
        """Delete a topic with its subscriptions."""
        demand_all(topic)
        try:
            await self._unit.topics.delete_topic(home.name, topic.path)
        except StoreFailed as error:
            raise StoreUnavailable(f"The topic is gone, but not all of its messages yet: {error}") from error

    def inside(self, topic: Topic, *, is_answer: bool) -> str:
        """The elements of a topic; ``is_answer``: to a request that has created or changed it."""
        return write_topic(
            topic.about, self._numbers.of(topic), _filters_of(topic), topic.partitions, is_answer=is_answer
        )

    # -- subscriptions ------------------------------------------------------------------------------------------

    def subscription(self, home: Namespace, topic: str, name: str) -> Subscription:
        """The subscription of a name; raises EntityNotFound."""
        return self._unit.topics.subscription(home.name, _checked(topic), check_subscription_name(name))

    def wanted_subscription(
        self, node: Element, name: str, kept: Subscription | None, place: RequestOrigin
    ) -> SubscriptionDescription:
        """The subscription that a request describes, checked; nothing is done."""
        now_ms = self._clock.now_ms()
        old = None if kept is None else kept.about
        wanted = read_subscription(node, check_subscription_name(name), old, place, now_ms, self._tier)
        first = default_rule_of(node)
        if kept is None:
            rules = wanted.rules if first is None else (read_rule(first),)
            rules = tuple(msgspec.structs.replace(rule, created_at_ms=now_ms) for rule in rules)
            wanted = msgspec.structs.replace(wanted, rules=rules)
        check_subscription(wanted, self._tier.profile)
        check_tier(wanted, self._tier)
        return wanted

    async def put_subscription(
        self, home: Namespace, topic: str, about: SubscriptionDescription, kept: Subscription | None
    ) -> Subscription:
        """Create a subscription, or change the one that there is."""
        demand_all(self.find(home, topic))
        if kept is not None:
            return await self._unit.topics.update_subscription(home.name, topic, about, profile=self._tier.profile)
        try:
            return await self._unit.topics.create_subscription(home.name, topic, about, profile=self._tier.profile)
        except StoreFailed as error:
            raise ServerBusy(f"The subscription '{about.name}' cannot be created now: {error}") from error

    async def delete_subscription(self, home: Namespace, subscription: Subscription) -> None:
        """Delete a subscription with its copies."""
        demand_all(subscription)
        try:
            await self._unit.topics.delete_subscription(home.name, subscription.topic.path, subscription.about.name)
        except StoreFailed as error:
            raise StoreUnavailable(f"The subscription is gone, but not all of its messages yet: {error}") from error

    def subscription_inside(self, subscription: Subscription, place: RequestOrigin, *, is_answer: bool) -> str:
        """The elements of a subscription; ``is_answer``: to a request that has created or changed it."""
        return write_subscription(subscription.about, self._numbers.of(subscription), place, is_answer=is_answer)

    # -- rules --------------------------------------------------------------------------------------------------

    def rule(self, subscription: Subscription, name: str) -> RuleDescription:
        """The rule of a name; raises EntityNotFound."""
        key = check_subscription_name(name, kind="rule").lower()
        for rule in subscription.about.rules:
            if rule.name.lower() == key:
                return rule
        raise not_found(f"sb://{subscription.namespace}/{subscription.path}/Rules/{name}")

    async def put_rule(
        self, subscription: Subscription, node: Element, name: str, *, replaces: bool
    ) -> RuleDescription:
        """Add a rule, or put it in the place of the one with its name.

        Raises:
            StoreFailed: The catalog is lost.
        """
        rule = read_rule(node, check_subscription_name(name, kind="rule"))
        if replaces:
            # The spelling of its creator stays.
            rule = msgspec.structs.replace(rule, name=self.rule(subscription, name).name)
        await self._unit.topics.add_rule(subscription, rule, replaces=replaces)
        return self.rule(subscription, name)

    async def delete_rule(self, subscription: Subscription, name: str) -> None:
        """Remove a rule; raises EntityNotFound."""
        await self._unit.topics.remove_rule(subscription, self.rule(subscription, name).name)


def _checked(name: str) -> str:
    """The name of a topic, if it can be one; servers ask each other for shards, which nobody can create."""
    check_entity_name(whole_path(name.lower()))
    return name


def _filters_of(topic: Topic) -> Filters:
    """How many subscriptions a topic has, and how many rules of them with either kind of filter."""
    return Filters(len(topic.subscriptions), *count_filters(topic.subscriptions.values()))


def demand_all(entity: Queue) -> None:
    """Raise StoreUnavailable while a fragment is away: all of them must take part in a change."""
    for handle in entity.fragments:
        if not handle.online:
            raise handle.unavailable()
