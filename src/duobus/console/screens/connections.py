"""Who is connected to the server, on which entities, and whose locks end when; a connection can be closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from duobus.console.events import Event, stream_events
from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.observation.connections import entity_of, matching, received_from, summary_of, with_end
from duobus.console.screens.live_part import live_part
from duobus.console.visits import Redirect, Refusal, Screen, View, Visit, of_one_server

screen: Final = Screen("connections", label="Connections", key="c", order=60)

#: Rows of a page.
_ROWS_MAX: Final = 100
#: Connections that the answer of a server lists at most.
_LISTED_MAX: Final = 1_000
#: Entities of one connection whose locks are looked at, and locks of each that are read.
_ENTITIES_MAX: Final = 10
_LOCKS_MAX: Final = 500
#: Entities that the field for an entity proposes.
_PROPOSED_MAX: Final = 500
#: Time between two looks of a page that is open, in seconds; locks count down by themselves meanwhile.
_LOOK_S: Final = 2.0
_UNKNOWN_REQUEST: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.BAD_REQUEST})


@screen.get("/connections", right="manage", only_duobus=True)
async def show(visit: Visit) -> View:
    """The list."""
    return View("connections/page.html", "Connections", await _list(visit) | await of_one_server(visit))


@screen.get("/connections/events", right="manage", only_duobus=True)
async def events(visit: Visit) -> web.StreamResponse:
    """What changes in the list."""
    return await stream_events(visit, _changes(visit, "connections/rows.html", partial(_list, visit)))


async def _list(visit: Visit) -> dict[str, Any]:
    found = await visit.namespace.operation("GET", "/$duobus/connections")
    words = visit.query.get("q", "")
    chosen = matching(found, words)
    skip = visit.number("skip", 0, most=_LISTED_MAX)
    rows = [summary_of(one) for one in chosen[skip : skip + _ROWS_MAX]]
    return {
        "rows": rows,
        "q": words,
        "found": len(chosen),
        "all": len(found),
        "is_cut": len(found) >= _LISTED_MAX,
        "can_close": can_close(found),
        "first": skip + 1,
        "previous": _url(words, skip - _ROWS_MAX) if skip else "",
        "next": _url(words, skip + _ROWS_MAX) if skip + _ROWS_MAX < len(chosen) else "",
        "events": _events_url("/connections/events", visit, "q", "skip"),
    }


def _changes(visit: Visit, template: str, look: Callable[[], Awaitable[dict[str, Any]]]) -> AsyncIterator[Event]:
    return live_part(visit, template, look, screen="connections", pause_s=_LOOK_S)


def _events_url(path: str, visit: Visit, *names: str) -> str:
    kept = {name: visit.query[name] for name in names if visit.query.get(name)}
    return path + (f"?{urlencode(kept)}" if kept else "")


def can_close(connections: list[dict[str, Any]]) -> bool:
    """Whether the server closes connections: those that do also tell since when a connection is open."""
    return any("openedMs" in one for one in connections)


def _url(words: str, skip: int) -> str:
    kept = {name: value for name, value in (("q", words), ("skip", max(0, skip))) if value}
    return "/connections" + (f"?{urlencode(kept)}" if kept else "")


@screen.get("/connections/locks", right="manage", only_duobus=True)
async def show_locks(visit: Visit) -> View:
    """The locks of one entity."""
    entities: list[str] = []
    if not await visit.namespace.servers():
        # Of several servers, each knows the names of its own entities alone, but asks the others for locks.
        found = await visit.namespace.operation("GET", "/$duobus/entities")
        entities = sorted(row["entity"] for row in found[:_PROPOSED_MAX] if row["kind"] != "topic")
    return View("connections/locks.html", "Locks", await _locks(visit) | {"entities": entities})


@screen.get("/connections/locks/events", right="manage", only_duobus=True)
async def lock_events(visit: Visit) -> web.StreamResponse:
    """What changes among the locks of one entity."""
    return await stream_events(visit, _changes(visit, "connections/entity_locks.html", partial(_locks, visit)))


async def _locks(visit: Visit) -> dict[str, Any]:
    entity = visit.query.get("entity", "").strip()
    data: dict[str, Any] = {"entity": entity, "rows": [], "next": "", "is_first": not visit.query.get("after")}
    if entity:
        query = {"entity": entity_of(entity), "limit": str(_ROWS_MAX)}
        if visit.query.get("after"):
            query["after"] = visit.query["after"]
        page = await visit.namespace.operation("GET", "/$duobus/locks", query=query)
        data["entity"], data["rows"] = page["entity"], [with_end(lock) for lock in page["locks"]]
        if page["next"]:
            data["next"] = "/connections/locks?" + urlencode({"entity": page["entity"], "after": page["next"]})
    data["events"] = _events_url("/connections/locks/events", visit, "entity", "after") if entity else ""
    return data


@screen.get("/connections/{connection}", right="manage", only_duobus=True)
async def show_one(visit: Visit) -> View:
    """One connection with its links and locks."""
    data = await _one(visit) | await of_one_server(visit)
    return View("connections/one.html", f"Connection {data['one']['connection']}", data)


@screen.get("/connections/{connection}/events", right="manage", only_duobus=True)
async def connection_events(visit: Visit) -> web.StreamResponse:
    """What changes of one connection."""
    return await stream_events(visit, _changes(visit, "connections/about.html", partial(_one, visit)))


async def _one(visit: Visit) -> dict[str, Any]:
    name = visit.match["connection"]
    found = await visit.namespace.operation("GET", "/$duobus/connections")
    one = next((connection for connection in found if connection["connection"].lower() == name.lower()), None)
    if one is None:
        # The locks of an entity are told by the server that has the entity, and so name connections of that server.
        where = "at this server; others share the namespace" if await visit.namespace.servers() else "any more"
        raise Refusal(
            HTTPStatus.NOT_FOUND, f"There is no connection {name} {where}: its client has gone, or it was closed."
        )
    locks = await _locks_of(visit, one)
    return {
        "one": summary_of(one),
        "links": one["links"],
        "locks": locks,
        "can_close": can_close(found),
        "links_left_out": one["linkCount"] - len(one["links"]),
        "events": entity_url(one["connection"], "connections") + "/events",
    }


async def _locks_of(visit: Visit, connection: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The locks that a connection holds; None where the server does not tell."""
    found: list[dict[str, Any]] = []
    for entity in received_from(connection)[:_ENTITIES_MAX]:
        query = {"entity": entity, "limit": str(_LOCKS_MAX)}
        try:
            page = await visit.namespace.operation("GET", "/$duobus/locks", query=query)
        except NamespaceError as error:
            if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
                return None
            if error.status in _UNKNOWN_REQUEST:
                # The entity was deleted meanwhile, or is none.
                continue
            raise
        those = [lock for lock in page["locks"] if lock["connection"] == connection["connection"]]
        found += [with_end(lock) | {"entity": page["entity"]} for lock in those]
    return found[:_LOCKS_MAX]


@screen.post("/connections/{connection}/close", right="manage", only_duobus=True, destructive=True)
async def close(visit: Visit) -> Redirect:
    """Close a connection; its client hears that an operator did so."""
    name = visit.match["connection"]
    visit.confirmed(name)
    await visit.namespace.operation("DELETE", f"/$duobus/connections/{name}")
    return Redirect("/connections", notice=f"The connection {name} is closed. Its client may connect again.")
