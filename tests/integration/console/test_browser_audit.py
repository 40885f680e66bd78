"""In a real browser: the audit log is filtered and shown in the viewer's zone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, console


@pytest.fixture(scope="module")
def client(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleClient]:
    folder: Path = tmp_path_factory.mktemp("audit")
    opened = Opened(console(options={"ephemeral": False, "data": folder / "data"}))
    yield opened.value
    opened.close()


@in_browser
async def test_times_are_typed_and_shown_in_the_viewers_zone_and_sent_in_utc(
    client: ConsoleClient, browser: Any
) -> None:
    from playwright.async_api import expect

    assert (await client.post("/access/add", {"name": "app", "rights": "Send"})).status == 303
    context = await browser.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    try:
        page = await context.new_page()
        await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
        await expect(page.locator("nav.screens")).to_be_visible()
        await page.goto(f"{client.url}/audit?since=2026-01-01T23:30")
        since = page.get_by_label("From (Asia/Tokyo)")
        await expect(since).to_have_value("2026-01-02T08:30")
        (line,) = (await client.data("/audit"))["rows"]
        shown = page.locator("table time").first
        assert await shown.get_attribute("datetime") == line["at"].replace("+00:00", "Z")
        assert line["at"][:19] in (await shown.get_attribute("title") or "")
        await since.fill("2026-01-02T09:15")
        await page.get_by_role("button", name="Show", exact=True).click()
        await page.wait_for_url("**/audit?*since=2026-01-02T00%3A15*")
        await expect(page.get_by_label("From (Asia/Tokyo)")).to_have_value("2026-01-02T09:15")
    finally:
        await context.close()
