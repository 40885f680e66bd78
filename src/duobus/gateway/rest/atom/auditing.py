"""What the management API tells the audit log of a change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from duobus.broker import Subscription, Topic
from duobus.broker.entities.namespace import Namespace
from duobus.clock import Clock
from duobus.errors import ServiceBusError
from duobus.gateway.rest.atom import resources
from duobus.gateway.rest.atom.entities import Entities, Thing
from duobus.gateway.rest.atom.resources import Resource
from duobus.gateway.rest.repeatable_requests import Done
from duobus.telemetry.audit_log import CREATE, DELETE, DONE, UPDATE, AuditTrail, Change, differences

_TOPIC: Final = b"TopicDescription"
_KINDS: Final = {resources.SUBSCRIPTION: "subscription", resources.RULE: "rule"}


class Auditing:
    """Tells an audit log of the changes of entities."""

    def __init__(self, trail: AuditTrail, entities: Entities, clock: Clock) -> None:
        self._trail = trail
        self._entities = entities
        self._clock = clock

    async def run(
        self,
        request: web.Request,
        resource: Resource,
        home: Namespace,
        who: str,
        body: bytes,
        work: Callable[[], Awaitable[Done]],
    ) -> Done:
        """Make a change between its two lines.

        Raises:
            ServiceBusError: It was refused; or it cannot be written down, and was not made.
        """
        before = self._description(home, resource)
        operation = UPDATE if "If-Match" in request.headers else CREATE
        change = Change(
            DELETE if request.method == "DELETE" else operation,
            _kind_of(home, resource, body),
            home.name,
            _path_of(resource),
            who=who,
            origin=request.remote or "",
            door="http",
        )
        self._trail.begin(change, self._clock.now_ms())
        try:
            done = await work()
        except ServiceBusError as error:
            self._trail.end(change, self._clock.now_ms(), str(error))
            raise
        after = self._description(home, resource)
        self._trail.end(change, self._clock.now_ms(), DONE, differences(before, after) if after is not None else None)
        return done

    def _description(self, home: Namespace, resource: Resource) -> msgspec.Struct | None:
        try:
            return _described(self._entities.find(home, resource))
        except ServiceBusError:
            return None


def _described(thing: Thing) -> msgspec.Struct:
    if isinstance(thing, tuple):
        return thing[1]
    return thing.about if isinstance(thing, Topic | Subscription) else thing.description


def _kind_of(home: Namespace, resource: Resource, body: bytes) -> str:
    if resource.kind in _KINDS:
        return _KINDS[resource.kind]
    # A new one is what its description says; it was not read yet, and may be none.
    is_topic = _TOPIC in body if body else resource.entity.lower() in home.topics
    return "topic" if is_topic else "queue"


def _path_of(resource: Resource) -> str:
    parts = [resource.entity]
    if resource.subscription:
        parts += ["Subscriptions", resource.subscription]
    if resource.rule:
        parts += ["Rules", resource.rule]
    return "/".join(parts)
