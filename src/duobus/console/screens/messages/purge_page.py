"""Purging: removing messages without receiving them, with progress, as ``duobus queue purge`` does."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.messages.node import own_node
from duobus.console.screens.messages.places import (
    ACTIVE,
    AUDITED,
    DEAD,
    MEMORY,
    TRANSFER,
    MessageEntity,
    entity_of,
    node_of,
    screen,
    tabs_of,
)
from duobus.console.sessions import Session
from duobus.console.visits import Redirect, Refusal, View, Visit

#: Purges that a session remembers.
PURGES_MAX: Final = 20
EVERYTHING: Final = "everything"
_WHAT: Final = {
    ACTIVE: "Active messages",
    DEAD: "Dead letters",
    TRANSFER: "Transfer dead letters",
    EVERYTHING: "Everything: active, deferred and scheduled messages and dead letters",
}


class Purge:
    """One removal of many messages.

    Args:
        session: Of the person.
        entity: Whose messages go.
        what: ``active``, ``deadletter``, ``transfer`` or ``everything``.

    Attributes:
        removed: How many are gone for certain.
        held: How many a receiver holds, which stay; None where that is not told.
        state: ``running``, ``done`` or ``failed``.
        text: Why it failed.
    """

    def __init__(self, session: Session, entity: MessageEntity, what: str) -> None:
        self._session = session
        self.entity = entity
        self.what = what
        self.removed = 0
        self.held: int | None = None
        self.state = "running"
        self.text = ""

    async def run(self) -> None:
        """Remove until nothing is left that was there at the beginning."""
        path = self.entity.path if self.what == EVERYTHING else node_of(self.entity, self.what)
        try:
            async with own_node(self._session, path) as node:
                if self.what == EVERYTHING:
                    is_complete = False
                    while not is_complete:
                        removed, self.held, is_complete = await node.purge()
                        self.removed += removed
                        # A request ends after some seconds; one that removes nothing in that time waits for a store.
                        if not is_complete and not removed:
                            raise Refusal(
                                HTTPStatus.SERVICE_UNAVAILABLE,
                                "A messaging store is away, so that not all messages could be removed.",
                            )
                else:
                    # What is sent meanwhile stays, or a purge beside a sender would not end.
                    until_ms = await self._session.namespace.now_ms()
                    while removed := await node.delete(until_ms):
                        self.removed += removed
        except (NamespaceError, Refusal) as error:
            self.state, self.text = "failed", f"{error.text} The last request may have removed more."
        except BaseException:
            self.state, self.text = "failed", "The session has ended. The last request may have removed more."
            raise
        else:
            self.state = "done"

    @property
    def data(self) -> dict[str, Any]:
        """For a page."""
        return {
            "what": self.what,
            "label": _WHAT[self.what],
            "removed": self.removed,
            "held": self.held,
            "state": self.state,
            "text": self.text,
        }


def _purges(session: Session) -> list[Purge]:
    found: list[Purge] = session.memory.setdefault(f"{MEMORY}-purges", [])
    return found


@screen.get("/purge/{path:.+}", right="listen")
async def show(visit: Visit) -> View:
    """What can be purged, and how far purges are."""
    entity = entity_of(visit.match["path"])
    purges = [one.data for one in _purges(visit.session) if one.entity.path == entity.path]
    data: dict[str, Any] = {
        "entity": entity.path,
        "purges": purges[::-1],
        "is_running": any(one["state"] == "running" for one in purges),
    }
    if not visit.wants_json:
        rights = visit.namespace.rights
        choices = [(name, text) for name, text in _WHAT.items() if name != EVERYTHING or visit.namespace.is_duobus]
        data |= {
            "choices": choices,
            "chosen": visit.query.get("what", ACTIVE),
            "tabs": tabs_of(entity, may_listen=rights.listen, may_send=rights.send),
        }
    return View("messages/purge.html", f"Purge {entity.path}", data)


@screen.post("/purge/{path:.+}", right="listen", destructive=True)
async def begin(visit: Visit) -> Redirect:
    """Begin to purge."""
    entity = entity_of(visit.match["path"])
    visit.confirmed(entity.path)
    what = visit.form.get("what", "")
    if what not in _WHAT or (what == EVERYTHING and not visit.namespace.is_duobus):
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Say what is to be removed.")
    purges = _purges(visit.session)
    if any(one.state == "running" and one.entity.path == entity.path for one in purges):
        raise Refusal(HTTPStatus.CONFLICT, f"A purge of {entity.path} is under way.")
    purge = Purge(visit.session, entity, what)
    purges.append(purge)
    del purges[:-PURGES_MAX]
    await visit.write_down("purge", AUDITED, entity.path, note=_WHAT[what])
    visit.session.start(purge.run(), f"purge of {entity.path}")
    return Redirect(entity_url(entity.path, "purge"))
