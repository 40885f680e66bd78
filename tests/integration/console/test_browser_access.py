"""Every page of the console is for everybody: with a screen reader, by keyboard, small, enlarged, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from kits.browser import Opened, in_browser
from kits.console import ConsoleClient, console, page_addresses

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]

#: What axe finds, of the levels that shut people out: everything in light, and what depends on colours in dark, of the
#: first page of each screen. Both themes have a test of all their colours, too.
SEARCH = """async (only) => {
  const found = await axe.run(document, { runOnly: only, resultTypes: ["violations"] });
  return found.violations.filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
}"""
EVERYTHING = {"type": "tag", "values": RULES}
COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
#: 320 pixels are a window of 1280 that is enlarged to 400 %. The height changes nothing of what is asked, but without a
#: graphics card each pixel is painted by the processor.
SIZES = ((320, 256), (3840, 256))

#: What can have the focus and is seen.
FOCUSABLE = """() => [...document.querySelectorAll(
    "a[href], button:not(:disabled), input:not([type=hidden], :disabled), select, textarea, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility() && !one.closest("dialog:not([open])")).length"""

#: Where the focus is, and whether it is seen there.
FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  window.focusedOnes ??= [];
  if (!window.focusedOnes.includes(one)) window.focusedOnes.push(one);
  const style = getComputedStyle(one);
  const box = one.getBoundingClientRect();
  return {
    place: window.focusedOnes.indexOf(one),
    html: one.outerHTML.slice(0, 120),
    isMarked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    isSeen: box.width > 0 && box.height > 0 && box.right > 0 && box.left < innerWidth,
  };
}"""


@pytest.fixture(scope="module")
def client(browser: Any) -> Iterator[ConsoleClient]:
    news = TopicDescription(name="news", subscriptions=(SubscriptionDescription(name="all"),))
    queues = [QueueDescription(name="orders"), QueueDescription(name="payments/of/europe")]
    opened = Opened(console(*queues, QueueDescription(name="visits", requires_session=True), topics=[news]))
    yield opened.value
    opened.close()


async def sign_in(client: ConsoleClient, page: Any) -> None:
    await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
    await page.wait_for_url(f"{client.url}/")


@in_browser
async def test_no_page_has_a_serious_fault_in_either_theme_or_scrolls_sideways_at_any_size(
    client: ConsoleClient, page: Any
) -> None:
    axe = AXE.read_text("utf-8")
    found: list[str] = []
    entrances = {screen.entrance.path for screen in client.console.screens if screen.entrance} | {"/sign-in"}

    async def look(address: str) -> None:
        await page.goto(client.url + address)
        await page.evaluate(axe)
        found.extend(f"{address}: {fault}" for fault in await page.evaluate(SEARCH, EVERYTHING))
        if address in entrances:
            await page.emulate_media(color_scheme="dark")
            found.extend(f"{address} in dark: {fault}" for fault in await page.evaluate(SEARCH, COLOURS))
            await page.emulate_media(color_scheme="light")
        for width, height in SIZES:
            await page.set_viewport_size({"width": width, "height": height})
            if (over := await page.evaluate(TOO_WIDE)) > 0:
                found.append(f"{address} at {width}: {over} pixels too wide")
        await page.set_viewport_size({"width": 1280, "height": 900})

    await page.emulate_media(reduced_motion="reduce")
    await look("/sign-in")
    await sign_in(client, page)
    for address in await page_addresses(client, "orders"):
        await look(address)
    await page.keyboard.press("?")
    found += await page.evaluate(SEARCH, EVERYTHING)
    assert found == []


@in_browser
async def test_everything_on_a_page_is_reached_and_marked_by_the_keyboard(client: ConsoleClient, page: Any) -> None:
    await sign_in(client, page)
    faults: list[str] = []
    for screen in client.console.screens:
        if screen.entrance is None:
            continue
        address = screen.entrance.path
        await page.goto(client.url + address)
        number = await page.evaluate(FOCUSABLE)
        reached: set[int] = set()
        for _ in range(number + 2):
            await page.keyboard.press("Tab")
            focus = await page.evaluate(FOCUSED)
            if focus is None or focus["place"] in reached:
                break
            reached.add(focus["place"])
            if not (focus["isMarked"] and focus["isSeen"]):
                faults.append(f"{address}: the focus is not seen at {focus['html']}")
        if len(reached) < number:
            faults.append(f"{address}: {len(reached)} of {number} elements are reached")
    assert faults == []


@in_browser
async def test_the_keyboard_opens_screens_the_list_of_keys_and_the_content(client: ConsoleClient, page: Any) -> None:
    from playwright.async_api import expect

    await sign_in(client, page)
    await page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    await page.keyboard.type("g9")
    await expect(page.locator("nav.screens a[aria-current=page]")).to_have_attribute("data-index", "9")


@in_browser
async def test_each_entry_of_the_navigation_has_a_letter_that_the_list_of_keys_names(
    client: ConsoleClient, page: Any
) -> None:
    from playwright.async_api import expect

    await sign_in(client, page)
    entries = await page.locator("nav.screens a").evaluate_all(
        "links => links.map(link => [link.dataset.key, link.textContent.trim()])"
    )
    assert len(entries) == 13
    assert len({key for key, _ in entries}) == len(entries)
    # The page on which a person is comes last, so that each key has a page to leave.
    for key, label in [*entries[1:], entries[0]]:
        # In one call: the page waits 1.5 s for the second key, which is short for a test beside others.
        await page.keyboard.type(f"g{key}")
        await expect(page.locator("nav.screens a[aria-current=page]")).to_have_text(label)
    await page.keyboard.press("?")
    listed = page.get_by_role("dialog", name="Keys").locator("dl > div")
    for key, label in entries:
        await expect(listed.filter(has_text=label).locator("kbd")).to_have_text(["g", key])


@in_browser
async def test_times_are_written_in_the_zone_of_the_viewer_with_the_exact_one_as_title(
    client: ConsoleClient, browser: Any
) -> None:
    context = await browser.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    page = await context.new_page()
    try:
        await page.goto(client.url + "/sign-in")
        await page.evaluate(
            """() => {
              const time = document.createElement("time");
              time.dateTime = "2026-11-26T21:30:05.123Z";
              document.querySelector("main").append(time);
              htmx.process(time);
              htmx.trigger(time, "htmx:load", { elt: time });
            }"""
        )
        assert await page.locator("main time").inner_text() == "27 Nov 2026, 06:30:05"
        title = await page.locator("main time").get_attribute("title")
        assert "06:30:05.123" in title
        assert "2026-11-26T21:30:05.123Z" in title
    finally:
        await context.close()
