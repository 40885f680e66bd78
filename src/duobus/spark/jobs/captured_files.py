"""Folders of captured messages, which are checked before a job uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from duobus.spark.jobs.job import JobError, cause_of, spark_errors
from duobus.spark.schema import COLUMNS, TYPES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from duobus.spark.jobs.lake.delta_table import DeltaTable
    from duobus.spark.jobs.lake.iceberg_table import IcebergTable

#: Columns that a file may lack, since the folders above it say them.
IN_PATHS: Final = frozenset({"entity", "date", "hour", "batch_id"})
#: Faults that an error tells.
TOLD_MAX: Final = 3
#: Files whose footers one task reads.
_FILES_PER_TASK: Final = 200

#: Spark's types to those that Parquet files of them have.
_ARROW: Final = {
    "string": ("string", "large_string"),
    "binary": ("binary", "large_binary"),
    "bigint": ("int64",),
    "int": ("int32",),
}


#: The folders of an hour, in the address of a file: Spark escapes a name, and an address escapes the percent signs.
_PLACE: Final = re.compile(r"/entity=([^/]*)/date=(\d{4}-\d\d-\d\d)/hour=(\d{1,2})/")


@dataclass(frozen=True, slots=True)
class Span:
    """The hours and the entity whose messages are wanted, by which folders are left out before a file is opened.

    Attributes:
        since: First enqueued time; None: from the first message on.
        until: First enqueued time behind the span; None: up to the last message.
        entity: The one entity; None: all entities.
    """

    since: datetime | None = None
    until: datetime | None = None
    entity: str | None = None

    @property
    def first(self) -> tuple[date, int] | None:
        """Date and hour, in UTC, of the first folder."""
        return None if self.since is None else _hour_of(self.since)

    @property
    def last(self) -> tuple[date, int] | None:
        """Date and hour, in UTC, of the last folder."""
        return None if self.until is None else _hour_of(self.until - timedelta(microseconds=1))

    def may_hold(self, file: str) -> bool:
        """Whether a file can hold messages of the span, by the folders in its address."""
        found = _PLACE.search(file)
        if found is None:
            return True
        hour = (date.fromisoformat(found[2]), int(found[3]))
        return (
            (self.entity is None or self.entity == unquote(unquote(found[1])))
            and (self.first is None or hour >= self.first)
            and (self.last is None or hour <= self.last)
        )

    def of(self, frame: DataFrame) -> DataFrame:
        """Return the messages in the folders of the span; Spark opens no file of another folder."""
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

        if self.first is not None:
            day, hour = self.first
            frame = frame.where((F.col("date") > day) | ((F.col("date") == day) & (F.col("hour") >= hour)))
        if self.last is not None:
            day, hour = self.last
            frame = frame.where((F.col("date") < day) | ((F.col("date") == day) & (F.col("hour") <= hour)))
        return frame if self.entity is None else frame.where(F.col("entity") == self.entity)


def _hour_of(moment: datetime) -> tuple[date, int]:
    there = moment.astimezone(UTC)
    return there.date(), there.hour


def captured(spark: SparkSession, path: str, span: Span | None = None) -> DataFrame:
    """Read a folder that ``capture`` wrote.

    Args:
        spark: The session.
        path: The folder.
        span: What is wanted; files in other folders are neither checked nor read.

    Raises:
        JobError: There is no such folder, it is empty, or a file in it is damaged or has other columns; names the file.
    """
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS)
    try:
        frame = spark.read.schema(f"{ddl}, date date, hour int, batch_id string").parquet(path)
        files = frame.inputFiles()
    except spark_errors() as error:
        raise JobError(f"The folder {path!r} cannot be read: {cause_of(error)}") from None
    if not files:
        raise JobError(f"The folder {path!r} holds no captured messages. Has capture run, with this path?")
    if span is not None:
        frame, files = span.of(frame), [file for file in files if span.may_hold(file)]
    faults = faults_in(spark, files, tuple(TYPES))
    if faults:
        raise JobError(f"{' '.join(faults)} Nothing was sent. Move such files away, or capture them again.")
    return frame


def captured_in(spark: SparkSession, table: DeltaTable | IcebergTable, span: Span) -> DataFrame:
    """Read a table that ``capture`` wrote.

    Args:
        spark: The session.
        table: The table.
        span: What is wanted.

    Raises:
        JobError: There is no such table or no row in it, it has other columns, or it cannot be read here.
    """
    frame = table.rows(spark)
    if frame is None:
        raise JobError(f"{table} holds no captured messages. Has capture run, with this table?")
    types = dict(frame.dtypes)
    for name, kind in {**TYPES, "date": "date", "hour": "int"}.items():
        if types.get(name) != kind:
            told = f"has the column {name!r} as {types[name]}, not as {kind}" if name in types else f"has no {name!r}"
            raise JobError(f"{table} is another one than a capture makes: it {told}. Nothing was sent.")
    return span.of(frame)


def faults_in(spark: SparkSession, files: list[str], needed: tuple[str, ...]) -> list[str]:
    """Return the faults of some files of captured messages, for the first few files that have one.

    Args:
        spark: The session.
        files: Addresses of the files.
        needed: Columns that each file has to have.
    """
    if not files:
        return []
    tasks = max(1, len(files) // _FILES_PER_TASK)
    names = spark.createDataFrame([(file,) for file in files], "file string").repartition(tasks)
    found = names.mapInArrow(partial(_faults, needed=needed), "fault string").limit(TOLD_MAX).collect()
    return [row.fault for row in found]


def _faults(batches: Iterator[pa.RecordBatch], needed: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        told = [fault for file in batch.column(0).to_pylist() if (fault := fault_of(file, needed)) is not None]
        yield pa.RecordBatch.from_pydict({"fault": pa.array(told, pa.string())})


def fault_of(file: str, needed: tuple[str, ...] = tuple(TYPES)) -> str | None:
    """Return the fault of a file of captured messages; None without a fault, or where only Spark can read the file.

    Args:
        file: Address of the file.
        needed: Columns that the file has to have.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import fs

    try:
        system, inner = fs.FileSystem.from_uri(file)
    except (pa.ArrowInvalid, OSError):
        return None
    try:
        metadata = pq.read_metadata(inner, filesystem=system)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        return f"The file {file} is no Parquet file that can be read: {str(error).splitlines()[0]}"
    for name, kind in TYPES.items():
        index = schema.get_field_index(name)
        if index < 0:
            if name not in IN_PATHS and name in needed:
                return f"The file {file} has no column {name!r}."
        elif not _fits(kind, schema.field(index).type):
            return f"The file {file} has the column {name!r} as {schema.field(index).type}, not as {kind}."
        elif kind == "timestamp" and _is_in_nanoseconds(metadata.schema, name):
            return f"The file {file} has the column {name!r} in nanoseconds, and Spark reads microseconds."
    return None


def _is_in_nanoseconds(schema: Any, name: str) -> bool:
    """Whether a column is of a type that Spark does not read; pandas writes it, and Spark's own old one looks alike."""
    columns = (schema.column(index) for index in range(len(schema)))
    return any(
        column.path == name and column.physical_type == "INT64" and "nano" in str(column.logical_type).lower()
        for column in columns
    )


def _fits(kind: str, found: pa.DataType) -> bool:
    """Whether Spark reads a column of a file as a type of its own, instead of failing in the middle of a job."""
    import pyarrow as pa

    if kind == "timestamp":
        return bool(pa.types.is_timestamp(found))
    if kind.startswith("map"):
        return pa.types.is_map(found) and {str(found.key_type), str(found.item_type)} <= set(_ARROW["string"])
    return str(found) in _ARROW[kind]


def unreadable(frame: DataFrame) -> list[Any]:
    """A few rows of which no message can be made, because the body is no AMQP value or there is no number.

    Returns:
        Rows of ``file``, ``sequence_number`` and ``fault``.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    others = frame.where("sequence_number is null or (body_type is not null and body_type <> 'data')")
    columns = others.select(F.input_file_name().alias("file"), "sequence_number", "body_type", "body")
    found = columns.mapInArrow(_unread, "file string, sequence_number bigint, fault string").limit(TOLD_MAX)
    return list(found.collect())


def _read(number: int | None, kind: str | None, body: bytes) -> None:
    """Read a body; ValueError if it cannot be."""
    from duobus.spark.sink.body_decoder import sequences_of, value_of

    if number is None:
        raise ValueError("the row has no sequence number, by which one message is told from another")
    if kind == "value":
        value_of(body)
    elif kind == "sequence":
        sequences_of(body)
    else:
        raise ValueError(f"body_type is {kind!r}")


def _unread(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    names, types = ("file", "sequence_number", "fault"), (pa.string(), pa.int64(), pa.string())
    for batch in batches:
        found: list[list[Any]] = [[], [], []]
        for file, number, kind, body in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            try:
                _read(number, kind, body or b"")
            except ValueError as error:
                for column, value in zip(found, (file, number, str(error)), strict=True):
                    column.append(value)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, kind) for column, kind in zip(found, types, strict=True)], names=names
        )
