"""The audit log: who changed what, when, from where, and what came of it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from duobus.console.namespace.failures import NamespaceError
from duobus.console.observation.audit_lines import wanted_of
from duobus.console.visits import Screen, View, Visit

screen: Final = Screen("audit", label="Audit", key="a", order=80, tells_of_one_server=True)

#: Lines that are read at a time, lines after which a page is full, and readings for one page: 10,000 lines.
_READ_AT_ONCE: Final = 500
_ROWS_MAX: Final = 100
_READS_MAX: Final = 20
_FIELDS: Final = ("who", "operation", "path", "since", "until", "failed")
#: What can always be chosen; what a console writes down has words of its own.
_OPERATIONS: Final = ("create", "update", "delete")
_NOT_THERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})


@screen.get("/audit", right="manage", only_duobus=True)
async def show(visit: Visit) -> View:
    """Lines of the log, the latest first."""
    wanted = wanted_of(visit.query)
    kept = {name: visit.query[name] for name in _FIELDS if visit.query.get(name)}
    rows: list[dict[str, Any]] = []
    after, missing, read = visit.query.get("after", ""), "", 0
    # Without a filter one page of the server is one page here.
    limit = _READ_AT_ONCE if kept else _ROWS_MAX
    try:
        for _ in range(_READS_MAX):
            query = {"limit": str(limit)} | ({"after": after} if after else {})
            page = await visit.namespace.operation("GET", "/$duobus/audit", query=query)
            rows += [line for line in page["changes"] if wanted.takes(line)]
            read += len(page["changes"])
            after = page["next"] or ""
            if any(wanted.is_before(line) for line in page["changes"][-1:]):
                after = ""
            if not after or len(rows) >= _ROWS_MAX:
                break
    except NamespaceError as error:
        if error.status in _NOT_THERE:
            missing = "This server does not show its audit log. On its machine, duobus audit reads the log."
        elif error.status == HTTPStatus.BAD_REQUEST and not after:
            missing = error.text
        else:
            raise
    data = {
        "rows": rows,
        "read": read,
        "operations": sorted({*_OPERATIONS, *(line["operation"] for line in rows), wanted.operation} - {""}),
        "given": {name: visit.query.get(name, "") for name in _FIELDS},
        "is_filtered": bool(kept),
        "missing": missing,
        "first": "" if not visit.query.get("after") else "/audit" + (f"?{urlencode(kept)}" if kept else ""),
        "next": "/audit?" + urlencode(kept | {"after": after}) if after else "",
    }
    return View("audit/page.html", "Audit", data)
