"""Pipelines on Spark: each stage with its last batch, rows, time, lag and error, from the folders of their states.

The screen is there when the console was started with ``--pipelines``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from duobus.console.settings import SETTINGS
from duobus.console.visits import Screen, View, Visit
from duobus.pipeline.status import FAILED, HELD_BACK, pipelines_in, status_of

screen: Final = Screen("pipelines", label="Pipelines", key="l", order=77)

#: Pipelines of one page.
_SHOWN_MAX: Final = 50


@screen.get("/pipelines", right="manage")
async def show(visit: Visit) -> View:
    """All pipelines of the folder that the operator has named."""
    folder = visit.request.app[SETTINGS].pipelines
    assert folder is not None
    found = await asyncio.to_thread(_pipelines_of, folder)
    # A page that asks again wants the tables only.
    template = "pipelines/tables.html" if visit.query.get("part") == "tables" else "pipelines/page.html"
    trouble = [f"{stage['stage']} of {one['pipeline']}" for one in found for stage in one["stages"] if _is_bad(stage)]
    return View(template, "Pipelines", {"folder": str(folder), "pipelines": found, "trouble": trouble})


def _is_bad(stage: Mapping[str, Any]) -> bool:
    return stage["state"] in (FAILED, HELD_BACK)


def _pipelines_of(folder: Path) -> list[dict[str, Any]]:
    found = (status_of(one) for one in pipelines_in(folder)[:_SHOWN_MAX])
    return [one for one in found if one is not None]
