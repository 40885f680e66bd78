"""All entities with dead letters, and the dead letters of one entity by what they have died of."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from duobus.console.formats import entity_url
from duobus.console.namespace.thread_client import namespace_of
from duobus.console.screens.dead_letters import looks
from duobus.console.screens.dead_letters.jobs import Jobs, line_bytes_max
from duobus.console.screens.dead_letters.places import Place, find_places
from duobus.console.screens.dead_letters.selection import Selection
from duobus.console.visits import Redirect, View

if TYPE_CHECKING:
    from duobus.console.visits import Visit

#: Entities on a page, and entities that a look at all causes goes through.
_ROWS: Final = 100
_PLACES_MAX: Final = 20


async def show_entities(visit: Visit, jobs: Jobs) -> View | Redirect:
    """The entities with dead letters, most first."""
    named = visit.query.get("entity", "").strip("/ ")
    if named:
        return Redirect(address_of(Selection(named)))
    if visit.namespace.entity:
        return Redirect(address_of(Selection(visit.namespace.entity)))
    found = await find_places(visit)
    skip = visit.number("skip", 0, most=1_000_000)
    places = found.places or []
    data: dict[str, Any] = {
        "can_list": found.places is not None,
        "looked": found.looked,
        "is_complete": found.is_complete,
        "total": sum(place.dead + place.transfer for place in places),
        "entities": [_row(place) for place in places[skip : skip + _ROWS]],
        "number": len(places),
        "skip": skip,
        "rows": _ROWS,
        "running": sum(not record.has_ended for record in jobs.records(visit.namespace.name)),
    }
    return View("dead_letters/entities.html", "Dead letters", data)


def _row(place: Place) -> dict[str, Any]:
    return {
        "path": place.path,
        "deadLetter": place.dead,
        "transferDeadLetter": place.transfer,
        "url": address_of(Selection(place.path)),
        "transferUrl": address_of(Selection(place.path, is_transfer=True)),
    }


async def show_causes(visit: Visit, jobs: Jobs) -> View:
    """What the dead letters of all entities have died of; the page of entities loads this behind itself."""
    found = await find_places(visit)
    places = [
        Selection(place.path, is_transfer)
        for place in (found.places or [])[:_PLACES_MAX]
        for is_transfer, number in ((False, place.dead), (True, place.transfer))
        if number
    ]
    look = partial(looks.group, namespace_of(visit), places, visit.clock)
    groups = await looks.in_thread(jobs.lookers, look)
    data = {
        "groups": [_linked(group) for group in groups.data()[:50]],
        "looked": groups.looked,
        "others": groups.others,
        "away": groups.away,
        "is_complete": groups.is_complete and len(found.places or []) <= _PLACES_MAX,
    }
    template = "dead_letters/parts/causes.html" if visit.wants_fragment else "dead_letters/causes.html"
    return View(template, "Causes of dead letters", data)


async def show_entity(visit: Visit, jobs: Jobs, selection: Selection) -> View:
    """The dead letters of one entity by what they have died of."""
    look = partial(looks.group, namespace_of(visit), [selection], visit.clock)
    groups = await looks.in_thread(jobs.lookers, look)
    records = [one for one in jobs.records(visit.namespace.name) if one.selection["path"] == selection.path][:5]
    data = {
        "path": selection.path,
        "transfer": selection.is_transfer,
        "subscription": selection.subscription,
        "groups": [_linked(group) for group in groups.data()],
        "looked": groups.looked,
        "others": groups.others,
        "away": groups.away,
        "is_complete": groups.is_complete,
        "url": address_of(selection),
        "all_url": address_of(selection, all="1"),
        "tabs_of": [
            ["dead", "Dead letters", address_of(Selection(selection.path))],
            ["transfer", "Transfer dead letters", address_of(Selection(selection.path, is_transfer=True))],
        ],
        "runs": [{"id": one.id, "action": one.action, "state": one.state, "done": one.done} for one in records],
    }
    data["line_bytes_max"] = line_bytes_max(visit.namespace.is_duobus)
    return View("dead_letters/entity.html", f"Dead letters of {selection.path}", data)


def _linked(group: dict[str, Any]) -> dict[str, Any]:
    selection = Selection(group["path"], group["isTransfer"], reason=group["reason"] or "", cause=group["cause"])
    return group | {"url": address_of(selection)}


def address_of(selection: Selection, **more: Any) -> str:
    """The address of a selection's page."""
    fields = selection.fields + [(name, str(value)) for name, value in more.items() if value is not None]
    url = entity_url(selection.path, "dead-letters")
    return f"{url}?{urlencode(fields)}" if fields else url
