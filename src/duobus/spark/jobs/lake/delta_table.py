"""A Delta table that is appended to batch by batch, or replaced as a whole: the table itself keeps each batch once.

A commit of Delta can name an application and the version that the application has reached. The application is the
query that appends and the version is the number of the batch, so a batch whose commit is in the table is not written
again, whatever became of the driver after it. Where the session has Delta's own classes, tasks write the files and
Spark makes the commit; elsewhere the library ``deltalake`` writes what the driver has collected of a batch. Both keep
the same two values in the same place, so a query may change from one to the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from duobus.spark.jobs.job import JobError
from duobus.spark.jobs.lake.batch_marks import CAPTURE, Mark, collected
from duobus.spark.jobs.lake.captured_columns import batch_name, in_order, placed
from duobus.spark.source.query_end import local_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = ("entity", "date")
#: Setting of a session, and what it names where Delta's classes are there.
EXTENSIONS: Final = "spark.sql.extensions"
OF_DELTA: Final = "DeltaSparkSessionExtension"
#: What a table may ask of its readers so that its files alone say what its rows are.
_PLAIN_FEATURES: Final = frozenset({"timestampNtz"})
#: The version of readers with which columns may have other names in the files; later ones list what they need.
_NAMED_COLUMNS: Final = 2
#: The folder that makes a folder a Delta table.
LOG: Final = "_delta_log"


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """The table; plain values only, since Connect sends them to a server.

    Attributes:
        path: Folder of the table.
        compression: Compression of its files.
        partitions: Columns that become folders.
    """

    path: str
    compression: str
    partitions: tuple[str, ...] = PARTITIONS

    def __str__(self) -> str:
        return f"The Delta table {self.path}"

    def prepare(self, spark: SparkSession) -> None:
        """Check that the table can be written to.

        Raises:
            JobError: Neither the session nor Python can write a Delta table.
        """
        if not has_delta(spark) and find_spec("deltalake") is None:
            raise JobError(
                "A Delta table needs Delta's JARs and spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension in "
                "the session, or the library of the extra: pip install 'duobus[delta]'."
            )

    def append(self, frame: DataFrame, query: str, batch: int) -> None:
        """Append a batch of captured messages, unless the table has the batch.

        Args:
            frame: The messages.
            query: Id of the query; it stays the same over restarts.
            batch: Number of the batch.
        """
        self.put(in_order(placed(frame, batch_name(query, batch))), Mark(CAPTURE, query, batch))

    def put(self, frame: DataFrame, mark: Mark) -> None:
        """Append rows, unless the table has the batch.

        Args:
            frame: The rows.
            mark: Of the batch.
        """
        if has_delta(frame.sparkSession):
            writer = self._writer(frame, "append", mark.about)
            writer.option("txnAppId", mark.application).option("txnVersion", str(mark.batch)).save(self.path)
            return
        import deltalake

        if deltalake.DeltaTable.is_deltatable(self.path):
            reached = deltalake.DeltaTable(self.path).transaction_version(mark.application)
            if reached is not None and reached >= mark.batch:
                return
        rows = collected(frame)
        if rows.num_rows:
            self._write(rows, "append", mark.about, [deltalake.Transaction(mark.application, mark.batch)])

    def replace(self, frame: DataFrame, about: Mapping[str, str]) -> int:
        """Replace all rows in one commit; readers have the old ones or the new ones.

        Args:
            frame: The new rows.
            about: What the history of the table tells of the commit.

        Returns:
            The number of rows.
        """
        if has_delta(frame.sparkSession):
            # Whatever the session says of folders: all rows go.
            self._writer(frame, "overwrite", about).option("partitionOverwriteMode", "static").save(self.path)
            return int(frame.sparkSession.read.format("delta").load(self.path).count())
        rows = collected(frame)
        self._write(rows, "overwrite", about, [])
        return int(rows.num_rows)

    def rows(self, spark: SparkSession) -> DataFrame | None:
        """The rows of the newest commit; None where there is no table yet.

        Raises:
            JobError: The files of the table do not say alone what its rows are, and the session has no Delta.
        """
        self.prepare(spark)
        if has_delta(spark):
            return self._read(spark)
        import deltalake

        if not deltalake.DeltaTable.is_deltatable(self.path):
            return None
        return _of_files(spark, deltalake.DeltaTable(self.path), self.path)

    def _read(self, spark: SparkSession) -> DataFrame | None:
        from pyspark.errors import AnalysisException

        folder = local_folder(self.path)
        if folder is not None and not (folder / LOG).is_dir():
            return None
        try:
            return spark.read.format("delta").load(self.path)
        except AnalysisException as error:
            if folder is None and "DELTA" in str(error.getCondition()):
                return None  # On another file system only Delta itself can tell.
            raise

    def _writer(self, frame: DataFrame, mode: str, about: Mapping[str, str]) -> Any:
        writer: Any = frame.write.format("delta").mode(mode).partitionBy(*self.partitions)
        return writer.option("userMetadata", json.dumps(dict(about))).option("compression", self.compression)

    def _write(self, rows: Any, mode: Any, about: Mapping[str, str], transactions: list[Any]) -> None:
        import deltalake

        codec: Any = {"none": "UNCOMPRESSED"}.get(self.compression, self.compression.upper())
        deltalake.write_deltalake(
            self.path,
            rows,
            mode=mode,
            partition_by=list(self.partitions),
            writer_properties=deltalake.WriterProperties(compression=codec),
            commit_properties=deltalake.CommitProperties(custom_metadata=dict(about), app_transactions=transactions),
        )


def has_delta(spark: SparkSession) -> bool:
    """Whether a session has Delta's own classes."""
    return OF_DELTA in str(spark.conf.get(EXTENSIONS, ""))


def _of_files(spark: SparkSession, table: Any, path: str) -> DataFrame:
    """The rows of a table whose files Spark reads without Delta, each with the columns that its folders say.

    Raises:
        JobError: The table is one of those that need Delta.
    """
    from pyspark.sql.types import StructType, TimestampType

    protocol, files = table.protocol(), table.file_uris()
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    folders = table.metadata().partition_columns
    needs = sorted(set(protocol.reader_features or ()) - _PLAIN_FEATURES)
    if protocol.min_reader_version == _NAMED_COLUMNS:
        needs.append("columnMapping")
    times = [name for name in folders if isinstance(schema[name].dataType, TimestampType)]
    if times:
        needs.append(f"times as names of folders ({', '.join(times)})")
    if not needs and any(f"/{name}=" not in file for file in files for name in folders):
        needs.append("folders that do not say their columns")
    if needs:
        raise JobError(
            f"The Delta table {path} has {', '.join(needs)}, which only Delta's JARs read: give the session "
            "spark.jars and spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension."
        )
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", path).parquet(*files)
