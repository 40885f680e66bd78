"""``/$duobus/relays``: the relays of a namespace, which are made, changed and deleted here.

The .NET client asks the relay itself for what it is (``X-PROCESS-AT: ServiceBus``); that answer is made here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.errors import EntityNotFound
from duobus.gateway.rest.atom.xml import writer as xml
from duobus.gateway.rest.atom.xml.documents import ENTRY_TYPE, entry
from duobus.gateway.rest.authorization import Guard, RightLacking
from duobus.gateway.rest.operations.json_bodies import json_object, json_response, read_json
from duobus.gateway.rest.request_bodies import BodyBudget
from duobus.gateway.rest.request_target import Target
from duobus.model.descriptions import Right

#: Bytes of one description in JSON.
RELAY_BYTES_MAX: Final = 64 << 10
RELAYS: Final = "relays"
#: The header of a request that is about a relay, and not for its listeners.
PROCESS_AT: Final = "X-PROCESS-AT"


class RelayManagement(Protocol):
    """The relays of a server; see ``duobus.server.operations.relays``."""

    def listed(self, namespace: str, *, with_rules: bool, with_keys: bool) -> list[dict[str, Any]]:
        """All of a namespace, by name; with the access rules of each, and their keys, where these are asked for."""

    def shown(self, namespace: str, path: str, *, with_rules: bool, with_keys: bool) -> dict[str, Any]:
        """One of them; with its access rules, perhaps their keys, and its listeners."""

    def known(self, namespace: str, path: str) -> dict[str, Any] | None:
        """One of them, with the times of its changes in ms; None when there is none of this name."""

    def put(
        self, namespace: str, path: str, form: Mapping[str, Any], *, must_be: str, who: str, origin: str
    ) -> tuple[dict[str, Any], bool]:
        """Create or change one; return it, and whether it is new. ``must_be``: new, there, or empty for either."""

    def delete(self, namespace: str, path: str, *, who: str, origin: str) -> None:
        """Delete one."""


def relay_entry(request: web.Request, found: Mapping[str, Any]) -> web.Response:
    """A relay as the .NET client asks for it: an Atom entry with what is known at run time."""
    metadata = found["userMetadata"]
    inside = (
        xml.element("CreatedAt", found["createdAt"])
        + xml.element("UpdatedAt", found["updatedAt"])
        + xml.element("ListenerCount", str(found["listeners"]))
        + xml.element("RequiresClientAuthorization", "true" if found["requiresClientAuthorization"] else "false")
        + ("" if metadata is None else xml.element("UserMetadata", metadata))
    )
    scheme = "https" if request.secure else "http"
    body = entry(
        "HybridConnectionDescription",
        inside,
        url=f"{scheme}://{request.host}{request.raw_path}",
        title=found["name"],
        author=request.host.partition(":")[0],
        created_at_ms=found["createdAtMs"],
        updated_at_ms=found["updatedAtMs"],
    )
    return web.Response(body=body.encode(), headers={"Content-Type": ENTRY_TYPE})


def _kept_nowhere(answer: web.Response, has_keys: bool) -> web.Response:
    """An answer that nothing on its way keeps where it has keys."""
    if has_keys:
        answer.headers["Cache-Control"] = "no-store"
    return answer


class RelayEndpoint:
    """Serves these requests for one server."""

    def __init__(self, relays: RelayManagement, guard: Guard, room: BodyBudget) -> None:
        self._relays = relays
        self._guard = guard
        self._room = room

    def answer_relay(
        self, request: web.Request, target: Target, namespace: NamespaceRules
    ) -> web.StreamResponse | None:
        """Answer a question about the relay that has the address of a request; None to any other request.

        Raises:
            ServiceBusError: The request is refused; the caller says so.
        """
        if request.method != "GET" or PROCESS_AT not in request.headers:
            return None
        found = self._relays.known(namespace.name, "/".join(target.segments))
        if found is None:
            return None
        self._guard.demand_at(request, target.lower, namespace, Right.LISTEN)
        return relay_entry(request, found)

    def _demand_look(self, request: web.Request, segments: Sequence[str], namespace: NamespaceRules) -> bool:
        """Demand the right to listen, which lets see numbers; return whether access rules and listeners may be seen."""
        try:
            self._guard.demand_at(request, segments, namespace, Right.MANAGE)
        except RightLacking:
            self._guard.demand_at(request, segments, namespace, Right.LISTEN)
            return False
        return True

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response | None:
        """Answer one request; None when it asks for something else.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        if target.lower[1:2] != (RELAYS,):
            return None
        path = "/".join(target.segments[2:])
        segments = tuple(path.lower().split("/")) if path else ()
        match request.method, bool(path):
            case "GET", False:
                is_manager = self._demand_look(request, target.lower, namespace)
                with_keys = is_manager and target.query.get("keys", "") == "true"
                return _kept_nowhere(
                    json_response(self._relays.listed(namespace.name, with_rules=is_manager, with_keys=with_keys)),
                    with_keys,
                )
            case "GET", True:
                is_manager = self._demand_look(request, segments, namespace)
                with_keys = is_manager and target.query.get("keys", "") == "true"
                found = self._relays.shown(namespace.name, path, with_rules=is_manager, with_keys=with_keys)
                return _kept_nowhere(json_response(found), with_keys)
            case "PUT", True:
                who = self._guard.demand_at(request, segments, namespace, Right.MANAGE)
                form = json_object(await read_json(request, RELAY_BYTES_MAX, self._room), "The body is an object.")
                found, is_new = self._relays.put(
                    namespace.name,
                    path,
                    form,
                    must_be=target.query.get("must", ""),
                    who=who,
                    origin=request.remote or "",
                )
                return json_response(found, 201 if is_new else 200)
            case "DELETE", True:
                who = self._guard.demand_at(request, segments, namespace, Right.MANAGE)
                self._relays.delete(namespace.name, path, who=who, origin=request.remote or "")
                return json_response({})
        raise EntityNotFound("GET, PUT and DELETE /$duobus/relays/<path>, and GET /$duobus/relays, are what there is.")
