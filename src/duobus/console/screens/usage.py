"""Usage: the metered operations by entity and hour, and their cost at a price that the person gives."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from duobus.console.namespace.failures import NamespaceError
from duobus.console.observation.usage import (
    billed,
    by_entity,
    by_hour,
    cost_of,
    cost_text,
    of_relays,
    price_of,
    total_of,
)
from duobus.console.visits import Screen, View, Visit
from duobus.model.metering import KINDS, RELAY_KINDS

screen: Final = Screen("usage", label="Usage", key="u", order=85, tells_of_one_server=True)

#: Spans that can be chosen, in days; and rows of the table of entities.
_DAYS: Final = (1, 7, 31)
_ROWS_MAX: Final = 100
_DAY_MS: Final = 86_400_000
_NOT_THERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})


@screen.get("/usage", right="manage", only_duobus=True)
async def show(visit: Visit) -> View:
    """What was metered in the last days."""
    days = visit.number("days", _DAYS[0])
    days = days if days in _DAYS else _DAYS[0]
    entity = visit.query.get("entity", "").strip()
    price = price_of(visit.query.get("price", ""))
    to_ms = visit.clock.now_ms()
    query = {"from": str(to_ms - days * _DAY_MS), "to": str(to_ms)}
    missing = ""
    answer: dict[str, Any] = {"rows": [], "fromMs": to_ms - days * _DAY_MS, "toMs": to_ms, "completeSinceMs": 0}
    try:
        answer = await visit.namespace.operation("GET", "/$duobus/metering", query=query)
    except NamespaceError as error:
        if error.status not in {*_NOT_THERE, HTTPStatus.BAD_REQUEST}:
            raise
        missing = error.text
        if error.status in _NOT_THERE:
            missing = "This server does not show what it meters. On its machine, the folder metering has the records."
    rows = [row for row in answer["rows"] if not entity or row["entity"].lower() == entity.lower()]
    costly = billed(rows)
    entities = by_entity(costly, price)
    hours = by_hour(costly, answer["fromMs"], answer["toMs"], price)
    skip = visit.number("skip", 0, most=len(entities))
    total = total_of(costly)
    kept = {name: value for name, value in (("entity", entity), ("price", visit.query.get("price", ""))) if value}
    data = {
        "days": days,
        "entity": entity,
        "price": price,
        "missing": missing,
        "total": total,
        "cost": cost_of(total["operations"], price),
        "cost_text": cost_text(cost_of(total["operations"], price)),
        "free": sum(row["operations"] for row in rows if KINDS.get(row["kind"]) is False and not _is_of_relay(row)),
        "relays": of_relays(rows),
        "entities": entities[skip : skip + _ROWS_MAX],
        "number_of_entities": len(entities),
        "hours": hours,
        "chart": {
            "x": [hour["hour_ms"] // 1_000 for hour in hours],
            "series": [{"label": "Operations", "values": [hour["operations"] for hour in hours]}],
            "unit": "",
        },
        "complete_since_ms": max(answer["completeSinceMs"], answer["fromMs"]),
        "is_complete": answer["completeSinceMs"] <= answer["fromMs"],
        "spans": [(str(one), "Last day" if one == 1 else f"Last {one} days", _url(one, kept)) for one in _DAYS],
        "previous": _url(days, kept | {"skip": str(max(0, skip - _ROWS_MAX))}) if skip else "",
        "next": _url(days, kept | {"skip": str(skip + _ROWS_MAX)}) if skip + _ROWS_MAX < len(entities) else "",
        "kept": kept,
    }
    return View("usage/page.html", "Usage", data)


def _is_of_relay(row: Mapping[str, Any]) -> bool:
    return row["kind"] in RELAY_KINDS


def _url(days: int, kept: dict[str, str]) -> str:
    return "/usage?" + urlencode({"days": days} | kept)
