"""``/$duobus/cluster``: servers that share a catalog, their stores, preferences and drains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.errors import ArgumentInvalid, NotAllowed, ServiceBusError
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.operations.json_bodies import json_response
from duobus.gateway.rest.request_target import Target
from duobus.model.descriptions import Right
from duobus.telemetry.audit_log import DONE, UPDATE, AuditTrail, Change

#: For a store that may be anywhere again.
ANYWHERE: Final = "any"
#: Digits of the number of a store in a request.
_DIGITS_MAX: Final = 9
#: Characters of a server's name, or of a label.
NAME_LENGTH_MAX: Final = 256


class ClusterManagement(Protocol):
    """A server among others; see ``duobus.cluster.node``."""

    def status(self) -> dict[str, Any]:
        """Servers and stores, as they were seen last."""

    def outline(self) -> dict[str, object]:
        """For everybody who asks for the health of this server: no addresses."""

    async def prefer(self, store_id: int, where: str | None) -> None:
        """Say where a store is to be; None: anywhere. Durable on return; the store moves within seconds.

        Raises:
            EntityNotFound: There is no such store.
            ArgumentInvalid: No server is called so, or has this label.
            ServerBusy: The database of the catalog is away.
        """

    async def drain(self, server: str, *, is_wanted: bool) -> str:
        """Have a server give its stores away, or let it have some again; returns its address. Durable on return.

        Raises:
            ArgumentInvalid: No server is called so.
            ServerBusy: The database of the catalog is away.
        """


class ClusterEndpoint:
    """Serves these requests for one server; ``cluster`` is None where it shares its catalog with nobody."""

    def __init__(
        self,
        cluster: Callable[[], ClusterManagement | None],
        guard: Guard,
        audit: AuditTrail,
        now_ms: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._guard = guard
        self._audit = audit
        self._now_ms = now_ms

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response | None:
        """Answer one request; None when it asks for something else.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        call = (request.method, *target.lower[1:])
        if call[1:2] != ("cluster",):
            return None
        who = self._guard.demand(request, target, namespace, Right.MANAGE)
        cluster = self._cluster()
        if cluster is None:
            raise NotAllowed("This server shares its catalog with no other: it was started without --join.")
        change = Change(UPDATE, "cluster", namespace.name, "", who=who, origin=request.remote or "", interface="http")
        match call:
            case "GET", "cluster":
                return json_response(cluster.status())
            case "POST", "cluster", "moves":
                store, where = _number(target.query.get("store", "")), _name(target, "to")
                await self._told(
                    change,
                    f"store {store} to {where}",
                    lambda: cluster.prefer(store, None if where == ANYWHERE else where),
                )
                return json_response(cluster.status())
            case ("POST" | "DELETE") as method, "cluster", "drains":
                server = _name(target, "server")
                is_wanted = method == "POST"
                words = f"{'drain' if is_wanted else 'end the drain of'} {server}"
                await self._told(change, words, lambda: cluster.drain(server, is_wanted=is_wanted))
                return json_response(cluster.status())
        return None

    async def _told(self, change: Change, path: str, work: Callable[[], Awaitable[object]]) -> None:
        change.path = path
        self._audit.begin(change, self._now_ms())
        outcome = DONE
        try:
            await work()
        except ServiceBusError as error:
            outcome = str(error)
            raise
        finally:
            self._audit.end(change, self._now_ms(), outcome)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ArgumentInvalid(
            "A move needs a store and where it is to be: POST /$duobus/cluster/moves?store=3&to=bus2.example:5300, a "
            "label as in to=zone=a, or to=any."
        )
    return int(text)


def _name(target: Target, name: str) -> str:
    text = target.query.get(name, "").strip()
    if not text or len(text) > NAME_LENGTH_MAX or not text.isprintable():
        raise ArgumentInvalid(f"The parameter {name!r} is missing, or has more than {NAME_LENGTH_MAX} characters.")
    return text
