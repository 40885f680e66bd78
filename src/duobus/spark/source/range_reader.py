"""The mode ``browse``: it peeks at messages and changes nothing; all batch reads are of this mode.

A batch read is a snapshot: its ends are fixed when the read is planned. On an entity with consumers a message may be
gone before a task reads it, and is then not in the result.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from duobus.clock import Clock
from duobus.spark.connection import KEPT, Place, client, demand_reachable, place_of
from duobus.spark.entities import PEEK, demand_there, open_receiver, peek, resolved, split_name
from duobus.spark.errors import OptionError
from duobus.spark.offsets import COUNT_BITS, COUNT_MASK, Key, nexts_of
from duobus.spark.options import Parsed
from duobus.spark.retry import retried
from duobus.spark.rows import Rows, Source, check_schema
from duobus.spark.source.extents import Extent, cut, extents, first_since
from duobus.spark.source.peek_pages import Page, page_of
from duobus.spark.source.settings import reading_of, source_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Tasks of one read.
TASKS_MAX: Final = 10_000
#: Messages of a task, beyond one for each processor. ``limit`` stops reading in the middle of each task, and Spark then
#: starts another Python for the next one, which takes as long as reading some 30,000 messages. With many small tasks a
#: query that needs five messages would take several times as long as one that reads all.
TASK_MESSAGES: Final = 50_000

_log = logging.getLogger("duobus.spark")


class Range(NamedTuple):
    """Numbers of one entity, ends included, within one fragment."""

    entity: str
    first: int
    last: int


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(ranges)


def batch_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader of a batch; raise OptionError when an option is wrong."""
    options = source_options(given, "browse")
    if options["readMode"] != "browse":
        raise OptionError(
            "spark.read only looks (readMode=browse). To consume what there is: spark.readStream with "
            "trigger(availableNow=True)."
        )
    check_schema(schema)
    parse_bounds(options)
    return PushingReader(options, schema) if options["filterPushdown"] else BrowseReader(options, schema)


class Bounds(NamedTuple):
    """The messages that a read covers.

    Attributes:
        start: ``earliest``, ``latest``, or the first number by entity and fragment.
        end: ``latest``, or the first number behind the read.
        since_ms: Earliest enqueued time of the messages.
    """

    start: str | dict[str, dict[int, int]]
    end: str | dict[str, dict[int, int]]
    since_ms: int | None


def parse_bounds(options: Parsed) -> Bounds:
    """Read ``startingOffsets``, ``endingOffsets`` and ``startingTimestamp``.

    Raises:
        OptionError: A value has the wrong form.
    """
    start = _offsets(options, "startingOffsets", ("earliest", "latest"))
    end = _offsets(options, "endingOffsets", ("latest",))
    text = options["startingTimestamp"]
    since_ms = None
    if text is not None:
        try:
            since = datetime.fromisoformat(text)
        except ValueError:
            raise OptionError(
                f"The option 'startingTimestamp' is {text!r}; it has to be an ISO 8601 time, as 2026-01-31T12:00:00Z."
            ) from None
        since_ms = round((since if since.tzinfo else since.replace(tzinfo=UTC)).timestamp() * 1000)
    return Bounds(start, end, since_ms)


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


def looker(place: Place, entity: str, timeout_s: float, look: Callable[..., Any] = peek) -> Any:
    """Return a function that peeks at an entity through the connection that this process keeps.

    Args:
        place: The namespace.
        entity: Name of the entity, as in offsets.
        timeout_s: How long to try for a session.
        look: Called with a receiver, and with what the function is called with; ``peek`` takes a number and a count.
    """
    key = Key(entity)
    name = ("reader", place, key)

    def looked(*what: int) -> Any:
        def once() -> Any:
            try:
                return look(KEPT.get(name, lambda: open_receiver(client(place), key)), *what)
            except Exception:
                KEPT.drop(name)
                raise

        return retried(key, once, Clock(), timeout_s)

    return looked


class BrowseReader(DataSourceReader):
    """Reads a snapshot of entities."""

    def __init__(self, options: Parsed, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        #: What filters allow: numbers, fragments, and the instant of enqueuing.
        self._least = 0
        self._most = (1 << 63) - 1
        self._since_ms: int | None = None

    def partitions(self) -> list[RangePartition]:
        """Fix the ends, and divide the messages between them into tasks."""
        options, place = self._options, place_of(self._options)
        bounds = parse_bounds(options)
        demand_reachable(place)
        ranges: list[Range] = []
        for entity in resolved(place, options):
            page = looker(place, entity, options["claimTimeout"] / 1000)

            def at(number: int, page: Any = page) -> Any:
                return next(iter(page(number, 1)), None)

            for extent in extents(at):
                found = self._bounded(entity, extent, bounds, at)
                if found is not None:
                    ranges.append(found)
        return [RangePartition(some) for some in tasks_of(ranges, options)]

    def _bounded(self, entity: str, extent: Extent, bounds: Bounds, at: Any) -> Range | None:
        first, last = extent.first, extent.last
        if bounds.start == "latest":
            return None
        if isinstance(bounds.start, dict):
            first = max(first, bounds.start.get(entity, {}).get(extent.fragment, first))
        if isinstance(bounds.end, dict):
            last = min(last, bounds.end.get(entity, {}).get(extent.fragment, extent.first) - 1)
        instants = [instant for instant in (bounds.since_ms, self._since_ms) if instant is not None]
        if instants:
            first = max(first, first_since(at, extent, max(instants)))
        first, last = max(first, self._least), min(last, self._most)
        return Range(entity, first, last) if first <= last else None

    def read(self, partition: Any) -> Iterator[Any]:
        """Look at the messages of a part; in a task. Of a snapshot without parts Spark makes one without a value."""
        return read_ranges(self._options, self._schema, partition.value or [])


def read_ranges(options: Parsed, schema: StructType, ranges: list[Range]) -> Iterator[Any]:
    """Yield the messages of some ranges as Arrow batches."""
    reading = reading_of(options, schema)
    rows = Rows(schema, include_body=options["includeBody"])
    for part in ranges:
        ask = looker(reading.place, part.entity, reading.claim_timeout_s, page_of)
        demand = looker(reading.place, part.entity, reading.claim_timeout_s, demand_there)
        source = Source(reading.namespace, split_name(part.entity)[0])
        yield from rows.batches(source, messages_of(part, ask, demand))


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


def tasks_of(ranges: list[Range], options: Parsed) -> list[list[Range]]:
    """Divide ranges into tasks: small fragments share a task, large ones take several."""
    total = sum(part.last - part.first + 1 for part in ranges)
    if not total:
        return []
    most, least = options["maxRecordsPerPartition"], options["minPartitions"]
    if "maxRecordsPerPartition" not in options.given:
        # The driver's processors, which are all there are on one machine; on a cluster minPartitions says more.
        most = max(most, min(TASK_MESSAGES, -(-total // (os.cpu_count() or 1))))
    size = max(1, min(most, -(-total // least) if least else most), -(-total // TASKS_MAX))
    tasks: list[list[Range]] = []
    room = 0
    for part in ranges:
        for low, high in cut(part.first, part.last, -(-(part.last - part.first + 1) // size)):
            if high - low + 1 > room:
                tasks.append([])
                room = size
            tasks[-1].append(Range(part.entity, low, high))
            room -= high - low + 1
    return tasks


class PushingReader(BrowseReader):
    """A ``BrowseReader`` with filters on numbers and times pushed down, where Spark allows that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the messages that are read; Spark applies all filters again, so a range may be too wide."""
        for one in filters:
            column = getattr(one, "attribute", ())
            value = getattr(one, "value", None)
            if column == ("sequence_number",) and isinstance(value, int):
                self._narrow(one, value, value)
            elif column == ("fragment",) and isinstance(value, int):
                self._narrow(one, value << COUNT_BITS, value << COUNT_BITS | COUNT_MASK)
            elif column == ("enqueued_time",) and isinstance(value, datetime):
                self._narrow_time(one, value if value.tzinfo else value.replace(tzinfo=UTC))
            yield one

    def _narrow_time(self, one: Filter, since: datetime) -> None:
        if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
            self._since_ms = max(self._since_ms or 0, int(since.timestamp() * 1000))

    def _narrow(self, one: Filter, least: int, most: int) -> None:
        if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
            self._least = max(self._least, least)
        if isinstance(one, LessThan | LessThanOrEqual | EqualTo):
            self._most = min(self._most, most)
