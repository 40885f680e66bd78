"""The start page: what is in the namespace, in a few numbers."""

from __future__ import annotations

from typing import Final

from duobus.console.visits import Screen, View, Visit

screen: Final = Screen("overview", label="Overview", order=10)

#: Entities of a kind that are counted; more are told as "and more".
_ENTITIES_MAX: Final = 1_000


@screen.get("/")
async def show(visit: Visit) -> View:
    """The numbers of entities and their messages."""
    data: dict[str, int | bool | None] = {
        "queues": None,
        "topics": None,
        "active": None,
        "dead_letters": None,
        "is_cut": False,
    }
    if visit.namespace.rights.manage and not visit.namespace.entity:
        data |= await _counts(visit)
    return View("overview/page.html", "Overview", data)


async def _counts(visit: Visit) -> dict[str, int | bool]:
    queues = topics = active = dead = 0
    administration = visit.namespace.administration
    async with visit.namespace.telling("the namespace"):
        async for queue in administration.list_queues_runtime_properties():
            queues += 1
            active += queue.active_message_count or 0
            dead += queue.dead_letter_message_count or 0
            if queues == _ENTITIES_MAX:
                break
        async for _ in administration.list_topics():
            topics += 1
            if topics == _ENTITIES_MAX:
                break
    is_cut = _ENTITIES_MAX in (queues, topics)
    return {"queues": queues, "topics": topics, "active": active, "dead_letters": dead, "is_cut": is_cut}
