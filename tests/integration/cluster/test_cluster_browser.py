"""The cluster in a real browser: a store is moved and a server is drained, and both are seen without a reload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kit_cluster import Cluster

from duobus.console.screens import cluster as screen
from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, console_at


@pytest.fixture
def client(browser: Any, cluster: Cluster) -> Iterator[ConsoleClient]:
    cluster.await_served()
    opened = Opened(console_at(cluster.address(0)))
    yield opened.value
    opened.close()


@in_browser
async def test_a_store_is_moved_and_a_server_is_drained_and_filled_again(
    client: ConsoleClient, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from playwright.async_api import expect

    monkeypatch.setattr(screen, "_LOOK_S", 0.2)
    await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    # By the keyboard: g, and then the letter of the screen.
    await page.keyboard.press("g")
    await page.keyboard.press("t")
    await expect(page.get_by_role("heading", name="Cluster", exact=True)).to_be_visible()
    servers = page.get_by_role("table", name="Servers of the cluster").locator("tbody tr")
    stores = page.get_by_role("table", name="Messaging stores of the cluster").locator("tbody tr")
    await expect(servers).to_have_count(3)
    await expect(stores).to_have_count(4)
    await page.set_viewport_size({"width": 360, "height": 800})
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await page.set_viewport_size({"width": 1280, "height": 900})

    found = (await client.data("/cluster"))["stores"][0]["server"]
    target = next(one["server"] for one in (await client.data("/cluster"))["servers"] if one["server"] != found)
    await page.get_by_role("link", name="Store 1").click()
    await page.get_by_role("button", name="Move").first.click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Keep it at").select_option(target)
    await expect(dialog.get_by_role("button", name="Move")).to_be_disabled()
    await dialog.get_by_label("Type").fill("store 1")
    await dialog.get_by_role("button", name="Move").click()
    await expect(page.locator("#notices")).to_contain_text(f"Store 1 is kept at {target}")
    await expect(stores.first.locator("td").nth(1)).to_have_text(target)

    await page.get_by_role("link", name=target).first.click()
    await page.get_by_role("button", name="Drain").first.click()
    await page.get_by_role("dialog").get_by_label("Type").fill(target)
    await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    row = servers.filter(has_text=target)
    await expect(row).to_contain_text("drained")
    await expect(row.locator("td").nth(1)).to_have_text("0")
    await row.get_by_role("link").click()
    await page.get_by_role("button", name="End the drain").click()
    await expect(servers.filter(has_text=target)).to_contain_text("serving")
    await page.get_by_role("link", name="Store 1").click()
    await page.get_by_role("button", name="Move").first.click()
    await dialog.get_by_label("Keep it at").select_option("any")
    await dialog.get_by_label("Type").fill("store 1")
    await dialog.get_by_role("button", name="Move").click()
    await expect(page.locator("#notices")).to_contain_text("may be at any server again")
    await expect(stores.first.locator("td").nth(4)).to_have_text("any server")
