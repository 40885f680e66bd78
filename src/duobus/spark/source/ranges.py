"""The messages that a snapshot of an entity covers, as ranges of numbers, and how a range is read; without Spark.

The ends of a snapshot are fixed when the snapshot is planned. On an entity with consumers a message may be gone before
its range is read, and is then not in the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from duobus.clock import Clock
from duobus.spark.connection import KEPT, Kept, Place, client
from duobus.spark.entities import PEEK, open_receiver, peek
from duobus.spark.errors import OptionError
from duobus.spark.offsets import COUNT_BITS, Key, nexts_of
from duobus.spark.options import Parsed
from duobus.spark.retry import retried
from duobus.spark.source.extents import Extent, extents, first_since
from duobus.spark.source.peek_pages import Page

#: The largest sequence number.
LAST_NUMBER: Final = (1 << 63) - 1


class Range(NamedTuple):
    """Numbers of one entity, ends included, within one fragment."""

    entity: str
    first: int
    last: int


class Bounds(NamedTuple):
    """The messages that a read covers.

    Attributes:
        start: ``earliest``, ``latest``, or the first number by entity and fragment.
        end: ``latest``, or the first number behind the read.
        since_ms: Earliest enqueued time of the messages.
        until_ms: The messages were enqueued before this instant.
        least: Least sequence number, whatever the fragment.
        most: Greatest sequence number, whatever the fragment.
    """

    start: str | dict[str, dict[int, int]] = "earliest"
    end: str | dict[str, dict[int, int]] = "latest"
    since_ms: int | None = None
    until_ms: int | None = None
    least: int = 0
    most: int = LAST_NUMBER


def parse_bounds(options: Parsed) -> Bounds:
    """Read ``startingOffsets``, ``endingOffsets``, ``startingTimestamp`` and ``endingTimestamp``.

    Raises:
        OptionError: A value has the wrong form.
    """
    start = _offsets(options, "startingOffsets", ("earliest", "latest"))
    end = _offsets(options, "endingOffsets", ("latest",))
    return Bounds(start, end, _instant(options, "startingTimestamp"), _instant(options, "endingTimestamp"))


def _instant(options: Parsed, name: str) -> int | None:
    """The instant of an option in milliseconds since the epoch; a time without a zone is in UTC."""
    text = options[name]
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"The option '{name}' is {text!r}; it has to be an ISO 8601 time, as 2026-01-31T12:00:00Z."
        ) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _offsets(options: Parsed, name: str, words: tuple[str, ...]) -> Any:
    text = options[name]
    if text.lower() in words:
        return text.lower()
    try:
        return nexts_of(json.loads(text))
    except (ValueError, RecursionError):
        raise OptionError(
            f"The option '{name}' is {text[:100]!r}; it has to be {' or '.join(words)} or "
            '{"<entity>": {"<fragment>": number}}.'
        ) from None


def looker(
    place: Place,
    entity: str,
    timeout_s: float,
    look: Callable[..., Any] = peek,
    *,
    session: str | None = None,
    kept: Kept = KEPT,
) -> Any:
    """Return a function that peeks at an entity through a connection that is kept open.

    Args:
        place: The namespace.
        entity: Name of the entity, as in offsets.
        timeout_s: How long to try for a session.
        look: Called with a receiver, and with what the function is called with; ``peek`` takes a number and a count.
        session: The session whose messages are looked at, where the entity requires sessions.
        kept: Keeps the connection; by default this process does.
    """
    key = Key(entity, session)
    name = ("reader", place, key)

    def looked(*what: int) -> Any:
        def once() -> Any:
            try:
                return look(kept.get(name, lambda: open_receiver(client(place, kept), key)), *what)
            except Exception:
                kept.drop(name)
                raise

        return retried(key, once, Clock(), timeout_s)

    return looked


def ranges_of(entity: str, bounds: Bounds, at: Callable[[int], Any]) -> Iterator[Range]:
    """Yield the ranges of an entity, one for each fragment with messages within the bounds.

    Args:
        entity: Name of the entity, as in offsets.
        bounds: The messages that are read.
        at: Returns the first message with a number of at least its argument; None if there is none.
    """
    if bounds.start == "latest":
        return
    for extent in extents(at):
        first, last = _within(entity, extent, bounds, at)
        if first <= last:
            yield Range(entity, first, last)


def _within(entity: str, extent: Extent, bounds: Bounds, at: Callable[[int], Any]) -> tuple[int, int]:
    first, last = max(extent.first, bounds.least), min(extent.last, bounds.most)
    if isinstance(bounds.start, dict):
        first = max(first, bounds.start.get(entity, {}).get(extent.fragment, first))
    if isinstance(bounds.end, dict):
        last = min(last, bounds.end.get(entity, {}).get(extent.fragment, extent.first) - 1)
    if bounds.since_ms is not None:
        first = max(first, first_since(at, extent, bounds.since_ms))
    if bounds.until_ms is not None:
        last = min(last, first_since(at, extent, bounds.until_ms) - 1)
    return first, last


def messages_of(part: Range, ask: Callable[[int, int], Page], demand: Callable[[int], None]) -> Iterator[Any]:
    """Yield the messages of a range; while a page is made into rows the next one is on its way.

    Args:
        part: The range.
        ask: Requests a page, from a number on and of a number of messages at most.
        demand: Fails when a fragment is away; a peek ignores such a fragment as if it were empty (decision 0031).
    """
    fragment, number, was_there = part.last >> COUNT_BITS, part.first, False
    # One thread, so that nothing else is asked for by the same receiver meanwhile.
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(ask, number, min(PEEK, part.last - number + 1))
        while True:
            page = coming.result()
            last = -1 if page.last is None else page.last
            goes_on = last >> COUNT_BITS == fragment and last < part.last
            if goes_on:
                coming = thread.submit(ask, last + 1, min(PEEK, part.last - last))
            reached = number - 1
            if number <= last <= part.last:
                # All of it: not looked at one by one, since this is what nearly every page is.
                yield from page
                reached = last
            else:
                for message in page:
                    at = message.sequence_number
                    if at > part.last:
                        # Behind the range, or in another fragment.
                        reached = at if at >> COUNT_BITS == fragment else reached
                        break
                    reached = at
                    yield message
            if reached >= part.last:
                return
            if not goes_on:
                thread.submit(demand, fragment).result()
                if was_there and reached < number:
                    return
                coming = thread.submit(ask, reached + 1, min(PEEK, part.last - reached))
            number, was_there = reached + 1, not goes_on
