"""``GET /$duobus/history``: what went through a namespace, or an entity, in the last hour or day."""

from __future__ import annotations

from typing import Any, Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.operations.entity_endpoint import number_in
from duobus.gateway.rest.operations.json_bodies import json_response
from duobus.gateway.rest.request_target import Target
from duobus.model.descriptions import Right

MINUTES_DEFAULT: Final = 60


class History(Protocol):
    """What was kept; see ``duobus.server.operations.history``."""

    def points(self, namespace: str, path: str | None, minutes: int) -> dict[str, Any]:
        """The points of a namespace, or of one of its entities."""


class HistoryEndpoint:
    """Serves these requests for one server. Numbers of all entities are no secret of whoever may listen everywhere."""

    def __init__(self, history: History, guard: Guard) -> None:
        self._history = history
        self._guard = guard

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response | None:
        """Answer one request; None when it asks for something else.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        if (request.method, *target.lower[1:]) != ("GET", "history"):
            return None
        self._guard.demand(request, target, namespace, Right.LISTEN)
        minutes = number_in(target, "minutes")
        path = target.query.get("entity", "").strip("/") or None
        found = self._history.points(namespace.name, path, MINUTES_DEFAULT if minutes is None else minutes)
        return json_response(found)
