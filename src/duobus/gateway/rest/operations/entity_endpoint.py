"""What is asked of one entity: its locks and its sessions. A right on that entity is enough."""

from __future__ import annotations

from typing import Any, Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.operations.json_bodies import json_response
from duobus.gateway.rest.request_target import Target
from duobus.model.address import MAIN, Address, parse_address
from duobus.model.descriptions import Right

#: What is asked, and the right that it takes. Locks tell of other clients.
ASKED: Final = {("GET", "locks"): Right.MANAGE, ("GET", "sessions"): Right.LISTEN}
#: Digits of a number in a request's query.
NUMBER_DIGITS_MAX: Final = 9


class Inspection(Protocol):
    """Looks into entities; see ``duobus.server.operations.inspection``."""

    async def locks(self, namespace: str, address: Address, after: str, limit: int | None) -> dict[str, Any]:
        """A page of the locks of an entity."""

    async def sessions(self, namespace: str, address: Address, after: str | None, limit: int | None) -> dict[str, Any]:
        """A page of its sessions."""


class EntityEndpoint:
    """Serves these requests for one server."""

    def __init__(self, inspection: Inspection, guard: Guard) -> None:
        self._inspection = inspection
        self._guard = guard

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response | None:
        """Answer one request; None when it asks for something else.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        right = ASKED.get((request.method, "/".join(target.lower[1:])))
        if right is None:
            return None
        address = entity_in(target)
        self._guard.demand_at(request, target.lower if address is None else address.segments(), namespace, right)
        if address is None:
            raise ArgumentInvalid("Say of which queue or subscription: ?entity=orders")
        limit = number_in(target)
        if target.lower[1] == "locks":
            found = await self._inspection.locks(namespace.name, address, target.query.get("after", ""), limit)
        else:
            found = await self._inspection.sessions(namespace.name, address, target.query.get("after"), limit)
        return json_response(found)


def entity_in(target: Target) -> Address | None:
    """The entity of a request's query, or None.

    Raises:
        ArgumentInvalid, EntityNotFound: It is no address of an entity itself.
    """
    text = target.query.get("entity", "").strip("/")
    if not text:
        return None
    address = parse_address(text)
    if address.is_management or address.is_cbs or address.sub_queue != MAIN:
        raise ArgumentInvalid("Name the queue or subscription itself, without a node or sub-queue of it.")
    return address


def number_in(target: Target, name: str = "limit") -> int | None:
    """A whole number of a request's query, or None.

    Raises:
        ArgumentInvalid: It is something else.
    """
    text = target.query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise ArgumentInvalid(f"{name} is a whole number.")
    return int(text)
