"""``duobus demo``: a broker of its own, the official SDK, three kills, and a count of what came out."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import click

from duobus.testing.server import DemoFailed
from duobus_demo.registry import EXTRA_PARTS, PARTS, load_scenario

_EXAMPLE = """
\b
Example:
  duobus demo
  duobus demo --part queue --json

\b
Exit status: 0 nothing lost, altered or wrongly delivered; 1 something was, or the run could not be finished.
"""


@click.command(name="demo", epilog=_EXAMPLE)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice((*PARTS, *EXTRA_PARTS)),
    help=f"Play this part only; repeatable. {', '.join(EXTRA_PARTS)}: only when named.",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per part instead of a table.")
@click.option(
    "--seconds-limit", type=click.IntRange(min=1), default=180, show_default=True, help="Most that a part may take."
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the broker's data and log in this folder, which must be empty or new.",
)
def command(parts: tuple[str, ...], is_json: bool, seconds_limit: int, keep: Path | None) -> None:
    """Send the Python standard library through a broker that is killed three times, and count what comes out."""
    # The broker has a session of its own and would outlive this process.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        with ExitStack() as stack:
            folder = _folder(keep, stack)
            results = [_play(name, folder / name, is_json, seconds_limit) for name in dict.fromkeys(parts or PARTS)]
    except DemoFailed as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if all(results) else 1)


def _end(number: int, _frame: object) -> NoReturn:
    # As an exception, so that the broker is stopped and the folder removed on the way out.
    sys.exit(128 + number)


def _folder(keep: Path | None, stack: ExitStack) -> Path:
    if keep is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duobus-demo-")))
    try:
        keep.mkdir(parents=True, exist_ok=True)
        is_used = any(keep.iterdir())
    except OSError as error:
        raise DemoFailed(f"--keep {keep} cannot be used: {error.strerror}.") from error
    if is_used:
        raise DemoFailed(f"--keep {keep} is not empty. Give another folder.")
    return keep


def _play(name: str, folder: Path, is_json: bool, seconds_limit: int) -> bool:
    """Play one part and print its result; returns whether it is a success."""
    from duobus.clock import Clock
    from duobus_demo.progress import ConsoleWatcher, Watcher

    part = load_scenario(name)
    with Watcher() if is_json else ConsoleWatcher(name) as watcher:
        result = part.play(folder, watcher, Clock(), seconds_limit)
    failures = part.failures(result)
    if is_json:
        click.echo(json.dumps(result))
    else:
        from rich.console import Console

        from duobus_demo.result_table import table_of

        Console().print(table_of(part.title, result))
    for failure in failures:
        click.echo(f"Failed: {failure}", err=True)
    return not failures
