"""Photograph the console on a shop that is open, for README and docs.

    python tools/screenshots.py                       every picture, into docs/images
    python tools/screenshots.py overview dead-letters these pictures only
    python tools/screenshots.py --to /tmp/pictures --theme dark --width 360

Starts two brokers and a console of its own (``duobus_demo.shop``), and ends them. Needs Chromium and Playwright; the
pictures are the same for the same code but for times, rates and ids.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import click
from playwright.sync_api import Page, sync_playwright

from duobus.clock import Clock
from duobus_demo.shop.opening import Shop, open_shop

#: Picture to the page of the console that is on it, and what has to be there before.
PAGES: Final = {
    "overview": "/",
    "entities": "/entities",
    "entity": "/entities/orders",
    "messages": "/messages/orders",
    "dead-letters": "/dead-letters/payments",
    "connections": "/connections",
    "stores": "/stores",
    "pairs": "/pairs",
}
_SETTLE_MS: Final = 4_000
_SIZE: Final = (1440, 900)
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")


def photograph(page: Page, shop: Shop, names: tuple[str, ...], folder: Path, settle_ms: int) -> list[dict[str, Any]]:
    """Sign in and photograph pages; return what was found, one entry a picture."""
    page.goto(shop.url)
    page.wait_for_url(lambda url: "sign-in" not in url)
    found: list[dict[str, Any]] = []
    for name in names:
        answer = page.goto(shop.ready["url"].rstrip("/") + PAGES[name])
        status = 0 if answer is None else answer.status
        # Rates and charts need a few samples.
        page.wait_for_timeout(settle_ms)
        path = folder / f"{name}.png"
        page.screenshot(path=path)
        found.append({"picture": str(path), "page": PAGES[name], "status": status})
    return found


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(tuple(PAGES)))
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("docs/images"))
@click.option("--theme", type=click.Choice(("light", "dark")), default="light", show_default=True)
@click.option("--width", type=click.IntRange(320, 7680), default=_SIZE[0], show_default=True)
@click.option("--height", type=click.IntRange(240, 4320), default=_SIZE[1], show_default=True)
@click.option("--settle-ms", type=click.IntRange(0), default=_SETTLE_MS, show_default=True, help="Before a picture.")
def main(names: tuple[str, ...], folder: Path, theme: str, width: int, height: int, settle_ms: int) -> None:
    """Photograph the console."""
    browser_path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser_path is None:
        raise click.ClickException("There is no Chromium here; on Debian and Ubuntu: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="duobus-shop-") as data,
        open_shop(Path(data), Clock()) as shop,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]
        for entry in photograph(page, shop, names or tuple(PAGES), folder, settle_ms):
            click.echo(json.dumps(entry))
        browser.close()


if __name__ == "__main__":
    main()
