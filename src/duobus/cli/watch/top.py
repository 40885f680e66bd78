"""``duobus top``: a server's entities, stores and clients, seen anew every two seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from threading import Event
from typing import Any, Final

import click

from duobus.cli.output import json_of
from duobus.cli.remote import Remote, operate, remote_command
from duobus.cli.watch.readings import Ask, Reading, ordered, read, view
from duobus.clock import Clock

#: Waits for so many seconds.
Pause = Callable[[float], object]

_SORTS: Final = ("rate", "depth", "dead", "name")

_EXAMPLE: Final = """
\b
Example:
  duobus top
  duobus top --sort dead --prefix shop/
  duobus top --once --json
"""


def views(ask: Ask, prefix: str, interval_s: float, pause: Pause) -> Iterator[dict[str, Any] | click.ClickException]:
    """Yield readings with their rates, for ever, the first after one interval; an error where the server was away."""
    before: Reading | None = None
    while True:
        try:
            now = read(ask, prefix)
        except click.ClickException as error:
            before = None
            yield error
        else:
            if before is not None:
                yield view(before, now)
            before = now
        pause(interval_s)


@click.command(name="top", epilog=_EXAMPLE)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two readings, over which rates are taken.",
)
@click.option("--once", "is_once", is_flag=True, help="Show it once, after one interval, and end.")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object a line; so without a terminal.")
@click.option("--prefix", help="Only entities whose paths begin so.")
@click.option(
    "--sort",
    type=click.Choice(_SORTS),
    default=_SORTS[0],
    show_default=True,
    help="What stands first: the most of this.",
)
@remote_command(has_output=False)
def command(remote: Remote, interval: float, is_once: bool, is_json: bool, prefix: str | None, sort: str) -> None:
    """Show entities with rates and depth, messaging stores and clients of a server, until Ctrl-C.

    The server may be started anew meanwhile. A key with Listen on the namespace sees the server and its entities; one
    with Manage also stores and clients.
    """
    pause = Event().wait
    found = views(_asker(remote), prefix or "", interval, pause)
    try:
        if is_once:
            _show_once(next(found), remote, sort, is_json)
        elif is_json or not sys.stdout.isatty():
            _print_lines(found)
        else:
            _show_live(found, remote, sort)
    except KeyboardInterrupt:
        # The way to end it.
        return


def _asker(remote: Remote) -> Ask:
    def ask(name: str, query: Mapping[str, str]) -> Any:
        return operate(remote, "GET", name, query)

    return ask


def _show_once(found: dict[str, Any] | click.ClickException, remote: Remote, sort: str, is_json: bool) -> None:
    if isinstance(found, click.ClickException):
        raise found
    if is_json:
        click.echo(json_of(_stamped(found)))
        return
    from rich.console import Console

    from duobus.cli.watch.screen import screen

    Console().print(screen(found, remote.url, ordered(found["entities"], sort), None))


def _print_lines(found: Iterator[dict[str, Any] | click.ClickException]) -> None:
    for one in found:
        # Whoever reads the lines learns that the server was away, and reads on.
        told = {"error": one.message} if isinstance(one, click.ClickException) else one
        click.echo(json_of(_stamped(told)))
        sys.stdout.flush()


def _stamped(found: Mapping[str, Any]) -> dict[str, Any]:
    at = datetime.fromtimestamp(Clock().now_ms() / 1000, tz=UTC)
    return {"at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **found}


def _show_live(found: Iterator[dict[str, Any] | click.ClickException], remote: Remote, sort: str) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from duobus.cli.output import clean
    from duobus.cli.watch.screen import screen

    console = Console()
    with Live(Text(f"Reading {remote.url} ..."), console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        for one in found:
            if isinstance(one, click.ClickException):
                live.update(Text(clean(one.message.replace("\n", " ")), "red"), refresh=True)
            else:
                shown = screen(one, remote.url, ordered(one["entities"], sort), console.size.height)
                live.update(shown, refresh=True)
