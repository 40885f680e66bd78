"""``duobus dlq``: the dead-letter service at the command line.

On a duobus server the work is done there, a chunk in one commit. Anywhere else, as on Azure, messages are moved by the
SDK: received, sent, and completed then, so that a crash may leave one on both sides, never on none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from duobus.cli.dead_letter_work import DeadLetterCommands, bring, done_word, executor_of, run, work_of
from duobus.cli.options import pair
from duobus.cli.output import NUMBER, TIME, Column, Printer, json_of
from duobus.cli.remote import Remote, remote_command
from duobus.dead_letters.client import DeadLetterClient
from duobus.dead_letters.runs import sample
from duobus.dead_letters.undo_file import UndoFile, read_undo
from duobus.dead_letters.work import Executor, Totals, Work
from duobus.model.json.plan import CHUNK_MAX, LIMIT_DEFAULT

_COLUMNS: Final = ("sequenceNumber", "messageId", "enqueuedTime", "deliveryCount", "reason", "description")
_TABLE: Final = (
    Column("sequenceNumber", "number", NUMBER),
    Column("messageId", "id"),
    Column("enqueuedTime", "enqueued", TIME),
    Column("deliveryCount", "tries", NUMBER),
    Column("reason", "reason"),
    Column("description", "description"),
)
#: Longest line of a file of messages, in bytes: a message of 100 MB does not travel this way.
LINE_BYTES_MAX: Final = 16 << 20

_LIST: Final = """
\b
Example:
  duobus dlq list orders --filter "DeadLetterReason = 'MaxDeliveryCountExceeded'"
  duobus dlq list prices --subscription alerts --json '$.order.total > 100'
"""

_RESUBMIT: Final = """
\b
Example:
  duobus dlq resubmit orders --set attempt:=2 --sample 1 --undo orders.undo
  duobus dlq resubmit orders --patch '[{"op": "remove", "path": "/coupon"}]' --yes
"""

_MOVE: Final = """
\b
Example:
  duobus dlq move orders --to parked --filter "DeadLetterReason = 'poison'" --yes
"""

_PURGE: Final = """
\b
Example:
  duobus dlq purge orders --filter "sys.EnqueuedTimeUtc < '2026-01-01'" --undo orders.undo --yes
"""

_EXPORT: Final = """
\b
Example:
  duobus dlq export orders > orders.jsonl
"""

_IMPORT: Final = """
\b
Example:
  duobus dlq import orders.jsonl orders
  duobus dlq import orders.jsonl orders --as-dead-letters
"""

_UNDO: Final = """
\b
Example:
  duobus dlq undo orders.undo
"""


@click.group(name="dlq", cls=DeadLetterCommands, no_args_is_help=True)
def command() -> None:
    """Look through dead letters, try them again, move, export and remove them."""


def _source(function: Any) -> Any:
    """Add what says which messages are meant."""
    for option in (
        click.option("--count", type=click.IntRange(1), help="At most this many messages."),
        click.option(
            "--number",
            "numbers",
            type=click.IntRange(0),
            multiple=True,
            help="Only this sequence number. Repeatable.",
        ),
        click.option("--json", "condition", help="Only with a JSON body that fulfils this, as in '$.total > 10'."),
        click.option("--filter", "sql", help="Only what this SQL filter takes, as in a rule."),
        click.option("--transfer", is_flag=True, help="Of the transfer dead-letter queue."),
        click.option("--subscription", help="Of this subscription; ENTITY is its topic."),
        click.argument("entity"),
    ):
        function = option(function)
    return function


def _conduct(function: Any) -> Any:
    """Add what says how the work is done."""
    for option in (
        click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
        click.option("--no-progress", is_flag=True, help="Do not show progress on a terminal."),
        click.option(
            "--client-side", is_flag=True, help="Do the work with the SDK even if the server could; not in one commit."
        ),
        click.option(
            "--undo", type=click.Path(path_type=Path), help="Write to this new file what duobus dlq undo needs."
        ),
        click.option("--rate", type=click.IntRange(1, 100_000), help="At most this many messages a second."),
        click.option(
            "--chunk",
            type=click.IntRange(1, CHUNK_MAX),
            default=LIMIT_DEFAULT,
            show_default=True,
            help="Messages of one commit.",
        ),
    ):
        function = option(function)
    return function


def _repair(function: Any) -> Any:
    """Add what says how messages are repaired."""
    for option in (
        click.option(
            "--sample", type=click.IntRange(1, 100), help="Show this many messages as they would be, then ask."
        ),
        click.option("--patch", help="Patch the JSON body by this JSON patch (RFC 6902); @FILE for one in a file."),
        click.option("--session-id", help="Give them this session id."),
        click.option("--subject", help="Give them this subject."),
        click.option("--remove", multiple=True, help="Remove this property. Repeatable."),
        click.option("--set", "values", type=pair, multiple=True, help="Set NAME=TEXT, or NAME:=5. Repeatable."),
    ):
        function = option(function)
    return function


@command.command(name="list", epilog=_LIST)
@_source
@remote_command()
def list_(remote: Remote, output: str | None, **source: Any) -> None:
    """List dead letters, why they died, and what they are."""
    found = 0
    with DeadLetterClient(remote) as link, Printer(output, _COLUMNS, table=_TABLE) as printer:
        for page in executor_of(remote, link, work_of("list", source)).pages():
            printer.print(_row(record) for record in page)
            found += len(page)
    click.echo(f"Listed: {found}.", err=True)


def _row(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "sequenceNumber": record["sequenceNumber"],
        "messageId": (record["message"].get("properties") or {}).get("messageId"),
        **record,
    }


@command.command(epilog=_RESUBMIT)
@_source
@_repair
@_conduct
@remote_command()
def resubmit(remote: Remote, output: str | None, **given: Any) -> None:
    """Try dead letters again: back to their queue, or to their subscription alone.

    What says why they died is taken off.
    """
    _do(remote, output, work_of("resubmit", given), given)


@command.command(epilog=_MOVE)
@_source
@click.option("--to", required=True, help="Queue or topic to move them to.")
@click.option("--drop-reason", is_flag=True, help="Do not keep the dead-letter reason and description.")
@_repair
@_conduct
@remote_command()
def move(remote: Remote, output: str | None, **given: Any) -> None:
    """Move dead letters to another queue or topic; why they died stays with them as properties."""
    _do(remote, output, work_of("move", given), given)


@command.command(epilog=_PURGE)
@_source
@_conduct
@remote_command()
def purge(remote: Remote, output: str | None, **given: Any) -> None:
    """Remove dead letters."""
    _do(remote, output, work_of("purge", given), given)


def _do(remote: Remote, output: str | None, work: Work, given: dict[str, Any]) -> None:
    with DeadLetterClient(remote) as link:
        executor = executor_of(remote, link, work)
        if given.get("sample") and not given["dry_run"]:
            _show_sample(executor, given["sample"])
        if given["dry_run"]:
            with Printer(output, _COLUMNS, table=_TABLE) as printer:
                number = 0
                for page in executor.pages(is_dry=True):
                    printer.print(_row(record) for record in page)
                    number += len(page)
            click.echo(f"Would {work.action}: {number}.", err=True)
            return
        if not given["is_sure"]:
            _ask(work)
        if given["undo"] is not None and not executor.can_undo:
            raise click.UsageError("Where the SDK moves messages nothing can be undone: leave --undo out.")
        undo = None if given["undo"] is None else UndoFile(given["undo"], work)
        try:
            totals = run(executor, undo, rate=given["rate"], shows_progress=not given["no_progress"])
        finally:
            if undo is not None:
                undo.close()
    _tell(done_word(work), totals, output)


def _tell(word: str, totals: Totals, output: str | None) -> None:
    with Printer(output) as printer:
        printer.print(totals.skipped)
    click.echo(f"{word}: {totals.moved}. Left: {totals.left}.", err=True)
    if totals.left:
        raise SystemExit(7)


def _show_sample(executor: Executor, number: int) -> None:
    for record in sample(executor, number):
        click.echo(f"--- {record['sequenceNumber']} as it is", err=True)
        click.echo(json_of(record["message"], indent=2), err=True)
        if "refused" in record:
            click.echo(f"--- cannot be repaired: {record['refused']}", err=True)
        else:
            click.echo("--- as it would be", err=True)
            click.echo(json_of(record.get("repaired"), indent=2), err=True)


def _ask(work: Work) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"Give --yes to {work.action} dead letters of {work.named}, or --dry-run.")
    click.confirm(f"{work.action.title()} these dead letters of {work.named}?", abort=True, err=True)


@command.command(name="export", epilog=_EXPORT)
@_source
@remote_command(has_output=False)
def export(remote: Remote, **source: Any) -> None:
    """Write dead letters to standard output, whole, one JSON object a line; they stay where they are."""
    work = work_of("list", source)
    number = 0
    with DeadLetterClient(remote) as link:
        for page in executor_of(remote, link, work).pages():
            for record in page:
                click.echo(json_of({"entity": work.address, **record}))
            number += len(page)
    click.echo(f"Exported: {number}.", err=True)


@command.command(name="import", epilog=_IMPORT)
@click.argument("file", type=click.File("rb"))
@click.argument("entity")
@click.option("--subscription", help="Of this subscription; ENTITY is its topic. With --as-dead-letters only.")
@click.option("--as-dead-letters", is_flag=True, help="Make them dead letters of ENTITY, with their reasons.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--client-side", is_flag=True, help="Have the SDK send them.")
@remote_command()
def import_(
    remote: Remote,
    output: str | None,
    file: Any,
    entity: str,
    subscription: str | None,
    as_dead_letters: bool,
    dry_run: bool,
    client_side: bool,
) -> None:
    """Send exported messages to a queue or topic, or make dead letters of them; - reads standard input."""
    if subscription is not None and not as_dead_letters:
        raise click.UsageError("Nothing is sent to a subscription: leave it out, or give --as-dead-letters.")
    given = {"entity": entity, "subscription": subscription, "client_side": client_side}
    work = work_of("bury" if as_dead_letters else "send", given)
    with DeadLetterClient(remote) as link:
        totals = bring(executor_of(remote, link, work), _records(file), work.chunk, is_dry=dry_run)
    word = "Would import" if dry_run else "Imported"
    _tell(word, totals, output)


def _records(file: Any) -> Iterator[dict[str, Any]]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise click.ClickException(f"Line {number} is longer than {LINE_BYTES_MAX} bytes.")
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("message"), dict):
            raise click.ClickException(f"Line {number} is no exported message. What stood before it was imported.")
        yield record


@command.command(epilog=_UNDO)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@remote_command()
def undo(remote: Remote, output: str | None, file: Path, dry_run: bool) -> None:
    """Undo a resubmit, a move or a purge: what is still there becomes a dead letter again, as it was."""
    undone = read_undo(file)
    work = work_of("bury", {"entity": undone.address})
    with DeadLetterClient(remote) as link:
        executor = executor_of(remote, link, work)
        totals = bring(executor, undone.items(), work.chunk, is_dry=dry_run, note=None if dry_run else undone.note)
    totals.skip_all(undone.unknown, "Nobody knows where it is: the answer was lost, or it went to a topic.")
    _tell("Would undo" if dry_run else "Undone", totals, output)
