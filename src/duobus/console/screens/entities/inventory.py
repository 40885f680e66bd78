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
from duobus.model.properties import SUBSCRIPTION, TOPIC

#: How long the rows of a namespace are used again, in milliseconds.
_FRESH_MS: Final = 2_000
_MEMORY: Final = "entities"


class _Kept(NamedTuple):
    """Rows that were read a moment ago."""

    read_ms: int
    rows: list[Row]


async def all_rows(visit: Visit) -> list[Row]:
    """Every entity of a duobus.

    Raises:
        NamespaceError: The namespace refuses.
    """
    now_ms = visit.clock.monotonic_ms()
    kept = visit.session.memory.get(_MEMORY)
    if isinstance(kept, _Kept) and 0 <= now_ms - kept.read_ms < _FRESH_MS:
        return kept.rows
    found = await visit.namespace.operation("GET", "/$duobus/entities")
    rows = with_subscriptions(map(row_of_numbers, found))
    visit.session.memory[_MEMORY] = _Kept(now_ms, rows)
    return rows


def forget_rows(visit: Visit) -> None:
    """Have the next page read the rows anew, after a change."""
    visit.session.memory.pop(_MEMORY, None)


async def row_of(visit: Visit, path: EntityPath) -> Row | None:
    """The numbers of one entity of a duobus, which tells more of them than the SDK does; None where it cannot."""
    if not visit.namespace.is_duobus or not visit.namespace.rights.listen:
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
    if visit.namespace.is_duobus:
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


def wants_sdk(visit: Visit) -> bool:
    """Whether the entities are listed by the SDK: the namespace is none of duobus."""
    return not visit.namespace.is_duobus


#: Kinds that the SDK lists for a namespace.
SDK_KINDS: Final = ("queue", TOPIC)
