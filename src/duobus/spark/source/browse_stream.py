"""A stream in the mode ``browse``: each message once, in order of number, and all of them stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from duobus.clock import Clock
from duobus.spark.connection import demand_reachable, namespace_of, place_of
from duobus.spark.entities import Entities, pattern_of
from duobus.spark.errors import CheckpointError
from duobus.spark.offsets import COUNT_BITS, COUNT_MASK, BrowseOffset
from duobus.spark.options import Parsed
from duobus.spark.retry import pause
from duobus.spark.source.backlog import Backlog, behind_at
from duobus.spark.source.extents import Extent, extents, first_since, last_until
from duobus.spark.source.range_reader import RangePartition, read_ranges, tasks_of
from duobus.spark.source.ranges import Bounds, Range, looker, parse_bounds
from duobus.spark.source.status import Status, description_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Spark asks an idle source 85 times a second; it is looked at once in this time.
POLL_S: Final = 1.0
#: How long one call waits for something new.
WAIT_MS: Final = 30_000

#: Messages of a batch that has no limit.
BATCH_MAX: Final = 1_000_000


class BrowseStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads entities without consuming them."""

    def __init__(self, options: Parsed, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._bounds: Bounds = parse_bounds(options)
        self._entities: Entities | None = None
        #: With availableNow: the last message of each fragment when the run began.
        self._until: dict[str, dict[int, int]] | None = None
        #: The end of the batch that was planned last, and when its oldest message was enqueued.
        self._planned: BrowseOffset | None = None
        self._oldest_ms: int | None = None
        self._backlog: Backlog | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"], state["_schema"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """A constant: the first end holds the beginning of the stream."""
        return BrowseOffset(namespace_of(place_of(self._options))).to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The limit of a batch."""
        return ReadMaxRows(self._options["maxMessagesPerTrigger"])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the run."""
        self._until = {
            entity: {extent.fragment: extent.last for extent in extents(self._at(entity))}
            for entity in self._resolved()
        }

    def latestOffset(self, start: dict[str, Any], limit: Any) -> Any:  # noqa: N802
        """The end of the next batch: behind messages that were peeked at."""
        offset = self._read(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else BATCH_MAX
        clock = Clock()
        until_ms = clock.monotonic_ms() + WAIT_MS
        while True:
            end = self._end(offset, most)
            if end != offset:
                self._planned = end
                return end.to_json()
            if self._until is not None or clock.monotonic_ms() >= until_ms:
                return start
            pause(POLL_S)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The figures of the stream, in the place of an offset; Spark hands them on and never reads them."""
        if self._planned is None:
            return None
        if self._backlog is None:
            self._backlog = Backlog(behind_at(place_of(self._options), self._options["claimTimeout"] / 1000))
        behind = self._backlog.newest(self._resolved(), self._planned.nexts)
        age_ms = None if self._oldest_ms is None else max(0, Clock().now_ms() - self._oldest_ms)
        return Status(description_of(self._options), behind=behind, oldest_age_ms=age_ms).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """The partitions for the messages between two offsets."""
        before, after = self._read(start), self._read(end)
        ranges = [
            Range(
                entity,
                before.nexts.get(entity, {}).get(fragment, after.origins.get(entity, {}).get(fragment, 0)),
                n - 1,
            )
            for entity, fragments in sorted(after.nexts.items())
            for fragment, n in sorted(fragments.items())
        ]
        tasks = tasks_of([part for part in ranges if part.first <= part.last], self._options)
        return [RangePartition(some) for some in tasks]

    def read(self, partition: Any) -> Iterator[Any]:
        """Peek at the messages of a partition; in a task, on a copy of this object."""
        return read_ranges(self._options, self._schema, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is settled."""

    def stop(self) -> None:
        """Nothing is held."""

    def _read(self, form: Any) -> BrowseOffset:
        offset = BrowseOffset.from_json(form)
        here = namespace_of(place_of(self._options))
        if offset.at != here:
            raise CheckpointError(
                f"The checkpoint belongs to the namespace '{offset.at}', the stream reads '{here}': numbers of one "
                "mean nothing in the other. Give the stream a checkpoint of its own."
            )
        others = sorted(set(offset.nexts) - set(self._resolved()))
        if others and pattern_of(self._options) is None:
            raise CheckpointError(
                f"The checkpoint has read '{others[0]}', which the stream does not read. Give it one of its own."
            )
        return offset

    def _resolved(self) -> tuple[str, ...]:
        if self._entities is None:
            place = place_of(self._options)
            demand_reachable(place)
            self._entities = Entities(place, self._options)
        return self._entities.now()

    def _at(self, entity: str) -> Any:
        page = looker(place_of(self._options), entity, self._options["claimTimeout"] / 1000)
        return lambda number: next(iter(page(number, 1)), None)

    def _end(self, offset: BrowseOffset, most: int) -> BrowseOffset:
        self._oldest_ms = None
        nexts = {entity: dict(fragments) for entity, fragments in offset.nexts.items()}
        origins: dict[str, dict[int, int]] = {}
        if not nexts and self._bounds.start == "latest":
            for entity in self._resolved():
                nexts[entity] = {extent.fragment: extent.last + 1 for extent in extents(self._at(entity))}
            return BrowseOffset(offset.at, nexts, {entity: dict(ends) for entity, ends in nexts.items()})
        news = [
            (entity, at, first) for entity in self._resolved() for at, first in self._new(entity, nexts.get(entity, {}))
        ]
        share = max(1, most // max(len(news), 1))
        for entity, at, first in news:
            fragment = first >> COUNT_BITS
            bound = min(first + share - 1, self._last_of_run(entity, fragment))
            if bound >= first:
                if fragment not in nexts.setdefault(entity, {}):
                    origins.setdefault(entity, {})[fragment] = first
                nexts[entity][fragment] = last_until(at, first, bound) + 1
        return BrowseOffset(offset.at, nexts, origins) if nexts != offset.nexts else offset

    def _last_of_run(self, entity: str, fragment: int) -> int:
        if self._until is None:
            return fragment << COUNT_BITS | COUNT_MASK
        return self._until.get(entity, {}).get(fragment, 0)

    def _new(self, entity: str, nexts: dict[int, int]) -> Iterator[tuple[Any, int]]:
        """The first message of each fragment that was not looked at yet."""
        at = self._at(entity)
        number = 1
        while number < 1 << 63:
            message = at(number)
            if message is None:
                return
            fragment = message.sequence_number >> COUNT_BITS
            wanted = nexts[fragment] if fragment in nexts else self._begin(entity, fragment, message, at)
            if message.sequence_number < wanted:
                message = at(wanted)
            if message is not None and message.sequence_number >> COUNT_BITS == fragment:
                self._note(getattr(message, "enqueued_time_utc", None))
                yield at, message.sequence_number
            number = (fragment + 1) << COUNT_BITS

    def _note(self, enqueued: datetime | None) -> None:
        """Remember when the oldest message of a batch was enqueued, as far as the SDK tells."""
        if enqueued is not None:
            enqueued_ms = int(enqueued.timestamp() * 1000)
            self._oldest_ms = enqueued_ms if self._oldest_ms is None else min(enqueued_ms, self._oldest_ms)

    def _begin(self, entity: str, fragment: int, message: Any, at: Any) -> int:
        """Where a fragment begins that the stream has not read from."""
        first: int = message.sequence_number
        if isinstance(self._bounds.start, dict):
            first = max(first, self._bounds.start.get(entity, {}).get(fragment, first))
        if self._bounds.since_ms is not None:
            last = last_until(at, message.sequence_number, fragment << COUNT_BITS | COUNT_MASK)
            extent = Extent(fragment, message.sequence_number, last)
            first = max(first, first_since(at, extent, self._bounds.since_ms))
        return first
