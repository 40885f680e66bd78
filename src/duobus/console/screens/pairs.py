"""Pairs of namespaces: what waits in backlog queues, and carrying it home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiohttp import web

from duobus.console.events import Event, stream_events
from duobus.console.namespace.client import NamespaceClient
from duobus.console.namespace.failures import NamespaceError
from duobus.console.observation.backlogs import (
    UNNAMED,
    Sample,
    backlogs_of,
    merged,
    primaries_among,
    readers_of,
    sample_of,
)
from duobus.console.observation.failovers import PairState, failovers_of, read_states
from duobus.console.observation.readings import EntityCounts, counts_of_queue, entities_of
from duobus.console.observation.syphon_runs import SyphonRun
from duobus.console.visits import Redirect, Refusal, Screen, View, Visit, of_one_server
from duobus.ha.aio.backlog_queues import Found, name_of
from duobus.ha.aio.syphon import Syphon
from duobus.ha.events import Reporter
from duobus.ha.options import BACKLOG_QUEUES_DEFAULT, BACKLOG_QUEUES_MAX
from duobus.ha.reports.message import state_queue, wish_message
from duobus.ha.sdk_errors import explained

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient

screen: Final = Screen("pairs", label="Pairs", key="p", order=75)

#: Messages of each backlog queue that are looked at, queues that are, and how many of these at a time.
_PEEKED_MAX: Final = 100
_QUEUES_MAX: Final = 50
_AT_ONCE: Final = 5
#: Primaries whose backlog queues one namespace shows.
_PRIMARIES_MAX: Final = 10
_DESTINATIONS_MAX: Final = 50
_PEEK_S: Final = 10.0
#: Parts of the page that are replaced when they have changed: the element and its template.
_PARTS: Final = (
    ("#pair-states", "pairs/states.html"),
    ("#pair-run", "pairs/run.html"),
    ("#pair-backlog", "pairs/backlogs.html"),
)
#: How long a receive of the syphon waits; a run is over when each has waited for nothing.
_POLL: Final = timedelta(seconds=2)
_PROGRESS_S: Final = 0.5
_LOOK_MS: Final = 10_000
_FAILOVERS: Final = "pair-failovers"


class _Other(NamedTuple):
    """The other namespace of the pair, as the person has named it.

    Attributes:
        client: Opened with a key of its own.
        is_secondary: Whether the other one keeps messages while this one is away.
        primary_name: Name of the primary in the paths of the backlog queues.
    """

    client: NamespaceClient
    is_secondary: bool
    primary_name: str


@screen.get("/pairs", right="listen")
async def show(visit: Visit) -> View:
    """What waits, here and in the other namespace."""
    return View("pairs/page.html", "Pairs", await _data(visit))


async def _data(visit: Visit) -> dict[str, Any]:
    other = _other_of(visit)
    backlogs = await _backlogs(visit.namespace, None, visit.clock.now_ms())
    data: dict[str, Any] = {
        "here": visit.namespace.name,
        "backlogs": backlogs,
        "other": None,
        "run": _run_of(visit),
        "default_count": BACKLOG_QUEUES_DEFAULT,
        "error": "",
        "given": {"role": "secondary", "primary_name": "", "saved": ""},
        "saved": visit.saved_namespaces,
    }
    if other is not None:
        data["other"] = await _told(visit, other)
    if not visit.namespace.rights.manage:
        # Only a key with Manage may list the queues of all servers.
        data |= await of_one_server(visit)
    return data


async def _told(visit: Visit, other: _Other) -> dict[str, Any]:
    """What is known of the pair."""
    primary, secondary = _ordered(visit.namespace, other)
    backlogs, failure, states = [], "", None
    try:
        backlogs = await _backlogs(secondary, other.primary_name, visit.clock.now_ms())
        states = await read_states(secondary, other.primary_name, visit.clock.now_ms())
    except NamespaceError as error:
        failure = error.text
    return {
        "name": other.client.name,
        "primary": primary.name,
        "secondary": secondary.name,
        "primary_name": other.primary_name,
        "backlogs": backlogs,
        "failure": failure,
        "states": states,
        "may_mark": secondary.rights.send,
        "may_run": primary.rights.send and secondary.rights.listen,
    }


def _ordered(here: NamespaceClient, other: _Other) -> tuple[NamespaceClient, NamespaceClient]:
    """The primary and the secondary."""
    return (here, other.client) if other.is_secondary else (other.client, here)


def _other_of(visit: Visit) -> _Other | None:
    found: _Other | None = visit.session.memory.get("pair")
    return found


def _run_of(visit: Visit) -> dict[str, Any] | None:
    run: SyphonRun | None = visit.session.memory.get("syphon")
    return None if run is None else run.told()


# -- the other namespace ------------------------------------------------------------------------------------------


@screen.post("/pairs/other", right="listen")
async def choose(visit: Visit) -> Redirect | View:
    """Open the other namespace of the pair; its connection string stays in the memory of this session."""
    _demand_no_run(visit)
    form = visit.form
    primary_name = form.get("primary_name", "").strip().strip("/")
    is_secondary = form.get("role") != "primary"
    try:
        client = await visit.other(name=form.get("saved", ""), connection_string=form.get("connection_string", ""))
        if client.address.is_same_place(visit.namespace.address):
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "This is the namespace itself; a pair needs two.")
    except (Refusal, NamespaceError) as error:
        return await _again(visit, form, error.text)
    primary = visit.namespace if is_secondary else client
    other = _Other(client, is_secondary, primary_name or name_of(primary.messaging))
    visit.session.memory["pair"] = other
    visit.session.memory.pop(_FAILOVERS, None)
    visit.session.start(_watch(visit, other), "console-pair")
    return Redirect("/pairs", notice=f"{client.name} is opened until you sign out.")


async def _watch(visit: Visit, other: _Other) -> None:
    """Ask the secondary from time to time for what the clients report, as long as the pair is open: the overview tells.

    The overview waits for no other namespace, which may be away.
    """
    _, secondary = _ordered(visit.namespace, other)
    while _other_of(visit) is other:
        state = await failovers_of(secondary, other.primary_name, visit.clock.now_ms())
        if _other_of(visit) is other:
            visit.session.memory[_FAILOVERS] = state
        await asyncio.sleep(_LOOK_MS / 1_000)


def pair_state_of(visit: Visit) -> PairState | None:
    """What the clients of the pair that this session has opened report, as of the last look; None without a pair."""
    found: PairState | None = visit.session.memory.get(_FAILOVERS)
    return found


async def _again(visit: Visit, form: Mapping[str, str], text: str) -> View:
    data = await _data(visit)
    # Never the connection string, which holds a key.
    data |= {"error": text, "given": {name: form.get(name, "") for name in ("role", "primary_name", "saved")}}
    return View("pairs/page.html", "Pairs", data, HTTPStatus.UNPROCESSABLE_ENTITY)


def _demand_no_run(visit: Visit) -> None:
    run: SyphonRun | None = visit.session.memory.get("syphon")
    if run is not None and not run.is_over:
        raise Refusal(HTTPStatus.CONFLICT, "The syphon is running. Stop it first, or wait until it is done.")


@screen.post("/pairs/close", right="listen")
async def forget(visit: Visit) -> Redirect:
    """Show no pair any more; the other namespace is closed with the session."""
    _demand_no_run(visit)
    visit.session.memory.pop("pair", None)
    visit.session.memory.pop(_FAILOVERS, None)
    return Redirect("/pairs")


# -- backlog queues -----------------------------------------------------------------------------------------------


async def _backlogs(namespace: NamespaceClient, primary: str | None, now_ms: int) -> list[dict[str, Any]]:
    """The backlog queues in a namespace, by primary; of one primary when it is named."""
    if namespace.entity or not (namespace.rights.manage or (namespace.is_duobus and namespace.rights.listen)):
        return []
    entities = await _entities(namespace)
    names = primaries_among(entities)[:_PRIMARIES_MAX] if primary is None else [primary]
    found = []
    for name in names:
        queues = backlogs_of(entities, name, BACKLOG_QUEUES_MAX)
        if queues or primary is not None:
            found.append(await _backlog(namespace, name, queues, now_ms))
    return found


async def _entities(namespace: NamespaceClient) -> dict[str, EntityCounts]:
    # Of several servers, each tells of its own entities alone; with Manage, the SDK lists those of all.
    if namespace.is_duobus and not (namespace.rights.manage and await namespace.servers()):
        return entities_of(await namespace.operation("GET", "/$duobus/entities"))
    entities: dict[str, EntityCounts] = {}
    async with namespace.telling("the backlog queues"):
        async for queue in namespace.administration.list_queues_runtime_properties():
            entities[queue.name] = counts_of_queue(queue)
    return entities


async def _backlog(namespace: NamespaceClient, name: str, queues: list[Found], now_ms: int) -> dict[str, Any]:
    samples: dict[str, Sample] = {}
    if namespace.rights.listen:
        filled = [queue.path for queue in queues if queue.waiting][:_QUEUES_MAX]
        for first in range(0, len(filled), _AT_ONCE):
            part = filled[first : first + _AT_ONCE]
            for path, sample in zip(
                part, await asyncio.gather(*(_sample(namespace, path) for path in part)), strict=True
            ):
                if sample is not None:
                    samples[path] = sample
    readers: dict[str, list[str]] | None = None
    if namespace.is_duobus and namespace.rights.manage and not await namespace.servers():
        connections = await namespace.operation("GET", "/$duobus/connections")
        readers = readers_of(connections, [queue.path for queue in queues])
    total = merged(samples.values())
    return {
        "primary": name,
        "waiting": sum(queue.waiting for queue in queues),
        "dead": sum(queue.dead for queue in queues),
        "examined": total.examined,
        "oldest_ms": total.oldest_ms,
        "oldest_age_ms": None if total.oldest_ms is None else max(0, now_ms - total.oldest_ms) // 1_000 * 1_000,
        "destinations": [
            {"entity": entity, "is_unnamed": entity == UNNAMED, "messages": number}
            for entity, number in total.destinations.most_common(_DESTINATIONS_MAX)
        ],
        "queues": [
            {
                "path": queue.path,
                "waiting": queue.waiting,
                "dead": queue.dead,
                "oldest_ms": samples[queue.path].oldest_ms if queue.path in samples else None,
                "readers": None if readers is None else readers[queue.path.lower()],
            }
            for queue in queues
        ],
    }


async def _sample(namespace: NamespaceClient, path: str) -> Sample | None:
    """Some messages of a backlog queue; None when the queue does not let anybody look."""
    try:
        async with (
            namespace.telling(f"the backlog queue {path}", _PEEK_S),
            namespace.messaging.get_queue_receiver(path) as receiver,
        ):
            return sample_of(await receiver.peek_messages(max_message_count=_PEEKED_MAX))
    except NamespaceError:
        return None


@screen.post("/pairs/mark-healthy", right="listen")
async def mark_healthy(visit: Visit) -> Redirect:
    """Ask the clients of the pair to take an entity for healthy: they send to the primary at once."""
    other = _other_of(visit)
    if other is None:
        raise Refusal(HTTPStatus.CONFLICT, "Open the other namespace of the pair first.")
    _, secondary = _ordered(visit.namespace, other)
    entity = visit.form.get("entity", "").strip()
    if not entity:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Name the entity that counts as healthy.")
    if not secondary.rights.send:
        raise Refusal(HTTPStatus.FORBIDDEN, f"This needs the right Send in {secondary.name}.")
    path = state_queue(other.primary_name)
    async with secondary.telling(f"the queue {path}"), secondary.messaging.get_queue_sender(path) as sender:
        await sender.send_messages(wish_message(entity))
    await visit.write_down("mark healthy", "pair", entity, note=f"of {other.primary_name}")
    text = f"The clients of the pair take {entity} for healthy within ten seconds, and send to the primary again."
    return Redirect("/pairs", notice=text)


# -- the syphon ---------------------------------------------------------------------------------------------------


@screen.post("/pairs/syphon", right="listen")
async def begin(visit: Visit) -> Redirect:
    """Carry what is in the backlog queues to the primary, once."""
    other = _other_of(visit)
    if other is None:
        raise Refusal(HTTPStatus.CONFLICT, "Open the other namespace of the pair first.")
    _demand_no_run(visit)
    primary, secondary = _ordered(visit.namespace, other)
    if not (primary.rights.send and secondary.rights.listen):
        text = f"A syphon needs the right Send in {primary.name} and the right Listen in {secondary.name}."
        raise Refusal(HTTPStatus.FORBIDDEN, text)
    queues = backlogs_of(await _entities(secondary), other.primary_name, BACKLOG_QUEUES_MAX)
    if not queues:
        text = f"{secondary.name} has no backlog queues of {other.primary_name}."
        raise Refusal(HTTPStatus.CONFLICT, text)
    waiting = sum(queue.waiting for queue in queues)
    # Another tab may have started the syphon while the queues were listed.
    _demand_no_run(visit)
    run = SyphonRun(primary.name, secondary.name, [queue.path for queue in queues], waiting, visit.clock)
    visit.session.memory["syphon"] = run
    visit.session.start(_carry(run, primary.messaging, secondary.messaging), "console-syphon")
    await visit.write_down("syphon", "pair", other.primary_name, note=f"from {secondary.name} to {primary.name}")
    return Redirect("/pairs", notice="The syphon is running.")


async def _carry(run: SyphonRun, primary: ServiceBusClient, secondary: ServiceBusClient) -> None:
    syphon = Syphon(primary, secondary, run.queues, poll=_POLL, retry=2 * _POLL, reporter=Reporter(run.tell))
    work = asyncio.ensure_future(syphon.run())
    try:
        await run.wait()
        syphon.stop()
        await work
    except BaseException as error:
        run.end("The syphon was stopped." if isinstance(error, asyncio.CancelledError) else explained(error))
        raise
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@screen.post("/pairs/stop", right="listen")
async def stop(visit: Visit) -> Redirect:
    """End the run; what was received and not delivered comes again when its locks end."""
    run: SyphonRun | None = visit.session.memory.get("syphon")
    if run is not None:
        run.end("You have stopped the syphon. What is left stays in the backlog queues.")
    return Redirect("/pairs")


@screen.get("/pairs/events", right="listen")
async def events(visit: Visit) -> web.StreamResponse:
    """How far the syphon is."""
    return await stream_events(visit, _progress(visit))


async def _progress(visit: Visit) -> AsyncIterator[Event]:
    # The first look is sent whole: something may have changed since that of the page.
    shown: dict[str, str] = {}
    looked_ms, was_over = -_LOOK_MS, True
    told: dict[str, Any] = {}
    while (other := _other_of(visit)) is not None:
        run = _run_of(visit)
        is_over = run is None or run["is_over"]
        # Looking costs requests in the secondary: from time to time, and at the end of a run.
        if visit.clock.monotonic_ms() - looked_ms >= _LOOK_MS or is_over != was_over:
            told = await _told(visit, other)
            looked_ms, was_over = visit.clock.monotonic_ms(), is_over
        parts = {target: visit.render(template, {"other": told, "run": run}) for target, template in _PARTS}
        for target, text in parts.items():
            if text != shown.get(target):
                yield Event("html", {"target": target, "html": text})
        shown = parts
        await asyncio.sleep(_PROGRESS_S)
