"""The entity screens in a real browser: from an empty namespace to a message that a rule let through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from duobus.model.descriptions import QueueDescription
from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, console


@pytest.fixture(scope="module")
def client(browser: Any) -> Iterator[ConsoleClient]:
    opened = Opened(console(QueueDescription(name="eu/orders"), QueueDescription(name="us/orders")))
    yield opened.value
    opened.close()


@in_browser
async def test_a_topic_with_a_rule_is_made_tried_and_seen_to_count_a_message(client: ConsoleClient, page: Any) -> None:
    from playwright.async_api import expect

    await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
    await page.get_by_role("link", name="Entities").click()
    # A search is an address, and needs no button.
    await page.get_by_label("Search").fill("US")
    await expect(page.locator("#rows tbody tr")).to_have_count(1)
    await expect(page.locator("#found")).to_contain_text("1 entity of 2")
    assert "q=US" in page.url
    await page.reload()
    await expect(page.get_by_label("Search")).to_have_value("US")
    # The tree opens a level at a time.
    await page.get_by_role("link", name="Tree").click()
    await page.locator("summary", has_text="eu/").click()
    await expect(page.locator(".entities-level .entities-level").get_by_role("link", name="orders")).to_be_visible()

    await page.get_by_role("link", name="Create a topic").click()
    await page.get_by_label("Name", exact=False).first.fill("events")
    await page.get_by_role("button", name="Create the topic").click()
    await expect(page.locator("#notices")).to_contain_text("The topic events is created.")
    await page.get_by_role("link", name="Subscriptions", exact=True).first.click()
    await page.get_by_role("link", name="Create a subscription").click()
    await page.locator("#field-name").fill("red")
    await page.locator("#field-lockDuration").fill("20m")
    await page.get_by_role("button", name="Create the subscription").click()
    # What is wrong is told where it is wrong, and the rest of the form is as it was.
    await expect(page.locator("#field-lockDuration-error")).to_contain_text("LockDuration (ms) is 1200000")
    await expect(page.locator("#field-name")).to_have_value("red")
    await page.locator("#field-lockDuration").fill("2m")
    await page.get_by_role("button", name="Create the subscription").click()

    await page.get_by_role("link", name="Rules", exact=True).click()
    await page.locator("tbody").get_by_role("button", name="Delete").first.click()
    await page.locator("dialog[open] input[name=confirm]").fill("events/Subscriptions/red/Rules/$Default")
    await page.locator("dialog[open] button.danger").click()
    await expect(page.locator("#content")).to_contain_text("No message reaches it")
    await page.get_by_role("link", name="Create a rule").click()
    await page.locator("#field-name").fill("only-red")
    # Only the fields of the chosen filter are there.
    await expect(page.locator("#field-sql")).to_be_visible()
    await expect(page.locator("#field-label")).to_be_hidden()
    await page.locator("#field-sql").fill("colour = 'red'\nAND size >> 5")
    await expect(page.locator("#check")).to_contain_text("Filter, line 2, column 11")
    await page.locator("#field-sql").fill("colour = 'red' AND size > 5")
    await expect(page.locator("#check")).to_contain_text("can be made as it stands")
    await page.locator("#field-action").fill("SET sys.Label = 'big'")
    await page.locator("#field-m_properties").fill("colour = red\nsize = 3")
    await page.get_by_role("button", name="Try", exact=True).click()
    await expect(page.locator("#trial")).to_contain_text("Does not match")
    await expect(page.locator("#trial tr", has_text="size > 5").last).to_contain_text("false")
    await page.locator("#field-m_properties").fill("colour = red\nsize = 9")
    await page.get_by_role("button", name="Try", exact=True).click()
    await expect(page.locator("#trial li", has_text="subject")).to_contain_text("big")
    await page.get_by_role("button", name="Create the rule").click()
    await expect(page.locator("tbody tr")).to_have_count(1)

    (session, *_) = client.console.sessions.all()
    async with session.namespace.messaging.get_topic_sender("events") as sender:
        await sender.send_messages(
            [ServiceBusMessage("x", application_properties={"colour": "red", "size": size}) for size in (3, 9)]
        )
    await page.get_by_role("link", name="Overview", exact=True).last.click()
    await expect(page.locator(".figure", has_text="Active")).to_contain_text("1")
    # Nothing is wider than a narrow screen.
    await page.set_viewport_size({"width": 360, "height": 800})
    for path in ("/entities", "/entities?view=tree", page.url, "/create/queue", "/topology"):
        await page.goto(path if path.startswith("http") else client.url + path)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
