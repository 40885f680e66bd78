"""Whatever is managed, by the resource that a request names: queues, topics, subscriptions and rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duobus.broker import Queue, ScaleUnit, Subscription, Topic
from duobus.broker.entities.namespace import Namespace
from duobus.clock import Clock, Entropy
from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.atom import resources
from duobus.gateway.rest.atom.last_known_counts import LastKnownCounts
from duobus.gateway.rest.atom.queues import Queues
from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.atom.resources import Resource
from duobus.gateway.rest.atom.topics import Topics
from duobus.gateway.rest.atom.xml import documents
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.gateway.rest.atom.xml.rule import write_rule
from duobus.model.address import SHARE
from duobus.model.descriptions import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from duobus.model.tiers import Tier

#: A rule stands beside its subscription.
Thing = Queue | tuple[Subscription, RuleDescription]
#: Descriptions that may name where messages go.
Forwarding = QueueDescription | TopicDescription | SubscriptionDescription
#: Called with what is wanted, and whether it is partitioned, before anything is done.
Check = Callable[[Forwarding, bool], None]

_KINDS = {
    resources.SUBSCRIPTION: documents.SUBSCRIPTION,
    resources.RULE: documents.RULE,
}


class Entities:
    """Everything that the management API can be asked for."""

    def __init__(self, unit: ScaleUnit, clock: Clock, entropy: Entropy, tier: Tier) -> None:
        numbers = LastKnownCounts()
        unit.follow(numbers.follow)
        make_key = entropy.access_key
        self._queues = Queues(unit, clock, tier, numbers, make_key)
        self._topics = Topics(unit, clock, tier, numbers, make_key)

    def find(self, home: Namespace, resource: Resource) -> Thing:
        """What a resource names; raises EntityNotFound."""
        if resource.kind == resources.ENTITY:
            if resource.entity.lower() in home.topics:
                return self._topics.find(home, resource.entity)
            return self._queues.find(home, resource.entity)
        subscription = self._topics.subscription(home, resource.entity, resource.subscription)
        if resource.kind == resources.SUBSCRIPTION:
            return subscription
        return subscription, self._topics.rule(subscription, resource.rule)

    def listed(self, home: Namespace, resource: Resource) -> Sequence[Thing]:
        """What is in a list; raises EntityNotFound when what it belongs to is missing."""
        if resource.kind == resources.QUEUES:
            # What servers make of an entity among themselves is none to clients.
            return [queue for queue in home.queues.values() if SHARE not in queue.path.split("/")]
        if resource.kind == resources.TOPICS:
            return [topic for topic in home.topics.values() if SHARE not in topic.path.split("/")]
        if resource.kind == resources.SUBSCRIPTIONS:
            return list(self._topics.find(home, resource.entity).subscriptions.values())
        subscription = self._topics.subscription(home, resource.entity, resource.subscription)
        return [(subscription, rule) for rule in subscription.about.rules]

    async def put(
        self, home: Namespace, resource: Resource, node: Element, place: RequestOrigin, *, is_update: bool, check: Check
    ) -> Thing:
        """Create or change what a resource names, as a description says.

        Raises:
            ArgumentInvalid: The description is of another kind, or wrong.
        """
        kind = _KINDS.get(resource.kind) or (documents.TOPIC if node.name == documents.TOPIC else documents.QUEUE)
        if node.name != kind:
            raise ArgumentInvalid(f"The content must be a {kind} here, not {node.name[:64]!r}.")
        if kind == documents.QUEUE:
            return await self._put_queue(home, resource, node, place, is_update, check)
        if kind == documents.TOPIC:
            topic = self._topics.find(home, resource.entity) if is_update else None
            wanted = self._topics.wanted(node, resource.entity, topic)
            check(wanted, wanted.enable_partitioning)
            return await self._topics.put(home, wanted, topic)
        if kind == documents.SUBSCRIPTION:
            return await self._put_subscription(home, resource, node, place, is_update, check)
        subscription = self._topics.subscription(home, resource.entity, resource.subscription)
        return subscription, await self._topics.put_rule(subscription, node, resource.rule, replaces=is_update)

    async def _put_queue(
        self, home: Namespace, resource: Resource, node: Element, place: RequestOrigin, is_update: bool, check: Check
    ) -> Queue:
        kept = self._queues.find(home, resource.entity) if is_update else None
        wanted = self._queues.wanted(node, resource.entity, kept, place)
        check(wanted, wanted.enable_partitioning)
        if is_update:
            return await self._queues.update(home, wanted)
        return await self._queues.create(home, wanted)

    async def _put_subscription(
        self, home: Namespace, resource: Resource, node: Element, place: RequestOrigin, is_update: bool, check: Check
    ) -> Subscription:
        topic = self._topics.find(home, resource.entity)
        kept = self._topics.subscription(home, resource.entity, resource.subscription) if is_update else None
        wanted = self._topics.wanted_subscription(node, resource.subscription, kept, place)
        check(wanted, topic.is_partitioned)
        return await self._topics.put_subscription(home, topic.path, wanted, kept)

    async def delete(self, home: Namespace, thing: Thing) -> None:
        """Delete something."""
        if isinstance(thing, tuple):
            await self._topics.delete_rule(thing[0], thing[1].name)
        elif isinstance(thing, Subscription):
            await self._topics.delete_subscription(home, thing)
        elif isinstance(thing, Topic):
            await self._topics.delete(home, thing)
        else:
            await self._queues.delete(home, thing.path)

    def entry(self, thing: Thing, place: RequestOrigin, *, is_answer: bool = False) -> str:
        """The Atom entry of something. Keywords in its address have capitals (rule 0.8).

        ``is_answer``: to a request that has created or changed it.
        """
        if isinstance(thing, tuple):
            subscription, rule = thing
            url, kind, inside = f"{subscription.path}/Rules/{rule.name}", documents.RULE, write_rule(rule)
            created_ms = updated_ms = rule.created_at_ms
        else:
            url, created_ms, updated_ms = thing.path, thing.description.created_at_ms, thing.description.updated_at_ms
            if isinstance(thing, Subscription):
                kind, inside = (
                    documents.SUBSCRIPTION,
                    self._topics.subscription_inside(thing, place, is_answer=is_answer),
                )
            elif isinstance(thing, Topic):
                kind, inside = documents.TOPIC, self._topics.inside(thing, is_answer=is_answer)
            else:
                kind, inside = documents.QUEUE, self._queues.inside(thing, place, is_answer=is_answer)
        return documents.entry(
            kind,
            inside,
            url=place.url(url),
            title=title_of(thing),
            author=place.namespace,
            created_at_ms=created_ms,
            updated_at_ms=updated_ms,
        )


def title_of(thing: Thing) -> str:
    """What something is called in a list: a subscription or rule by its own name alone."""
    if isinstance(thing, tuple):
        return thing[1].name
    return thing.about.name if isinstance(thing, Subscription) else thing.path


def is_partitioned(thing: Thing) -> bool:
    """Whether something is of several fragments."""
    return not isinstance(thing, tuple) and thing.is_partitioned
