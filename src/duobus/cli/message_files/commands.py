"""``duobus message capture``, ``export`` and ``import``: messages to files, and files to messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from duobus.cli.message_source import named, receiver_of, source_options, with_session_hint
from duobus.cli.output import Printer
from duobus.cli.remote import Remote, duration, remote_command
from duobus.clock import Clock
from duobus.model.durations import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from duobus.arrow.capture import Captured
    from duobus.cli.message_files.imports import Item

JSONL: Final = "jsonl"
PARQUET: Final = "parquet"
#: Exit code when some messages were left.
_LEFT: Final = 7

_CAPTURE: Final = """
\b
Example:
  duobus message capture orders --to /data/orders
  duobus message capture prices --subscription all --to /data/prices --follow
"""

_EXPORT: Final = """
\b
Example:
  duobus message export orders > orders.jsonl
  duobus message export orders --to orders.parquet --format parquet
"""

_IMPORT: Final = """
\b
Example:
  duobus message import orders.jsonl orders --rate 500
  duobus message import /data/orders orders --dry-run
"""


@contextmanager
def _needs_arrow() -> Iterator[None]:
    """Say which extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise click.ClickException("This needs pyarrow: pip install 'duobus[arrow]'") from error


@click.command(epilog=_CAPTURE)
@source_options
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the files, below entity, date and hour.",
)
@click.option(
    "--format", "form", type=click.Choice((PARQUET,)), default=PARQUET, show_default=True, help="Format of the files."
)
@click.option("--count", type=click.IntRange(1), help="At most this many messages.")
@click.option("--wait", type=duration, default="5s", show_default=True, help="End when no message came for so long.")
@click.option("--follow", is_flag=True, help="Do not end; wait for messages until Ctrl-C.")
@click.option(
    "--batch", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Messages of a batch at most."
)
@click.option("--no-progress", is_flag=True, help="Do not show progress on a terminal.")
@remote_command()
def capture(
    remote: Remote,
    output: str | None,
    folder: Path,
    form: str,
    count: int | None,
    wait: str,
    follow: bool,
    batch: int,
    no_progress: bool,
    **source: Any,
) -> None:
    """Move messages to Parquet files: each is removed when its file is durable.

    The same command goes on after Ctrl-C or a kill, and each message is in one file.
    """
    del form
    with _needs_arrow():
        from duobus.arrow.capture import Capture, Plan
        from duobus.arrow.capture_folder import CaptureError, CaptureFolder
    from duobus.spark.rows import Source

    wait_s = None if follow else (parse_duration(wait) or 0) / 1000
    entity = _path(source)
    total = None if no_progress or not sys.stderr.isatty() else _total(remote, source)
    started_ms = Clock().monotonic_ms()
    namespace = _namespace(remote)
    bar = _Bar(total if count is None or total is None else min(total, count), is_shown=not no_progress)
    try:
        with (
            with_session_hint(source),
            CaptureFolder(folder, namespace, entity, _address(source)) as into,
            remote.messaging(named(source)) as client,
            receiver_of(client, **source) as receiver,
            bar,
        ):
            if into.recovered:
                click.echo(f"Finished {into.recovered} files of a capture that was killed.", err=True)
            work = Capture(receiver, into, Source(namespace, entity), Plan(count, wait_s, batch))
            try:
                done = work.run(lambda found: bar.show(found.messages))
            except BaseException:
                if work.done.messages:
                    click.echo(f"Captured before the end: {work.done.messages}. The same command goes on.", err=True)
                raise
    except CaptureError as error:
        raise click.ClickException(str(error)) from None
    _tell(done, (Clock().monotonic_ms() - started_ms) / 1000, folder, output)


def _tell(done: Captured, seconds: float, folder: Path, output: str | None) -> None:
    record = {
        "captured": done.messages,
        "alreadyThere": done.again,
        "files": done.files,
        "bytes": done.size,
        "seconds": round(seconds, 3),
        "messagesPerSecond": round(done.messages / seconds) if seconds else None,
        "folder": str(folder),
    }
    with Printer(output, is_one=True) as printer:
        printer.print([record])


def _path(source: dict[str, Any]) -> str:
    """The entity as the column ``entity`` has it."""
    if source["subscription"] is None:
        return str(source["entity"])
    return f"{source['entity']}/subscriptions/{source['subscription']}"


def _address(source: dict[str, Any]) -> str:
    """The entity with its sub-queue."""
    return _path(source) + ("/$DeadLetterQueue" if source["dead_letter"] else "")


def _namespace(remote: Remote) -> str:
    from duobus.spark.connection import Place, namespace_of

    return namespace_of(Place("connectionString", remote.text))


def _total(remote: Remote, source: dict[str, Any]) -> int | None:
    """How many messages wait; None where the key does not suffice for the question."""
    member = "dead_letter_message_count" if source["dead_letter"] else "active_message_count"
    try:
        with remote.administration(named(source)) as administration:
            if source["subscription"] is None:
                found = administration.get_queue_runtime_properties(source["entity"])
            else:
                found = administration.get_subscription_runtime_properties(source["entity"], source["subscription"])
    except click.ClickException:
        return None
    return int(getattr(found, member) or 0)


class _Bar:
    """How many messages of how many are done, and how many in a second; on a terminal alone.

    Args:
        total: Messages in all; None: not known.
        is_shown: Whether the bar is wanted.
    """

    def __init__(self, total: int | None, *, is_shown: bool) -> None:
        self._total = total
        self._is_shown = is_shown and sys.stderr.isatty()
        self._stack = ExitStack()
        self._show: Callable[[int], None] = lambda _: None

    def __enter__(self) -> _Bar:
        if self._is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

            bar = self._stack.enter_context(
                Progress(
                    SpinnerColumn(),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TextColumn("{task.fields[rate]}"),
                    console=Console(stderr=True),
                    transient=True,
                )
            )
            task = bar.add_task("", total=self._total, rate="")
            started_ms = Clock().monotonic_ms()

            def show(done: int) -> None:
                rate = done * 1000 // max(1, Clock().monotonic_ms() - started_ms)
                bar.update(task, completed=done, rate=f"{rate} messages/s")

            self._show = show
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def show(self, done: int) -> None:
        """So many are done."""
        self._show(done)


@click.command(epilog=_EXPORT)
@source_options
@click.option("--to", "path", type=click.Path(dir_okay=False, path_type=Path), help="File; else standard output.")
@click.option(
    "--format",
    "form",
    type=click.Choice((JSONL, PARQUET)),
    default=JSONL,
    show_default=True,
    help="Format of the file.",
)
@click.option("--count", type=click.IntRange(1), help="At most this many messages.")
@click.option("--from", "first", type=click.IntRange(0), default=0, help="From this sequence number on.")
@click.option("--no-progress", is_flag=True, help="Do not show progress on a terminal.")
@remote_command(has_output=False)
def export(
    remote: Remote, path: Path | None, form: str, count: int | None, first: int, no_progress: bool, **source: Any
) -> None:
    """Write messages to a file, whole, in any state; they stay where they are."""
    if path is None and form == PARQUET:
        raise click.UsageError("Give --to: files of Parquet do not go to standard output.")
    from duobus.cli.message_files.exports import JsonLines, Parquet, Writer, output_of

    with remote.messaging(named(source)):
        # Without the SDK the modules below cannot be loaded, which is told here.
        from duobus.cli.message_files.records import peeked
        from duobus.spark.rows import Source
    number = 0
    with (
        with_session_hint(source),
        remote.messaging(named(source)) as client,
        receiver_of(client, **source) as receiver,
        output_of(path) as file,
        _Bar(count, is_shown=not no_progress and path is not None) as bar,
    ):
        writer: Writer
        if form == JSONL:
            writer = JsonLines(file, _address(source))
        else:
            with _needs_arrow():
                writer = Parquet(file, Source(_namespace(remote), _path(source)))
        for page in peeked(receiver, first, count):
            writer.write(page)
            number += len(page)
            bar.show(number)
        writer.close()
    click.echo(f"Exported: {number}.", err=True)


@click.command(name="import", epilog=_IMPORT)
@click.argument("file", type=click.Path(exists=True, allow_dash=True, path_type=Path))
@click.argument("entity")
@click.option("--rate", type=click.IntRange(1, 1_000_000), help="At most this many messages a second.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@click.option("--restart", is_flag=True, help="Begin anew, though an earlier import of FILE has not ended.")
@click.option("--no-progress", is_flag=True, help="Do not show progress on a terminal.")
@remote_command(has_endpoint=False, has_output=False)
def import_(
    remote: Remote, file: Path, entity: str, rate: int | None, dry_run: bool, restart: bool, no_progress: bool
) -> None:
    """Send the messages of a file to a queue or topic.

    FILE is of message export, dlq export (- reads standard input), or a folder of message capture. Lines that are
    broken are told and left. FILE.progress says how far an import has come: the same command goes on from there.
    """
    from duobus.cli.message_files.imports import ImportRecord, check_items, send_items
    from duobus.dead_letters.work import Totals

    totals = Totals()
    with remote.messaging(f"entity {entity}") as client, ExitStack() as stack:
        items = _items(file, stack)
        if dry_run:
            check_items(items, totals, _tell_fault)
        else:
            beside = None if str(file) == "-" else file.with_name(file.name + ".progress")
            if restart and beside is not None:
                beside.unlink(missing_ok=True)
            progress = ImportRecord(beside, f"{_namespace(remote)}/{entity}")
            if progress.done:
                click.echo(f"Going on behind {progress.done}.", err=True)
            bar = stack.enter_context(_Bar(None, is_shown=not no_progress))
            sender = stack.enter_context(client.get_queue_sender(entity))
            try:
                send_items(items, sender, totals, progress, _shown_pace(rate, bar), _tell_fault)
            except BaseException:
                click.echo(f"Imported before the failure: {totals.moved}. The same command goes on.", err=True)
                raise
    click.echo(f"{'Would import' if dry_run else 'Imported'}: {totals.moved}. Left: {totals.left}.", err=True)
    if totals.left:
        raise SystemExit(_LEFT)


def _items(file: Path, stack: ExitStack) -> Iterator[Item]:
    """The messages of a file: of Parquet by its name or first bytes, else lines of JSON."""
    from duobus.cli.message_files.imports import json_items, parquet_items

    if str(file) == "-":
        return json_items(sys.stdin.buffer)
    if not file.is_dir():
        opened = stack.enter_context(file.open("rb"))
        if opened.read(4) != b"PAR1":
            opened.seek(0)
            return json_items(opened)
    with _needs_arrow():
        import pyarrow  # noqa: F401 - whether it is there
    return parquet_items(file)


def _tell_fault(sentence: str) -> None:
    click.echo(sentence, err=True)


def _shown_pace(rate: int | None, bar: _Bar) -> Any:
    """Keeps to a rate, and shows how far the work is."""
    from duobus.dead_letters.work import Pace, Totals

    class ShownPace(Pace):
        def step(self, totals: Totals) -> None:
            bar.show(totals.moved)
            super().step(totals)

    return ShownPace(rate)
