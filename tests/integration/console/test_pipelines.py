"""Pipelines in the console: each stage with its last batch, rows, lag and error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duobus.pipeline.state_folder import StateFolder
from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, console
from kits.gateway import in_loop

STAGES = [
    {"stage": "capture", "job": "capture", "trigger": "every 10 s"},
    {"stage": "alert", "job": "send", "trigger": "after capture"},
]


def filled(folder: Path) -> Path:
    """A folder with the state of one pipeline, whose second stage has failed."""
    state = StateFolder(folder / "shop")
    state.folder.mkdir(parents=True)
    state.write_overview({"pipeline": "shop", "document": "/d/shop.toml", "stages": STAGES})
    state.stage("capture").tell(
        {"state": "done", "batch": 4, "rows": 1200, "totalRows": 5200, "lag": 3, "lagOf": "messages"}
    )
    state.stage("alert").tell({"state": "failed", "error": "Nobody answers at <b>localhost</b>."})
    return folder


@in_loop
async def test_stages_are_told_to_people_and_to_programs(tmp_path: Path) -> None:
    async with console(pipelines=filled(tmp_path)) as client:
        words = (await client.get("/pipelines")).words
        assert "shop not running" in words
        assert "1,200 5,200" in words
        assert "Look at alert of shop." in words
        assert "Nobody answers at <b>localhost</b>." in words
        (pipeline,) = (await client.data("/pipelines"))["pipelines"]
        assert [(stage["stage"], stage["state"], stage["lag"]) for stage in pipeline["stages"]] == [
            ("capture", "done", 3),
            ("alert", "failed", None),
        ]
        with StateFolder(tmp_path / "shop").lock({"since": "2026-11-27T10:00:00+00:00"}):
            assert (await client.data("/pipelines"))["pipelines"][0]["isRunning"]


@in_loop
async def test_the_screen_is_there_for_those_who_name_a_folder_and_may_manage(tmp_path: Path) -> None:
    async with console() as client:
        assert (await client.get("/pipelines")).status == 404
        assert "Pipelines" not in (await client.get("/")).words
    async with console(pipelines=tmp_path) as client:
        assert "No pipeline has run yet" in (await client.get("/pipelines")).words
    async with console(pipelines=tmp_path, right="listen") as client:
        assert (await client.get("/pipelines")).status == 403


@pytest.fixture(scope="module")
def client(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleClient]:
    opened = Opened(console(pipelines=filled(tmp_path_factory.mktemp("pipelines"))))
    yield opened.value
    opened.close()


@in_browser
async def test_what_a_stage_has_done_is_seen_without_loading_the_page_again(
    client: ConsoleClient, browser: Any
) -> None:
    from playwright.async_api import expect

    folder = Path((await client.data("/pipelines"))["folder"])
    context = await browser.new_context()
    try:
        page = await context.new_page()
        await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
        await page.get_by_role("link", name="Pipelines").click()
        row = page.get_by_role("row", name="alert")
        await expect(row).to_contain_text("failed")
        StateFolder(folder / "shop").stage("alert").tell({"state": "done", "batch": 1, "rows": 12})
        await expect(row).to_contain_text("done", timeout=20_000)
        await expect(page.get_by_role("row", name="every 10 s")).to_contain_text("3messages")
    finally:
        await context.close()
