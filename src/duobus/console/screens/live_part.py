"""The part of a page that changes by itself, of the screens that show what one look at the server finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

from duobus.console.events import Event
from duobus.console.namespace.failures import NamespaceError
from duobus.console.visits import Refusal, Visit


async def live_part(
    visit: Visit, template: str, look: Callable[[], Awaitable[dict[str, Any]]], *, screen: str, pause_s: float
) -> AsyncIterator[Event]:
    """Yield the live part of a page, whenever it has changed, and meanwhile that the server does not answer.

    Args:
        visit: The request.
        template: What the part is rendered by.
        look: Asks the server for what the part shows.
        screen: Name of the screen, as in the ids of the elements: ``<screen>-live`` and ``<screen>-failure``.
        pause_s: Seconds between two looks.
    """
    live, failure = f"#{screen}-live", f"#{screen}-failure"
    shown: dict[str, str] = {}
    while True:
        try:
            parts = {live: visit.render(template, await look()), failure: ""}
        except Refusal as error:
            # What the page shows has gone, and does not come back.
            yield Event("failed", {"text": error.text})
            return
        except NamespaceError as error:
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            # The server may be on its way back from a restart.
            parts = {failure: visit.render("parts/failure.html", {"failure": error})}
        for target, text in parts.items():
            if text != shown.get(target, ""):
                yield Event("html", {"target": target, "html": text})
        shown |= parts
        await asyncio.sleep(pause_s)
