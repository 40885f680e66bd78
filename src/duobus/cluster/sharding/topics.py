"""TopicLife of a server among others: topics that lie in several stores are changed in all of their shards (0069)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duobus.broker.entities.destination import check_targets
from duobus.broker.entities.topic import Subscription, Topic, without_subscriptions
from duobus.broker.entities.topic_management import TopicLife, demand_fit
from duobus.cluster.sharding.front import ShardedSubscription, ShardedTopic
from duobus.model.address import not_found
from duobus.model.descriptions import (
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    check_subscription_update,
    check_topic_update,
    to_json,
)
from duobus.model.tiers import CLOUD, Profile

if TYPE_CHECKING:
    from duobus.cluster.sharding.entities import ShardedEntities
    from duobus.cluster.sharding.host import ShardHost


class ShardedTopicLife(TopicLife):
    """The topics of a server that shares its catalog; those that lie whole in a store are as on a lone server.

    What is changed of a sharded topic's subscriptions and rules is refused while a shard has no server, and nothing is
    changed then. When a server is lost in the middle of it, the caller gets ServerBusy, and the owners of the shards
    bring it to its end. Once it is answered it holds in every shard.
    """

    __slots__ = ("_entities", "_host")

    def __init__(self, unit: ShardHost, entities: ShardedEntities) -> None:
        super().__init__(unit)
        self._host = unit
        self._entities = entities

    async def create_topic(self, namespace: str, about: TopicDescription, *, profile: Profile = CLOUD) -> Topic:
        """See TopicLife."""
        unit = self._host
        if not self._entities.takes(about):
            topic = await super().create_topic(namespace, about, profile=profile)
            unit.report_one_store(topic, about)
            return topic
        home = unit.namespace(namespace)
        self.demand_free(home, about, profile)
        demand_fit(home, ShardedTopic(0, home.name, without_subscriptions(about), 0, unit.new_id), about.subscriptions)
        return await self._entities.create_topic(home, about)

    async def update_topic(self, namespace: str, about: TopicDescription, *, profile: Profile = CLOUD) -> Topic:
        """See TopicLife; the owners of the shards hear of it from the catalog."""
        unit = self._host
        topic = unit.namespace(namespace).topic(about.name)
        if not topic.is_sharded:
            return await super().update_topic(namespace, about, profile=profile)
        wanted = check_topic_update(topic.about, about, profile)
        wanted = msgspec.structs.replace(wanted, updated_at_ms=unit.now_ms())
        await self._entities.update_topic(topic, wanted)
        return topic

    async def delete_topic(self, namespace: str, path: str) -> None:
        """See TopicLife."""
        home = self._host.namespace(namespace)
        topic = home.topic(path)
        if topic.is_sharded:
            await self._entities.delete(home, topic)
        else:
            await super().delete_topic(namespace, path)

    async def create_subscription(
        self, namespace: str, path: str, about: SubscriptionDescription, *, profile: Profile = CLOUD
    ) -> Subscription:
        """See TopicLife."""
        unit = self._host
        topic = unit.namespace(namespace).topic(path)
        if not topic.is_sharded:
            return await super().create_subscription(namespace, path, about, profile=profile)
        await self._entities.demand_ready(topic)
        self.demand_new(topic, about, profile)
        await self._entities.create_subscription(topic, about)
        return self.subscription(namespace, path, about.name)

    async def update_subscription(
        self, namespace: str, path: str, about: SubscriptionDescription, *, profile: Profile = CLOUD
    ) -> Subscription:
        """See TopicLife."""
        unit = self._host
        subscription = self.subscription(namespace, path, about.name)
        topic = subscription.topic
        if not isinstance(topic, ShardedTopic):
            return await super().update_subscription(namespace, path, about, profile=profile)
        await self._entities.demand_ready(topic, subscription)
        wanted = check_subscription_update(subscription.about, about, profile)
        described = ShardedSubscription(topic, 0, wanted).description
        check_targets(unit.namespace(namespace), described, subscription.description)
        await self._change(subscription, wanted)
        return self.subscription(namespace, path, about.name)

    async def delete_subscription(self, namespace: str, path: str, name: str) -> None:
        """See TopicLife."""
        subscription = self.subscription(namespace, path, name)
        if not subscription.is_sharded:
            await super().delete_subscription(namespace, path, name)
            return
        await self._entities.demand_ready(subscription.topic)
        if subscription.is_deleted:
            # It was being deleted, and is by now; or somebody else has done it.
            return
        await self._entities.delete_subscription(subscription)

    async def add_rule(self, subscription: Subscription, rule: RuleDescription, *, replaces: bool = False) -> None:
        """See TopicLife."""
        if not subscription.is_sharded:
            await super().add_rule(subscription, rule, replaces=replaces)
            return
        await self._entities.demand_ready(subscription.topic, subscription)
        wanted, _ = self.with_rule(subscription, rule, replaces=replaces)
        await self._change(subscription, wanted)

    async def remove_rule(self, subscription: Subscription, name: str) -> None:
        """See TopicLife."""
        if not subscription.is_sharded:
            await super().remove_rule(subscription, name)
            return
        await self._entities.demand_ready(subscription.topic, subscription)
        await self._change(subscription, self.without_rule(subscription, name))

    async def _change(self, subscription: Subscription, wanted: SubscriptionDescription) -> None:
        """Have the catalog and then every shard say what a subscription is."""
        if subscription.is_deleted:
            raise not_found(f"sb://{subscription.namespace}/{subscription.path}")
        wanted = msgspec.structs.replace(wanted, updated_at_ms=self._host.now_ms())
        await self._entities.write(subscription, subscription.entity_id, to_json(wanted))
        await self._entities.confirm(subscription)
        if subscription.is_deleted:
            raise not_found(f"sb://{subscription.namespace}/{subscription.path}")


__all__ = ["ShardedTopicLife"]
