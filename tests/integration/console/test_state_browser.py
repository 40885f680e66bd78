"""In a real browser: a store is lost, clients go on, and the store is healed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from duobus.console.observation import observer as observation
from duobus.console.screens import stores
from duobus.model.descriptions import QueueDescription
from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, console


@pytest.fixture(scope="module")
def client(browser: Any) -> Iterator[ConsoleClient]:
    opened = Opened(console(QueueDescription(name="orders", enable_partitioning=True)))
    yield opened.value
    opened.close()


async def send_until(is_over: asyncio.Event, client: ConsoleClient) -> None:
    """Send as an application does that tries again when a message was refused.

    A flag ends the sending, not a cancellation: the SDK waits with ``asyncio.wait_for``, which in Python 3.11 returns
    the result and forgets the cancellation when both come in the same moment, and then the sending would never end.
    """
    bus = client.console.sessions.all()[0].namespace.messaging
    async with bus.get_queue_sender("orders") as sender:
        while not is_over.is_set():
            with suppress(ServiceBusError):
                await sender.send_messages(ServiceBusMessage("x"))
            await asyncio.sleep(0.01)


async def sent(page: Any) -> int:
    """How many messages the page says were sent during the drill."""
    text = await page.locator("#stores-drills dd").first.inner_text()
    return int(text.split()[0].replace(",", ""))


@in_browser
async def test_a_store_is_lost_clients_go_on_and_it_is_healed(
    client: ConsoleClient, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from playwright.async_api import expect

    monkeypatch.setattr(stores, "_BUSY_S", 0.2)
    monkeypatch.setattr(observation, "PERIOD_S", 0.5)
    monkeypatch.setattr(observation, "_SECOND_LOOK_S", 0.2)
    is_over = asyncio.Event()
    work = asyncio.ensure_future(send_until(is_over, client))
    try:
        await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
        await expect(page.get_by_text("All is well")).to_be_visible()
        await expect(page.locator("#overview-charts canvas").first).to_be_visible()
        await page.get_by_role("link", name="Stores", exact=True).click()
        await page.get_by_role("link", name="Store 1").click()
        await page.get_by_role("button", name="Fail").click()
        dialog = page.get_by_role("dialog", name="Let store 1 fail?")
        fail = dialog.get_by_role("button", name="Fail")
        await expect(fail).to_be_disabled()
        await dialog.get_by_label("Type store 1 to confirm").fill("store 1")
        await fail.click()
        await expect(page.locator("#stores-states")).to_contain_text("drill: failing")
        # Nobody loads the page anew: what clients see comes by itself.
        await expect(page.locator("#stores-drills")).to_contain_text("Sent meanwhile")
        told = page.locator("#stores-drills dd").first
        # The number, not the text: the rate behind the number changes also when nothing was sent.
        await expect(told).not_to_have_text(re.compile(rf"^{await sent(page):,} "))
        await page.get_by_role("link", name="Overview").click()
        await expect(page.locator("#overview-findings")).to_contain_text("Store 1 is failed")
        await page.get_by_role("link", name="Look at the store").click()
        await page.get_by_role("button", name="Heal").click()
        await expect(page.get_by_text("The drill of store 1 is over")).to_be_visible()
        await expect(page.locator("#stores-states")).not_to_contain_text("drill: failing")
        await expect(page.locator("#stores-states tbody tr").first.get_by_text("open")).to_be_visible()
        await expect(page.locator("#stores-drills")).to_contain_text("Store 1 was failing")
    finally:
        is_over.set()
        await work
