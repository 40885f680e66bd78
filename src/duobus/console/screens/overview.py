"""The start page: what is unwell, and how much goes in and out, now and over the last hour and day."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import web

from duobus.console.events import Event, stream_events
from duobus.console.observation.differences import BusyEntity
from duobus.console.observation.failovers import PairState
from duobus.console.observation.findings import Finding, of_failovers, worst_first
from duobus.console.observation.history import chart
from duobus.console.observation.observer import Observer, observer_of
from duobus.console.observation.readings import Reading
from duobus.console.screens.pairs import pair_state_of
from duobus.console.visits import Screen, View, Visit

screen: Final = Screen("overview", label="Overview", key="o", order=10, tells_of_one_server=True)

#: Entities that the page names as busy.
_BUSY_MAX: Final = 10
#: A chart is drawn anew after so many looks, so that nobody who reads it is disturbed all the time.
_CHART_EVERY: Final = 6
_SPANS: Final = ("hour", "day")
#: Parts of the page that are replaced when they have changed: the element and its template.
_PARTS: Final = (
    ("#overview-findings", "overview/findings.html"),
    ("#overview-figures", "overview/figures.html"),
    ("#overview-busy", "overview/busy.html"),
)


@screen.get("/")
async def show(visit: Visit) -> View:
    """What is going on in the namespace."""
    observer = observer_of(visit)
    if observer is None:
        return View("overview/page.html", "Overview", {"can_see": False, "queues": None, "topics": None})
    await observer.refresh(visit.namespace)
    return View("overview/page.html", "Overview", _data(visit, observer))


@screen.get("/overview/events")
async def events(visit: Visit) -> web.StreamResponse:
    """What changes on the page."""
    return await stream_events(visit, _changes(visit))


async def _changes(visit: Visit) -> AsyncIterator[Event]:
    observer = observer_of(visit)
    if observer is None:
        return
    number = drawn = visit.number("seen", 0)
    # Of a look that came between the page and this stream the page shows nothing yet.
    is_shown = observer.number == number
    data = _data(visit, observer)
    shown = {target: visit.render(template, data) for target, template in _PARTS} if is_shown else {}
    while True:
        if observer.number == number:
            await observer.changed()
        number = observer.number
        data = _data(visit, observer)
        parts = {target: visit.render(template, data) for target, template in _PARTS}
        for target, text in parts.items():
            if text != shown.get(target):
                yield Event("html", {"target": target, "html": text})
        shown = parts
        if number - drawn >= _CHART_EVERY or drawn < 2 <= number:
            drawn = number
            yield Event("html", {"target": "#overview-charts", "html": visit.render("overview/charts.html", data)})


def _data(visit: Visit, observer: Observer) -> dict[str, Any]:
    span = visit.query.get("span", _SPANS[0])
    span = span if span in _SPANS else _SPANS[0]
    reading = observer.reading
    points = observer.history.points(span)
    is_azure = not visit.namespace.is_duobus
    rates = (
        [("sent", "Growing by"), ("received", "Shrinking by")] if is_azure else [("sent", "In"), ("received", "Out")]
    )
    return {
        "can_see": True,
        "number": observer.number,
        "span": span,
        "period_s": observer.period_s,
        "failure": observer.failure,
        "findings": [finding._asdict() for finding in _findings(visit, observer)],
        "failovers": [pair.data for pair in _pairs(visit, reading)],
        "rates": observer.rates._asdict(),
        "busiest": [_busy(one) for one in observer.busiest(_BUSY_MAX)],
        "server": {} if reading is None else dict(reading.server),
        "stores": _stores(reading),
        "has_points": len(points) > 1,
        "rate_chart": chart(points, rates, "/s"),
        "depth_chart": chart(points, [("active", "Active messages"), ("dead", "Dead letters")], ""),
        "metrics_url": f"{visit.namespace.address.url}/metrics" if visit.namespace.is_duobus else "",
        **_counts(reading),
    }


def _pairs(visit: Visit, reading: Reading | None) -> list[PairState]:
    """The pairs whose secondary this namespace is, and the pair that the session has opened."""
    own = pair_state_of(visit)
    here = () if reading is None else reading.failovers
    others = [pair for pair in here if own is None or pair.primary.lower() != own.primary.lower()]
    return others if own is None else [own, *others]


def _findings(visit: Visit, observer: Observer) -> list[Finding]:
    own = pair_state_of(visit)
    found = observer.findings()
    return found if own is None else worst_first(dict.fromkeys([*found, *of_failovers(own)]))


def _counts(reading: Reading | None) -> dict[str, Any]:
    names = ("active", "dead", "scheduled", "deferred", "locked")
    if reading is None:
        return dict.fromkeys(("queues", "topics", "subscriptions", *names)) | {"is_cut": False}
    return {
        "queues": reading.number_of("queue"),
        "topics": reading.number_of("topic"),
        "subscriptions": reading.number_of("subscription"),
        "is_cut": reading.is_cut,
        **{name: reading.total(name) for name in names},
    }


def _stores(reading: Reading | None) -> dict[str, int] | None:
    if reading is None or reading.stores is None:
        return None
    return {
        "open": sum(store["state"] == "open" for store in reading.stores),
        "all": len(reading.stores),
        "fragments": sum(store["fragments"] for store in reading.stores),
    }


def _busy(one: BusyEntity) -> dict[str, Any]:
    return {"path": one.path, **one.counts._asdict(), "rates": one.rates._asdict()}
