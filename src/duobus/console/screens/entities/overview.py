"""The table and the tree of all entities, with their numbers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.entities.inventory import SDK_KINDS, all_rows, page_of_sdk, wants_sdk
from duobus.console.screens.entities.rows import KINDS, LEVEL_NODES, PAGE_ROWS, SORTS, Choice, Row, chosen, level_of
from duobus.console.visits import Outcome, Redirect, Screen, View, Visit, of_one_server

screen: Final = Screen("entities", label="Entities", key="e", order=20)

_TEMPLATE: Final = "entities/overview.html"
_COLUMNS: Final = (
    ("name", "Name"),
    ("status", "Status"),
    ("active", "Active"),
    ("dead", "Dead letters"),
    ("scheduled", "Scheduled"),
    ("deferred", "Deferred"),
    ("transfer", "Transfer"),
    ("size", "Size"),
)


@screen.get("/entities", right="listen")
async def show(visit: Visit) -> Outcome:
    """The entities that were searched for, a page at a time; or one level of the tree."""
    if visit.namespace.entity:
        # The key is for this entity only.
        return Redirect(entity_url(visit.namespace.entity))
    is_sdk = await wants_sdk(visit)
    choice = _choice(visit, is_sdk=is_sdk)
    data: dict[str, Any] = {
        "view": "tree" if visit.query.get("view") == "tree" and not is_sdk else "table",
        "choice": choice._asdict(),
        "columns": [] if is_sdk else _headers(visit, choice),
        "reason": "",
        "entities": [],
        "nodes": [],
        "under": "",
        "total": None,
        "skip": 0,
        "previous": "",
        "next": "",
        "is_sdk": is_sdk,
        "with_deferred": not is_sdk,
        "table_url": _address(visit, view=None, under=None, skip=None),
        "tree_url": _address(visit, view="tree", sort=None, order=None, skip=None, q=None, kind=None, dead=None),
    }
    try:
        if is_sdk:
            data |= await _sdk_table(visit, choice)
        elif data["view"] == "tree":
            data |= _tree(visit, await all_rows(visit))
        else:
            data |= _table(visit, await all_rows(visit), choice)
    except NamespaceError as error:
        if error.status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise
        data["reason"] = error.text
    if not is_sdk:
        data |= await of_one_server(visit)
    return View(_TEMPLATE, "Entities", data)


def _choice(visit: Visit, *, is_sdk: bool) -> Choice:
    query = visit.query
    kind, sort = query.get("kind", ""), query.get("sort", "name")
    if is_sdk:
        kind, sort = kind if kind in SDK_KINDS else SDK_KINDS[0], "name"
    return Choice(
        text=query.get("q", "").strip()[:260],
        kind=kind if kind in KINDS else "",
        only_dead=query.get("dead") == "true",
        sort=sort if sort in SORTS else "name",
        is_descending=query.get("order") == "desc",
    )


def _address(visit: Visit, **changes: Any) -> str:
    """The address of this page with other parameters; None takes one away."""
    kept = {name: value for name, value in visit.query.items() if value and name not in changes}
    kept |= {name: str(value) for name, value in changes.items() if value not in (None, "")}
    return "/entities" + (f"?{urlencode(kept)}" if kept else "")


def _headers(visit: Visit, choice: Choice) -> list[dict[str, str]]:
    """The headings of the table; each leads to the order by its column."""
    found = []
    for name, label in _COLUMNS:
        is_sorted = choice.sort == name
        # Numbers are looked at from the highest on.
        falls = not choice.is_descending if is_sorted else name not in ("name", "status")
        state = ("descending" if choice.is_descending else "ascending") if is_sorted else ""
        url = _address(visit, sort=name, order="desc" if falls else None, skip=None)
        found.append({"name": name, "label": label, "url": url, "state": state})
    return found


def _shown(row: Row) -> dict[str, Any]:
    return row._asdict() | {"name": row.name, "parent": row.parent, "has_dead_letters": row.has_dead_letters}


def _table(visit: Visit, rows: list[Row], choice: Choice) -> dict[str, Any]:
    found = chosen(rows, choice)
    # A page that has become empty meanwhile leads to the last one that is not.
    last = max(0, (len(found) - 1) // PAGE_ROWS * PAGE_ROWS)
    skip = min(last, visit.number("skip", 0) // PAGE_ROWS * PAGE_ROWS)
    return {
        "entities": [_shown(row) for row in found[skip : skip + PAGE_ROWS]],
        "total": len(found),
        "all": len(rows),
        "dead": sum(row.has_dead_letters for row in rows),
        "skip": skip,
    } | _pager(visit, skip, has_more=len(found) > skip + PAGE_ROWS)


def _tree(visit: Visit, rows: list[Row]) -> dict[str, Any]:
    under = visit.query.get("under", "")[:520]
    nodes = level_of(rows, under)
    shown = [
        node._asdict()
        | {
            "row": None if node.row is None else _shown(node.row),
            "url": _address(visit, view="tree", under=node.under) if node.under else "",
        }
        for node in nodes[:LEVEL_NODES]
    ]
    return {"nodes": shown, "under": under, "total": len(nodes), "all": len(rows), "is_cut": len(nodes) > LEVEL_NODES}


async def _sdk_table(visit: Visit, choice: Choice) -> dict[str, Any]:
    skip = visit.number("skip", 0, most=1_000_000) // PAGE_ROWS * PAGE_ROWS
    page = await page_of_sdk(visit, choice.kind, begins=choice.text, skip=skip)
    rows = [row for row in page.rows if not choice.only_dead or row.has_dead_letters]
    return {"entities": [_shown(row) for row in rows], "skip": skip} | _pager(visit, skip, has_more=page.has_more)


def _pager(visit: Visit, skip: int, *, has_more: bool) -> dict[str, str]:
    return {
        "previous": _address(visit, skip=skip - PAGE_ROWS or None) if skip else "",
        "next": _address(visit, skip=skip + PAGE_ROWS) if has_more else "",
    }
