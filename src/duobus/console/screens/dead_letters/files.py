"""Dead letters as files: downloads and uploads in the form of ``duobus dlq export``, a message a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiohttp import web

from duobus.console.namespace.thread_client import namespace_of
from duobus.console.screens.dead_letters import job_record as states
from duobus.console.screens.dead_letters import looks
from duobus.console.screens.dead_letters.jobs import Jobs
from duobus.console.screens.dead_letters.run_pages import start_import
from duobus.console.screens.dead_letters.selection import Selection
from duobus.console.visits import Redirect, Refusal

if TYPE_CHECKING:
    from duobus.console.visits import Visit


async def download(visit: Visit, jobs: Jobs, selection: Selection) -> web.StreamResponse:
    """The messages of a selection, a page in memory at a time; the messages stay where they are."""
    work = await looks.in_thread(jobs.lookers, lambda: looks.work_for(selection))
    pages = looks.pages_of(namespace_of(visit), work)
    # The first page before the answer begins: what is refused is told by a page of the console.
    part = await looks.in_thread(jobs.lookers, lambda: _lines(pages, work.address))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", selection.path)[:80]
    headers = {
        "Content-Type": "application/jsonl",
        "Content-Disposition": f'attachment; filename="{name}-dead-letters.jsonl"',
    }
    response = web.StreamResponse(headers=headers)
    await response.prepare(visit.request)
    while part is not None:
        await response.write(part)
        part = await looks.in_thread(jobs.lookers, lambda: _lines(pages, work.address))
    await response.write_eof()
    return response


def _lines(pages: Iterator[list[dict[str, Any]]], address: str) -> bytes | None:
    page = next(pages, None)
    if page is None:
        return None
    return b"".join(json.dumps({"entity": address, **record}).encode() + b"\n" for record in page)


async def upload(visit: Visit, jobs: Jobs) -> Redirect:
    """Bring the messages of an uploaded file: send them, or make dead letters of them."""
    selection = Selection(visit.form.get("path", "").strip("/"))
    source = visit.files.get("file")
    if not selection.path or source is None or not source.size:
        raise Refusal(422, "Choose a file with exported messages.")
    action = states.RESTORE if visit.form.get("as") == "dead" else states.SEND
    if action == states.RESTORE and not (visit.namespace.rights.manage and visit.namespace.is_duobus):
        raise Refusal(403, "Only a duobus makes dead letters of messages, and this needs the right Manage.")
    if action == states.SEND and not visit.namespace.rights.send:
        raise Refusal(403, "This needs the right Send.")
    if action == states.SEND and selection.subscription is not None:
        raise Refusal(422, "Nothing is sent to a subscription: send to its topic, or make dead letters of them.")
    return await start_import(visit, jobs, selection, action, source)
