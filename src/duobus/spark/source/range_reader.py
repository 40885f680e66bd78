"""The mode ``browse``: it peeks at messages and changes nothing; all batch reads are of this mode.

A batch read is a snapshot: its ends are fixed when the read is planned. On an entity with consumers a message may be
gone before a task reads it, and is then not in the result.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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

from duobus.spark.connection import demand_reachable, is_duobus, place_of
from duobus.spark.entities import demand_there, resolved, split_name
from duobus.spark.errors import OptionError
from duobus.spark.offsets import COUNT_BITS, COUNT_MASK
from duobus.spark.options import Parsed
from duobus.spark.rows import Source, check_schema, rows_of, size_of
from duobus.spark.source.extents import cut
from duobus.spark.source.partition_reader import wish_of
from duobus.spark.source.peek_pages import page_of
from duobus.spark.source.ranges import LAST_NUMBER, Range, looker, messages_of, parse_bounds, ranges_of
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
    if options["filterPushdown"] is None:
        return WillingReader(options, schema) if is_duobus(place_of(options)) else BrowseReader(options, schema)
    return PushingReader(options, schema) if options["filterPushdown"] else BrowseReader(options, schema)


class BrowseReader(DataSourceReader):
    """Reads a snapshot of entities."""

    def __init__(self, options: Parsed, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        #: What filters allow: numbers, fragments, and the instant of enqueuing.
        self._least = 0
        self._most = LAST_NUMBER
        self._since_ms: int | None = None
        self._until_ms: int | None = None
        self._session: str | None = None
        self._key: str | None = None

    def partitions(self) -> list[RangePartition]:
        """Fix the ends, and divide the messages between them into tasks."""
        options, place = self._options, place_of(self._options)
        bounds = parse_bounds(options)
        instants = [instant for instant in (bounds.since_ms, self._since_ms) if instant is not None]
        ends = [instant for instant in (bounds.until_ms, self._until_ms) if instant is not None]
        since_ms, until_ms = max(instants, default=None), min(ends, default=None)
        bounds = bounds._replace(since_ms=since_ms, until_ms=until_ms, least=self._least, most=self._most)
        demand_reachable(place)
        ranges: list[Range] = []
        for entity in resolved(place, options):
            page = looker(place, entity, options["claimTimeout"] / 1000)

            def at(number: int, page: Any = page) -> Any:
                return next(iter(page(number, 1)), None)

            ranges += ranges_of(entity, bounds, at)
        return [RangePartition(some) for some in tasks_of(ranges, options)]

    def read(self, partition: Any) -> Iterator[Any]:
        """Look at the messages of a part; in a task. Of a snapshot without parts Spark makes one without a value."""
        return read_ranges(self._options, self._schema, partition.value or [], self._session, self._key)


def read_ranges(
    options: Parsed, schema: StructType, ranges: list[Range], session: str | None = None, key: str | None = None
) -> Iterator[Any]:
    """Yield the messages of some ranges as Arrow batches; those of a session, or with a key, where duobus is asked."""
    reading = reading_of(options, schema)
    rows = rows_of(schema, include_body=options["includeBody"])
    wish = wish_of(reading)
    if is_duobus(reading.place):
        wish = wish._replace(session=session, key=key)
    limit = Limit(options["maxMessages"], options["maxBytes"])
    if options["maxBytes"] is not None:
        # The limit counts bytes of bodies, whether they are asked for or not.
        wish = wish._replace(body=True)
    for part in ranges:
        if limit.is_reached:
            return
        ask = looker(reading.place, part.entity, reading.claim_timeout_s, partial(page_of, wish=wish))
        demand = looker(reading.place, part.entity, reading.claim_timeout_s, demand_there)
        source = Source(reading.namespace, split_name(part.entity)[0])
        yield from rows.batches(source, limit.within(messages_of(part, ask, demand)))


class Limit:
    """What is left of the limits of a batch read.

    Args:
        messages: Messages at most; None: no limit.
        size: Bytes of bodies, which the last message may exceed; None: no limit.
    """

    def __init__(self, messages: int | None, size: int | None) -> None:
        self._messages = messages
        self._bytes = size

    @property
    def is_reached(self) -> bool:
        """Whether nothing more may be read."""
        return self._messages == 0 or self._bytes == 0

    def within(self, messages: Iterator[Any]) -> Iterator[Any]:
        """The first of some messages, as far as the limits go."""
        if self._messages is None and self._bytes is None:
            yield from messages
            return
        for message in messages:
            if self._messages is not None:
                self._messages -= 1
            if self._bytes is not None:
                self._bytes = max(0, self._bytes - size_of(message))
            yield message
            if self.is_reached:
                return


def tasks_of(ranges: list[Range], options: Parsed) -> list[list[Range]]:
    """Divide ranges into tasks: small fragments share a task, large ones take several."""
    total = sum(part.last - part.first + 1 for part in ranges)
    if not total:
        return []
    if options["maxMessages"] is not None or options["maxBytes"] is not None:
        # Numbers have gaps: how many messages a range has is known only to who reads it.
        return [ranges]
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


class Narrowed(BrowseReader):
    """A ``BrowseReader`` that reads no more than filters on numbers, times, sessions and keys allow."""

    def narrow(self, filters: list[Filter]) -> Iterable[Filter]:
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
            elif isinstance(one, EqualTo) and isinstance(value, str):
                self._narrow_text(column, value)
            yield one

    def _narrow_time(self, one: Filter, instant: datetime) -> None:
        if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
            self._since_ms = max(self._since_ms or 0, int(instant.timestamp() * 1000))
        if isinstance(one, LessThan | LessThanOrEqual | EqualTo):
            # The broker's clock has milliseconds, and the end is not within the range.
            until_ms = int(instant.timestamp() * 1000) + 1
            self._until_ms = until_ms if self._until_ms is None else min(self._until_ms, until_ms)

    def _narrow_text(self, column: tuple[str, ...], value: str) -> None:
        if column == ("session_id",):
            self._session = value
        elif column == ("partition_key",):
            self._key = value

    def _narrow(self, one: Filter, least: int, most: int) -> None:
        if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
            self._least = max(self._least, least)
        if isinstance(one, LessThan | LessThanOrEqual | EqualTo):
            self._most = min(self._most, most)


class PushingReader(Narrowed):
    """Demands that Spark pushes filters down: Spark refuses it while its own setting forbids that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """See ``narrow``."""
        return self.narrow(filters)


class _Offer:
    """A method ``pushFilters`` that Spark may call and need not.

    Spark refuses every reader whose class has a method of this name while its setting
    ``spark.sql.python.filterPushdown.enabled`` is false, which is the default. Spark recognizes the method by its
    function, so the function is here the one of Spark's own class.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: Narrowed) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


class WillingReader(Narrowed):
    """Has filters pushed down where Spark's setting allows that, and reads everything where the setting does not."""

    @property
    def pushFilters(self) -> Any:  # noqa: N802 - Spark's name
        """See ``_Offer``."""
        return _Offer(self)
