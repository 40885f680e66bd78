"""``duobus demo``: a broker of its own, the official SDK, three kills, and a count of what came out."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from duobus.testing.server import DemoFailed
from duobus_demo.registry import EXTRA_PARTS, PARTS, load_scenario

_EXAMPLE = """
\b
Example:
  duobus demo
  duobus demo --part queue --details
  duobus demo --part rate --json
  duobus demo --console --skip-parts

\b
Exit status: 0 nothing lost, altered or wrongly delivered; 1 something was, or the run could not be finished.
"""


#: How long a signal may wait until the main thread looks for it, in seconds.
_LOOK_S: Final = 0.5


@click.command(name="demo", epilog=_EXAMPLE)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice((*PARTS, *EXTRA_PARTS)),
    help=f"Play this part only; repeatable. {', '.join(EXTRA_PARTS)}: only when named.",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per part instead of tables.")
@click.option("--details", is_flag=True, help="Print a table of each part, too, with all counts.")
@click.option(
    "--seconds-limit", type=click.IntRange(min=1), default=180, show_default=True, help="Most that a part may take."
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the broker's data and log in this folder, which must be empty or new.",
)
@click.option(
    "--console", "opens_console", is_flag=True, help="Then fill a shop, print the address of a console on it, and stay."
)
@click.option(
    "--console-port", type=click.IntRange(0, 65_535), default=0, help="Port of the console; 0 for a free one."
)
@click.option("--skip-parts", is_flag=True, help="With --console: play no part before.")
def command(
    parts: tuple[str, ...],
    is_json: bool,
    details: bool,
    seconds_limit: int,
    keep: Path | None,
    opens_console: bool,
    console_port: int,
    skip_parts: bool,
) -> None:
    """Send the Python standard library through a broker that is killed three times, and count what comes out."""
    # The broker has a session of its own and would outlive this process.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if skip_parts and not opens_console:
        raise click.UsageError("--skip-parts goes with --console: without both there is nothing to do.")
    has_failed, is_over = False, skip_parts
    try:
        with ExitStack() as stack:
            folder = _folder(keep, stack)
            if not is_over:
                has_failed = _play_all(parts or tuple(PARTS), folder, is_json, details, seconds_limit)
                is_over = True
            if opens_console:
                _stay(folder / "console", is_json, console_port)
    except DemoFailed as error:
        if not is_json and not is_over:
            # Nothing is known of what the parts after it would have shown.
            click.echo("FAILED: not all parts were played to their end.")
        raise click.ClickException(str(error)) from error
    sys.exit(1 if has_failed else 0)


def _play_all(parts: tuple[str, ...], folder: Path, is_json: bool, details: bool, seconds_limit: int) -> bool:
    """Play parts and print what came of them; return whether one was a failure.

    Raises:
        DemoFailed: A part could not be played to its end.
    """
    results: list[dict[str, Any]] = []
    failed: dict[str, list[str]] = {}
    try:
        for name in dict.fromkeys(parts):
            result, failures = _play(name, folder / name, is_json, details, seconds_limit)
            results.append(result)
            if failures:
                failed[name] = failures
    except DemoFailed:
        if not is_json and results:
            _summarize(results, failed)
        raise
    if not is_json:
        _summarize(results, failed)
        from duobus_demo.result_table import verdict

        click.echo(verdict(results, failed))
    return bool(failed)


def _stay(folder: Path, is_json: bool, port: int) -> None:
    """Open a console on a shop, say where, and stay until Ctrl-C or SIGTERM.

    Raises:
        DemoFailed: Something did not start, or the extra ``console`` is not installed.
    """
    from duobus.clock import Clock
    from duobus.errors import ConfigurationError
    from duobus.server.console_process import demand_console

    try:
        demand_console()
    except ConfigurationError as error:
        raise DemoFailed(str(error)) from error
    from duobus_demo.shop.opening import open_shop

    if not is_json:
        click.echo("Filling a shop for the console ...", err=True)
    with open_shop(folder, Clock(), port=port) as shop:
        if is_json:
            click.echo(json.dumps({"part": "console", "console": shop.url, "url": shop.ready["url"]}))
        else:
            click.echo(f"Console: {shop.url}")
            click.echo("The address signs in. Store 3 of the shop is away; its orders wait in the namespace 'spare'.")
            click.echo("Ctrl-C ends the console, the brokers and everything in them.")
        over = threading.Event()
        try:
            # In steps: a signal that the system gives to one of the shop's threads does not wake this one, which is the
            # only one that can act on it.
            while not over.wait(_LOOK_S):
                pass
        except KeyboardInterrupt:
            return


def _summarize(results: list[dict[str, Any]], failed: dict[str, list[str]]) -> None:
    """Print one table of all parts that were finished, and the rate."""
    from rich.console import Console

    from duobus_demo.result_table import rate_line, summary_table

    Console().print(summary_table(results, failed))
    rate = rate_line(results)
    if rate:
        click.echo(rate)


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


def _play(
    name: str, folder: Path, is_json: bool, details: bool, seconds_limit: int
) -> tuple[dict[str, Any], list[str]]:
    """Play one part, print its result where that is asked for, and return it with what makes it a failure."""
    from duobus.clock import Clock
    from duobus_demo.progress import ConsoleWatcher, Watcher

    part = load_scenario(name)
    with Watcher() if is_json else ConsoleWatcher(name) as watcher:
        if not is_json:
            watcher.note(f"{name}: {part.title}.")
        result = part.play(folder, watcher, Clock(), seconds_limit)
    failures = part.failures(result)
    if is_json:
        click.echo(json.dumps(result))
    elif details or failures:
        from rich.console import Console

        from duobus_demo.result_table import table_of

        Console().print(table_of(part.title, result))
    for failure in failures:
        click.echo(f"Failed: {failure}", err=True)
    return result, failures
