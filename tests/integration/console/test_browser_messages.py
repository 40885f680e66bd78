"""The pages of messages in a real browser."""

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
async def test_a_person_sends_a_message_sees_it_come_finds_it_and_settles_it(client: ConsoleClient, page: Any) -> None:
    from playwright.async_api import expect

    await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
    await page.wait_for_url(f"{client.url}/")
    tail = await page.context.new_page()
    await tail.goto(f"{client.url}/tail/orders")
    await expect(tail.get_by_text("Waiting for messages.")).to_be_visible()

    await page.goto(f"{client.url}/send/orders")
    await page.get_by_label("Kind").select_option("json")
    await page.get_by_label("Text", exact=True).fill('{"order": {{n}}, "note": "<b>late</b>"}')
    await page.get_by_label("Name of property 1").fill("colour")
    await page.get_by_label("Value of property 1").fill("red")
    await page.get_by_label("Repeat").fill("3")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.get_by_text("3 messages are sent to orders.")).to_be_visible()
    await expect(tail.locator("#tail-rows tr")).to_have_count(3)
    await expect(tail.locator("[data-tail-state]")).to_have_text("3 new.")
    await tail.close()

    await page.get_by_role("link", name="Active").click()
    await page.get_by_label("SQL on properties").fill("colour = 'red' AND sys.SequenceNumber > 2")
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(page.locator("#content tbody tr")).to_have_count(1)
    assert "sql=colour" in page.url
    await page.get_by_role("link", name="3", exact=True).click()
    await expect(page.locator("#body")).to_contain_text('"note": "<b>late</b>"')

    await page.get_by_role("link", name="Receive").click()
    await page.get_by_label("At most").first.fill("1")
    await page.get_by_role("button", name="Receive and lock").click()
    await expect(page.locator("#content tbody [data-until]")).to_contain_text(" s")
    await page.get_by_role("button", name="Complete").click()
    await expect(page.get_by_text("1 message is completed.")).to_be_visible()
