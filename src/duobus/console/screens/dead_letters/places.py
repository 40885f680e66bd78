"""Where dead letters are: the queues and subscriptions of a namespace that have any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from duobus.console.namespace.failures import NamespaceError

if TYPE_CHECKING:
    from duobus.console.visits import Visit

#: Entities that are read, and topics whose subscriptions are, where the SDK has to ask for each.
_ENTITIES_MAX: Final = 10_000
_TOPICS_MAX: Final = 100


class Place(NamedTuple):
    """A queue or subscription.

    Attributes:
        path: As the screens have it, ``topic/Subscriptions/subscription`` for a subscription.
        dead: Number of dead letters.
        transfer: Number of transfer dead letters.
    """

    path: str
    dead: int
    transfer: int


class Places(NamedTuple):
    """What was found.

    Attributes:
        places: Those with dead letters, most first; None when the key may not list entities.
        looked: How many entities were looked at.
        is_complete: Whether these were all.
    """

    places: list[Place] | None
    looked: int
    is_complete: bool


async def find_places(visit: Visit) -> Places:
    """Ask the namespace which entities have dead letters."""
    namespace = visit.namespace
    if namespace.entity:
        return Places(None, 0, True)
    # Of several servers, each tells of its own entities alone; with Manage, the SDK lists those of all.
    if namespace.is_duobus and not (namespace.rights.manage and await namespace.servers()):
        try:
            rows: list[dict[str, Any]] = await namespace.operation("GET", "/$duobus/entities")
        except NamespaceError as error:
            if error.status not in {401, 403, 404}:
                raise
            return Places(None, 0, True)
        found = [
            Place(row["entity"], row["deadLetter"], row["transferDeadLetter"]) for row in rows if row["kind"] != "topic"
        ]
        return _ordered(found, len(rows) < 20_000)
    if not namespace.rights.manage:
        return Places(None, 0, True)
    return await _by_sdk(visit)


async def _by_sdk(visit: Visit) -> Places:
    found: list[Place] = []
    topics = 0
    administration = visit.namespace.administration
    async with visit.namespace.telling("the namespace"):
        async for queue in administration.list_queues_runtime_properties():
            found.append(
                Place(queue.name, queue.dead_letter_message_count or 0, queue.transfer_dead_letter_message_count or 0)
            )
            if len(found) >= _ENTITIES_MAX:
                return _ordered(found, False)
        async for topic in administration.list_topics():
            topics += 1
            if topics > _TOPICS_MAX:
                return _ordered(found, False)
            async for one in administration.list_subscriptions_runtime_properties(topic.name):
                path = f"{topic.name}/Subscriptions/{one.name}"
                found.append(
                    Place(path, one.dead_letter_message_count or 0, one.transfer_dead_letter_message_count or 0)
                )
    return _ordered(found, True)


def _ordered(found: list[Place], is_complete: bool) -> Places:
    dead = [place for place in found if place.dead or place.transfer]
    dead.sort(key=lambda place: (-place.dead - place.transfer, place.path))
    return Places(dead, len(found), is_complete)
