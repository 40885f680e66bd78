"""What has to be done so that the entities of a namespace are as the configuration file says. Pure.

The file decides about what it has: each property of its entities, their rules, and properties that it does not mention
have their defaults. What clients have created beside that stays. What the file had and no longer has is to be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from duobus.model.descriptions import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    AccessRule,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    from_json,
)
from duobus.model.properties import Surface, properties_of
from duobus.model.relay.description import RELAY, HybridConnectionDescription, relay_form
from duobus.model.topology.changes import CONFLICT, CREATE, DELETE, UPDATE, Step, TopologyChanges
from duobus.model.topology.config_file import NamespaceConfig
from duobus.model.topology.forms import Described, described, rule_described
from duobus.server.topology.record import OwnedEntity
from duobus.storage.catalog_rows import DELETING, EntityRow

#: What the file describes; relays have no table of properties.
Wanted = Described | HybridConnectionDescription

_KINDS: Final[dict[str, type[Wanted]]] = {
    QUEUE: QueueDescription,
    TOPIC: TopicDescription,
    SUBSCRIPTION: SubscriptionDescription,
    RELAY: HybridConnectionDescription,
}

#: Kind and lower-case names of an entity, from its topic down.
Key = tuple[str, ...]


class PresentEntity(msgspec.Struct, frozen=True):
    """An entity that the catalog has."""

    entity_id: int
    about: Wanted


def present_entities(namespace: str, rows: Iterable[EntityRow]) -> dict[Key, PresentEntity]:
    """The entities of a namespace, of those that are not being deleted."""
    found: dict[Key, PresentEntity] = {}
    for row in rows:
        if row.namespace.lower() == namespace.lower() and row.state != DELETING and row.kind in _KINDS:
            about: Wanted = from_json(row.description, _KINDS[row.kind])
            names = (row.path.rsplit("/", 2)[0], about.name) if row.kind == SUBSCRIPTION else (about.name,)
            found[key_of(row.kind, *names)] = PresentEntity(row.entity_id, about)
    return found


def key_of(kind: str, *names: str) -> Key:
    """The key of an entity."""
    return (kind, *(name.lower() for name in names))


class NamespacePlan:
    """The steps for one namespace.

    Args:
        config: What the file says.
        present: What the catalog has.
        owned: Id to what the file had at an earlier start.

    Attributes:
        config: What the file says.
        conflicts: What cannot be done, each as a part of a sentence.
        creations: In the order in which they can be made, without what comes with another one.
        updates: Of entities and rules, and rules that are created and deleted; they can be made after the creations.
        deletions: What the file had and no longer has; a topic takes its subscriptions along.
    """

    def __init__(
        self, config: NamespaceConfig, present: Mapping[Key, PresentEntity], owned: Mapping[int, OwnedEntity]
    ) -> None:
        self.config = config
        self.conflicts: list[str] = []
        self.creations: list[Step] = []
        self.updates: list[Step] = []
        self.deletions: list[Step] = []
        self._present = present
        self._owned = owned
        self._asked = dict(_asked(config))
        changes = TopologyChanges(self._present_form(), self._wanted_form(), prunes=True)
        self._sort(changes.steps())

    @property
    def steps(self) -> list[Step]:
        """All of them."""
        return [*self.creations, *self.updates, *self.deletions]

    def wanted(self, step: Step) -> Wanted:
        """The description that an entity is to have; what a file has no member for stays."""
        key = key_of(step.kind, *step.names)
        kept = self._present[key]
        others = {
            item.field: getattr(kept.about, item.field)
            for item in properties_of(step.kind)
            if Surface.CONFIG not in item.given
        }
        return msgspec.structs.replace(self._merged(self._asked[key], kept), **others)

    def rule(self, step: Step) -> RuleDescription:
        """The rule that a subscription is to have."""
        *names, rule_name = key_of("rule", *step.names)[1:]
        subscription = self._asked[SUBSCRIPTION, *names]
        assert isinstance(subscription, SubscriptionDescription)
        return next(rule for rule in subscription.rules if rule.name.lower() == rule_name)

    def _merged(self, asked: Wanted, kept: PresentEntity | None) -> Wanted:
        """What the file says, and of an entity that exists the access rules that clients have made."""
        if kept is None or isinstance(asked, SubscriptionDescription):
            return asked
        had = self._owned.get(kept.entity_id)
        given = {rule.name for rule in asked.authorization_rules}.union(() if had is None else had.rules)
        assert isinstance(kept.about, type(asked))
        others = tuple(rule for rule in kept.about.authorization_rules if rule.name not in given)
        return msgspec.structs.replace(asked, authorization_rules=(*asked.authorization_rules, *others))

    def _sort(self, steps: Iterable[Step]) -> None:
        made: set[Key] = set()
        for step in steps:
            key = key_of(step.kind, *step.names)
            if _is_within(key, made):
                # It comes with what is created.
                continue
            if step.operation == CONFLICT:
                self.conflicts.extend(_conflicts(step))
            elif step.kind == "rule":
                if step.operation != DELETE or self._had_rule(key):
                    self.updates.append(step)
            elif step.operation == CREATE:
                made.add(key[1:])
                self._demand_free(step)
                self.creations.append(step)
            elif step.operation == UPDATE:
                self.updates.append(step)
            elif self._present[key].entity_id in self._owned:
                self.deletions.append(step)

    def _demand_free(self, step: Step) -> None:
        """Queues, topics and relays share their names."""
        for other in (QUEUE, TOPIC, RELAY):
            if len(step.names) == 1 and other != step.kind and key_of(other, *step.names) in self._present:
                self.conflicts.append(f"'{step.names[0]}' as a {step.kind}, which is a {other}")

    def _had_rule(self, key: Key) -> bool:
        subscription = self._present.get((SUBSCRIPTION, *key[1:-1]))
        had = None if subscription is None else self._owned.get(subscription.entity_id)
        return had is not None and key[-1] in (name.lower() for name in had.rules)

    def _present_form(self) -> dict[str, Any]:
        return _form({key: entity.about for key, entity in self._present.items()})

    def _wanted_form(self) -> dict[str, Any]:
        return _form({key: self._merged(asked, self._present.get(key)) for key, asked in self._asked.items()})


def _asked(config: NamespaceConfig) -> Iterable[tuple[Key, Wanted]]:
    for queue in config.queues:
        yield key_of(QUEUE, queue.name), queue
    for topic in config.topics:
        yield key_of(TOPIC, topic.name), topic
        for subscription in topic.subscriptions:
            yield key_of(SUBSCRIPTION, topic.name, subscription.name), subscription
    for relay in config.relays:
        yield key_of(RELAY, relay.name), relay


def _is_within(key: Key, made: set[Key]) -> bool:
    """Whether one of these names is that of a key, or of what holds it."""
    return any(key[1:length] in made for length in range(2, len(key) + 1))


def _conflicts(step: Step) -> Iterable[str]:
    for name, (kept, wanted) in step.changes.items():
        element = name[0].upper() + name[1:]
        yield f"{element} {_text(wanted)} for the {step.kind} '{'/'.join(step.names)}', where it is {_text(kept)}"


def _text(value: Any) -> str:
    return str(value or False).lower()


def _form(entities: Mapping[Key, Wanted]) -> dict[str, Any]:
    """The document of these entities."""
    forms: dict[Key, dict[str, Any]] = {}
    for key, about in entities.items():
        kind = key[0]
        if isinstance(about, HybridConnectionDescription):
            forms[key] = relay_form(about) | {"authorizationRules": _access_form(about.authorization_rules)}
            continue
        form = forms[key] = described(kind, about, Surface.CONFIG, has_unset=True)
        if isinstance(about, SubscriptionDescription):
            form["rules"] = [rule_described(rule) for rule in about.rules]
        else:
            form["authorizationRules"] = _access_form(about.authorization_rules)
            if kind == TOPIC:
                form["subscriptions"] = []
    for key, form in forms.items():
        if key[0] == SUBSCRIPTION and (TOPIC, key[1]) in forms:
            forms[TOPIC, key[1]]["subscriptions"].append(form)
    return {f"{kind}s": [form for key, form in forms.items() if key[0] == kind] for kind in (QUEUE, TOPIC, RELAY)}


def _access_form(rules: Iterable[AccessRule]) -> list[dict[str, Any]]:
    """Access rules by name, so that their order makes no difference."""
    return [
        {
            "keyName": rule.name,
            "primaryKey": rule.primary_key,
            "secondaryKey": rule.secondary_key,
            "rights": [right.name for right in Right if rule.rights & right],
        }
        for rule in sorted(rules, key=lambda one: one.name)
    ]
