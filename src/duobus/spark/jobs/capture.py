"""``capture``: the messages of entities as partitioned Parquet, or in a table of Delta or Iceberg, each once.

In Parquet a batch replaces the folders that have its number, and no others: a batch that is written again after a crash
leaves nothing of its first attempt. The query's id stands before the number, because numbers start again with a new
checkpoint, and would otherwise replace folders of an earlier query. A table knows which batches it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from duobus.spark.jobs.job import (
    JobError,
    Settings,
    Summary,
    cause_of,
    connection_of,
    followed,
    given_of,
    needed,
    settings_of,
    settle_stopped,
    spark_errors,
)
from duobus.spark.jobs.lake.captured_columns import batch_name, placed, short
from duobus.spark.jobs.lake.folder_lock import writing
from duobus.spark.jobs.lake.table_options import OF_ICEBERG, format_option, place_in, table_of
from duobus.spark.jobs.progress import Tell, described, untold
from duobus.spark.jobs.staging_files import clear_staging
from duobus.spark.options import CHOICE, DURATION, SOURCE_OPTIONS, TEXT, Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NAME: Final = "capture"
CONNECTS: Final = True
HELP: Final = "Write the messages of entities to partitioned Parquet files or a table of Delta or Iceberg, each once."
EXAMPLE: Final = (
    "duobus spark capture --connection-string-env DUOBUS_CONNECTION_STRING --queue orders --path /data/orders "
    "--checkpoint /data/checkpoints/orders"
)

#: Fewer and larger files than the source's own default would make.
MESSAGES_PER_TRIGGER: Final = "50000"

#: Folders that a task writes into at the same time. Otherwise Spark sorts its rows by folder before it writes one of
#: them, though they are hardly ever of more than two hours; beyond so many it sorts the rest.
FOLDERS_AT_A_TIME: Final = 4
_FOLDERS_SETTING: Final = "spark.sql.maxConcurrentOutputFileWriters"
#: How times are written. Spark's own default has neither statistics, by which readers skip, nor a zone.
TIMES: Final = "TIMESTAMP_MICROS"
_TIMES_SETTING: Final = "spark.sql.parquet.outputTimestampType"
_TIMES_DEFAULT: Final = "INT96"

#: Of the source, what a capture hands on.
_READ: Final = (
    "queue",
    "topic",
    "subscription",
    "queues",
    "queuesPattern",
    "subscriptionsPattern",
    "subQueue",
    "maxBytesPerTrigger",
    "maxWaitTime",
    "failOnDataLoss",
    "exclusive",
    "maxSessions",
    "claimTimeout",
    "maxAttempts",
    "attemptsPath",
)
_OF_SOURCE: Final = {option.name: option for option in SOURCE_OPTIONS}

OPTIONS: Final = (
    *(_OF_SOURCE[name] for name in _READ[:7]),
    format_option(
        "parquet writes files into folders of entity, date, hour and batch_id; delta and iceberg append to a table, "
        "whose transactions keep each batch once"
    ),
    Option("path", TEXT, None, "folder to write to; with iceberg, table says where"),
    *OF_ICEBERG,
    Option("checkpoint", TEXT, None, "folder of the query's progress: the same one goes on where it ended"),
    Option(
        "readMode",
        CHOICE,
        "claim",
        "claim takes the messages out of the entity, browse copies them",
        choices=("claim", "browse"),
    ),
    Option(
        "maxMessagesPerTrigger",
        _OF_SOURCE["maxMessagesPerTrigger"].kind,
        MESSAGES_PER_TRIGGER,
        "messages of a batch at most",
        least=1,
        most=1_000_000,
    ),
    *(_OF_SOURCE[name] for name in _READ[7:]),
    Option(
        "every",
        DURATION,
        None,
        "go on for ever, with a batch in each such time; by default capture what is there now, and end",
        100,
        86_400_000,
    ),
    Option("compression", CHOICE, "zstd", "of the Parquet files", choices=("zstd", "snappy", "gzip", "none")),
)


class Target(Protocol):
    """What a capture writes to; plain values only, since Connect sends them to a server."""

    def prepare(self, spark: SparkSession) -> None:
        """Check, before anything is read, that batches can be written; JobError says why they cannot."""

    def append(self, frame: DataFrame, query: str, batch: int) -> None:
        """Write a batch; a batch that is there already stays as it is, or is replaced by the same messages."""


@described(NAME)
def run(spark: SparkSession, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Capture.

    Args:
        spark: The session.
        cfg: Settings by name: those of ``OPTIONS`` and those of the connection.
        tell: Called with the progress of the job.

    Returns:
        The summary: batches, messages, path or table.

    Raises:
        OptionError: A setting is wrong.
        JobError: The query failed; start the job again, and it continues where it ended.
    """
    settings = settings_of(cfg, OPTIONS)
    target, checkpoint = target_of(settings), needed(settings, "checkpoint")
    if str(settings["path"]).rstrip("/") == checkpoint.rstrip("/"):
        raise JobError("The options 'path' and 'checkpoint' have to be two folders.")
    summary = Summary(NAME)
    tell("starting")
    target.prepare(spark)
    try:
        query = started(spark, settings, target, checkpoint)
    except spark_errors() as error:
        raise JobError(cause_of(error)) from error
    counts = followed(query, tell)
    if settings["readMode"] == "claim":
        settle_stopped(settings, checkpoint)
    about = {"format": settings["format"], **place_in(settings)}
    return summary.done(spark, settings, **counts, **about, checkpoint=checkpoint)


def target_of(settings: Settings) -> Target:
    """What the settings say to write to.

    Raises:
        OptionError: An option is missing, or belongs to another format.
    """
    table = table_of(settings, settings["compression"])
    return ParquetFolder(settings["path"], settings["compression"]) if table is None else table


def started(spark: SparkSession, settings: Settings, target: Target, checkpoint: str) -> StreamingQuery:
    """Start the query."""
    options = connection_of(settings) | given_of(settings, _READ)
    options |= {
        "readMode": settings["readMode"],
        "maxMessagesPerTrigger": str(settings["maxMessagesPerTrigger"]),
    }
    frame = spark.readStream.format("duobus").options(**options).load()
    writer = frame.writeStream.foreachBatch(Writer(target, checkpoint))
    # Checkpoints are of one query each, so names differ as queries of a session have to.
    writer = writer.option("checkpointLocation", checkpoint).queryName(f"duobus capture {checkpoint}")
    if settings["every"] is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings['every']} milliseconds").start()


class Writer:
    """Writes a batch; plain values only, since Connect sends it to a server.

    Args:
        target: What is written to.
        checkpoint: Folder of the query's progress.
    """

    def __init__(self, target: Target, checkpoint: str) -> None:
        self._target = target
        self._checkpoint = checkpoint
        #: Read once: it takes a job of Spark, and never changes.
        self._query: str | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch; Spark calls this."""
        if self._query is None:
            self._query = query_of(frame.sparkSession, self._checkpoint)
        self._target.append(frame, self._query, batch_id)


class ParquetFolder:
    """A folder of Parquet files.

    Args:
        path: The folder.
        compression: Compression of the files.
    """

    def __init__(self, path: str, compression: str) -> None:
        self._path = path
        self._compression = compression
        self._is_cleared = False

    def prepare(self, _: SparkSession) -> None:
        """Need nothing: Spark makes the folder."""

    def append(self, frame: DataFrame, query: str, batch: int) -> None:
        """Write a batch, in the place of an earlier attempt at the batch."""
        if not self._is_cleared:
            # What was killed in the middle of a batch is followed by the same batch, so it is cleared here.
            clear_staging(self._path, short(query))
            self._is_cleared = True
        write_batch(frame, self._path, batch_name(query, batch), self._compression)


def query_of(spark: SparkSession, checkpoint: str) -> str:
    """The id of a checkpoint's query; the id stays the same over restarts."""
    import json

    row = spark.read.text(f"{checkpoint.rstrip('/')}/metadata").first()
    assert row is not None
    return str(json.loads(row.value)["id"])


def write_batch(frame: DataFrame, path: str, batch: str, compression: str) -> None:
    """Write a batch; files of an earlier attempt at the batch are replaced.

    Args:
        frame: The messages.
        path: Folder of all batches.
        batch: Name of this batch.
        compression: Compression of the files.
    """
    # Of the session of the query, a copy of the user's. Who has set it has a reason.
    if int(frame.sparkSession.conf.get(_FOLDERS_SETTING, "0") or 0) == 0:
        frame.sparkSession.conf.set(_FOLDERS_SETTING, str(FOLDERS_AT_A_TIME))
    if frame.sparkSession.conf.get(_TIMES_SETTING, _TIMES_DEFAULT) == _TIMES_DEFAULT:
        frame.sparkSession.conf.set(_TIMES_SETTING, TIMES)
    writer = placed(frame, batch).write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer = writer.option("compression", compression).partitionBy("entity", "date", "hour", "batch_id")
    with writing(path):
        writer.parquet(path)
