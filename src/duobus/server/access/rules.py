"""Access rules of a running server: listed, shown and changed, durable in the catalog before anybody is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from duobus.auth.authorizer import NamespaceRules
from duobus.broker import Queue, ScaleUnit, Topic
from duobus.broker.entities.relay import HybridConnection
from duobus.clock import Clock, Entropy
from duobus.errors import NotAllowed, ServerBusy, ServiceBusError, StoreFailed
from duobus.model import access_rules
from duobus.model.access_rules import ADD, REMOVE, RuleChange
from duobus.model.address import check_entity_name, not_found
from duobus.model.descriptions import AccessRule
from duobus.model.tiers import Profile
from duobus.telemetry.audit_log import CREATE, DELETE, DONE, RULE_KIND, UPDATE, AuditTrail, Change, path_of_rule

_OPERATIONS: Final = {ADD: CREATE, REMOVE: DELETE}

#: Path of an entity and its rules, for each entity of a namespace that has any.
EntityRuleList = Callable[[str], Iterable[tuple[str, tuple[AccessRule, ...]]]]


class ServerRules:
    """The access rules of all namespaces and entities of one server.

    Args:
        unit: Has the catalog and the entities.
        namespace_rules: Finds what the authorizer knows of a namespace.
        given: Namespace to the rules that each start brings again, with who brings them: these stay as they are.
        entities: Lists the rules of entities.
        profile: Limits by which a description is checked again.
        entropy: For keys.
        clock: Time.
        audit: Hears of every change.
        changed: Called with a namespace whose rules have changed.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        namespace_rules: Callable[[str], NamespaceRules],
        *,
        given: Mapping[str, Mapping[str, str]],
        entities: EntityRuleList,
        profile: Profile,
        entropy: Entropy,
        clock: Clock,
        audit: AuditTrail,
        changed: Callable[[str], None],
    ) -> None:
        self._unit = unit
        self._namespace_rules = namespace_rules
        self._given = given
        self._entities = entities
        self._profile = profile
        self._new_key = entropy.access_key
        self._clock = clock
        self._audit = audit
        self._changed = changed

    def listed(self, namespace: str, entity: str | None) -> list[tuple[str | None, AccessRule]]:
        """Rules with the path of their entity, None for the namespace: those of one entity, or all.

        Raises:
            EntityNotFound: There is no such queue, topic or relay.
        """
        if entity is not None:
            found = self._entity(namespace, entity)
            return [(found.path, rule) for rule in found.description.authorization_rules]
        own: list[tuple[str | None, AccessRule]] = [(None, rule) for rule in self._of_namespace(namespace)]
        return own + [(path, rule) for path, rules in self._entities(namespace) for rule in rules]

    def rule(self, namespace: str, entity: str | None, name: str) -> tuple[str | None, AccessRule]:
        """One rule, with its keys, and the path of its entity in the spelling of its creator.

        Raises:
            EntityNotFound: There is no such queue, topic or relay, or no such rule.
        """
        if entity is None:
            return None, access_rules.rule_named(self._of_namespace(namespace), name, _place(namespace, None))
        found = self._entity(namespace, entity)
        rules = found.description.authorization_rules
        return found.path, access_rules.rule_named(rules, name, _place(namespace, found.path))

    async def change(
        self, namespace: str, entity: str | None, change: RuleChange, *, who: str, origin: str
    ) -> tuple[str | None, AccessRule | None]:
        """Change one rule, durable and in force on return: the path of its entity, and the rule, None if removed.

        Raises:
            EntityNotFound: There is no such queue, topic or relay, or no such rule.
            EntityAlreadyExists, ArgumentInvalid, NotAllowed: The change is refused; nothing was changed.
            ServerBusy: The catalog or the audit log cannot be written.
        """
        path = entity if entity is None else self._entity(namespace, entity).path
        told = Change(
            _OPERATIONS.get(change.verb, UPDATE),
            RULE_KIND,
            namespace,
            path_of_rule(path, change.name),
            who=who,
            origin=origin,
            interface="http",
        )
        self._audit.begin(told, self._clock.now_ms())
        try:
            if path is None:
                before, after = self._change_namespace(namespace, change)
            else:
                before, after = await self._change_entity(namespace, path, change)
        except ServiceBusError as error:
            self._audit.end(told, self._clock.now_ms(), str(error))
            raise
        self._audit.end(told, self._clock.now_ms(), DONE, access_rules.differences(before, after, change.name))
        return path, next((rule for rule in after if rule.name == change.name), None)

    def _change_namespace(
        self, namespace: str, change: RuleChange
    ) -> tuple[tuple[AccessRule, ...], tuple[AccessRule, ...]]:
        giver = self._given.get(namespace, {}).get(change.name)
        if giver is not None and change.verb != ADD:
            raise NotAllowed(
                f"The access rule '{change.name}' is given by {giver} at each start, so it is changed there and not "
                "here. Start the server again after that."
            )
        before: tuple[AccessRule, ...] = ()

        def wanted(rules: tuple[AccessRule, ...]) -> tuple[AccessRule, ...]:
            nonlocal before
            before = rules
            return self._wanted(rules, change, namespace, None)

        try:
            after = self._unit.catalog.change_rules(namespace, wanted)
        except StoreFailed as error:
            raise ServerBusy(f"The access rules cannot be changed now: {error}") from error
        self._namespace_rules(namespace).rules = {rule.name: rule for rule in after}
        self._changed(namespace)
        return before, after

    async def _change_entity(
        self, namespace: str, path: str, change: RuleChange
    ) -> tuple[tuple[AccessRule, ...], tuple[AccessRule, ...]]:
        # Nothing is awaited between what is read here and what is written, so no other change comes in between.
        entity = self._entity(namespace, path)
        if isinstance(entity, HybridConnection):
            before = entity.description.authorization_rules
            wanted = self._wanted(before, change, namespace, path)
            relay = msgspec.structs.replace(entity.description, authorization_rules=wanted)
            return before, self._unit.relays.update(namespace, relay).description.authorization_rules
        if isinstance(entity, Topic):
            before = entity.about.authorization_rules
            about = msgspec.structs.replace(
                entity.about, authorization_rules=self._wanted(before, change, namespace, path)
            )
            topic = await self._unit.topics.update_topic(namespace, about, profile=self._profile)
            return before, topic.about.authorization_rules
        before = entity.description.authorization_rules
        description = msgspec.structs.replace(
            entity.description, authorization_rules=self._wanted(before, change, namespace, path)
        )
        queue = await self._unit.update_queue(namespace, description, profile=self._profile)
        return before, queue.description.authorization_rules

    def _wanted(
        self, rules: tuple[AccessRule, ...], change: RuleChange, namespace: str, path: str | None
    ) -> tuple[AccessRule, ...]:
        return access_rules.changed(
            rules,
            change,
            place=_place(namespace, path),
            new_key=self._new_key,
            now_ms=self._clock.now_ms(),
            keeps_manage=path is None,
        )

    def _of_namespace(self, namespace: str) -> Iterable[AccessRule]:
        return self._namespace_rules(namespace).rules.values()

    def _entity(self, namespace: str, path: str) -> Queue | HybridConnection:
        home = self._unit.namespace(namespace)
        key = check_entity_name(path).lower()
        entity = home.queues.get(key) or home.topics.get(key) or home.relays.get(key)
        if entity is None:
            raise not_found(f"sb://{home.name}/{path}")
        return entity


def _place(namespace: str, path: str | None) -> str:
    return f"the namespace '{namespace}'" if path is None else f"'{path}'"
