"""All entities of a namespace with their numbers, or a page of them.

A duobus tells all of them in one answer, which is kept for a moment, so that a search does not ask for them at every
key. Azure tells a page of queues or topics, in the order of their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.entities.paths import EntityPath
from duobus.console.screens.entities.rows import PAGE_ROWS, Row, row_of_numbers, row_of_sdk, with_subscriptions
from duobus.console.visits import Visit
from duobus.model.properties import QUEUE, SUBSCRIPTION, TOPIC

#: Kinds that the SDK lists for a namespace.
SDK_KINDS: Final = (QUEUE, TOPIC)
#: How long the rows of a namespace are used again, in milliseconds.
_FRESH_MS: Final = 2_000
_MEMORY: Final = "entities"
#: How long a session relies on having found out whether other servers have a part of the namespace.
_KNOWN_MS: Final = 60_000
_OTHERS: Final = "entities_others"
#: In the path of a part of a queue, as servers call such parts among themselves.
_SHARE: Final = "/~share/"


class _Kept(NamedTuple):
    """Rows that a session read a moment ago; the console keeps those of one session, so that it does not grow."""

    session: str
    read_ms: int
    rows: list[Row]


async def all_rows(visit: Visit) -> list[Row]:
    """Every entity of a duobus.

    Raises:
        NamespaceError: The namespace refuses.
    """
    now_ms = visit.clock.monotonic_ms()
    kept = visit.shared.get(_MEMORY)
    if isinstance(kept, _Kept) and kept.session == visit.session.id and 0 <= now_ms - kept.read_ms < _FRESH_MS:
        return kept.rows
    found = await visit.namespace.operation("GET", "/$duobus/entities")
    rows = with_subscriptions(row_of_numbers(one) for one in found if _SHARE not in str(one["entity"]))
    visit.shared[_MEMORY] = _Kept(visit.session.id, now_ms, rows)
    return rows


def forget_rows(visit: Visit) -> None:
    """Have the next page read the rows anew, after a change."""
    visit.shared.pop(_MEMORY, None)


async def row_of(visit: Visit, path: EntityPath) -> Row | None:
    """The numbers of one entity of a duobus, which tells more of them than the SDK does; None where it cannot."""
    if not visit.namespace.is_duobus or not visit.namespace.rights.listen:
        return None
    if not visit.namespace.entity and await wants_sdk(visit):
        # This server may have a part of it only.
        return None
    try:
        found = await visit.namespace.operation("GET", "/$duobus/entities", query={"prefix": path.text})
    except NamespaceError as error:
        # A key for one entity only may not ask for the numbers of the namespace.
        if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return None
        raise
    wanted = path.text.lower()
    return next((row_of_numbers(one) for one in found if str(one["entity"]).lower() == wanted), None)


class SdkPage(NamedTuple):
    """A page of entities.

    Attributes:
        rows: In the order of their names.
        has_more: Whether others follow.
    """

    rows: list[Row]
    has_more: bool


async def page_of_sdk(visit: Visit, kind: str, *, begins: str, skip: int) -> SdkPage:
    """A page of queues or topics whose names begin with a text, read by two requests."""
    options: dict[str, Any] = {"start_index": skip, "max_page_size": PAGE_ROWS}
    if begins:
        quoted = begins.replace("'", "''")
        options["params"] = {"$filter": f"startswith(path, '{quoted}') eq true"}
    administration = visit.namespace.administration
    return await _page(
        visit,
        kind,
        "",
        # The SDK changes what it is given for a request.
        getattr(administration, f"list_{kind}s")(**_copied(options)),
        getattr(administration, f"list_{kind}s_runtime_properties")(**_copied(options)),
    )


async def subscriptions_of(visit: Visit, topic: str, *, skip: int) -> SdkPage:
    """A page of the subscriptions of a topic."""
    if not visit.namespace.entity and not await wants_sdk(visit):
        path = f"{topic}/Subscriptions/"
        found = await visit.namespace.operation("GET", "/$duobus/entities", query={"prefix": path})
        rows = sorted((row_of_numbers(one) for one in found), key=lambda row: row.path.lower())
        return SdkPage(rows[skip : skip + PAGE_ROWS], len(rows) > skip + PAGE_ROWS)
    administration = visit.namespace.administration
    options: dict[str, Any] = {"start_index": skip, "max_page_size": PAGE_ROWS}
    return await _page(
        visit,
        SUBSCRIPTION,
        f"{topic}/Subscriptions/",
        administration.list_subscriptions(topic, **options),
        administration.list_subscriptions_runtime_properties(topic, **options),
    )


def _copied(options: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, dict) else value for name, value in options.items()}


async def _page(visit: Visit, kind: str, before: str, listed: Any, measured: Any) -> SdkPage:
    what = f"the subscriptions of {before.partition('/Sub')[0]}" if before else f"the {kind}s of the namespace"
    async with visit.namespace.telling(what):
        abouts, runtimes = await asyncio.gather(_first_page(listed), _first_page(measured))
    described = {about.name: about for about in abouts}
    rows = []
    for runtime in runtimes:
        about = described.get(runtime.name)
        status = None if about is None else getattr(about.status, "value", about.status)
        availability = "Available" if about is None else getattr(about, "availability_status", None) or "Available"
        is_available = getattr(availability, "value", availability) == "Available"
        rows.append(row_of_sdk(kind, before + runtime.name, runtime, status, is_available=is_available))
    return SdkPage(rows, len(runtimes) == PAGE_ROWS)


async def _first_page(listed: Any) -> list[Any]:
    pages: AsyncIterator[Any] = listed.by_page()
    async for page in pages:
        return [one async for one in page]
    return []


async def wants_sdk(visit: Visit) -> bool:
    """Whether the entities are listed by the SDK.

    The namespace is none of duobus, or other servers have a part of it: of servers that share a catalog each tells of
    itself alone, and only the lists of the management API have the entities of all.
    """
    if not visit.namespace.is_duobus:
        return True
    if not visit.namespace.rights.manage or visit.namespace.entity:
        return False
    if await visit.namespace.servers():
        return True
    # A server of an earlier version does not tell whether there are others.
    now_ms = visit.clock.monotonic_ms()
    known = visit.session.memory.get(_OTHERS)
    if known is None or not 0 <= now_ms - known[0] < _KNOWN_MS:
        known = (now_ms, await _has_others(visit, await all_rows(visit)))
        visit.session.memory[_OTHERS] = known
    return bool(known[1])


async def _has_others(visit: Visit, rows: list[Row]) -> bool:
    """Whether there are more queues or topics than this server tells of."""
    administration = visit.namespace.administration
    async with visit.namespace.telling("the entities of the namespace"):
        for kind in SDK_KINDS:
            told = sum(row.kind == kind for row in rows)
            listed = getattr(administration, f"list_{kind}s")(start_index=told, max_page_size=1)
            if await _first_page(listed):
                return True
    return False
