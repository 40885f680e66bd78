"""A Delta table as the target of a capture: the table itself keeps each batch once.

A commit of Delta can name an application and the version that the application has reached. The application is the
query of the capture and the version is the number of the batch, so a batch whose commit is in the table is not written
again, whatever became of the driver after it. Where the session has Delta's own classes, tasks write the files and
Spark makes the commit; elsewhere the library ``deltalake`` writes what the driver has collected of a batch. Both keep
the same two values in the same place, so a capture may change from one to the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from duobus.spark.jobs.job import JobError
from duobus.spark.jobs.lake.captured_columns import batch_name, collected, placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = ("entity", "date")
#: Setting of a session, and what it names where Delta's classes are there.
_EXTENSIONS: Final = "spark.sql.extensions"
_OF_DELTA: Final = "DeltaSparkSessionExtension"


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """The table; plain values only, since Connect sends them to a server.

    Attributes:
        path: Folder of the table.
        compression: Compression of its files.
    """

    path: str
    compression: str

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
        """Append a batch, unless the table has the batch.

        Args:
            frame: The messages.
            query: Id of the query; it stays the same over restarts.
            batch: Number of the batch.
        """
        if has_delta(frame.sparkSession):
            writer = (
                placed(frame, batch_name(query, batch)).write.format("delta").mode("append").partitionBy(*PARTITIONS)
            )
            writer = writer.option("txnAppId", application_of(query)).option("txnVersion", str(batch))
            writer = writer.option("userMetadata", json.dumps({"duobus.query": query, "duobus.batch": batch}))
            writer.option("compression", self.compression).save(self.path)
        else:
            self._append_collected(frame, query, batch)

    def _append_collected(self, frame: DataFrame, query: str, batch: int) -> None:
        import deltalake

        application = application_of(query)
        if deltalake.DeltaTable.is_deltatable(self.path):
            reached = deltalake.DeltaTable(self.path).transaction_version(application)
            if reached is not None and reached >= batch:
                return
        messages: Any = collected(placed(frame, batch_name(query, batch)))
        if not messages.num_rows:
            return
        codec: Any = {"none": "UNCOMPRESSED"}.get(self.compression, self.compression.upper())
        deltalake.write_deltalake(
            self.path,
            messages,
            mode="append",
            partition_by=list(PARTITIONS),
            writer_properties=deltalake.WriterProperties(compression=codec),
            commit_properties=deltalake.CommitProperties(
                custom_metadata={"duobus.query": query, "duobus.batch": str(batch)},
                app_transactions=[deltalake.Transaction(application, batch)],
            ),
        )


def application_of(query: str) -> str:
    """The application by which a table knows the capture."""
    return f"duobus-capture-{query}"


def has_delta(spark: SparkSession) -> bool:
    """Whether a session has Delta's own classes."""
    return _OF_DELTA in str(spark.conf.get(_EXTENSIONS, ""))
