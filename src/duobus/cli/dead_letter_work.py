"""Work on dead letters as the options of ``duobus dlq`` ask for it, with progress and errors as commands tell both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from duobus.cli.output import Commands
from duobus.dead_letters import runs
from duobus.dead_letters.namespace import DeadLetterError
from duobus.dead_letters.work import Executor, Note, Pace, Totals, Work
from duobus.errors import ServiceBusError
from duobus.model.json.plan import BRINGING, CHUNK_MAX, LIMIT_DEFAULT, MOVE, DeadLetterPlan, parse_plan
from duobus.model.json.values import to_json

if TYPE_CHECKING:
    from duobus.cli.remote import Remote
    from duobus.dead_letters.client import DeadLetterClient
    from duobus.dead_letters.undo_file import UndoFile

#: Messages that one command names one by one.
NUMBERS_MAX: Final = CHUNK_MAX
_PATCH_BYTES_MAX: Final = 1 << 20

_DONE: Final = {"resubmit": "Resubmitted", "move": "Moved", "purge": "Purged"}
_OTHERWISE: Final = (
    "This server has no dead-letter desk, so the SDK does it: each message is received, sent, and completed then. A "
    "crash in between leaves it on both sides."
)


class DeadLetterCommands(Commands):
    """A group of commands whose work may fail without a server's doing."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and tell such a failure as commands do."""
        try:
            return super().invoke(ctx)
        except DeadLetterError as error:
            raise click.ClickException(str(error)) from error


def work_of(action: str, given: dict[str, Any]) -> Work:
    """The work that options ask for.

    Raises:
        click.UsageError: They make no sense.
    """
    return Work(
        _plan_of(action, given),
        given["entity"],
        given.get("subscription"),
        is_transfer=bool(given.get("transfer")),
        limit=given.get("count"),
        chunk=given.get("chunk") or LIMIT_DEFAULT,
        is_client_side=bool(given.get("client_side")),
    )


def done_word(work: Work) -> str:
    """What was done to messages."""
    return _DONE[work.action]


def _plan_of(action: str, given: dict[str, Any]) -> DeadLetterPlan:
    if action in BRINGING:
        return DeadLetterPlan(action=action)
    numbers = sorted(set(given.get("numbers") or ()))
    if len(numbers) > NUMBERS_MAX:
        raise click.UsageError(f"At most {NUMBERS_MAX} numbers can be given.")
    members = {
        "action": action,
        "sql": given.get("sql"),
        "json": given.get("condition"),
        "numbers": numbers or None,
        "to": given.get("to"),
        "keepReason": action == MOVE and not given.get("drop_reason"),
        "repair": _repair_of(given),
    }
    # What is wrong is told before anything is asked of a server.
    try:
        return parse_plan(members)
    except ServiceBusError as error:
        raise click.UsageError(str(error)) from None


def _repair_of(given: dict[str, Any]) -> dict[str, Any] | None:
    repair: dict[str, Any] = {}
    if given.get("values"):
        repair["set"] = {name: to_json(value) for name, value in given["values"]}
    if given.get("remove"):
        repair["remove"] = list(given["remove"])
    fields = {"subject": given.get("subject"), "groupId": given.get("session_id")}
    fields = {name: value for name, value in fields.items() if value is not None}
    if fields:
        repair["properties"] = fields
    if given.get("patch"):
        repair["patch"] = _patch_of(given["patch"])
    return repair or None


def _patch_of(text: str) -> Any:
    try:
        if text.startswith("@"):
            with Path(text[1:]).open(encoding="utf-8") as file:
                text = file.read(_PATCH_BYTES_MAX)
        return json.loads(text)
    except OSError as error:
        raise click.UsageError(f"The patch cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise click.UsageError("The patch is no JSON.") from None


def executor_of(remote: Remote, link: DeadLetterClient, work: Work) -> Executor:
    """Who does the work; a person is told when the SDK has to although nobody asked for that."""
    executor = runs.executor_of(remote, link, work)
    if not executor.can_undo and not work.is_client_side and work.action != "list":
        click.echo(_OTHERWISE, err=True)
    return executor


class Progress(Pace):
    """Keeps work to a rate, and tells on a terminal how far the work is."""

    def __init__(self, rate: int | None, *, shows_progress: bool) -> None:
        super().__init__(rate)
        self._shows = shows_progress and sys.stderr.isatty()

    def step(self, totals: Totals) -> None:
        """See Pace."""
        if self._shows:
            click.echo(f"\r{totals.moved} done, {totals.left} left ", nl=False, err=True)
        super().step(totals)

    def end(self) -> None:
        """The line of progress goes."""
        if self._shows:
            click.echo("\r" + " " * 50 + "\r", nl=False, err=True)


def run(executor: Executor, undo: UndoFile | None, *, rate: int | None, shows_progress: bool) -> Totals:
    """Do the work."""
    pace = Progress(rate, shows_progress=shows_progress)
    try:
        return executor.run(pace, undo)
    except BaseException:
        _tell_of_part(pace.totals)
        raise
    finally:
        pace.end()


def bring(
    executor: Executor, records: Iterator[dict[str, Any]], chunk: int, *, is_dry: bool, note: Note | None = None
) -> Totals:
    """Send messages, or make dead letters of them; ``note`` as of ``Executor.bring``."""
    totals = Totals()
    if is_dry:
        runs.check_all(records, totals)
        return totals
    try:
        runs.bring(executor, records, chunk, totals, note)
    except BaseException:
        _tell_of_part(totals)
        raise
    return totals


def _tell_of_part(totals: Totals) -> None:
    """Whoever goes on after a failure has to know how far it has come."""
    if totals.moved or totals.left:
        click.echo(f"Done before the failure: {totals.moved}. Left: {totals.left}.", err=True)
