"""``/$duobus/keys``: the access rules of the namespace and of its entities, their keys, and what can be done to them.

A list never has keys. Whoever has the right Manage may read and change the rules of the namespace; for the rules of a
queue, topic or relay, Manage on that entity is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.request_target import MethodUnknown, Target
from duobus.model.access_rules import (
    ADD,
    PRIMARY,
    REMOVE,
    RIGHTS,
    ROTATE,
    SECONDARY,
    SWAP,
    RuleChange,
    form_of,
    rights_of,
)
from duobus.model.descriptions import AccessRule, Right

#: The first segments of all addresses here.
KEYS: Final = ("$duobus", "keys")
#: What else is asked where the entity is that ``?entity=`` names.
_OF_ENTITIES: Final = (KEYS, ("$duobus", "locks"), ("$duobus", "sessions"), ("$duobus", "try-rule"))
#: Keys are kept nowhere on their way.
_HEADERS: Final = {"Cache-Control": "no-store"}


class AccessRules(Protocol):
    """The access rules of a server; see ``duobus.server.access.rules``."""

    def listed(self, namespace: str, entity: str | None) -> Sequence[tuple[str | None, AccessRule]]:
        """Rules with the path of their entity, None for the namespace: those of one entity, or all."""

    def rule(self, namespace: str, entity: str | None, name: str) -> tuple[str | None, AccessRule]:
        """One rule, with its keys, and the path of its entity in the spelling of its creator."""

    async def change(
        self, namespace: str, entity: str | None, change: RuleChange, *, who: str, origin: str
    ) -> tuple[str | None, AccessRule | None]:
        """Change one rule: the path of its entity, and the rule, None if removed."""


def is_key_request(target: Target) -> bool:
    """Whether a request is about access rules."""
    return target.lower[:2] == KEYS


def entity_of(target: Target) -> tuple[str, ...] | None:
    """Lower-case segments of the entity that a request for ``/$duobus`` is about; None when it is about all of them."""
    entity = target.query.get("entity", "").strip("/")
    return tuple(entity.lower().split("/")) if target.lower[:2] in _OF_ENTITIES and entity else None


class KeyEndpoint:
    """Serves these requests for one server."""

    def __init__(self, rules: AccessRules, guard: Guard) -> None:
        self._rules = rules
        self._guard = guard

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response:
        """Answer one request.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        segments = entity_of(target)
        who = self._guard.demand_at(request, segments or target.lower, namespace, Right.MANAGE)
        entity = target.query.get("entity", "").strip("/") or None
        name = target.segments[2] if len(target.segments) > 2 else ""
        change: RuleChange | None = None
        match request.method, *target.lower[3:]:
            case ("GET",) if not name:
                found = self._rules.listed(namespace.name, entity)
                return web.json_response([form_of(path, rule) for path, rule in found], headers=_HEADERS)
            case ("GET",):
                return _whole(*self._rules.rule(namespace.name, entity, name))
            case ("PUT",) if name:
                change = RuleChange(verb=ADD, name=name, rights=_rights(target))
            case ("DELETE",) if name:
                change = RuleChange(verb=REMOVE, name=name)
            case "POST", "rotate":
                change = RuleChange(verb=ROTATE, name=name, which=_which(target))
            case "POST", "swap":
                change = RuleChange(verb=SWAP, name=name)
            case "POST", "rights":
                change = RuleChange(verb=RIGHTS, name=name, rights=_rights(target))
        if change is None:
            raise MethodUnknown(
                f"{request.method} means nothing for this address. GET /$duobus/keys; GET, PUT or DELETE "
                "/$duobus/keys/<rule>; POST /$duobus/keys/<rule>/rotate, .../swap or .../rights."
            )
        path, rule = await self._rules.change(namespace.name, entity, change, who=who, origin=request.remote or "")
        if rule is None:
            return web.json_response({"entity": path, "name": name}, headers=_HEADERS)
        return _whole(path, rule, 201 if change.verb == ADD else 200)


def _whole(entity: str | None, rule: AccessRule, status: int = 200) -> web.Response:
    return web.json_response(form_of(entity, rule, with_keys=True), status=status, headers=_HEADERS)


def _rights(target: Target) -> int:
    return rights_of(target.query.get("rights", "").split(","))


def _which(target: Target) -> str:
    which = target.query.get("which", "").lower()
    if which not in {PRIMARY, SECONDARY}:
        raise ArgumentInvalid("Say which key is to be replaced: which=primary or which=secondary.")
    return which
