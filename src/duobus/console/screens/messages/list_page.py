"""The table of the messages of an entity, and the page that asks for an entity."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from duobus.console.events import Event, stream_events
from duobus.console.formats import entity_url
from duobus.console.namespace.absence import missing_of
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.messages import message_page, search
from duobus.console.screens.messages.node import Node, node_for, own_node
from duobus.console.screens.messages.places import (
    ACTIVE,
    DEAD,
    PLACES,
    SCHEDULED,
    SESSION,
    TRANSFER,
    MessageEntity,
    entity_of,
    node_of,
    place_of,
    screen,
    state_of,
    tabs_of,
)
from duobus.console.screens.messages.records import (
    COLUMNS,
    COLUMNS_MAX,
    DEFAULT_COLUMNS,
    PROPERTY,
    row_of,
)
from duobus.console.visits import Outcome, Redirect, View, Visit

#: Messages on a page, as a person may choose.
_SIZES: Final = (25, 50, 100, 200)
_SIZE: Final = 50
#: Entities of a kind that the first page offers.
ENTITIES_MAX: Final = 200
#: Searches of a session that go on by themselves at a time, and messages that one of them looks at.
SEARCHES_MAX: Final = 2
SEARCHED_MAX: Final = 5_000_000
_SEARCHES: Final = "messages-searches"
#: How often a search tells how far it is, in milliseconds; what it finds is shown at once.
_TOLD_MS: Final = 1_000
#: Pages that *Earlier* leads back to.
_TRAIL_MAX: Final = 30


@screen.get("/messages")
async def ask(visit: Visit) -> Outcome:
    """Where a person says whose messages are meant."""
    path = visit.query.get("path", "").strip("/ ")
    if path:
        return Redirect(entity_url(path, "messages"))
    data: dict[str, Any] = {"queues": None, "topics": None, "is_cut": False, "own": visit.namespace.entity}
    if visit.namespace.rights.manage and not visit.namespace.entity:
        queues: list[str] = []
        topics: list[str] = []
        async with visit.namespace.telling("the namespace"):
            async for queue in visit.namespace.administration.list_queues():
                queues.append(queue.name)
                if len(queues) == ENTITIES_MAX:
                    break
            async for topic in visit.namespace.administration.list_topics():
                topics.append(topic.name)
                if len(topics) == ENTITIES_MAX:
                    break
        data |= {"queues": queues, "topics": topics, "is_cut": ENTITIES_MAX in (len(queues), len(topics))}
    return View("messages/ask.html", "Messages", data)


@screen.get("/messages/{path:.+}")
async def show(visit: Visit) -> Outcome:
    """The messages of a place, or one of them."""
    entity = entity_of(visit.match["path"])
    if not visit.namespace.rights.listen:
        return Redirect(entity_url(entity.path, "send"))
    if visit.query.get("number"):
        return await message_page.show(visit, entity)
    return await _table(visit, entity)


async def _table(visit: Visit, entity: MessageEntity) -> View | web.StreamResponse:
    place = place_of(visit.query.get("place"))
    session = visit.query.get("session", "") if place == SESSION else ""
    query = search.Query(*(visit.query.get(name, "").strip() for name in ("sql", "path", "text")))
    columns = columns_of(visit)
    first, count = visit.number("from", 0), visit.number("count", _SIZE, least=1, most=_SIZES[-1])
    kept = {**_kept(visit), "place": None if place == ACTIVE else place, "session": session or None}
    fault = search.fault_of(query)
    data: dict[str, Any] = {
        "entity": entity.path,
        "place": place,
        "label": PLACES[place],
        "session": session,
        "query": query._asdict(),
        "fault": None if fault is None else fault._asdict(),
        "columns": columns,
        "count": count,
        "from": first,
        "rows": [],
        "looked": 0,
        "next": None,
        "is_cut": False,
        "subscriptions": None,
        "of_about": None,
        "missing": None,
    }
    if fault is None and visit.query.get("events"):
        return await stream_events(visit, _looking(visit, entity, data, kept))
    if fault is None:
        try:
            found = await _found(visit, entity, place, session=session, query=query, columns=columns)
            data |= found | {"missing": await missing_of(visit.namespace, entity.name, found.pop("absence"))}
        except NamespaceError as error:
            subscriptions = await _subscriptions(visit, entity, error)
            if subscriptions is None:
                raise
            data["subscriptions"] = subscriptions
    if visit.wants_json:
        return View("messages/list.html", entity.path, data)
    frame = _frame(visit, entity, data, kept)
    status = HTTPStatus.OK if fault is None else HTTPStatus.UNPROCESSABLE_ENTITY
    return View("messages/list.html", entity.path, data | frame, status)


async def _looking(
    visit: Visit, entity: MessageEntity, data: dict[str, Any], kept: Mapping[str, str | None]
) -> AsyncIterator[Event]:
    """A search that goes on step by step until the page is full, the messages end, or somebody stops it."""
    with visit.session.one_more(_SEARCHES, SEARCHES_MAX) as has_room:
        if not has_room:
            yield Event("failed", {"text": f"At most {SEARCHES_MAX} searches go on at a time. Stop another one first."})
            return
        data["of_about"] = await _number_in(visit, entity, data["place"])
        query, columns = search.Query(**data["query"]), data["columns"]
        following: int | None = data["from"]
        told_ms = visit.clock.monotonic_ms()
        async with own_node(visit.session, node_of(entity, data["place"])) as node:
            while following is not None:
                step = await _step(visit, node, data, query, columns, following)
                data["rows"] += step["rows"]
                data["looked"] += step["looked"]
                following, data["next"], data["is_cut"] = step["next"], step["next"], step["is_cut"]
                if step["absence"] is not None:
                    data["missing"] = await missing_of(visit.namespace, entity.name, step["absence"])
                is_over = not step["is_cut"] or data["looked"] >= SEARCHED_MAX
                now_ms = visit.clock.monotonic_ms()
                if is_over or step["rows"] or now_ms - told_ms >= _TOLD_MS:
                    told_ms = now_ms
                    html = visit.render("messages/found.html", data | _frame(visit, entity, data, kept))
                    yield Event("html", {"target": "#messages-found", "html": html})
                if is_over:
                    break
        yield Event("done", {"looked": data["looked"], "found": len(data["rows"])})


async def _number_in(visit: Visit, entity: MessageEntity, place: str) -> int | None:
    """How many messages are to be looked at, for the progress of a search; None where nobody tells."""
    namespace = visit.namespace
    if not namespace.is_duobus or namespace.entity or await namespace.servers():
        return None
    found = await namespace.operation("GET", "/$duobus/entities", query={"prefix": entity.path})
    row = next((one for one in found if str(one["entity"]).lower() == entity.path.lower()), None)
    if row is None or place == SESSION:
        return None
    names = {DEAD: ("deadLetter",), TRANSFER: ("transferDeadLetter",)}.get(place, ("active", "scheduled", "deferred"))
    return sum(int(row[name]) for name in names)


async def _found(
    visit: Visit, entity: MessageEntity, place: str, *, session: str, query: search.Query, columns: list[str]
) -> dict[str, Any]:
    node = await node_for(visit.session, node_of(entity, place))
    data = {"place": place, "session": session, "count": visit.number("count", _SIZE, least=1, most=_SIZES[-1])}
    return await _step(visit, node, data | {"rows": []}, query, columns, visit.number("from", 0))


async def _step(
    visit: Visit, node: Node, data: Mapping[str, Any], query: search.Query, columns: list[str], first: int
) -> dict[str, Any]:
    """One step of a search, for as many rows as the page has room for."""
    needs_bodies = query.needs_bodies or "size" in columns or "body" in columns
    step = await search.search(
        node,
        search.wanted_of(query, state_of(data["place"])),
        first=first,
        count=data["count"] - len(data["rows"]),
        clock=visit.clock,
        session_id=data["session"] if data["place"] == SESSION else None,
        with_bodies=needs_bodies,
    )
    return {
        "rows": [row_of(delivery, has_body=needs_bodies) for delivery in step.found],
        "looked": step.looked,
        "next": step.following,
        "is_cut": step.is_cut,
        "absence": step.absence,
    }


async def _subscriptions(visit: Visit, entity: MessageEntity, error: NamespaceError) -> list[str] | None:
    """The subscriptions when the entity turns out to be a topic, which has no messages itself."""
    if entity.subscription or not visit.namespace.rights.manage or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    found = []
    try:
        async with visit.namespace.telling(entity.what):
            await visit.namespace.administration.get_topic(entity.name)
            async for one in visit.namespace.administration.list_subscriptions(entity.name):
                found.append(f"{entity.name}/Subscriptions/{one.name}")
                if len(found) == ENTITIES_MAX:
                    break
    except NamespaceError:
        # The entity is a queue, or is not there: the first error tells.
        return None
    return found


def columns_of(visit: Visit) -> list[str]:
    """The columns that the URL names, in the order of the URL; the usual ones where it names none."""
    given = [name for text in visit.query.getall("columns", []) for name in text.split(",")]
    known = [name for name in given if name in COLUMNS or (name.startswith(PROPERTY) and len(name) > len(PROPERTY))]
    added = visit.query.get("property", "").strip()
    known += [f"{PROPERTY}{added}"] if added else []
    return list(dict.fromkeys(known))[:COLUMNS_MAX] or list(usual_columns(place_of(visit.query.get("place"))))


def usual_columns(place: str) -> tuple[str, ...]:
    """The columns of a place for somebody who has chosen none."""
    return {
        SCHEDULED: ("number", "scheduled", "id", "subject", "session", "size", "body"),
        DEAD: ("number", "enqueued", "id", "subject", "reason", "description", "deliveries", "size"),
        TRANSFER: ("number", "enqueued", "id", "subject", "reason", "description", "size"),
    }.get(place, DEFAULT_COLUMNS)


def label_of(column: str) -> tuple[str, str]:
    """Label and class of a column."""
    return COLUMNS.get(column) or (column.removeprefix(PROPERTY), "")


def _kept(visit: Visit) -> dict[str, str | None]:
    """What the links of the page keep of the URL."""
    names = ("sql", "path", "text", "count")
    kept: dict[str, str | None] = {name: visit.query.get(name) or None for name in names}
    columns = columns_of(visit)
    is_usual = columns == list(usual_columns(place_of(visit.query.get("place"))))
    kept["columns"] = None if is_usual else ",".join(columns)
    return kept


def _frame(visit: Visit, entity: MessageEntity, data: dict[str, Any], kept: Mapping[str, str | None]) -> dict[str, Any]:
    """What only the page needs: labels and addresses."""
    place, rights = data["place"], visit.namespace.rights
    trail = [part for part in visit.query.get("trail", "").split(",") if part.isdecimal()][-_TRAIL_MAX:]
    address = {name: value for name, value in kept.items() if value is not None}
    earlier = following = ""
    if trail:
        earlier = entity_url(
            entity.path, "messages", **address | {"from": trail[-1]}, trail=",".join(trail[:-1]) or None
        )
    if data["next"] is not None:
        trail = [*trail, str(data["from"])][-_TRAIL_MAX:]
        following = entity_url(entity.path, "messages", **address | {"from": data["next"]}, trail=",".join(trail))
    for row in data["rows"]:
        row["url"] = entity_url(
            entity.path, "messages", place=kept["place"], session=kept["session"], number=row["number"]
        )
    return {
        "tabs": tabs_of(entity, may_listen=rights.listen, may_send=rights.send),
        "current_tab": "sessions" if place == SESSION else place,
        "headings": [label_of(column) for column in data["columns"]],
        "choices": COLUMNS,
        "has_chosen": bool(kept["columns"] or kept["count"]),
        "own_columns": [column for column in data["columns"] if column not in COLUMNS],
        "sizes": [(str(size), str(size)) for size in _SIZES],
        "earlier": earlier,
        "following": following,
        "is_scheduled": place == SCHEDULED and rights.send and not entity.subscription,
        "is_filtered": not search.Query(**data["query"]).is_empty,
        "looking": entity_url(
            entity.path,
            "messages",
            **address | {"place": kept["place"], "session": kept["session"]},
            **{"from": data["from"] or None, "events": "1"},
        )
        if data["is_cut"]
        else "",
        "plain_url": entity_url(entity.path, "messages", place=kept["place"], session=kept["session"]),
        "here": str(visit.request.rel_url),
    }
