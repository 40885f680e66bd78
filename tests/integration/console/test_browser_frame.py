"""The frame in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest
from aiohttp import web

from duobus.console.events import Event, stream_events
from duobus.console.screens import SCREENS
from duobus.console.visits import Screen, Visit
from duobus.model.descriptions import QueueDescription
from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, connection_string, console

live: Final = Screen("live")


@live.get("/live")
async def events(visit: Visit) -> web.StreamResponse:
    async def source() -> AsyncIterator[Event]:
        yield Event("html", {"target": "#rows", "swap": "beforeend", "html": "<li>first <b>one</b></li>"})
        yield Event("row", {"number": 2})
        await asyncio.Event().wait()

    return await stream_events(visit, source())


@pytest.fixture(scope="module")
def client(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleClient]:
    profiles = tmp_path_factory.mktemp("console") / "profiles.json"
    opened = Opened(console(QueueDescription(name="orders"), screens=(*SCREENS, live), profiles=profiles))
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


async def sign_in(client: ConsoleClient, page: Any) -> None:
    await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
    await page.wait_for_url(f"{client.url}/")


@in_browser
async def test_a_saved_namespace_goes_only_after_its_name_is_typed(client: ConsoleClient, page: Any) -> None:
    from playwright.async_api import expect

    await sign_in(client, page)
    await page.get_by_role("link", name="Namespaces").click()
    await page.get_by_role("textbox", name="Name").fill("spare <b>one</b>")
    await page.get_by_label("Connection string").fill(connection_string(client.server))
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("spare <b>one</b> is saved.")).to_be_visible()
    await page.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog", name="Remove spare")
    await expect(dialog).to_be_visible()
    button = dialog.get_by_role("button", name="Remove")
    await expect(button).to_be_disabled()
    await dialog.get_by_role("textbox").fill("spare")
    await expect(button).to_be_disabled()
    await dialog.get_by_role("textbox").fill("spare <b>one</b>")
    await button.click()
    await expect(page.get_by_text("is no longer saved.")).to_be_visible()


@in_browser
async def test_htmx_changes_a_part_with_the_token_and_a_refusal_becomes_a_notice(
    client: ConsoleClient, page: Any
) -> None:
    from playwright.async_api import expect

    await sign_in(client, page)
    part = "{target: '#content', select: '#content', swap: 'outerHTML'}"
    await page.evaluate(f"htmx.ajax('GET', '/namespaces', {part})")
    await expect(page.get_by_role("heading", name="Open now")).to_be_visible()
    await expect(page).to_have_title(f"Namespaces · {client.place} · duobus")
    # The token is there, or the answer would be another; the name is not known.
    await page.evaluate("htmx.ajax('POST', '/namespaces/open', {target: '#content', values: {name: 'nowhere'}})")
    await expect(page.get_by_role("alert")).to_contain_text("The console knows no namespace nowhere.")
    await expect(page.get_by_role("heading", name="Open now")).to_be_visible()
    # Of a form that is wrong, too, unless the screen shows the form again.
    wrong = "{target: '#content', values: {name: 'x', connection_string: 'nonsense'}}"
    await page.evaluate(f"htmx.ajax('POST', '/namespaces/add', {wrong})")
    await expect(page.get_by_role("alert")).to_contain_text("This is no connection string.")
    await expect(page.get_by_role("heading", name="Open now")).to_be_visible()
    await page.get_by_role("button", name="Close this notice").click()
    await expect(page.get_by_role("alert")).to_be_hidden()
    await page.evaluate("(name) => htmx.ajax('POST', '/namespaces/open', {values: {name}})", client.place)
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


@in_browser
async def test_a_page_says_when_nobody_has_touched_it_for_a_minute(client: ConsoleClient, page: Any) -> None:
    await page.goto(f"{client.url}/sign-in")
    said = """(later) => {
      const real = Date.now, detail = { headers: {} };
      Date.now = () => real() + later;
      document.dispatchEvent(new CustomEvent("htmx:configRequest", { detail }));
      Date.now = real;
      return detail.headers["X-Unattended"] ?? null;
    }"""
    assert await page.evaluate(said, 59_000) is None
    assert await page.evaluate(said, 61_000) == "true"


@in_browser
async def test_what_is_live_comes_to_the_page_and_ends_with_the_session(client: ConsoleClient, page: Any) -> None:
    from playwright.async_api import expect

    await sign_in(client, page)
    await page.evaluate(
        """() => {
          const box = document.createElement("div");
          box.innerHTML = '<ul id="rows"></ul><p id="told"></p>';
          box.dataset.events = "/live";
          box.dataset.eventNames = "row";
          box.addEventListener("console:row", (event) => {
            document.getElementById("told").textContent = `number ${event.detail.number}`;
          });
          document.getElementById("content").append(box);
          htmx.process(box);
          htmx.trigger(box, "htmx:load", { elt: box });
        }"""
    )
    await expect(page.locator("#rows li")).to_have_text("first one")
    await expect(page.locator("#told")).to_have_text("number 2")
    for session in client.console.sessions.all():
        await client.console.sessions.end(session.id)
    await expect(page.get_by_role("alert")).to_contain_text("Your session has ended.")


@in_browser
async def test_a_chart_is_drawn_in_both_themes_under_the_policy(client: ConsoleClient, page: Any) -> None:
    from playwright.async_api import expect

    await sign_in(client, page)
    await page.evaluate(
        """() => {
          const data = document.createElement("script");
          data.type = "application/json";
          data.id = "rates";
          data.textContent = JSON.stringify({
            x: [1, 2, 3],
            unit: "/s",
            series: [{ label: "in", values: [1, 5, 2] }, { label: "out", values: [0, null, 2] }],
          });
          const chart = document.createElement("div");
          chart.className = "chart";
          chart.dataset.chart = "rates";
          const content = document.getElementById("content");
          content.append(data, chart);
          htmx.process(chart);
          htmx.trigger(chart, "htmx:load", { elt: chart });
        }"""
    )
    # The overview has charts of its own once it has looked twice.
    chart = page.locator("[data-chart=rates]")
    await expect(chart.locator("canvas")).to_be_visible()
    await expect(chart.locator(".u-legend")).to_contain_text("out")
    await page.get_by_role("button", name="Switch between light and dark colours").click()
    await expect(chart.locator("canvas")).to_have_count(1)
