"""Who is connected to the server, on which entities, and whose locks end when; a connection can be closed."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from duobus.console.namespace.failures import NamespaceError
from duobus.console.observation.connections import entity_of, matching, received_from, summary_of, with_end
from duobus.console.visits import Redirect, Refusal, Screen, View, Visit

screen: Final = Screen("connections", label="Connections", order=60)

#: Rows of a page.
_ROWS_MAX: Final = 100
#: Connections that the answer of a server lists at most.
_LISTED_MAX: Final = 1_000
#: Entities of one connection whose locks are looked at, and locks of each that are read.
_ENTITIES_MAX: Final = 10
_LOCKS_MAX: Final = 500
#: Entities that the field for an entity proposes.
_PROPOSED_MAX: Final = 500
_UNKNOWN_REQUEST: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.BAD_REQUEST})


@screen.get("/connections", right="manage", only_duobus=True)
async def show(visit: Visit) -> View:
    """The list."""
    found = await visit.namespace.operation("GET", "/$duobus/connections")
    words = visit.query.get("q", "")
    chosen = matching(found, words)
    skip = visit.number("skip", 0, most=_LISTED_MAX)
    rows = [summary_of(one) for one in chosen[skip : skip + _ROWS_MAX]]
    data = {
        "rows": rows,
        "q": words,
        "found": len(chosen),
        "all": len(found),
        "is_cut": len(found) >= _LISTED_MAX,
        "can_close": can_close(found),
        "first": skip + 1,
        "previous": _url(words, skip - _ROWS_MAX) if skip else "",
        "next": _url(words, skip + _ROWS_MAX) if skip + _ROWS_MAX < len(chosen) else "",
    }
    return View("connections/page.html", "Connections", data)


def can_close(connections: list[dict[str, Any]]) -> bool:
    """Whether the server closes connections: those that do also tell since when a connection is open."""
    return any("openedMs" in one for one in connections)


def _url(words: str, skip: int) -> str:
    kept = {name: value for name, value in (("q", words), ("skip", max(0, skip))) if value}
    return "/connections" + (f"?{urlencode(kept)}" if kept else "")


@screen.get("/connections/locks", right="manage", only_duobus=True)
async def show_locks(visit: Visit) -> View:
    """The locks of one entity."""
    entity = visit.query.get("entity", "").strip()
    data: dict[str, Any] = {"entity": entity, "rows": [], "next": "", "is_first": not visit.query.get("after")}
    data["entities"] = sorted(
        row["entity"]
        for row in (await visit.namespace.operation("GET", "/$duobus/entities"))[:_PROPOSED_MAX]
        if row["kind"] != "topic"
    )
    if entity:
        query = {"entity": entity_of(entity), "limit": str(_ROWS_MAX)}
        if visit.query.get("after"):
            query["after"] = visit.query["after"]
        page = await visit.namespace.operation("GET", "/$duobus/locks", query=query)
        data["entity"], data["rows"] = page["entity"], [with_end(lock) for lock in page["locks"]]
        if page["next"]:
            data["next"] = "/connections/locks?" + urlencode({"entity": page["entity"], "after": page["next"]})
    return View("connections/locks.html", "Locks", data)


@screen.get("/connections/{connection}", right="manage", only_duobus=True)
async def show_one(visit: Visit) -> View:
    """One connection with its links and locks."""
    name = visit.match["connection"]
    found = await visit.namespace.operation("GET", "/$duobus/connections")
    one = next((connection for connection in found if connection["connection"].lower() == name.lower()), None)
    if one is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"There is no connection {name}: its client has gone, or it was closed.")
    locks = await _locks_of(visit, one)
    data = {
        "one": summary_of(one),
        "links": one["links"],
        "locks": locks,
        "can_close": can_close(found),
        "links_left_out": one["linkCount"] - len(one["links"]),
    }
    return View("connections/one.html", f"Connection {one['connection']}", data)


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
