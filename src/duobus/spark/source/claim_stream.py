"""The stream of the mode ``claim`` as Spark calls it: ``claims.engine`` is the protocol, ``claims.runner`` runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from duobus.clock import Clock, Entropy
from duobus.spark.claims.attempts import REASON, Attempts
from duobus.spark.claims.engine import ClaimEngine
from duobus.spark.claims.runner import ClaimRunner
from duobus.spark.claims.sdk_access import SdkAccess
from duobus.spark.connection import counts_deferrals, demand_reachable, namespace_of, new_client, place_of
from duobus.spark.entities import Entities, pattern_of, waiting_messages
from duobus.spark.errors import OptionError
from duobus.spark.offsets import Claim
from duobus.spark.options import Parsed
from duobus.spark.recovery import dead_letter_numbers
from duobus.spark.rows import check_schema
from duobus.spark.source.backlog import Backlog, waiting_at
from duobus.spark.source.browse_stream import BrowseStreamReader
from duobus.spark.source.partition_reader import read_pieces
from duobus.spark.source.partitions import Piece, split
from duobus.spark.source.query_end import Ending, settle_committed
from duobus.spark.source.settings import reading_of, source_options
from duobus.spark.source.status import Status, description_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: The last wait of a run with availableNow only proves emptiness.
AVAILABLE_NOW_WAIT_MS: Final = 2_000
#: A trigger without a limit claims so many times maxMessagesPerTrigger (2.6).
WHOLE_TIMES: Final = 10

#: What a stream has in the place of an end.
_ENDS: Final = "ends with trigger(availableNow=True)"

_log = logging.getLogger("duobus.spark")


def stream_reader(given: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a stream; when an option is wrong, a reader that raises at the first call."""
    try:
        options = source_options(given, "claim")
        check_schema(schema)
        if options["readMode"] == "browse":
            _demand_no_end(options)
            return BrowseStreamReader(options, schema)
    except OptionError as error:
        return RefusingReader(error)
    return ClaimStreamReader(options, schema)


def _new_name() -> str:
    """A name for the claims of a stream at a broker that claims; another one for each stream."""
    return Entropy().token(16).hex()


def _demand_no_end(options: Parsed) -> None:
    for name in ("endingOffsets", "endingTimestamp", "maxMessages", "maxBytes"):
        if name in options.given:
            instead = f"limits each batch by {name}PerTrigger" if name.startswith("max") else _ENDS
            raise OptionError(f"The option '{name}' is of batch reads (spark.read); a stream {instead}.")


class RefusingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises an error at every call.

    When no reader can be made, Spark's source runner raises an error of its own (UnboundLocalError), which hides the
    error that was raised. An error of a reader's method is reported unchanged.

    Args:
        error: Why nothing can be read.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def _refused(self, *_: Any) -> Any:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: Any) -> Any:  # noqa: N802 - Spark's name
        """Raises; Spark looks at how many arguments it takes."""
        raise self._error

    initialOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = partitions = read = _refused  # noqa: N815


class ClaimPartition(InputPartition):
    """The messages that one task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(pieces)


class ClaimStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Consumes entities: claims messages, lets tasks peek at them, settles them. The source runner has one such object.

    Connections are opened when they are needed; tasks get copies of the object that never opened a connection.
    """

    def __init__(self, options: Parsed, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._claim_runner: ClaimRunner | None = None
        self._access: SdkAccess | None = None
        self._entities: Entities | None = None
        #: With availableNow: when the run began, and how many messages are left of those that there were.
        self._began_ms: int | None = None
        self._left: int | None = None
        #: The batch that was counted, and its count.
        self._attempt: tuple[dict[str, Any], int] | None = None
        #: The batch that was planned last, which no further signal of progress may come for.
        self._last: dict[str, Any] | None = None
        #: Messages of the batch that was claimed last, and of all batches of this process.
        self._claimed = self._taken = 0
        #: Messages of a batch that the broker has claimed, and so deferred, and that is not planned yet.
        self._unplanned = 0
        self._backlog: Backlog | None = None
        self._ending = Ending(self.stop)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"], state["_schema"])  # type: ignore[misc]

    def _claims(self) -> ClaimRunner:
        if self._claim_runner is None:
            options, place = self._options, place_of(self._options)
            demand_reachable(place)
            self._entities = Entities(place, options)
            entities = self._entities.now()
            engine = ClaimEngine(
                namespace_of(place),
                None if pattern_of(options) is not None else entities,
                settles_early=options["settleOn"] == "progress",
                counted=counts_deferrals(place),
                new_name=None if counts_deferrals(place) is None or options["exclusive"] else _new_name,
            )
            self._access = SdkAccess(
                place,
                entities,
                takes_sessions=options["exclusive"],
                max_sessions=options["maxSessions"],
                claim_timeout_s=options["claimTimeout"] / 1000,
                min_messages=1 if self._began_ms is not None else options["minMessagesPerTrigger"] or 1,
                max_delay_s=(options["maxTriggerDelay"] or 0) / 1000,
            )
            self._claim_runner = ClaimRunner(engine, self._access)
            self._ending.install()
        return self._claim_runner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """A constant: Spark asks twice."""
        return self._claims().initial()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The limit of a batch."""
        options = self._options
        if "maxBytesPerTrigger" in options.given and "maxMessagesPerTrigger" not in options.given:
            return ReadMaxBytes(options["maxBytesPerTrigger"])
        return ReadMaxRows(options["maxMessagesPerTrigger"])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Count the messages that are there: a run takes this number of messages and ends."""
        self._began_ms = Clock().now_ms()
        self._claims()
        self._left = waiting_messages(place_of(self._options), self._found())

    def latestOffset(self, start: dict[str, Any], limit: Any) -> Any:  # noqa: N802
        """Settle batches that are done, then wait for the next batch and claim it."""
        with self._ending.call():
            return self._latest(start, limit)

    def _latest(self, start: dict[str, Any], limit: Any) -> Any:
        claim_runner = self._claims()
        assert self._access is not None
        if self._began_ms is None:
            self._access.entities = self._found()
        options = self._options
        most: int = options["maxMessagesPerTrigger"] * WHOLE_TIMES
        self._access.max_bytes = options["maxBytesPerTrigger"]
        is_only = isinstance(limit, ReadAllAvailable)
        if is_only:
            self._of_one_batch()
        elif isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            self._access.max_bytes = limit.max_bytes
        wait_ms = options["maxWaitTime"]
        if self._began_ms is not None:
            wait_ms = min(wait_ms, AVAILABLE_NOW_WAIT_MS)
            most = most if self._left is None else max(0, min(most, self._left))
        end, count = claim_runner.latest(start, most, wait_ms, is_only=is_only)
        if not count and most and self._began_ms is not None:
            end, count = self._asked_again(claim_runner, start, most, wait_ms)
        self._claimed = count
        self._taken += count
        self._unplanned = 0 if self._access.held()[0] else count
        if self._left is not None:
            self._left -= count
        elif self._began_ms is not None and (self._access.oldest_ms or 0) > self._began_ms:
            # Nothing of this batch was there when the run began.
            self._left = 0
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The figures of the stream, in the place of an offset; Spark hands them on and never reads them."""
        if self._access is None or self._claim_runner is None:
            return None
        (locks, size), deferred = self._access.held(), self._claim_runner.unsettled() + self._unplanned
        # A broker that claims tells it with each claim, so that nothing else has to be asked.
        waiting = self._access.available()
        if waiting is None:
            waiting = self._waiting(self._taken - locks - deferred)
        oldest_ms = self._access.oldest_ms
        return Status(
            description_of(self._options),
            waiting=waiting,
            behind=waiting,
            oldest_age_ms=None if oldest_ms is None else max(0, Clock().now_ms() - oldest_ms),
            claimed=self._claimed,
            claimed_bytes=size,
            deferred=deferred,
            locks_held=locks,
        ).to_json()

    def _waiting(self, added: int) -> int | None:
        """How much waits by the counts of the broker, if they are known."""
        if self._backlog is None:
            self._backlog = Backlog(waiting_at(place_of(self._options)))
        # Brokers count as active what is locked or deferred, too. What the stream has taken since an answer came is
        # subtracted, so that a figure which is a second old is right where nothing else is sent or received.
        ever = self._backlog.newest(self._found(), added)
        return None if ever is None else max(0, ever - self._taken)

    def _found(self) -> tuple[str, ...]:
        """The entities that are read now."""
        assert self._entities is not None
        return self._entities.now()

    def _of_one_batch(self) -> None:
        """A run of ``trigger(once=True)``: no limit but that of one claim, and nobody asks again when it is done."""
        assert self._access is not None
        if "maxBytesPerTrigger" not in self._options.given:
            self._access.max_bytes = self._options["maxBytesPerTrigger"] * WHOLE_TIMES
        if self._options["checkpointLocation"] is None:
            _log.warning(
                "With trigger(once=True) Spark does not tell a source that its batch is committed: the messages stay "
                "deferred until the query is started again. Give the source the option checkpointLocation, or use "
                "trigger(availableNow=True)."
            )

    def _asked_again(
        self, claim_runner: ClaimRunner, start: dict[str, Any], most: int, wait_ms: int
    ) -> tuple[Any, int]:
        """A short wait proves nothing about a broker that is busy: a run ends when it says that nothing waits."""
        clock, waits_ms = Clock(), self._options["maxWaitTime"]
        until_ms = clock.monotonic_ms() + waits_ms
        while self._shows_any():
            end, count = claim_runner.latest(start, most, wait_ms)
            if count:
                return end, count
            if clock.monotonic_ms() >= until_ms:
                _log.warning(
                    "messages wait that were not handed out within maxWaitTime (%d ms): another receiver holds them; "
                    "the run ends without them",
                    waits_ms,
                )
                break
        return start, 0

    def _shows_any(self) -> bool:
        """Whether messages wait, by their count or, without the right to it, by a look."""
        assert self._access is not None
        waiting = None if self._left is None else waiting_messages(place_of(self._options), self._found())
        return self._access.shows_active() if waiting is None else waiting > 0

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ClaimPartition]:
        """Defer the claimed messages and divide them into tasks; after a restart find out which were deferred."""
        with self._ending.call():
            return self._planned(start, end)

    def _planned(self, start: dict[str, Any], end: dict[str, Any]) -> list[ClaimPartition]:
        plan = self._claims().plan(start, end)
        self._last = end
        self._unplanned = 0
        if plan.claim and self._gave_up(end):
            self._dead_letter(plan.claim)
            return []
        most, least = self._options["maxRecordsPerPartition"], self._options["minPartitions"]
        return [ClaimPartition(pieces) for pieces in split(plan.claim, most, least)]

    def _gave_up(self, end: dict[str, Any]) -> bool:
        """Whether a batch has had all its runs; each process that plans it is one."""
        most = self._options["maxAttempts"]
        if most is None:
            return False
        if self._attempt is None or self._attempt[0] != end:
            self._attempt = end, Attempts(self._options["attemptsPath"]).begin(end)
        return self._attempt[1] > int(most)

    def _dead_letter(self, claim: Claim) -> None:
        """The settlement finds these missing later, as those that ``dead_letter`` moved."""
        most = self._options["maxAttempts"]
        with new_client(place_of(self._options)) as client:
            for key, numbers in claim.items():
                text = f"A batch with this message was begun {most} times and never finished."
                moved = dead_letter_numbers(client, key, dict.fromkeys(numbers, (REASON, text)))
                _log.error("%d messages of '%s' went to the dead-letter queue: %s", moved, key.entity, text)

    def read(self, partition: Any) -> Iterator[Any]:
        """Peek at the messages of a partition; in a task, on a copy of this object."""
        return read_pieces(reading_of(self._options, self._schema), partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Settle a batch, one batch late; never fails."""
        with self._ending.call():
            self._claims().commit(end)

    def stop(self) -> None:
        """Settle committed batches and give locks back; called after an error, and when the process has to end."""
        self._ending.ignore()
        last, folder = self._last, self._options["checkpointLocation"]
        self._last = None
        if last is not None and folder is not None:
            settle_committed(place_of(self._options), folder, last)
        if self._access is not None:
            self._access.close()
