"""Access rules in the data folder of a server that does not run: listed, shown and changed in its catalog.

The caller has the lock of the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from duobus.clock import Clock
from duobus.errors import ConfigurationError, NotAllowed, ServiceBusError
from duobus.model import access_rules
from duobus.model.access_rules import ADD, REMOVE, RuleChange
from duobus.model.address import not_found
from duobus.model.descriptions import QUEUE, TOPIC, AccessRule, QueueDescription, TopicDescription, from_json, to_json
from duobus.model.relay.description import RELAY, HybridConnectionDescription
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import DEFAULT_RULE_NAME, LIVE, EntityRow, NamespaceRow, rules_of_entity
from duobus.telemetry.audit_log import CREATE, DELETE, DONE, RULE_KIND, UPDATE, AuditLog, Change, path_of_rule

#: Kinds of entities that have access rules, and their descriptions.
_KINDS: Final[dict[str, type[QueueDescription | TopicDescription | HybridConnectionDescription]]] = {
    QUEUE: QueueDescription,
    TOPIC: TopicDescription,
    RELAY: HybridConnectionDescription,
}
_OPERATIONS: Final = {ADD: CREATE, REMOVE: DELETE}


class StoppedRules:
    """The access rules of one namespace in a catalog that no server uses.

    Args:
        data: The data folder.
        catalog: Its catalog, open.
        namespace: The namespace.
        entities: Its queues and topics, by lower-case path.
        new_key: Makes a key text.
        who: Who changes something, for the audit log.
        clock: Time.
        emulator_key: What ``--emulator`` puts into the default rule at each start.
    """

    def __init__(
        self,
        data: Path,
        catalog: SqliteCatalog,
        namespace: NamespaceRow,
        entities: dict[str, EntityRow],
        *,
        new_key: Callable[[], str],
        who: str,
        clock: Clock,
        emulator_key: str,
    ) -> None:
        self._data = data
        self._catalog = catalog
        self._namespace = namespace
        self._entities = entities
        self._new_key = new_key
        self._who = who
        self._clock = clock
        self._emulator_key = emulator_key

    def listed(self, entity: str | None) -> list[tuple[str | None, AccessRule]]:
        """Rules with the path of their entity, None for the namespace: those of one entity, or all.

        Raises:
            EntityNotFound: There is no such queue or topic.
        """
        if entity is not None:
            row = self._entity(entity)
            return [(row.path, rule) for rule in rules_of_entity(row)]
        own: list[tuple[str | None, AccessRule]] = [(None, rule) for rule in self._namespace.rules]
        return own + [(row.path, rule) for row in self._entities.values() for rule in rules_of_entity(row)]

    def rule(self, entity: str | None, name: str) -> tuple[str | None, AccessRule]:
        """One rule, with its keys, and the path of its entity in the spelling of its creator.

        Raises:
            EntityNotFound: There is no such queue or topic, or no such rule.
        """
        row = None if entity is None else self._entity(entity)
        path, rules = (None, self._namespace.rules) if row is None else (row.path, rules_of_entity(row))
        return path, access_rules.rule_named(rules, name, self._place(path))

    def change(self, entity: str | None, change: RuleChange) -> tuple[str | None, AccessRule | None]:
        """Change one rule, durable on return: the path of its entity, and the rule, None if removed.

        Raises:
            EntityNotFound: There is no such queue or topic, or no such rule.
            EntityAlreadyExists, ArgumentInvalid, NotAllowed: The change is refused; nothing was changed.
            ServerBusy: The audit log cannot be written; nothing was changed.
            StoreFailed: The catalog cannot be written.
        """
        row = None if entity is None else self._entity(entity)
        path = None if row is None else row.path
        trail = AuditLog(self._data / "audit")
        told = Change(
            _OPERATIONS.get(change.verb, UPDATE),
            RULE_KIND,
            self._namespace.name,
            path_of_rule(path, change.name),
            who=self._who,
            origin="",
            interface="folder",
        )
        trail.begin(told, self._clock.now_ms())
        try:
            before = self._namespace.rules if row is None else rules_of_entity(row)
            after = self._changed(row, change)
        except ServiceBusError as error:
            trail.end(told, self._clock.now_ms(), str(error))
            raise
        else:
            trail.end(told, self._clock.now_ms(), DONE, access_rules.differences(before, after, change.name))
        finally:
            trail.close()
        return path, next((rule for rule in after if rule.name == change.name), None)

    def _changed(self, row: EntityRow | None, change: RuleChange) -> tuple[AccessRule, ...]:
        if row is None:
            return self._catalog.change_rules(self._namespace.name, lambda rules: self._wanted(rules, None, change))
        description = from_json(row.description, _KINDS[row.kind])
        after = self._wanted(rules_of_entity(row), row.path, change)
        changed = msgspec.structs.replace(description, authorization_rules=after)
        self._catalog.update_description(row.entity_id, to_json(changed))
        return after

    def _wanted(self, rules: tuple[AccessRule, ...], path: str | None, change: RuleChange) -> tuple[AccessRule, ...]:
        if path is None:
            self._demand_own(rules, change)
        return access_rules.changed(
            rules,
            change,
            place=self._place(path),
            new_key=self._new_key,
            now_ms=self._clock.now_ms(),
            keeps_manage=path is None,
        )

    def _demand_own(self, rules: tuple[AccessRule, ...], change: RuleChange) -> None:
        """Refuse what the next start would undo: rules without a time were made by a configuration file."""
        old = next((rule for rule in rules if rule.name == change.name), None)
        if old is None or change.verb == ADD:
            return
        if old.name == DEFAULT_RULE_NAME and old.primary_key == self._emulator_key:
            raise NotAllowed(
                f"The access rule '{old.name}' has the key of --emulator, which brings it again at each start. Start "
                "the server once without --emulator: that makes a key of your own."
            )
        if old.name != DEFAULT_RULE_NAME and not old.created_at_ms:
            raise NotAllowed(
                f"The access rule '{old.name}' was made by a configuration file, which brings it again at each start. "
                "Change it there."
            )

    def _entity(self, path: str) -> EntityRow:
        row = self._entities.get(path.lower())
        if row is None:
            raise not_found(f"sb://{self._namespace.name}/{path}")
        return row

    def _place(self, path: str | None) -> str:
        return f"the namespace '{self._namespace.name}'" if path is None else f"'{path}'"


@contextmanager
def stopped_rules(
    data: Path,
    namespace: str | None,
    *,
    new_key: Callable[[], str],
    who: str,
    clock: Clock,
    emulator_key: str,
) -> Iterator[StoppedRules]:
    """The access rules of a namespace of a data folder; ``namespace``: which, where there are several.

    Raises:
        ConfigurationError: The folder has no catalog, or no such namespace.
        StoreFailed: The catalog cannot be read.
    """
    if not (data / "catalog.db").exists():
        raise ConfigurationError(
            f"{data} has no catalog: no server has kept anything there yet, or it is one of several servers, whose "
            "catalog is in PostgreSQL. Start the server, and give this command again."
        )
    catalog = SqliteCatalog(data / "catalog.db")
    try:
        contents = catalog.read()
        found = [row for row in contents.namespaces if namespace is None or row.name == namespace.lower()]
        if len(found) != 1:
            names = ", ".join(row.name for row in contents.namespaces)
            raise ConfigurationError(f"Say with --namespace which one is meant: {names or 'there is none yet'}.")
        entities = {
            row.path.lower(): row
            for row in contents.entities
            if row.namespace == found[0].name and row.state == LIVE and row.kind in _KINDS
        }
        yield StoppedRules(
            data, catalog, found[0], entities, new_key=new_key, who=who, clock=clock, emulator_key=emulator_key
        )
    finally:
        catalog.close()
