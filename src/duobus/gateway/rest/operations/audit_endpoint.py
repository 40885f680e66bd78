"""``/$duobus/audit``: who changed what, the latest first; and lines of consoles."""

from __future__ import annotations

from typing import Any, Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.operations.entity_endpoint import number_in
from duobus.gateway.rest.operations.json_bodies import json_response, read_json
from duobus.gateway.rest.request_bodies import BodyBudget
from duobus.gateway.rest.request_target import Target
from duobus.model.descriptions import Right

#: Bytes of a line that a console writes.
LINE_BYTES_MAX: Final = 16 << 10


class AuditReader(Protocol):
    """The audit log; see ``duobus.server.operations.audit``."""

    async def page(self, namespace: str, after: str, limit: int | None) -> dict[str, Any]:
        """A page of the changes of a namespace."""

    def write(self, namespace: str, form: Any, *, who: str, origin: str) -> dict[str, Any]:
        """Write a line."""


class AuditEndpoint:
    """Serves these requests for one server."""

    def __init__(self, reader: AuditReader, guard: Guard, room: BodyBudget) -> None:
        self._reader = reader
        self._guard = guard
        self._room = room

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response | None:
        """Answer one request; None when it asks for something else.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        if target.lower[1:] != ("audit",) or request.method not in ("GET", "POST"):
            return None
        who = self._guard.demand(request, target, namespace, Right.MANAGE)
        if request.method == "GET":
            after = target.query.get("after", "")
            return json_response(await self._reader.page(namespace.name, after, number_in(target)))
        form = await read_json(request, LINE_BYTES_MAX, self._room)
        origin = request.remote or ""
        return json_response(self._reader.write(namespace.name, form, who=who, origin=origin), 201)
