"""One run of a stage on a session of Spark, from what was planned to what was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from duobus.pipeline.document.model import STREAMING, Form, Kind, Pipeline, Source, Stage
from duobus.pipeline.document.stages import settings_of_table
from duobus.pipeline.execution.errors import StageError, told
from duobus.pipeline.execution.tables import BatchWriter, clear_empty_staging, columns_for, frame_of, replace
from duobus.pipeline.execution.views import function_of, rows_of
from duobus.pipeline.state_folder import StageState, StateFolder
from duobus.pipeline.table_versions import version_of
from duobus.spark.connection import demand_reachable, new_administration, place_of
from duobus.spark.entities import PATTERNS, split_name
from duobus.spark.errors import CheckpointError, OptionError
from duobus.spark.jobs.job import spark_errors
from duobus.spark.jobs.lake.reader_marks import note_read
from duobus.spark.options import CONNECTION_OPTIONS, parse
from duobus.spark.source.query_end import settle_committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: Seconds between two looks at a query.
LOOK_S: Final = 0.2
#: Tasks that send the rows of a table: always as many, so that a run that is repeated has each row in its place again.
SEND_TASKS: Final = 4
_OF_TOPIC: Final = "/subscriptions/"
_CONNECTION: Final = frozenset(option.name for option in CONNECTION_OPTIONS)


@dataclass(slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        rows: How many rows it read or wrote; None where that is not known.
        is_new: Whether it has brought something new.
        is_unchanged: Whether there was nothing to do.
        note: Why not, or what else there is to tell.
        summary: Of a job.
        error: What went wrong, as a sentence; None where nothing did.
        may_pass: Whether another attempt may help: not against a wrong option, view or checkpoint.
    """

    rows: int | None = None
    is_new: bool = True
    is_unchanged: bool = False
    note: str | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    may_pass: bool = True


class StageRun:
    """Runs one stage; plain, so that each stage may have a thread.

    Args:
        spark: A session of this stage alone.
        pipeline: The document.
        stage: The stage.
        state: The folder of the pipeline's state.
        write_name: What the names of this pipeline's writes have in them, the same for ever.
        once: Whether a stream ends when it has what is there now.
        stopping: Set when the pipeline is to end.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        stage: Stage,
        state: StateFolder,
        write_name: str,
        *,
        once: bool,
        stopping: Event,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._stage = stage
        self._folder = state
        self._state = state.stage(stage.name)
        self._write_name = write_name
        self._every_ms = None if once else stage.every_ms
        self._stopping = stopping

    def run(self) -> Outcome:
        """Run the stage to its end."""
        try:
            # Spark looks for the format of a write in the session that is active in the thread, and this makes it so.
            self._spark.createDataFrame([], "nothing int")
            self._demand_reachable()
            if self._stage.kind in STREAMING:
                self._demand_same_stage()
                return self._streamed()
            return self._batch()
        except Exception as error:  # noqa: BLE001 - whatever a stage meets is told with the stage
            is_wrong = isinstance(error, StageError | OptionError | CheckpointError)
            return Outcome(error=told(error), is_new=False, may_pass=not is_wrong)

    # -- what is checked before -------------------------------------------------------------------------------------

    def _demand_reachable(self) -> None:
        """An address at which nobody listens is told at once, and not after the retries of all tasks."""
        stage, pipeline = self._stage, self._pipeline
        options = [pipeline.sources[name].options for name in stage.sources]
        if (sink := pipeline.sink_of(stage)) is not None:
            options.append(sink.options)
        for one in options:
            connection = {key: value for key, value in one.items() if key in _CONNECTION}
            if connection:
                demand_reachable(place_of(parse(connection, CONNECTION_OPTIONS)))

    def _demand_same_stage(self) -> None:
        """A checkpoint belongs to what it was made for: its claims are of these entities, its batches in this table."""
        identity = identity_of(self._pipeline, self._stage)
        before = self._state.identity()
        if before is None:
            self._state.identify(identity)
        elif before != identity:
            changed = next(key for key in {**before, **identity} if before.get(key) != identity.get(key))
            raise StageError(
                f"The checkpoint of the stage {self._stage.name!r} was made with {before.get(changed)!r} as its "
                f"{changed}, and the document says {identity.get(changed)!r} now. Give the stage another name, or "
                f"release its claim ('duobus spark release --checkpoint {self._state.checkpoint}') and remove "
                f"{self._state.folder}."
            )

    # -- streams ----------------------------------------------------------------------------------------------------

    def _streamed(self) -> Outcome:
        outcome = self._captured() if self._stage.kind is Kind.CAPTURE else self._queried()
        if outcome.error is None and (self._every_ms is not None or self._stopping.is_set()):
            for name in self._stage.sources:
                source = self._pipeline.sources[name]
                if source.mode == "claim":
                    connection = {key: value for key, value in source.options.items() if key in _CONNECTION}
                    settle_committed(place_of(parse(connection, CONNECTION_OPTIONS)), str(self._state.checkpoint))
        return outcome

    def _captured(self) -> Outcome:
        from duobus.spark.jobs import capture

        stage, pipeline = self._stage, self._pipeline
        assert stage.reads is not None
        assert stage.writes is not None
        table = pipeline.tables[stage.writes]
        given = pipeline.sources[stage.reads].options
        settings: dict[str, Any] = {**given, **settings_of_table(table), "checkpoint": str(self._state.checkpoint)}
        settings["compression"] = table.compression
        if self._every_ms is not None:
            settings["every"] = f"{self._every_ms}ms"
        if table.form is Form.PARQUET and pipeline.writers_of(table.name) == (stage.name,):
            clear_empty_staging(table.path)
        summary = capture.run(self._spark, settings)
        return Outcome(rows=summary["messages"], is_new=summary["messages"] > 0, summary=summary)

    def _queried(self) -> Outcome:
        frame = rows_of(self._spark, self._pipeline, self._stage, self._table_now, str(self._state.checkpoint))
        if frame is None:
            return self._nothing_yet()
        query = self._started(frame)
        rows: dict[int, int] = {}
        try:
            is_over = False
            while not is_over:
                is_over = bool(query.awaitTermination(LOOK_S))
                rows |= rows_by_batch(query)
        except spark_errors() as error:
            return Outcome(error=told(error), is_new=bool(rows))
        finally:
            query.stop()
        return Outcome(rows=sum(rows.values()), is_new=any(rows.values()))

    def _started(self, frame: DataFrame) -> StreamingQuery:
        stage, pipeline, checkpoint = self._stage, self._pipeline, str(self._state.checkpoint)
        assert stage.writes is not None
        writer = frame.writeStream.option("checkpointLocation", checkpoint).outputMode(stage.output_mode)
        if self._every_ms is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._every_ms} milliseconds")
        if stage.writes in pipeline.tables:
            table = pipeline.tables[stage.writes]
            columns = columns_for(self._spark, frame, stage, table)
            return writer.foreachBatch(BatchWriter(table, columns, checkpoint)).start()
        sink = pipeline.sinks[stage.writes]
        if sink.function is not None:
            return writer.foreachBatch(function_of(sink.function)).start()
        return writer.format("duobus").options(**sink.options).start()

    def _table_now(self, name: str) -> DataFrame | None:
        return frame_of(self._spark, self._pipeline, name, version_of(self._pipeline, self._folder, name), None)

    def _nothing_yet(self) -> Outcome:
        empty = [name for name in self._stage.tables if not version_of(self._pipeline, self._folder, name)]
        return Outcome(rows=0, is_new=False, is_unchanged=True, note=f"waits for the first rows of {', '.join(empty)}")

    # -- runs over tables -------------------------------------------------------------------------------------------

    def _batch(self) -> Outcome:
        number, plan, result = self._state.newest()
        if not number or result is not None:
            inputs = {name: version_of(self._pipeline, self._folder, name) for name in self._stage.tables}
            definition = definition_of(self._pipeline, self._stage)
            if number and self._stage.tables and plan["inputs"] == inputs and plan["definition"] == definition:
                return Outcome(rows=0, is_new=False, is_unchanged=True)
            new = self._stage.new_rows_of
            since = plan["inputs"].get(new) if new is not None and number else None
            number, plan = number + 1, {"inputs": inputs, "since": since, "definition": definition}
            if not all(inputs.values()):
                return self._nothing_yet()
            self._state.plan(number, plan)
        # What of it is new is told by the names of its batches, which a compaction would take away.
        self._note_read(plan["inputs"] if plan["since"] is None else {self._stage.new_rows_of: plan["since"]})
        outcome = self._moved(number, plan) if self._stage.kind in (Kind.REPORT, Kind.SEND) else self._job()
        self._state.done(number, {"rows": outcome.rows, "summary": outcome.summary})
        self._note_read(plan["inputs"])
        return outcome

    def _note_read(self, inputs: Mapping[str | None, Any]) -> None:
        """Note how far the stage has read a table whose new rows alone it reads, for those who compact the table."""
        name = self._stage.new_rows_of
        table = None if name is None else self._pipeline.tables[name]
        if table is not None and table.form is Form.PARQUET and inputs.get(name):
            # By the name of its writes, since another pipeline may be called so, too.
            reader = f"The stage {self._stage.name!r} of {self._pipeline.name!r} ({self._write_name})"
            note_read(table.path, reader, inputs[name])

    def _moved(self, number: int, plan: Mapping[str, Any]) -> Outcome:
        stage, pipeline = self._stage, self._pipeline

        def table(name: str) -> DataFrame | None:
            since = plan["since"] if name == stage.new_rows_of else None
            return frame_of(self._spark, pipeline, name, plan["inputs"].get(name, {}), since)

        frame = rows_of(self._spark, pipeline, stage, table, str(self._state.checkpoint))
        if frame is None:
            return self._nothing_yet()
        assert stage.writes is not None
        if stage.writes in pipeline.tables:
            target = pipeline.tables[stage.writes]
            # Files are replaced with all that they are; a table that others read keeps its columns.
            is_free = target.form is Form.PARQUET and not target.columns
            columns = frame.columns if is_free else columns_for(self._spark, frame, stage, target)
            about = {"duobus.pipeline": pipeline.name, "duobus.stage": stage.name, "duobus.run": str(number)}
            return Outcome(rows=replace(frame.select(*columns), target, about))
        sink = pipeline.sinks[stage.writes]
        if sink.function is not None:
            function_of(sink.function)(frame, number)
            return Outcome()
        return Outcome(rows=self._sent(frame, dict(sink.options), number))

    def _sent(self, frame: DataFrame, options: dict[str, str], number: int) -> int:
        """Send rows, each in the same place and so under the same id when the run is repeated."""
        keys = [one.name for one in frame.schema.fields if not one.dataType.simpleString().startswith("map")]
        placed = frame.repartition(SEND_TASKS, *keys).sortWithinPartitions(*keys)
        write_id = f"{self._stage.name}-{self._write_name}-{number}"
        report = options.setdefault("reportPath", str(self._state.folder / "reports"))
        options["writeId"] = write_id
        placed.write.format("duobus").options(**options).mode("append").save()
        file = Path(report) / f"{write_id}.json"
        try:
            sent = json.loads(file.read_text())["messages"]
        except (OSError, ValueError, KeyError):
            return int(placed.count())
        return int(sent)

    def _job(self) -> Outcome:
        job = import_module(f"duobus.spark.jobs.{self._stage.kind.value}")
        summary: dict[str, Any] = job.run(self._spark, dict(self._stage.settings))
        rows = next((summary[name] for name in ("sent", "messages", "records", "rows") if name in summary), None)
        return Outcome(rows=rows, summary=summary)


def identity_of(pipeline: Pipeline, stage: Stage) -> dict[str, Any]:
    """What a stage must not change while it keeps its checkpoint."""
    entities = [entity for name in stage.sources for entity in pipeline.sources[name].entities]
    modes = [pipeline.sources[name].mode for name in stage.sources]
    table = pipeline.table_of(stage)
    # From the folder of the document, which may be moved with all that belongs to it.
    target = stage.writes if table is None else table.path.removeprefix(f"{pipeline.folder}/")
    if table is not None and table.form is not Form.PARQUET:
        target = f"{table.form.value}: {target}"
    return {"source": ", ".join(entities), "readMode": ", ".join(modes), "target": target}


def definition_of(pipeline: Pipeline, stage: Stage) -> str:
    """Changes when the document says something else about a stage, so that a run over the same rows gives others."""
    views = [(view.name, view.sql, view.function, view.inputs) for view in map(pipeline.views.get, stage.views) if view]
    table = pipeline.table_of(stage)
    said: list[Any] = [
        stage.kind.value,
        stage.reads,
        stage.writes,
        views,
        stage.new_rows_of,
        sorted(stage.settings.items()),
    ]
    said.append(None if table is None else [table.path, table.columns, table.partition_by])
    if table is not None and table.form is not Form.PARQUET:
        said.append([table.form.value, table.catalog])
    return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:16]


def rows_by_batch(query: StreamingQuery) -> dict[int, int]:
    """Number of rows of each batch that a query has told of lately, without the empty ones."""
    return {one["batchId"]: one["numInputRows"] for one in query.recentProgress if one["numInputRows"]}


def is_unfinished(state: StageState) -> bool:
    """Whether a run of a stage was begun and not finished."""
    number, _, result = state.newest()
    return number > 0 and result is None


def waiting_in(source: Source) -> int | None:
    """Messages that wait in the entities of a source; None where the rights do not suffice, or for a pattern."""
    if source.mode != "claim" or any(name in source.options for name in PATTERNS):
        return None
    connection = {key: value for key, value in source.options.items() if key in _CONNECTION}
    total = 0
    # The rights may be missing, or the management API: no lag is no fault of the stage.
    with suppress(Exception), new_administration(place_of(parse(connection, CONNECTION_OPTIONS))) as management:
        for entity in source.entities:
            name, sub_queue = split_name(entity)
            topic, is_subscription, subscription = name.partition(_OF_TOPIC)
            found = (
                management.get_subscription_runtime_properties(topic, subscription)
                if is_subscription
                else management.get_queue_runtime_properties(name)
            )
            if sub_queue == "transferdeadletter":
                total += found.transfer_dead_letter_message_count or 0
            elif sub_queue is not None:
                total += found.dead_letter_message_count or 0
            else:
                total += found.active_message_count or 0
        return total
    return None
