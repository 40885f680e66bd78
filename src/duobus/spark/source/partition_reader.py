"""A task of a stream: it peeks at the messages of its partition, any number of times, and changes nothing."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.spark.claims.lock_handles import is_deferred
from duobus.spark.connection import KEPT, Place, client, is_duobus
from duobus.spark.entities import look, open_receiver, split_name
from duobus.spark.errors import DataLoss
from duobus.spark.offsets import Key
from duobus.spark.peek_decoder import APPLICATION, HEADER, PROPERTIES
from duobus.spark.retry import pause, retried
from duobus.spark.rows import Source, rows_of
from duobus.spark.source.partitions import Piece
from duobus.spark.source.peek_pages import Page, Wish, page_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: How long a message that is not deferred is waited for.
TIMEOUT_MS: Final = 5_000
PAUSE_S: Final = 0.25
#: Numbers that an error lists.
_LISTED: Final = 5

_log = logging.getLogger("duobus.spark")


@dataclass(frozen=True, slots=True)
class Reading:
    """The settings that tasks need beside their partition; they travel in a pickle.

    Attributes:
        place: The namespace.
        namespace: Name of the namespace, as in the column.
        schema: The columns that Spark asks for.
        include_body: Whether to read the body; otherwise the column is null.
        fails_on_loss: Whether a message that is gone fails the task.
        claim_timeout_s: How long to try for a session.
    """

    place: Place
    namespace: str
    schema: StructType
    include_body: bool
    fails_on_loss: bool
    claim_timeout_s: float


#: By section of a message: the columns that it tells.
_TOLD_BY: Final = {
    HEADER: frozenset({"delivery_count", "time_to_live_ms", "expires_at"}),
    PROPERTIES: frozenset(
        {
            "message_id",
            "session_id",
            "correlation_id",
            "subject",
            "content_type",
            "to",
            "reply_to",
            "reply_to_session_id",
        }
    ),
    APPLICATION: frozenset(
        {
            "application_properties",
            "application_property_types",
            "dead_letter_reason",
            "dead_letter_error_description",
        }
    ),
}


def wish_of(reading: Reading) -> Wish:
    """What is wanted of messages for the columns that Spark asks for; Azure sends their bodies all the same."""
    names = set(reading.schema.names)
    needs_body = "body_type" in names or (reading.include_body and "body" in names)
    sections = frozenset(section for section, columns in _TOLD_BY.items() if names & columns)
    return Wish(needs_body or not is_duobus(reading.place), sections)


def read_pieces(reading: Reading, pieces: list[Piece], clock: Clock | None = None) -> Iterator[Any]:
    """Yield the messages of some pieces as Arrow batches.

    Raises:
        DataLoss: A message is gone, or no longer deferred.
        EntityError: The entity is gone, or refuses the request.
    """
    rows = rows_of(reading.schema, include_body=reading.include_body)
    for piece in pieces:
        source = Source(reading.namespace, split_name(piece.entity)[0])
        yield from rows.batches(source, _messages(reading, piece, clock or Clock()))


def _messages(reading: Reading, piece: Piece, clock: Clock) -> Iterator[Any]:
    """The messages of a piece; while a page is made into rows the next one is on its way."""
    key = Key(piece.entity, piece.session)
    numbers = piece.numbers()
    wish = wish_of(reading)

    def ask(at: int) -> Page:
        found: Page = _with_receiver(
            reading, key, clock, lambda receiver: page_of(receiver, numbers[at], len(numbers) - at, wish)
        )
        return found

    # One thread, so that nothing else is asked for by the same receiver meanwhile.
    with ThreadPoolExecutor(1) as thread:
        at, following = 0, 0
        coming = thread.submit(ask, at) if numbers else None
        while coming is not None:
            page, at = coming.result(), following
            # A page without messages says that those which are left are gone.
            following = len(numbers) if page.last is None else max(bisect_right(numbers, page.last), at + 1)
            coming = thread.submit(ask, following) if following < len(numbers) else None
            chosen = _chosen(page, numbers[at:following])
            missing = [number for number, message in chosen.items() if message is None]
            if missing:
                chosen.update(thread.submit(_waited_for, reading, key, missing, clock).result())
            yield from (message for message in chosen.values() if message is not None)


def _chosen(page: Page, wanted: list[int]) -> dict[int, Any]:
    """What a page tells about some numbers: the message, or None for what is not there or not deferred."""
    chosen: dict[int, Any] = dict.fromkeys(wanted)
    for message in page:
        if message.sequence_number in chosen and is_deferred(message):
            chosen[message.sequence_number] = message
    return chosen


def _waited_for(reading: Reading, key: Key, numbers: list[int], clock: Clock) -> dict[int, Any]:
    until_ms = clock.monotonic_ms() + TIMEOUT_MS
    found: dict[int, Any] = dict.fromkeys(numbers)
    others: dict[int, Any] = {}
    missing = numbers
    while missing:
        # A process that was stopped meanwhile looks once more all the same.
        is_last = clock.monotonic_ms() >= until_ms
        pause(PAUSE_S)
        for message in _with_receiver(
            reading, key, clock, lambda receiver, missing=missing: list(look(receiver, missing))
        ):
            (found if is_deferred(message) else others)[message.sequence_number] = message
        missing = [number for number, message in found.items() if message is None]
        if missing and is_last:
            _tell_loss(reading, key, {number: others.get(number) for number in missing})
            break
    return found


def _described(number: int, message: Any) -> str:
    """A message that is missing, with what there is in its place."""
    if message is None:
        return f"{number} gone"
    state = getattr(message.state, "name", message.state)
    return f"{number} {state}, delivered {message.delivery_count} times".lower()


def _tell_loss(reading: Reading, key: Key, missing: dict[int, Any]) -> None:
    told = [_described(number, message) for number, message in list(missing.items())[:_LISTED]]
    some = "; ".join(told) + ("; ..." if len(missing) > _LISTED else "")
    there = sum(message is not None for message in missing.values())
    text = (
        f"{len(missing)} claimed messages of '{key.entity}' are gone, or not deferred any more ({some}): somebody "
        "received them by number, or another query uses this checkpoint. failOnDataLoss=false goes on without them."
    )
    if there:
        text += (
            f" {there} of them are in the queue and lost nothing: start the query again, which leaves them to a later "
            "batch."
        )
    if reading.fails_on_loss:
        raise DataLoss(text)
    _log.warning("%s", text)


def _with_receiver(reading: Reading, key: Key, clock: Clock, work: Any) -> Any:
    def once() -> Any:
        if key.session is not None:
            # The lock of the session is given back at once: settling needs it. Who holds it is asked by ``retried``.
            with open_receiver(client(replace(reading.place, retries=0)), key) as receiver:
                return work(receiver)
        name = ("reader", reading.place, key)
        try:
            return work(KEPT.get(name, lambda: open_receiver(client(reading.place), key)))
        except Exception:
            KEPT.drop(name)
            raise

    return retried(key, once, clock, reading.claim_timeout_s)
