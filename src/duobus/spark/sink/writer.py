"""The sink: rows to messages, batch and streaming.

A writer holds plain values only, because it is pickled into every task. Each task sends its rows in their order, with
ids made of their place, and returns when the broker has all of them; so a busy broker slows the task, the batch and the
source.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from duobus.clock import Clock, Entropy
from duobus.spark.connection import Place, demand_reachable, place_of
from duobus.spark.errors import OptionError
from duobus.spark.options import CHOICE, CONNECTION_OPTIONS, NUMBER, TEXT, Option, parse
from duobus.spark.oversize import Aside, OnOversize, TooLarge, claim_check, opened
from duobus.spark.retry import RateLimit
from duobus.spark.rows import columns_of
from duobus.spark.sink.batches import Batches
from duobus.spark.sink.destinations import advice_on
from duobus.spark.sink.message_ids import (
    BATCH_ID_PROPERTY,
    QUERY_ID_PROPERTY,
    MessageIdMode,
    check_write_id,
    id_of,
)
from duobus.spark.sink.message_ids import place_of as place_of_rows
from duobus.spark.sink.messages import SENT, check_columns, messages_of
from duobus.spark.sink.sender import OpenBatch, Post, id_of_message, post_to, size_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from duobus.spark.sink.messages import Outgoing

#: Of the sink, beside those of the connection.
SINK_OPTIONS: Final = (
    Option("queue", TEXT, None, "queue to send to; without it and topic, the column entity says it for each row"),
    Option("topic", TEXT, None, "topic to send to"),
    Option(
        "messageIdMode",
        CHOICE,
        "derived",
        "message ids: derived from the row's place; the column message_id, derived where null; or none",
        choices=tuple(mode.value for mode in MessageIdMode),
    ),
    Option("writeId", TEXT, None, "name of a batch write, the same when it is run again: makes it safe to repeat"),
    Option(
        "onOversize",
        CHOICE,
        "fail",
        "a row too large for its entity: fail; divert it to Parquet; claimCheck writes its body aside and sends a stub",
        choices=tuple(choice.value for choice in OnOversize),
    ),
    Option("oversizePath", TEXT, None, "folder for divert and claimCheck, as every node reaches it"),
    Option("maxMessagesPerSecond", NUMBER, None, "messages a second of each task at most", least=1, most=1_000_000),
    Option("reportPath", TEXT, None, "folder for a JSON file with the counts of each committed write"),
)


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The settings that a writer carries to its tasks.

    Attributes:
        place: The namespace.
        entity: The entity for all rows; None where the column ``entity`` names it.
        id_mode: The origin of message ids.
        write_id: Makes derived ids of this write unique; None in a streaming query, which has an id of its own.
        on_oversize: What to do with a row that is too large.
        oversize_path: Folder for rows that are too large.
        rate: Messages a second of a task; None for no limit.
        report_path: Folder for the counts.
    """

    place: Place
    entity: str | None
    id_mode: MessageIdMode
    write_id: str | None
    on_oversize: OnOversize
    oversize_path: str | None
    rate: int | None
    report_path: str | None


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """The result of a task.

    Attributes:
        rows: Number of rows that the task was given.
        messages: Number of messages that the task sent, including stubs.
        requests: Number of sends.
        diverted: Number of rows that were written to a file and not sent.
        claim_checked: Number of rows whose bodies were written to a file.
        bytes: Encoded size of the messages.
        repeated: Number of messages that an attempt after the first has sent, so that the destination may know them.
    """

    rows: int = 0
    messages: int = 0
    requests: int = 0
    diverted: int = 0
    claim_checked: int = 0
    bytes: int = 0
    repeated: int = 0


def batch_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of ``df.write``.

    Raises:
        OptionError: An option or a column is wrong.
    """
    settings = _settings(options, schema, overwrite)
    demand_reachable(settings.place)
    if settings.write_id is None:
        if settings.id_mode is not MessageIdMode.NONE:
            _warn(
                "Without the option writeId this write is delivered at least once: a task that is tried again repeats "
                "its message ids, but a write that is run again has new ones."
            )
        # In foreachBatch too: two writes of one batch must not share their ids.
        settings = _with_write_id(settings, f"w{Entropy().token(12).hex()}")
    _advise(settings)
    return BatchWriter(settings)


def stream_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of ``df.writeStream``.

    Raises:
        OptionError: An option or a column is wrong.
    """
    settings = _settings(options, schema, overwrite)
    _advise(settings)
    return StreamWriter(settings)


def _settings(options: dict[str, str], schema: StructType, overwrite: bool) -> SinkSettings:
    if overwrite:
        raise OptionError(
            "Messages cannot be overwritten: write with mode append, or with output mode append or update."
        )
    parsed = parse(options, (*CONNECTION_OPTIONS, *SINK_OPTIONS))
    if parsed["queue"] is not None and parsed["topic"] is not None:
        raise OptionError("Give one of the options 'queue' and 'topic'.")
    entity = parsed["queue"] or parsed["topic"]
    on_oversize = OnOversize(parsed["onOversize"])
    if (on_oversize is OnOversize.FAIL) != (parsed["oversizePath"] is None):
        raise OptionError("The option 'oversizePath' goes together with onOversize divert or claimCheck.")
    id_mode = MessageIdMode(parsed["messageIdMode"])
    write_id = parsed["writeId"]
    try:
        if write_id is not None:
            check_write_id(write_id)
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, has_entity=bool(entity))
    except ValueError as error:
        raise OptionError(str(error)) from None
    if id_mode is MessageIdMode.DERIVED and "message_id" in schema.fieldNames():
        _warn("The column message_id is not sent: messageIdMode is derived. Set it to column to keep those ids.")
    return SinkSettings(
        place_of(parsed),
        entity,
        id_mode,
        write_id,
        on_oversize,
        parsed["oversizePath"],
        parsed["maxMessagesPerSecond"],
        parsed["reportPath"],
    )


def _with_write_id(settings: SinkSettings, write_id: str) -> SinkSettings:
    return replace(settings, write_id=write_id)


def _advise(settings: SinkSettings) -> None:
    """Warn when the destination does not detect duplicates; no right to look is no error."""
    if settings.entity is not None and settings.id_mode is not MessageIdMode.NONE:
        advice = advice_on(settings.place, settings.entity)
        if advice is not None:
            _warn(advice)


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=2)


class _Writer:
    """What both writers do."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings

    def _written(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        settings, task = self.settings, TaskContext.get()
        assert task is not None
        place = place_of_rows(
            settings.write_id,
            task.getLocalProperty(QUERY_ID_PROPERTY),
            task.getLocalProperty(BATCH_ID_PROPERTY),
            task.partitionId(),
        )
        pace = None if settings.rate is None else RateLimit(settings.rate, Clock(), _pause).sent
        post = post_to(settings.place, pace)
        aside = None
        if settings.oversize_path is not None and settings.on_oversize is OnOversize.DIVERT:
            aside = Aside(settings.oversize_path, place, task.taskAttemptId())
        sent = write_rows(batches, place, settings, post, aside)
        return replace(sent, repeated=sent.messages if task.attemptNumber() else 0)

    def _report(self, name: str, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Keep the counts of a write; the same file when it is committed a second time."""
        if self.settings.report_path is None:
            return
        counts = [asdict(message) for message in messages if isinstance(message, Sent)]
        total = {key: sum(count[key] for count in counts) for key in asdict(Sent())}
        system, folder = opened(self.settings.report_path)
        system.create_dir(folder, recursive=True)
        with system.open_output_stream(f"{folder}/{name}.json") as stream:
            stream.write(json.dumps(total).encode())


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of a task."""
        return self._written(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is sent; keep the counts."""
        self._report(str(self.settings.write_id), messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of a task."""
        return self._written(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Everything of the batch is sent; keep the counts. It may come twice for a batch."""
        self._report(f"batch-{batchId:010d}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing can be taken back; the batch is written again with the same ids."""


def write_rows(
    batches: Iterable[pa.RecordBatch], place: str, settings: SinkSettings, post: Post, aside: Aside | None
) -> Sent:
    """Send the rows that a task was given.

    Args:
        batches: The rows.
        place: The place of the rows in the write; part of their ids.
        settings: Settings of the sink.
        post: Sends the messages.
        aside: Takes rows that are too large, if such rows are diverted.

    Raises:
        SendFailed: An entity accepts nothing now.
        RowError: A row cannot be sent.
        TooLarge: A row is too large, and that is an error.
    """
    task = _Task(place, settings, post, aside)
    try:
        for batch in batches:
            task.take(batch)
        task.finish()
    except BaseException:
        if aside is not None:
            aside.discard()
        raise
    diverted = 0 if aside is None else aside.rows
    return Sent(task.rows, post.messages, post.requests, diverted, task.claim_checked, post.bytes)


class _Task:
    """Sends the rows of a task, batch after batch."""

    __slots__ = ("_aside", "_open", "_place", "_post", "_settings", "claim_checked", "rows")

    def __init__(self, place: str, settings: SinkSettings, post: Post, aside: Aside | None) -> None:
        self._place = place
        self._settings = settings
        self._post = post
        self._aside = aside
        self._open: Batches[OpenBatch] = Batches(post.make, post.send)
        self.rows = 0
        self.claim_checked = 0

    def take(self, batch: pa.RecordBatch) -> None:
        first = self.rows
        columns = columns_of(batch, (name for name in batch.schema.names if name in SENT))
        ids = self._ids(columns.get("message_id"), first, batch.num_rows)
        named: Callable[[int], str] = lambda index: id_of(self._place, first + index)  # noqa: E731
        for index, out in enumerate(messages_of(columns, ids, self._settings.entity, named)):
            if not self._open.add((out.entity, out.key), out.message):
                self._too_large_for_a_batch(batch, columns, index, out)
        self.rows += batch.num_rows

    def finish(self) -> None:
        self._open.flush()
        if self._aside is not None:
            self._aside.finish()

    def _ids(self, given: list[str | None] | None, first: int, count: int) -> Iterator[str | None]:
        mode = self._settings.id_mode
        for index in range(count):
            if mode is MessageIdMode.NONE:
                yield None
            elif mode is MessageIdMode.COLUMN and given is not None and given[index] is not None:
                yield given[index]
            else:
                yield id_of(self._place, first + index)

    def _too_large_for_a_batch(
        self, batch: pa.RecordBatch, columns: dict[str, list[Any]], index: int, out: Outgoing
    ) -> None:
        if self._post.send_single(out.entity, out.message):
            return
        row_id = id_of(self._place, self.rows + index)
        size, limit = size_of(out.message), self._post.limit_of(out.entity)
        if self._aside is not None:
            self._aside.put(batch, index, row_id, size, limit)
            return
        if self._settings.on_oversize is OnOversize.CLAIM_CHECK:
            assert self._settings.oversize_path is not None
            body, kind = columns["body"][index], (columns.get("body_type") or {index: None})[index] or "data"
            data = body.encode() if isinstance(body, str) else body
            stub = claim_check(self._settings.oversize_path, row_id, data, kind, out.message)
            if self._open.add((out.entity, out.key), stub) or self._post.send_single(out.entity, stub):
                self.claim_checked += 1
                return
            size = size_of(stub)
        known = id_of_message(out.message)
        raise TooLarge(row_id if repr(row_id) == known else f"{row_id} ({known})", size, limit, out.entity)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
