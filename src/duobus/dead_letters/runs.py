"""Who does the work, and messages brought chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from duobus.dead_letters.client import DeadLetterClient, ServerDeadLetters
from duobus.dead_letters.work import Executor, Note, Totals, Work
from duobus.errors import ServiceBusError
from duobus.model.json.messages import message_of

if TYPE_CHECKING:
    from duobus.dead_letters.namespace import Namespace

#: Bytes of messages that one import order brings, about.
_ORDER_BYTES: Final = 1 << 20


def executor_of(namespace: Namespace, link: DeadLetterClient, work: Work) -> Executor:
    """The dead-letter service of the server; where there is none, the SDK."""
    if not work.is_client_side and link.is_there():
        return ServerDeadLetters(link, work)
    from duobus.dead_letters.sdk_backend import SdkDeadLetters

    return SdkDeadLetters(namespace, work)


def sample(executor: Executor, number: int) -> list[dict[str, Any]]:
    """The first messages, with what the repair would make of them."""
    found: list[dict[str, Any]] = []
    for page in executor.pages(is_dry=True):
        found += page
        if len(found) >= number:
            break
    return found[:number]


def bring(
    executor: Executor, records: Iterator[dict[str, Any]], chunk: int, totals: Totals, note: Note | None = None
) -> None:
    """Send messages, or make dead letters of them, so many at a time; ``note`` as of ``Executor.bring``.

    What is done is in ``totals``, also when an error ends the work halfway.
    """
    for part in _chunks(records, chunk):
        executor.bring(part, totals, note)


def check_all(records: Iterator[dict[str, Any]], totals: Totals) -> None:
    """Count which messages could be brought, and bring none."""
    for record in records:
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
        added = len(json.dumps(record["message"]))
        # A large message goes alone: together with others it may be more than a server takes in one order.
        if chunk and size + added > _ORDER_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += added
        if len(chunk) >= number or size >= _ORDER_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
