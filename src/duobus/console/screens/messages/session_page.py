"""The message sessions of an entity."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.messages.places import SESSION, MessageEntity, entity_of, screen, tabs_of
from duobus.console.screens.messages.records import visible
from duobus.console.visits import View, Visit

#: Sessions on a page, and sessions that are listed of a namespace that gives no pages.
PAGE_SIZE: Final = 100
LISTED_MAX: Final = 1_000
_UNKNOWN: Final = (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


@screen.get("/sessions/{path:.+}", right="listen")
async def show(visit: Visit) -> View:
    """The sessions with messages or a state."""
    entity = entity_of(visit.match["path"])
    page = await _page_of_server(visit, entity) if visit.namespace.is_duobus else None
    if page is None:
        page = await _listed(visit, entity)
    data: dict[str, Any] = {"entity": entity.path, **page}
    if not visit.wants_json:
        rights = visit.namespace.rights
        for one in data["sessions"]:
            one["url"] = entity_url(entity.path, "messages", place=SESSION, session=one["session"])
            one["accept_url"] = entity_url(entity.path, "receive", session=one["session"])
            one["shown"] = visible(one["session"])
        following = data["next"]
        data |= {
            "tabs": tabs_of(entity, may_listen=rights.listen, may_send=rights.send),
            "following": "" if following is None else entity_url(entity.path, "sessions", after=following),
            "first": entity_url(entity.path, "sessions") if visit.query.get("after") else "",
        }
    return View("messages/sessions.html", f"Sessions of {entity.path}", data)


async def _page_of_server(visit: Visit, entity: MessageEntity) -> dict[str, Any] | None:
    """A page with counts and sizes; None where the server has no such request."""
    query = {"entity": entity.path, "limit": str(PAGE_SIZE)}
    if after := visit.query.get("after"):
        query["after"] = after
    try:
        found = await visit.namespace.operation("GET", "/$duobus/sessions", query=query)
    except NamespaceError as error:
        if error.status == HTTPStatus.BAD_REQUEST:
            return {"sessions": [], "next": None, "has_counts": True, "fault": error.text}
        if error.status in _UNKNOWN:
            # An older duobus.
            return None
        if error.status == HTTPStatus.NOT_FOUND:
            raise NamespaceError(error.status, f"There is no {entity.what}.", error.tracking_id) from error
        raise
    return {"sessions": found["sessions"], "next": found.get("next"), "has_counts": True, "fault": ""}


async def _listed(visit: Visit, entity: MessageEntity) -> dict[str, Any]:
    """The ids of sessions by the SDK."""
    found: dict[str, None] = {}
    messaging = visit.namespace.messaging
    try:
        async with visit.namespace.telling(entity.what):
            if entity.subscription:
                names = messaging.list_subscription_sessions(entity.name, entity.subscription)
            else:
                names = messaging.list_queue_sessions(entity.name)
            async for name in names:
                found[name] = None
                if len(found) == LISTED_MAX:
                    break
    except NamespaceError as error:
        if error.status != HTTPStatus.BAD_REQUEST:
            raise
        return {"sessions": [], "next": None, "has_counts": False, "fault": error.text}
    return {"sessions": [{"session": name} for name in found], "next": None, "has_counts": False, "fault": ""}
