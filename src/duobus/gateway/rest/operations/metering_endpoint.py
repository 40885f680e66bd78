"""``GET /$duobus/metering``: metered operations by entity and hour."""

from __future__ import annotations

from typing import Any, Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.operations.json_bodies import json_response
from duobus.gateway.rest.request_target import Target
from duobus.model.descriptions import Right

#: Digits of an instant in ms since 1970.
INSTANT_DIGITS_MAX: Final = 15


class MeteringReader(Protocol):
    """What was metered; see ``duobus.server.operations.metering``."""

    async def hours(self, namespace: str, from_ms: int | None, to_ms: int | None) -> dict[str, Any]:
        """What was metered between two instants."""


class MeteringEndpoint:
    """Serves these requests for one server."""

    def __init__(self, reader: MeteringReader, guard: Guard) -> None:
        self._reader = reader
        self._guard = guard

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response | None:
        """Answer one request; None when it asks for something else.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        if (request.method, *target.lower[1:]) != ("GET", "metering"):
            return None
        self._guard.demand(request, target, namespace, Right.MANAGE)
        found = await self._reader.hours(namespace.name, _instant(target, "from"), _instant(target, "to"))
        return json_response(found)


def _instant(target: Target, name: str) -> int | None:
    text = target.query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= INSTANT_DIGITS_MAX):
        raise ArgumentInvalid(f"{name} is an instant in ms since 1970.")
    return int(text)
