"""Relays in a real browser: made, seen to get a listener without loading the page anew, and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import ClientSession

from duobus.console.screens import relays
from duobus.model.descriptions import QueueDescription
from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, console
from kits.relay import Parties


@pytest.fixture(scope="module")
def client(browser: Any) -> Iterator[ConsoleClient]:
    opened = Opened(console(QueueDescription(name="orders")))
    yield opened.value
    opened.close()


@in_browser
async def test_a_relay_is_made_gets_a_listener_while_the_page_is_open_and_is_deleted(
    client: ConsoleClient, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from playwright.async_api import expect

    monkeypatch.setattr(relays, "_LOOK_S", 0.1)
    await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    # By the keyboard: g, and then the letter of the screen.
    await page.keyboard.press("g")
    await page.keyboard.press("r")
    await expect(page.get_by_role("heading", name="Relays", exact=True)).to_be_visible()
    await page.get_by_role("link", name="Create a relay").first.click()
    await page.get_by_label("Name", exact=False).first.fill("shop/web")
    await page.locator("#field-userMetadata").fill("of the shop")
    await page.get_by_role("button", name="Create the relay").click()
    await expect(page.locator("#notices")).to_contain_text("The relay shop/web is created.")
    await expect(page.locator("#relays-live")).to_contain_text("Nobody listens")
    async with ClientSession() as session:
        parties = Parties(client.server, session)
        listener = await parties.listen("shop/web")
        row = page.get_by_role("table", name="Listeners of the relay").locator("tbody tr")
        await expect(row).to_contain_text("127.0.0.1:")
        await expect(row.locator("[data-until]")).to_contain_text("s")
        await page.set_viewport_size({"width": 360, "height": 800})
        for path in ("/relays", "/relay/shop/web", "/relay/shop/web?tab=access", "/edit-relay/shop/web"):
            await page.goto(client.url + path)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        await page.goto(client.url + "/relays")
        await page.keyboard.press("/")
        await page.keyboard.type("SHOP web")
        await page.keyboard.press("Enter")
        await expect(page.locator("#relays-found")).to_contain_text("1 relay")
        await page.get_by_role("link", name="shop/web").click()
        await page.get_by_role("button", name="Delete").click()
        await page.locator("dialog[open] input[name=confirm]").fill("shop/web")
        await page.locator("dialog[open] button.danger").click()
        await expect(page.locator("#notices")).to_contain_text("The relay shop/web is deleted.")
        assert listener.socket.closed or (await listener.socket.receive(10)).data == 1001
