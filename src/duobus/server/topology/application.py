"""Bringing the entities of a server to what its configuration file says, before there is any client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from duobus.broker import Namespace, Queue, ScaleUnit, Subscription, Topic, subscription_path
from duobus.broker.entities.relay import HybridConnection
from duobus.clock import Clock
from duobus.errors import ConfigurationError, EntityNotFound, ServiceBusError, StoreFailed
from duobus.model.descriptions import QUEUE, SUBSCRIPTION, TOPIC, QueueDescription, TopicDescription
from duobus.model.relay.description import RELAY, HybridConnectionDescription
from duobus.model.tiers import EMULATOR
from duobus.model.topology.changes import CREATE, DELETE, Step
from duobus.model.topology.config_file import NamespaceConfig
from duobus.server.settings import ADD, Settings
from duobus.server.topology.plan import NamespacePlan, present_entities
from duobus.server.topology.record import OwnedEntity, read_record, write_record
from duobus.storage.catalog_rows import CatalogContents
from duobus.telemetry.audit_log import DONE, AuditTrail, Change
from duobus.telemetry.logs import Log

#: Steps that are named one by one in the log.
_STEPS_SHOWN: Final = 100
#: Who makes these changes, in the audit log.
_WHO: Final = "configuration file"

_Change = Callable[[], Awaitable[object]]


class ConfigApplication:
    """What one start does.

    Attributes:
        leaves_alone: An entity that differs from the file stays as it is, and is named.

    Args:
        settings: What the file says, and what is to be done with that.
        audit: Is told of changes and deletions.
        clock: Gives the time of these.
        log: Where the steps are told.
    """

    def __init__(self, settings: Settings, audit: AuditTrail, clock: Clock, log: Log) -> None:
        self._namespaces = settings.namespaces
        self._prunes = settings.config_prune
        self.leaves_alone = settings.config_mode == ADD
        # Without a file, what earlier files had is not gone from it; servers that share a catalog only ever add.
        self._is_needed = settings.config is not None and settings.join is None
        self._folder = None if settings.ephemeral else settings.data
        self._audit = audit
        self._clock = clock
        self._log = log
        self._plans: list[NamespacePlan] = []
        self._owned: dict[int, OwnedEntity] = {}

    def prepare(self, contents: CatalogContents) -> None:
        """Find out what is to be done and say so; changes nothing.

        Raises:
            ConfigurationError: The file asks for what cannot be done; the text is one sentence.
        """
        if not self._is_needed:
            return
        self._owned = read_record(self._folder, contents.identity)
        if self.leaves_alone:
            return
        self._plans = [
            NamespacePlan(config, present_entities(config.name, contents.entities), self._owned)
            for config in self._namespaces
        ]
        conflicts = [conflict for plan in self._plans for conflict in plan.conflicts]
        if conflicts:
            raise ConfigurationError(
                f"The configuration asks for {'; '.join(conflicts)}: that cannot change while the entity exists, so"
                " take it back, or start with --config-mode add and delete the entity first; nothing was changed."
            )
        self._tell()

    def _tell(self) -> None:
        steps = [(plan.config.name, step) for plan in self._plans for step in plan.steps]
        self._log.info(
            "configuration compared",
            create=sum(len(plan.creations) for plan in self._plans),
            update=sum(len(plan.updates) for plan in self._plans),
            delete=sum(len(plan.deletions) for plan in self._plans),
        )
        for namespace, step in steps[:_STEPS_SHOWN]:
            self._log.info(
                f"configuration: {step.operation}",
                namespace=namespace,
                kind=step.kind,
                entity="/".join(step.names),
                **self._about(step),
            )
        if len(steps) > _STEPS_SHOWN:
            self._log.info("configuration: more", steps=len(steps) - _STEPS_SHOWN)

    def _about(self, step: Step) -> dict[str, str]:
        if step.operation == DELETE:
            return {} if self._prunes or step.kind == "rule" else {"condition": "if it is empty"}
        if step.operation == CREATE:
            return {}
        told = step.record()["changes"].items()
        return {"changes": ", ".join(f"{name}: {kept} -> {wanted}" for name, (kept, wanted) in told)}

    async def finish(self, unit: ScaleUnit, catalog: int) -> None:
        """Make the changes and deletions, once everything that was missing is created; then write the record.

        Raises:
            ConfigurationError: The record cannot be written.
        """
        for plan in self._plans:
            for step in plan.updates:
                await self._try(plan, step, unit, self._update)
            for step in plan.deletions:
                await self._try(plan, step, unit, self._delete)
        if self._is_needed and self._folder is not None:
            write_record(self._folder, catalog, self._made(unit))

    async def _try(
        self,
        plan: NamespacePlan,
        step: Step,
        unit: ScaleUnit,
        make: Callable[[NamespacePlan, Step, ScaleUnit], Awaitable[None]],
    ) -> None:
        """What fails is named, as what cannot be created is; the next start tries again."""
        try:
            await make(plan, step, unit)
        except (ServiceBusError, StoreFailed) as error:
            self._log.error(
                f"{step.kind} not {'deleted' if step.operation == DELETE else 'changed'}",
                namespace=plan.config.name,
                entity="/".join(step.names),
                reason=str(error),
            )

    async def _update(self, plan: NamespacePlan, step: Step, unit: ScaleUnit) -> None:
        namespace = plan.config.name
        if step.kind == "rule":
            await self._audited(namespace, step, partial(self._change_rule, plan, step, unit))
            return
        wanted = plan.wanted(step)
        if isinstance(wanted, QueueDescription):
            change: _Change = partial(unit.update_queue, namespace, wanted, profile=EMULATOR)
        elif isinstance(wanted, TopicDescription):
            change = partial(unit.topics.update_topic, namespace, wanted, profile=EMULATOR)
        elif isinstance(wanted, HybridConnectionDescription):
            change = partial(_at_once, partial(unit.relays.update, namespace, wanted))
        else:
            change = partial(unit.topics.update_subscription, namespace, step.names[0], wanted, profile=EMULATOR)
        await self._audited(namespace, step, change)

    async def _change_rule(self, plan: NamespacePlan, step: Step, unit: ScaleUnit) -> None:
        topic, name, rule = step.names
        subscription = unit.topics.subscription(plan.config.name, topic, name)
        if step.operation == DELETE:
            await unit.topics.remove_rule(subscription, rule)
        else:
            await unit.topics.add_rule(subscription, plan.rule(step), replaces=step.operation != CREATE)

    async def _delete(self, plan: NamespacePlan, step: Step, unit: ScaleUnit) -> None:
        home = unit.namespace(plan.config.name)
        if step.kind == RELAY:
            # Nothing is stored for a relay that could be lost.
            remove = partial(unit.relays.delete, home.name, step.names[0])
            await self._audited(home.name, step, partial(_at_once, remove))
            return
        entity = _find(home, step)
        reason = None if self._prunes else self._keeps(entity)
        if reason is not None:
            self._log.warning(
                f"{step.kind} kept",
                namespace=home.name,
                entity=entity.path,
                reason=f"the configuration does not have it any more, but {reason}; --config-prune deletes it",
            )
            return
        if step.kind == QUEUE:
            deletion: _Change = partial(unit.delete_queue, home.name, entity.path)
        elif step.kind == TOPIC:
            deletion = partial(unit.topics.delete_topic, home.name, entity.path)
        else:
            deletion = partial(unit.topics.delete_subscription, home.name, *step.names)
        await self._audited(home.name, step, deletion)

    def _keeps(self, entity: Queue) -> str | None:
        """Why an entity is not deleted; None when nothing is lost with it."""
        parts: list[Queue] = [entity]
        if isinstance(entity, Topic):
            parts.extend(entity.subscriptions.values())
            if any(part.entity_id not in self._owned for part in entity.subscriptions.values()):
                return "it has subscriptions that the configuration never had"
        number = sum(sum(part.numbers()[0]) for part in parts)
        if number:
            return f"it has {number} message{'' if number == 1 else 's'}"
        if any(sessions for part in parts for sessions in part.lists_of_sessions(None)):
            return "it has states of sessions"
        return None

    async def _audited(self, namespace: str, step: Step, change: _Change) -> None:
        told = Change(
            step.operation, step.kind, namespace, "/".join(step.names), who=_WHO, origin="", interface="server"
        )
        self._audit.begin(told, self._clock.now_ms())
        try:
            await change()
        except (ServiceBusError, StoreFailed) as error:
            self._audit.end(told, self._clock.now_ms(), str(error))
            raise
        self._audit.end(told, self._clock.now_ms(), DONE)

    def _made(self, unit: ScaleUnit) -> dict[int, OwnedEntity]:
        """What the file has, and what it had of what is still there."""
        made: dict[int, OwnedEntity] = {}
        for config in self._namespaces:
            names = dict(_described(config))
            home = unit.namespace(config.name)
            entities: list[Queue | HybridConnection] = [*home.entities(), *home.relays.values()]
            for entity in entities:
                had = self._owned.get(entity.entity_id)
                key = (entity.kind, entity.path.lower())
                if had is not None or key in names:
                    former = () if had is None else had.rules
                    rules = dict.fromkeys((*names.get(key, ()), *(rule for rule in former if rule in _rules(entity))))
                    made[entity.entity_id] = OwnedEntity(entity.entity_id, config.name, entity.path, tuple(rules))
        return made


def _find(home: Namespace, step: Step) -> Queue:
    key = step.names[0].lower()
    if step.kind == QUEUE:
        found: Queue | None = home.queues.get(key)
    else:
        topic = home.topics.get(key)
        found = topic if step.kind == TOPIC or topic is None else topic.subscriptions.get(step.names[1].lower())
    if found is None:
        raise EntityNotFound(f"'{'/'.join(step.names)}' is not there any more.")
    return found


async def _at_once(change: Callable[[], object]) -> object:
    """Make a change that waits for nothing."""
    return change()


def _rules(entity: Queue | HybridConnection) -> set[str]:
    """Names of the rules that an entity has: of a subscription its filters, of others access rules."""
    if isinstance(entity, Subscription):
        return {rule.name for rule in entity.about.rules}
    return {rule.name for rule in entity.description.authorization_rules}


def _described(config: NamespaceConfig) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    """Kind and lower-case path of what a file has, with the names of its rules."""
    for queue in config.queues:
        yield (QUEUE, queue.name.lower()), tuple(rule.name for rule in queue.authorization_rules)
    for topic in config.topics:
        yield (TOPIC, topic.name.lower()), tuple(rule.name for rule in topic.authorization_rules)
        for one in topic.subscriptions:
            path = subscription_path(topic.name, one.name).lower()
            yield (SUBSCRIPTION, path), tuple(rule.name for rule in one.rules)
    for relay in config.relays:
        yield (RELAY, relay.name.lower()), tuple(rule.name for rule in relay.authorization_rules)
