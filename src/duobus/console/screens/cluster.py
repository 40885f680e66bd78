"""The servers that share the namespace and their messaging stores; a store is moved, a server is drained."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from duobus.console.events import stream_events
from duobus.console.observation.cluster import ANYWHERE, places_for, read_cluster
from duobus.console.screens.live_part import live_part
from duobus.console.visits import Redirect, Refusal, Screen, View, Visit

screen: Final = Screen("cluster", label="Cluster", key="t", order=72)

#: Time between two looks of a page that is open, in seconds.
_LOOK_S: Final = 2.0


@screen.get("/cluster", right="manage", only_duobus=True)
async def show(visit: Visit) -> View:
    """All servers and stores."""
    return View("cluster/page.html", "Cluster", await _look(visit))


@screen.get("/cluster/events", right="manage", only_duobus=True)
async def events(visit: Visit) -> web.StreamResponse:
    """What changes on the page."""
    look = partial(_look, visit)
    return await stream_events(visit, live_part(visit, "cluster/states.html", look, screen="cluster", pause_s=_LOOK_S))


async def _look(visit: Visit) -> dict[str, Any]:
    found = await read_cluster(visit.namespace)
    if found is None:
        return {"is_cluster": False, "servers": [], "stores": [], "away": []}
    servers = [one | {"url": server_url(one["server"])} for one in found["servers"]]
    return {"is_cluster": True, "servers": servers, "stores": found["stores"], "away": found["drainedAndAway"]}


def server_url(server: str) -> str:
    """The page of a server."""
    return f"/cluster/servers/{quote(server, safe=':[]')}"


async def _known(visit: Visit) -> dict[str, Any]:
    found = await read_cluster(visit.namespace)
    if found is None:
        raise Refusal(HTTPStatus.NOT_FOUND, "This server is alone: it shares the namespace with no other.")
    return found


# -- one store ----------------------------------------------------------------------------------------------------


@screen.get("/cluster/stores/{number:\\d+}", right="manage", only_duobus=True)
async def show_store(visit: Visit) -> View:
    """One store, and moving it."""
    found = await _known(visit)
    number = int(visit.match["number"])
    store = next((one for one in found["stores"] if one["store"] == number), None)
    if store is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"There is no messaging store {number} in this cluster.")
    data = {"one": store, "places": places_for(found), "name": _name(number)}
    return View("cluster/store.html", f"Store {number}", data)


def _name(number: int) -> str:
    """What a person types to confirm a move."""
    return f"store {number}"


@screen.post("/cluster/stores/{number:\\d+}/move", right="manage", only_duobus=True, destructive=True)
async def move(visit: Visit) -> Redirect:
    """Say where a store is to be; links to its entities end once."""
    number = int(visit.match["number"])
    visit.confirmed(_name(number))
    where = visit.form.get("to", "").strip()
    await visit.namespace.operation("POST", "/$duobus/cluster/moves", query={"store": str(number), "to": where})
    if where == ANYWHERE:
        text = f"Store {number} may be at any server again."
    else:
        text = f"Store {number} is kept at {where} from now on. It is there within seconds, while a server fits."
    return Redirect("/cluster", notice=text)


# -- one server ---------------------------------------------------------------------------------------------------


@screen.get("/cluster/servers/{server:[^/]+}", right="manage", only_duobus=True)
async def show_server(visit: Visit) -> View:
    """One server with its stores, and draining it."""
    found = await _known(visit)
    name = visit.match["server"]
    server = next((one for one in found["servers"] if one["server"] == name), None)
    is_away = server is None and name in found["drainedAndAway"]
    if server is None and not is_away:
        raise Refusal(HTTPStatus.NOT_FOUND, f"There is no server {name} in this cluster now.")
    data = {
        "name": name,
        "one": server,
        "is_drained": is_away or (server is not None and server["state"] == "drained"),
        "stores": [one for one in found["stores"] if one["server"] == name],
        "others": sum(one["server"] != name and one["state"] == "serving" for one in found["servers"]),
        "url": server_url(name),
    }
    return View("cluster/server.html", f"Server {name}", data)


@screen.post("/cluster/servers/{server:[^/]+}/drain", right="manage", only_duobus=True, destructive=True)
async def drain(visit: Visit) -> Redirect:
    """Have a server give its stores to the others; links to their entities end once."""
    name = visit.match["server"]
    visit.confirmed(name)
    await visit.namespace.operation("POST", "/$duobus/cluster/drains", query={"server": name})
    text = f"{name} gives its stores to the others, and takes none until the drain ends."
    return Redirect("/cluster", notice=text, kind="warning")


@screen.post("/cluster/servers/{server:[^/]+}/serve", right="manage", only_duobus=True)
async def end_drain(visit: Visit) -> Redirect:
    """Let a server have stores again."""
    name = visit.match["server"]
    await visit.namespace.operation("DELETE", "/$duobus/cluster/drains", query={"server": name})
    return Redirect("/cluster", notice=f"The drain of {name} is over. It takes stores again.")
