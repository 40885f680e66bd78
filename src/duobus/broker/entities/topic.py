"""Topic and Subscription: a queue's two halves, taken apart. What is sent to the one is received from the other.

A subscription is a source of its own in the fragments of its topic. To those who receive from it, it is a queue; to
those who send to a topic, that is one too. Which messages a subscription gets is decided in the fragment
(``fragment/topics/fanout.py``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from duobus.broker.entities.queue import SOURCE, Queue
from duobus.broker.fair_queue import AHEAD_MESSAGES
from duobus.broker.fragment_handle import FragmentHandle
from duobus.errors import NotAllowed, ServiceBusError
from duobus.fragment.send import Run
from duobus.fragment.source import SourceSettings
from duobus.fragment.topics.topic_state import TopicRules
from duobus.model.batches import Refusal, SendBatch
from duobus.model.descriptions import (
    DISABLED,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from duobus.rules import EFFORT_OF_A_MESSAGE, Rule, RuleSet, compile_rule

#: Copies that one run of messages may lead to, unless it is one message or a batch: some 50 ms of a commit. A rest of
#: less than a quarter of that goes with the last run: one of its own would cost more than it spares the others.
COPIES_AT_ONCE = 10_000


class Topic(Queue):
    """A topic of any number of fragments, with its subscriptions.

    Attributes:
        about: Its properties, without subscriptions; ``description`` is what of them a link to a queue would ask for.
        subscriptions: Lower-case name to subscription, of those that are live.
        rules: What its fragments know of them.
        sources: Settings of every source that its fragments may have; they all hold this one dictionary.
    """

    __slots__ = ("about", "rules", "sources", "subscriptions")

    kind = "topic"

    def __init__(
        self,
        entity_id: int,
        namespace: str,
        about: TopicDescription,
        fragments: Sequence[FragmentHandle],
        new_id: Callable[[], uuid.UUID],
    ) -> None:
        super().__init__(entity_id, namespace, as_queue(about), fragments)
        self.about = about
        self.subscriptions: dict[str, Subscription] = {}
        self.rules = TopicRules(RuleSet(new_id=new_id))
        self.rules.is_partitioned = self.is_partitioned
        self.rules.refuses_unmatched = about.filtering_messages_before_publishing
        self.sources: dict[int, SourceSettings] = super().settings()

    @property
    def looks_for_keys(self) -> bool:
        """A subscription may require sessions, or its rules speak of them."""
        return True

    def settings(self) -> dict[int, SourceSettings]:
        """What the fragments need to know, per source."""
        self.sources.update(super().settings())
        return self.sources

    def change_topic(self, about: TopicDescription) -> None:
        """Take on new properties; those that subscriptions share hold for them as well."""
        self.about = about
        self.rules.refuses_unmatched = about.filtering_messages_before_publishing
        for subscription in self.subscriptions.values():
            subscription.describe(subscription.about)
            self.sources[subscription.source_no] = subscription.own_settings()
        self.change(as_queue(about))

    def send(self, batch: SendBatch) -> None:
        """Publish messages; what comes to ``batch.reply`` is as of a queue."""
        rules = self.rules.rules
        is_heavy = rules.may_exceed(batch.payloads, batch.bytes_total)
        if (batch.n == 1 or batch.atomic or batch.ping) and not is_heavy:
            super().send(batch)
            return
        # Where messages may be refused, each is for itself; and no commit gets longer than what is atomic asks for.
        is_single = is_heavy or self.rules.refuses_unmatched
        step = 1 if is_single else min(rules.at_once, max(1, COPIES_AT_ONCE // max(1, len(self.subscriptions))))
        if batch.n <= step + step // 4 and not is_heavy:
            super().send(batch)
            return
        try:
            self.prepare(batch)
        except ServiceBusError as refusal:
            self._refuse(batch, refusal)
            return
        runs, refused = self.placement.split(batch)
        for indices, error in refused:
            batch.reply.ready.append(Refusal(batch, indices, error))
        if refused:
            batch.reply.wake()
        for handle, indices, is_keyless in runs:
            every = list(range(batch.n)) if indices is None else indices
            parts: Iterable[list[int] | None] = handles_of(every, step)
            if batch.atomic:
                parts = [indices]
            for part in parts:
                run = Run(handle, SOURCE, batch, part, self.placement if is_keyless else None)
                if is_heavy:
                    # It stands in line as what it takes, so that one of them goes ahead at a time (I62).
                    of_it = batch.payloads if part is None else [batch.payloads[index] for index in part]
                    effort = sum(map(rules.strain_of, of_it)) // EFFORT_OF_A_MESSAGE
                    run.share = max(run.share[0], min(effort, AHEAD_MESSAGES)), run.share[1]
                handle.submit(run)

    def numbers(self) -> tuple[list[int], int]:
        """Messages per kind, of which a topic has scheduled ones only, and bytes of all."""
        totals, size = super().numbers()
        for handle in self.fragments:
            if handle.fragment is not None and handle.fragment.topic is not None:
                size += handle.fragment.topic.bytes
        return totals, size

    # -- subscriptions ------------------------------------------------------------------------------------------

    def attach(self, subscription: Subscription) -> None:
        """A subscription is live: its copies are made from now on, all its rules together (I24)."""
        self.subscriptions[subscription.about.name.lower()] = subscription
        for handle, part in zip(self.fragments, subscription.fragments, strict=True):
            part.fragment = handle.fragment
            handle.parts[subscription.source_no] = part
        subscription.put_rules()

    def detach(self, subscription: Subscription) -> None:
        """A subscription is gone: no copies are made for it any more."""
        del self.subscriptions[subscription.about.name.lower()]
        self.rules.rules.drop(subscription.source_no)
        self.rules.keeping_errors.discard(subscription.source_no)
        self.sources.pop(subscription.source_no, None)
        subscription.is_deleted = True
        subscription.idle = None


class Subscription(Queue):
    """A subscription: what is received from.

    Attributes:
        topic: Whose it is.
        about: Its properties and rules; ``description`` is what a link to a queue would ask for.
        rules: Compiled, in the order of ``about.rules``.
    """

    __slots__ = ("_counted", "about", "rules", "topic")

    kind = "subscription"

    def __init__(self, topic: Topic, source_no: int, about: SubscriptionDescription) -> None:
        parts = [FragmentHandle(one.broker, one.entity_id, one.number, one) for one in topic.fragments]
        description = as_received(topic.about, about)
        super().__init__(source_no, topic.namespace, description, parts, source_no)
        self.topic = topic
        self.about = about
        self.rules: list[Rule] = [compile_rule(rule) for rule in about.rules]
        # The list that was counted; each change makes another one.
        self._counted: tuple[list[Rule], int] = ([], 0)

    @property
    def correlations(self) -> int:
        """How many of its rules have a correlation filter."""
        if self._counted[0] is not self.rules:
            self._counted = self.rules, sum(rule.is_correlation for rule in self.rules)
        return self._counted[1]

    @property
    def top(self) -> Queue:
        """Its topic."""
        return self.topic

    def describe(self, about: SubscriptionDescription) -> None:
        """Take on properties, without telling the fragments."""
        self.about = about
        self.description = as_received(self.topic.about, about)

    def own_settings(self) -> SourceSettings:
        """What the fragments need to know of it."""
        return super().settings()[self.source_no]

    def settings(self) -> dict[int, SourceSettings]:
        """What the fragments need to know of its topic and all subscriptions."""
        self.topic.sources[self.source_no] = self.own_settings()
        return self.topic.sources

    def change_subscription(self, about: SubscriptionDescription) -> None:
        """Take on new properties and rules, for what is published, locked and renewed from now on."""
        kept = {rule.name: (rule, compiled) for rule, compiled in zip(self.about.rules, self.rules, strict=True)}
        found = [(rule, *kept.get(rule.name, (None, None))) for rule in about.rules]
        self.rules = [compiled if compiled and old == rule else compile_rule(rule) for rule, old, compiled in found]
        self.describe(about)
        settings = self.settings()
        for handle in self.topic.fragments:
            handle.change_settings(settings)
        self.put_rules()

    def add_rule(self, about: SubscriptionDescription, rule: Rule) -> None:
        """Take on a description with one more rule, or with another one of the same name."""
        self.about = about
        self.rules = [*(one for one in self.rules if one.name.lower() != rule.name.lower()), rule]
        if about.status != DISABLED:
            self.topic.rules.rules.add(self.source_no, rule)

    def remove_rule(self, about: SubscriptionDescription, name: str) -> None:
        """Take on a description with one rule less."""
        self.about = about
        self.rules = [rule for rule in self.rules if rule.name.lower() != name.lower()]
        if about.status != DISABLED:
            self.topic.rules.rules.remove(self.source_no, name)

    def put_rules(self) -> None:
        """Have copies made as its rules and its status say."""
        shared = self.topic.rules
        if self.about.status == DISABLED:
            shared.rules.drop(self.source_no)
            return
        shared.rules.put(self.source_no, self.rules)
        if self.about.dead_lettering_on_filter_evaluation_exceptions:
            shared.keeping_errors.add(self.source_no)
        else:
            shared.keeping_errors.discard(self.source_no)

    def send(self, batch: SendBatch) -> None:
        """Nothing can be sent to a subscription."""
        batch.reply.ready.append(Refusal(batch, None, NotAllowed("Messages are sent to the topic, not here.")))
        batch.reply.wake()

    def _note_use(self) -> None:
        for clock in (self.idle, self.topic.idle):
            if clock is not None:
                clock.note()


def handles_of(indices: list[int], step: int) -> Iterator[list[int]]:
    """Cut indices into parts of ``step``; the last one may be longer by a quarter, or shorter."""
    start = 0
    while len(indices) - start > step + step // 4:
        yield indices[start : start + step]
        start += step
    if start < len(indices):
        yield indices[start:]


def as_queue(topic: TopicDescription) -> QueueDescription:
    """What a topic is to those who send to it."""
    return QueueDescription(**_of_queue(topic))


def as_received(topic: TopicDescription, subscription: SubscriptionDescription) -> QueueDescription:
    """What a subscription is to those who receive from it: the topic's time to live is the most."""
    found = _of_queue(subscription)
    found["name"] = subscription_path(topic.name, subscription.name)
    found["default_message_time_to_live_ms"] = _shorter(
        subscription.default_message_time_to_live_ms, topic.default_message_time_to_live_ms
    )
    # A topic that is disabled altogether gives nothing out either.
    found["status"] = DISABLED if topic.status == DISABLED else subscription.status
    for name in ("max_size_in_megabytes", "max_message_size_bytes", "enable_partitioning"):
        found[name] = getattr(topic, name)
    return QueueDescription(**found)


def _of_queue(description: TopicDescription | SubscriptionDescription) -> dict[str, Any]:
    """The properties that a queue has, too."""
    names = set(QueueDescription.__struct_fields__).intersection(description.__struct_fields__)
    return {name: getattr(description, name) for name in names}


def _shorter(one: int | None, other: int | None) -> int | None:
    found = [limit for limit in (one, other) if limit is not None]
    return min(found) if found else None


def subscription_path(topic: str, name: str) -> str:
    """The address of a subscription."""
    return f"{topic}/Subscriptions/{name}"


def count_filters(subscriptions: Iterable[Subscription]) -> tuple[int, int]:
    """How many SQL and correlation filters these subscriptions have; each kind has a limit (Azure: quotas)."""
    rules = correlations = 0
    for subscription in subscriptions:
        rules += len(subscription.rules)
        correlations += subscription.correlations
    return rules - correlations, correlations


def without_subscriptions(topic: TopicDescription) -> TopicDescription:
    """A topic's own properties: each subscription is an entry of its own in the catalog."""
    return msgspec.structs.replace(topic, subscriptions=())


__all__ = [
    "Subscription",
    "Topic",
    "as_queue",
    "as_received",
    "count_filters",
    "subscription_path",
    "without_subscriptions",
]
