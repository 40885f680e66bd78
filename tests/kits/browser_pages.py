"""A browser for tests of pages, as fixtures; without Debian's Chromium these tests are skipped and counted.

Its form without a window is preferred: the same engine takes a third less of the processor when it draws no window.

The conftest of all tests imports them, once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from kits import browser as kit

#: What a browser may be called, the preferred one first.
PROGRAMS = ("chromium-headless-shell", "chromium")
#: Every test with a browser is in this group, so that one process starts one browser.
BROWSER_GROUP = "browser"
#: How long Playwright waits for something to appear, in milliseconds; a machine that runs all tests may be that busy.
WAIT_MS = 60_000


def group_pages(items: list[pytest.Item]) -> None:
    """Put the tests with a browser into one group and give them time."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(BROWSER_GROUP))
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(kit.LIMIT_S + 60))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright's coroutines; one for the whole run. Tests are wrapped by ``in_browser``."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        pytest.skip(f"there is no Chromium: apt-get install {PROGRAMS[0]}")
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=WAIT_MS)
    loop = kit.LoopThread()
    kit.current.append(loop)
    playwright = loop.run(async_playwright().start())
    options = ["--no-sandbox", "--disable-dev-shm-usage"]
    chromium = loop.run(playwright.chromium.launch(executable_path=path, headless=True, args=options))
    yield chromium
    loop.run(chromium.close())
    loop.run(playwright.stop())
    kit.current.clear()
    loop.stop()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A fresh page without cookies; whatever fails in its scripts or asks beyond this machine fails the test."""
    loop = kit.current[0]
    faults: list[str] = []
    opened = loop.run(open_page(browser, faults))
    yield opened
    loop.run(opened.context.close())
    assert not faults, faults


async def open_page(browser: Any, faults: list[str]) -> Any:
    """A page that notes its faults; whatever speaks to the browser is called in the browser's loop."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    page.on("pageerror", lambda error: faults.append(f"script: {error}"))
    page.on("console", lambda line: faults.append(line.text) if is_fault(line) else None)
    page.on("request", lambda request: None if is_near(request.url) else faults.append(f"request to {request.url}"))
    return page


#: How the browser and htmx tell of an answer with a status from 400 to 499.
_REFUSALS = ("the server responded with a status of 4", "Response Status Error Code 4")


def is_fault(line: Any) -> bool:
    """Whether the browser's console tells of something wrong; refusals by status are what some tests ask for."""
    return line.type == "error" and not any(words in line.text for words in _REFUSALS)


def is_near(url: str) -> bool:
    """Whether an address is on this machine."""
    return url.startswith(("http://127.0.0.1:", "http://localhost:", "data:"))
