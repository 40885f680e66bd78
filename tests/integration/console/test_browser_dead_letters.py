"""The dead letters of a bad day, in a real browser: found by cause, repaired, resubmitted, and undone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from duobus.model.descriptions import QueueDescription
from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, console

NUMBER = 5_000


@pytest.fixture(scope="module")
def client(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleClient]:
    folder = tmp_path_factory.mktemp("console")
    opened = Opened(console(QueueDescription(name="orders"), profiles=folder / "profiles"))
    yield opened.value
    opened.close()


async def make_dead_letters(client: ConsoleClient) -> None:
    """Ten orders of the dead-letter service, without a receiver."""
    (session,) = client.console.sessions.all()
    whys = (
        ("NoCurrency", "Order {} has no currency"),
        ("Timeout", "No answer within {} ms"),
        ("Late", "{} s too late"),
    )
    for start in range(0, NUMBER, 500):
        items = []
        for n in range(start, start + 500):
            reason, description = whys[n % 3]
            message = {"properties": {"messageId": f"m{n}"}, "body": {"data": [f'{{"order": {n}}}']}}
            items.append({"message": message, "reason": reason, "description": description.format(n)})
        order = {"action": "bury", "items": items}
        await session.namespace.operation("POST", "/orders/$DeadLetterQueue/$desk", body=order)


@in_browser
async def test_those_of_one_cause_are_found_repaired_resubmitted_and_brought_back(
    client: ConsoleClient, page: Any
) -> None:
    from playwright.async_api import expect

    await make_dead_letters(client)
    await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
    await page.get_by_role("link", name="Dead letters").click()
    await expect(page.get_by_text("5,000").first).to_be_visible()
    await page.get_by_role("link", name="NoCurrency").click()
    await expect(page.get_by_text("1,667 dead letters of orders")).to_be_visible()
    body = page.get_by_label("Body of the sample (JSON)")
    repaired = json.loads(await body.input_value()) | {"currency": "EUR"}
    await body.fill(json.dumps(repaired, indent=2))
    await page.get_by_role("button", name="Show the difference").click()
    await expect(page.locator("tr.added .line").filter(has_text='"currency": "EUR"')).to_be_visible()
    await page.get_by_role("button", name="Dry run").click()
    await page.get_by_role("button", name="Resubmit 1,667").click()
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_text("Undone", exact=True)).to_be_visible()
    await expect(page.locator("#run .badge").first).to_have_text("done")
    await expect(page.locator(".figure").first).to_contain_text("1,667")
    await page.get_by_role("link", name="The run that this one undoes").click()
    await expect(page.locator("#run .badge").filter(has_text="undone")).to_be_visible()
    session = client.console.sessions.all()[0]
    (row,) = await session.namespace.operation("GET", "/$duobus/entities")
    assert (row["active"], row["deadLetter"]) == (0, NUMBER)
