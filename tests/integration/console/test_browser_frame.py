"""The frame in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from duobus.model.descriptions import QueueDescription
from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, console


@pytest.fixture(scope="module")
def client(browser: Any) -> Iterator[ConsoleClient]:
    opened = Opened(console(QueueDescription(name="orders")))
    yield opened.value
    opened.close()


@in_browser
async def test_a_person_signs_in_by_the_printed_address_looks_around_and_signs_out(
    client: ConsoleClient, page: Any
) -> None:
    from playwright.async_api import expect

    code = client.console.access_code
    await page.goto(f"{client.url}/sign-in#code={code}")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert code not in page.url
    await page.keyboard.press("?")
    await expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Switch between light and dark colours").click()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
