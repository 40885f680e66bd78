"""What the entity screens ask a namespace to do, through the SDK's administration client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from duobus.console.namespace.sdk_forms import entity_form, rule_form, sdk_properties, sdk_rule
from duobus.console.screens.entities.paths import EntityPath
from duobus.model.properties import QUEUE, SUBSCRIPTION, TOPIC

if TYPE_CHECKING:
    from duobus.console.namespace.client import NamespaceClient


class Entity(NamedTuple):
    """A queue, topic or subscription.

    Attributes:
        path: Of the entity.
        kind: ``queue``, ``topic`` or ``subscription``.
        about: Its properties, as the SDK tells them.
        runtime: Its numbers and times, as the SDK tells them; None where nobody asked.
    """

    path: EntityPath
    kind: str
    about: Any
    runtime: Any = None

    @property
    def form(self) -> dict[str, Any]:
        """Its properties as the topology document has them, without keys."""
        return entity_form(self.kind, self.about, with_keys=False)


async def read_entity(namespace: NamespaceClient, path: EntityPath, *, with_runtime: bool = False) -> Entity:
    """Read an entity.

    Raises:
        NamespaceError: There is none, or the namespace refuses.
    """
    administration: Any = namespace.administration
    if path.subscription is not None:
        async with namespace.telling(f"subscription {path.text}"):
            if not with_runtime:
                return Entity(path, SUBSCRIPTION, await administration.get_subscription(*path.names[:2]))
            found = await asyncio.gather(
                administration.get_subscription(*path.names[:2]),
                administration.get_subscription_runtime_properties(*path.names[:2]),
            )
        return Entity(path, SUBSCRIPTION, *found)
    async with namespace.telling(f"queue or topic {path.text}"):
        try:
            about = await administration.get_queue(path.parent)
            kind = QUEUE
        except AttributeError:
            # The SDK takes the description of a topic for that of a queue, and finds nothing in it.
            about = await administration.get_topic(path.parent)
            kind = TOPIC
        runtime = None
        if with_runtime:
            runtime = await getattr(administration, f"get_{kind}_runtime_properties")(path.parent)
    return Entity(path, kind, about, runtime)


async def create_entity(namespace: NamespaceClient, kind: str, path: EntityPath, form: Mapping[str, Any]) -> None:
    """Create a queue, topic or subscription with these properties."""
    async with namespace.telling(f"{kind} {path.text}"):
        await getattr(namespace.administration, f"create_{kind}")(*path.names, **sdk_properties(kind, form))


async def change_entity(namespace: NamespaceClient, entity: Entity, form: Mapping[str, Any]) -> None:
    """Change these properties of an entity that was just read; None takes a value away."""
    for name, value in sdk_properties(entity.kind, form).items():
        setattr(entity.about, name, value)
    async with namespace.telling(f"{entity.kind} {entity.path.text}"):
        await getattr(namespace.administration, f"update_{entity.kind}")(*entity.path.names[:-1], entity.about)


async def delete_entity(namespace: NamespaceClient, kind: str, path: EntityPath) -> None:
    """Delete a queue, topic, subscription or rule."""
    async with namespace.telling(f"{kind} {path.text}"):
        await getattr(namespace.administration, f"delete_{kind}")(*path.names)


# -- rules ------------------------------------------------------------------------------------------------------


async def read_rules(namespace: NamespaceClient, path: EntityPath, most: int) -> list[dict[str, Any]]:
    """The first rules of a subscription as the topology document has them; one more than ``most`` tells of others."""
    found = []
    async with namespace.telling(f"subscription {path.text}"):
        async for rule in namespace.administration.list_rules(*path.names[:2]):
            found.append(rule_form(rule))
            if len(found) > most:
                break
    return found


class ReadRule(NamedTuple):
    """A rule.

    Attributes:
        form: As the topology document has it.
        times: Names of the values that are times or durations, which the form has as texts.
    """

    form: dict[str, Any]
    times: tuple[str, ...]


async def read_rule(namespace: NamespaceClient, path: EntityPath) -> ReadRule:
    """Read a rule."""
    async with namespace.telling(f"rule {path.text}"):
        rule: Any = await namespace.administration.get_rule(*path.names)
    times: list[str] = []
    for values in (
        getattr(rule.filter, "parameters", None),
        getattr(rule.filter, "properties", None),
        getattr(rule.action, "parameters", None),
    ):
        times += [str(name) for name, value in (values or {}).items() if isinstance(value, datetime | timedelta)]
    return ReadRule(rule_form(rule), tuple(times))


async def create_rule(namespace: NamespaceClient, path: EntityPath, form: Mapping[str, Any]) -> None:
    """Add a rule to a subscription."""
    async with namespace.telling(f"rule {path.text}"):
        await namespace.administration.create_rule(*path.names, **sdk_rule(form))


async def change_rule(namespace: NamespaceClient, path: EntityPath, form: Mapping[str, Any]) -> None:
    """Replace filter and action of a rule."""
    parts = sdk_rule(form)
    async with namespace.telling(f"rule {path.text}"):
        rule = await namespace.administration.get_rule(*path.names)
        rule.filter, rule.action = parts["filter"], parts.get("action")
        await namespace.administration.update_rule(path.parent, path.subscription or "", rule)
