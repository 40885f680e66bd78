"""What the dead-letter commands do, chunk by chunk: order, note, count, keep to the rate, tell of progress."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from duobus.cli.dead_letters.client import DeadLetterClient, ServerDeadLetters
from duobus.cli.dead_letters.work import Executor, Note, RateLimit, Totals, Work
from duobus.errors import ServiceBusError
from duobus.model.json.messages import message_of

if TYPE_CHECKING:
    from duobus.cli.dead_letters.undo_file import UndoFile
    from duobus.cli.remote import Remote

#: Bytes of messages that one import order brings, about.
_ORDER_BYTES: Final = 1 << 20

_OTHERWISE: Final = (
    "This server has no dead-letter desk, so the SDK does it: each message is received, sent, and completed then. A "
    "crash in between leaves it on both sides."
)


def executor_of(remote: Remote, link: DeadLetterClient, work: Work) -> Executor:
    """The dead-letter service of the server; where there is none, the SDK."""
    if not work.is_client_side and link.is_there():
        return ServerDeadLetters(link, work)
    from duobus.cli.dead_letters.sdk_backend import SdkDeadLetters

    if not work.is_client_side and work.action != "list":
        click.echo(_OTHERWISE, err=True)
    return SdkDeadLetters(remote, work)


def sample(executor: Executor, number: int) -> list[dict[str, Any]]:
    """The first messages, with what the repair would make of them."""
    found: list[dict[str, Any]] = []
    for page in executor.pages(is_dry=True):
        found += page
        if len(found) >= number:
            break
    return found[:number]


def run(executor: Executor, undo: UndoFile | None, *, rate: int | None, shows_progress: bool) -> Totals:
    """Do it."""
    pace = RateLimit(rate, shows_progress=shows_progress)
    try:
        return executor.run(pace, undo)
    except BaseException:
        _tell_of_part(pace.done, pace.left)
        raise
    finally:
        pace.end()


def bring(
    executor: Executor, records: Iterator[dict[str, Any]], chunk: int, *, is_dry: bool, note: Note | None = None
) -> Totals:
    """Send messages, or make dead letters of them, so many at a time; ``note`` as of ``Executor.bring``."""
    totals = Totals()
    try:
        for part in _chunks(records, chunk):
            if is_dry:
                for record in part:
                    _check(record, totals)
            else:
                executor.bring(part, totals, note)
    except BaseException:
        if not is_dry:
            _tell_of_part(totals.moved, totals.left)
        raise
    return totals


def _tell_of_part(done: int, left: int) -> None:
    """Whoever goes on after a failure has to know how far it has come."""
    if done or left:
        click.echo(f"Done before the failure: {done}. Left: {left}.", err=True)


def _check(record: dict[str, Any], totals: Totals) -> None:
    try:
        message_of(record["message"])
    except ServiceBusError as error:
        totals.skip(record.get("sequenceNumber"), str(error))
    else:
        totals.moved += 1


def _chunks(records: Iterator[dict[str, Any]], number: int) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(json.dumps(record["message"]))
        if len(chunk) >= number or size >= _ORDER_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
