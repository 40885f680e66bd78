"""The table of the messages of an entity, and the page that asks for an entity."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.messages import message_page, search
from duobus.console.screens.messages.node import node_for
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
    }
    if fault is None:
        try:
            data |= await _found(visit, entity, place, session=session, query=query, columns=columns)
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


async def _found(
    visit: Visit, entity: MessageEntity, place: str, *, session: str, query: search.Query, columns: list[str]
) -> dict[str, Any]:
    needs_bodies = query.needs_bodies or "size" in columns or "body" in columns
    node = await node_for(visit.session, node_of(entity, place))
    step = await search.search(
        node,
        search.wanted_of(query, state_of(place)),
        first=visit.number("from", 0),
        count=visit.number("count", _SIZE, least=1, most=_SIZES[-1]),
        clock=visit.clock,
        session_id=session if place == SESSION else None,
        with_bodies=needs_bodies,
    )
    return {
        "rows": [row_of(delivery, has_body=needs_bodies) for delivery in step.found],
        "looked": step.looked,
        "next": step.following,
        "is_cut": step.is_cut,
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
        "plain_url": entity_url(entity.path, "messages", place=kept["place"], session=kept["session"]),
        "here": str(visit.request.rel_url),
    }
