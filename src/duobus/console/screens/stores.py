"""Messaging stores and fragments: how they are, where the messages lie, drills, moves and backups."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from aiohttp import web

from duobus.console.events import Event, stream_events
from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.observation.drills import MODES, Drill, is_over, told
from duobus.console.observation.observer import read_duobus
from duobus.console.observation.readings import Reading
from duobus.console.observation.stores import heat_rows, skew_of, store_rows
from duobus.console.visits import Redirect, Refusal, Screen, View, Visit

screen: Final = Screen("stores", label="Stores", key="s", order=70, tells_of_one_server=True)

#: Entities in the table of fragments, fragments in a list, and drills that are remembered.
_ENTITIES_MAX: Final = 40
_FRAGMENTS_MAX: Final = 200
DRILLS_MAX: Final = 20
#: Times between two looks of a page that is open, while something is under way and otherwise.
_BUSY_S: Final = 1.0
_CALM_S: Final = 5.0
#: Fragments are many, and are listed anew after so many looks.
_FRAGMENTS_EVERY: Final = 6
#: For how long a server that makes no backups is not asked again.
_REFUSED_MS: Final = 300_000
_PARTS: Final = (
    ("#stores-states", "stores/states.html"),
    ("#stores-heat", "stores/heat.html"),
    ("#stores-drills", "stores/drills.html"),
    ("#stores-moves", "stores/moves.html"),
    ("#stores-backup", "stores/backup.html"),
)
#: Where the page tells that the server does not answer.
_FAILURE: Final = "#stores-failure"


class _Seen(NamedTuple):
    """What one look at the stores has found."""

    stores: list[dict[str, Any]]
    fragments: list[dict[str, Any]]
    moves: list[dict[str, Any]]
    backup: dict[str, Any]
    drills: list[dict[str, Any]]


@screen.get("/stores", right="manage", only_duobus=True)
async def show(visit: Visit) -> View:
    """All stores."""
    return View("stores/page.html", "Stores and fragments", _data(await _look(visit)))


@screen.get("/stores/events", right="manage", only_duobus=True)
async def events(visit: Visit) -> web.StreamResponse:
    """What changes on the page."""
    return await stream_events(visit, _changes(visit))


async def _changes(visit: Visit) -> AsyncIterator[Event]:
    seen: _Seen | None = None
    # The first look is sent whole: something may have changed since that of the page.
    shown = {_FAILURE: ""}
    number = 0
    while True:
        is_due = seen is None or number % _FRAGMENTS_EVERY == 0
        try:
            seen = await _look(visit, None if is_due or seen is None else seen.fragments)
        except NamespaceError as error:
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            # The server may be on its way back from a restart.
            parts = {_FAILURE: visit.render("parts/failure.html", {"failure": error})}
        else:
            parts = _rendered(visit, seen)
        for target, text in parts.items():
            if text != shown.get(target):
                yield Event("html", {"target": target, "html": text})
        shown |= parts
        number += 1
        await asyncio.sleep(_BUSY_S if seen is not None and _is_busy(seen) else _CALM_S)


def _rendered(visit: Visit, seen: _Seen) -> dict[str, str]:
    data = _data(seen)
    return {_FAILURE: ""} | {target: visit.render(template, data) for target, template in _PARTS}


def _is_busy(seen: _Seen) -> bool:
    return (
        any(store["drill"] not in {None, "healthy"} or store["state"] != "open" for store in seen.stores)
        or any(move["state"] == "running" for move in seen.moves)
        or seen.backup.get("state") == "running"
    )


async def _look(visit: Visit, fragments: list[dict[str, Any]] | None = None) -> _Seen:
    namespace = visit.namespace
    stores = await namespace.operation("GET", "/$duobus/stores")
    if fragments is None:
        fragments = await namespace.operation("GET", "/$duobus/fragments")
    moves = await namespace.operation("GET", "/$duobus/moves")
    return _Seen(stores, fragments, moves, await _backup(visit), await _drills(visit, stores))


async def _backup(visit: Visit) -> dict[str, Any]:
    """How far the latest backup is.

    A refusal is remembered for a while: the server counts it among the errors that clients get, and those are shown.
    """
    now_ms = visit.clock.monotonic_ms()
    until_ms, refusal = visit.session.memory.get("backup", (0, ""))
    if now_ms >= until_ms:
        try:
            found: dict[str, Any] = await visit.namespace.operation("GET", "/$duobus/backup")
        except NamespaceError as error:
            refusal = error.text
            visit.session.memory["backup"] = (now_ms + _REFUSED_MS, refusal)
        else:
            return found
    return {"state": "impossible", "reason": refusal}


def _data(seen: _Seen) -> dict[str, Any]:
    rows = store_rows(seen.stores, seen.fragments)
    numbers = [row["store"] for row in rows]
    return {
        "rows": rows,
        "skew": skew_of(rows),
        "numbers": numbers,
        "heat": heat_rows(seen.fragments, numbers, _ENTITIES_MAX),
        "entities": len({fragment["entity"] for fragment in seen.fragments}),
        "moves": seen.moves,
        "backup": seen.backup,
        "drills": seen.drills,
        "may_drill": any(store["drill"] is not None for store in seen.stores),
    }


# -- one store ----------------------------------------------------------------------------------------------------


@screen.get("/stores/{number:\\d+}", right="manage", only_duobus=True)
async def show_one(visit: Visit) -> View:
    """One store with its fragments, and its drills."""
    number = int(visit.match["number"])
    seen = await _look(visit)
    data = _data(seen)
    row = next((row for row in data["rows"] if row["store"] == number), None)
    if row is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"There is no messaging store {number}.")
    there = [fragment for fragment in seen.fragments if fragment["store"] == number]
    there.sort(key=lambda one: (-(one["messages"] or 0), one["entity"], one["fragment"]))
    data |= {
        "one": row,
        "title_of_store": _name(number),
        "fragments": there[:_FRAGMENTS_MAX],
        "left_out": max(0, len(there) - _FRAGMENTS_MAX),
        "drills": [drill for drill in seen.drills if drill["store"] == number],
    }
    return View("stores/one.html", f"Store {number}", data)


def _name(number: int) -> str:
    """What a person types to confirm a drill."""
    return f"store {number}"


@screen.post("/stores/{number:\\d+}/heal", right="manage", only_duobus=True)
async def heal(visit: Visit) -> Redirect:
    """End a drill; nothing can be lost by that, and so no name is asked for."""
    number = int(visit.match["number"])
    await visit.namespace.operation("POST", f"/$duobus/stores/{number}/heal")
    await _drills(visit, await visit.namespace.operation("GET", "/$duobus/stores"))
    return Redirect(f"/stores/{number}", notice=f"The drill of store {number} is over. The server opens it again.")


@screen.post("/stores/{number:\\d+}/fail", right="manage", only_duobus=True, destructive=True)
async def fail(visit: Visit) -> Redirect:
    """Let every call of a store fail."""
    return await _begin_drill(visit, "fail")


@screen.post("/stores/{number:\\d+}/stall", right="manage", only_duobus=True, destructive=True)
async def stall(visit: Visit) -> Redirect:
    """Let a store answer no call."""
    return await _begin_drill(visit, "stall")


async def _begin_drill(visit: Visit, drill: str) -> Redirect:
    number = int(visit.match["number"])
    visit.confirmed(_name(number))
    # One after the other: of two who begin the same drill at once, the second is told.
    async with visit.shared.setdefault("drill", asyncio.Lock()):
        stores = await visit.namespace.operation("GET", "/$duobus/stores")
        if any(store["store"] == number and store["drill"] == MODES[drill] for store in stores):
            raise Refusal(
                HTTPStatus.CONFLICT, f"Store {number} is {MODES[drill]} already: somebody has begun this drill."
            )
        before = await read_duobus(visit.namespace, with_stores=False)
        await visit.namespace.operation("POST", f"/$duobus/stores/{number}/{drill}")
        _remembered(visit).append(Drill(number, MODES[drill], before))
    text = f"Store {number} is {MODES[drill]} now, until somebody heals it."
    return Redirect(f"/stores/{number}", notice=text, kind="warning")


def _remembered(visit: Visit) -> deque[Drill]:
    """The drills that were begun from this console, of one namespace."""
    drills: dict[str, deque[Drill]] = visit.shared.setdefault("drills", {})
    return drills.setdefault(visit.namespace.address.url.lower(), deque(maxlen=DRILLS_MAX))


async def _drills(visit: Visit, stores: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What clients saw of each drill, the latest first; drills that somebody has ended are closed."""
    drills = _remembered(visit)
    if not drills:
        return []
    modes = {store["store"]: store["drill"] for store in stores}
    now: Reading | None = None
    if any(drill.end is None for drill in drills):
        now = await read_duobus(visit.namespace, with_stores=False)
        for index, drill in enumerate(list(drills)):
            # Another request may have closed it, or another drill have begun, while this one waited.
            if drills[index] is drill and is_over(drill, modes):
                drills[index] = drill._replace(end=now)
    return [told(drill, drill.end or now or drill.begin) for drill in reversed(drills)]


# -- fragments ----------------------------------------------------------------------------------------------------


@screen.get("/stores/fragments/{path:.+}", right="manage", only_duobus=True)
async def show_fragments(visit: Visit) -> View:
    """The fragments of one entity, and moving one."""
    path = visit.match["path"]
    stores = await visit.namespace.operation("GET", "/$duobus/stores")
    fragments = await visit.namespace.operation("GET", "/$duobus/fragments", query={"entity": path})
    moves = await visit.namespace.operation("GET", "/$duobus/moves")
    entity = fragments[0]["entity"]
    data = {
        "entity": entity,
        "fragments": fragments,
        "stores": [store["store"] for store in stores if store["state"] == "open"],
        "moves": [move for move in moves if move["entity"].lower() == entity.lower()],
    }
    return View("stores/fragments.html", f"Fragments of {entity}", data)


@screen.get("/stores/moves/events/{path:.+}", right="manage", only_duobus=True)
async def move_events(visit: Visit) -> web.StreamResponse:
    """How far the moves of an entity are."""
    return await stream_events(visit, _move_changes(visit, visit.match["path"].lower()))


async def _move_changes(visit: Visit, path: str) -> AsyncIterator[Event]:
    shown = ""
    while True:
        moves = await visit.namespace.operation("GET", "/$duobus/moves")
        those = [move for move in moves if move["entity"].lower() == path]
        text = visit.render("stores/moves.html", {"moves": those})
        if text != shown:
            yield Event("html", {"target": "#stores-moves", "html": text})
        shown = text
        await asyncio.sleep(_BUSY_S if any(move["state"] == "running" for move in those) else _CALM_S)


@screen.post("/stores/moves/{path:.+}", right="manage", only_duobus=True)
async def move(visit: Visit) -> Redirect:
    """Begin to move a fragment; nothing is lost by that, and it can be moved back."""
    path = visit.match["path"]
    query = {"entity": path, "fragment": visit.form.get("fragment", ""), "to": visit.form.get("to", "")}
    found = await visit.namespace.operation("POST", "/$duobus/moves", query=query)
    text = f"Fragment {found['fragment']} of {found['entity']} is on its way to store {found['to']}."
    return Redirect(entity_url(found["entity"], "stores/fragments"), notice=text)


@screen.post("/stores/backup", right="manage", only_duobus=True)
async def back_up(visit: Visit) -> Redirect:
    """Begin a backup."""
    found = await visit.namespace.operation("POST", "/$duobus/backup")
    return Redirect("/stores", notice=f"The backup {found['backup']} has begun.")
