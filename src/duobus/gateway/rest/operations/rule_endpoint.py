"""``POST /$duobus/try-rule``: what a rule would do with a message, and what a subscription's rules do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.operations.entity_endpoint import entity_in
from duobus.gateway.rest.operations.json_bodies import json_object, json_response, read_json
from duobus.gateway.rest.request_bodies import BodyBudget
from duobus.gateway.rest.request_target import Target
from duobus.model.address import Address
from duobus.model.descriptions import Right

#: Bytes of one request: a message and a rule in JSON.
TRIAL_BYTES_MAX: Final = 256 << 10
_WHAT: Final = "The body is an object with a message, and perhaps a filter and an action."


class RuleTrials(Protocol):
    """Tries rules; see ``duobus.server.operations.rule_trials``."""

    async def try_new(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Try a rule that nobody has made."""

    async def try_existing(self, namespace: str, address: Address, form: Mapping[str, Any]) -> dict[str, Any]:
        """Try all rules of a subscription."""


class RuleEndpoint:
    """Serves these requests for one server."""

    def __init__(self, trials: RuleTrials, guard: Guard, room: BodyBudget) -> None:
        self._trials = trials
        self._guard = guard
        self._room = room

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response | None:
        """Answer one request; None when it asks for something else.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        if (request.method, *target.lower[1:]) != ("POST", "try-rule"):
            return None
        address = entity_in(target)
        segments = target.lower if address is None else address.segments()
        self._guard.demand_at(request, segments, namespace, Right.LISTEN)
        form = json_object(await read_json(request, TRIAL_BYTES_MAX, self._room), _WHAT)
        if address is None:
            return json_response(await self._trials.try_new(form))
        return json_response(await self._trials.try_existing(namespace.name, address, form))
