"""Tables of a pipeline on Spark: read as far as they are committed, written batch by batch or replaced as a whole.

Files of Parquet lie in a folder for each batch, which an attempt that is repeated writes anew. Tables of Delta and
Iceberg have the number of the batch in their own transactions, as those of a capture do.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duobus.pipeline.document.model import Form, Kind, Pipeline, Stage, Table
from duobus.pipeline.execution.errors import StageError, schema_faults
from duobus.spark.jobs.capture import query_of
from duobus.spark.jobs.lake.batch_marks import STREAM, Mark, widened
from duobus.spark.jobs.lake.captured_columns import batch_name
from duobus.spark.jobs.lake.delta_table import DeltaTable
from duobus.spark.jobs.lake.iceberg_table import IcebergTable
from duobus.spark.jobs.staging_files import STAGING
from duobus.spark.schema import DDL
from duobus.spark.source.query_end import local_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What capture adds to the columns of the source, as folders.
_CAPTURED: Final = f"{DDL}, date date, hour int, batch_id string"
#: The column of a table that a stream writes, which says of which batch a row is.
BATCH_ID: Final = "batch_id"
#: Its end in SQL: between the digits of the query and the number there may be the rest of the query's id.
_NUMBER: Final = f"right({BATCH_ID}, 8)"


def lake_of(table: Table) -> DeltaTable | IcebergTable | None:
    """A table of Delta or Iceberg; None for files of Parquet."""
    if table.form is Form.DELTA:
        return DeltaTable(table.path, table.compression, table.partition_by)
    if table.catalog is not None:
        return IcebergTable(*table.catalog, table.compression, table.partition_by)
    return None


def frame_of(
    spark: SparkSession, pipeline: Pipeline, name: str, version: Mapping[str, Any], since: Mapping[str, Any] | None
) -> DataFrame | None:
    """The rows of a table up to a version; None where it has none yet and nobody knows its columns.

    Args:
        spark: The session.
        pipeline: The document.
        name: Of the table.
        version: How far it is read.
        since: What was read before, and is left out; None to read all.

    Raises:
        StageError: No stage writes the table, and it is not there.
    """
    table = pipeline.tables[name]
    writers = [pipeline.stages[writer] for writer in pipeline.writers_of(name)]
    if not writers:
        found = _all_rows(spark, table, None)
        if found is None:
            raise StageError(f"The table {name!r} is written by no stage, and there is none yet: {table.path}.")
        return found
    if not writers[0].is_streaming:
        return _all_rows(spark, table, None) if version else None
    ddl = (
        _CAPTURED
        if writers[0].kind is Kind.CAPTURE
        else f"{table.columns}, {BATCH_ID} string"
        if table.columns
        else None
    )
    found = _all_rows(spark, table, ddl) if version else None
    if found is not None:
        return found.where(condition_of(version, since))
    return None if ddl is None else spark.createDataFrame([], ddl)


def _all_rows(spark: SparkSession, table: Table, ddl: str | None) -> DataFrame | None:
    """All rows of a table, committed by Spark or not; None where the table is not there."""
    lake = lake_of(table)
    if lake is not None:
        return lake.rows(spark)
    reader = spark.read if ddl is None else spark.read.schema(ddl)
    return reader.parquet(table.path)


def condition_of(version: Mapping[str, Any], since: Mapping[str, Any] | None) -> str:
    """The condition in SQL by which the batches of a table are read up to a version, and behind an earlier one.

    A batch under way is not in the version, so its files are left out, whole or torn. Batches of other queries, such as
    of a capture before this pipeline, are there from the beginning.
    """
    parts = []
    for query, newest in version.items():
        parts.append(f"not (startswith({BATCH_ID}, '{query}-') and {_NUMBER} > '{newest:08d}')")
    if since:
        later = (
            f"(startswith({BATCH_ID}, '{query}-') and {_NUMBER} > '{since[query]:08d}')"
            if query in since
            else f"startswith({BATCH_ID}, '{query}-')"
            for query in version
        )
        parts.append(f"({' or '.join(later)})")
    return " and ".join(parts)


def columns_for(spark: SparkSession, frame: DataFrame, stage: Stage, table: Table) -> list[str]:
    """The columns that a stage writes into a table, in the table's order.

    Raises:
        StageError: They are not those that the document declares, or that the table has.
    """
    given = [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
    wanted = _declared(spark, table) or _present(spark, table) or given
    if table.form is Form.ICEBERG:
        wanted = [(name, widened(kind)) for name, kind in wanted]
    faults = schema_faults(given, wanted, who=stage.name, table=table.name)
    missing = [name for name in table.partition_by if name not in dict(wanted)]
    faults += [
        f"The table {table.name!r} is to have folders by {name!r}, which is no column of it." for name in missing
    ]
    if faults:
        raise StageError(" ".join(faults))
    return [name for name, _ in wanted]


def _declared(spark: SparkSession, table: Table) -> list[tuple[str, str]]:
    if table.columns is None:
        return []
    try:
        fields = spark.createDataFrame([], table.columns).schema.fields
    except Exception as error:
        raise StageError(
            f"The columns of the table {table.name!r} are {table.columns!r}; they have to be names and types, with "
            "commas between them, as 'customer string, total double'."
        ) from error
    return [(field.name, field.dataType.simpleString()) for field in fields]


def _present(spark: SparkSession, table: Table) -> list[tuple[str, str]]:
    """The columns of the rows that are there; none before the first batch, or for files on another file system."""
    if (lake := lake_of(table)) is not None:
        rows = lake.rows(spark)
        fields = [] if rows is None else rows.schema.fields
        return [(field.name, field.dataType.simpleString()) for field in fields if field.name != BATCH_ID]
    folder = local_folder(table.path)
    file = next((path for path in (folder or Path("/nowhere")).rglob("*.parquet") if _is_whole(path, folder)), None)
    if file is None:
        return []
    fields = spark.read.parquet(str(file)).schema.fields
    found = [(field.name, field.dataType.simpleString()) for field in fields]
    return found if not table.partition_by else []


def _is_whole(path: Path, folder: Path | None) -> bool:
    assert folder is not None
    return not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


def clear_empty_staging(path: str) -> None:
    """Remove folders of writes that were killed before they had a file, from which nobody can tell whose they are.

    A capture removes the others itself, by the names of the batches in them.

    Args:
        path: Folder of a table that one stage alone writes, and that stage does not write now.
    """
    folder = local_folder(path)
    if folder is None or not folder.is_dir():
        return
    for place in folder.iterdir():
        is_staging = place.name.startswith(STAGING) and place.is_dir() and not place.is_symlink()
        if is_staging and not any(one.is_file() for one in place.rglob("*")):
            shutil.rmtree(place, ignore_errors=True)


class BatchWriter:
    """Writes the batches of a query.

    In files each has a folder, which an attempt before may have begun; a table of Delta or Iceberg knows what it has.
    """

    def __init__(self, table: Table, columns: list[str], checkpoint: str) -> None:
        self._table = table
        self._columns = columns
        self._checkpoint = checkpoint
        self._query: str | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Write a batch."""
        if self._query is None:
            self._query = query_of(frame.sparkSession, self._checkpoint)
        rows, lake = frame.select(*self._columns), lake_of(self._table)
        if lake is None:
            write(rows, self._table, f"{self._table.path.rstrip('/')}/{BATCH_ID}={self._query}-{number:08d}")
        else:
            rows = rows.selectExpr("*", f"'{batch_name(self._query, number)}' as {BATCH_ID}")
            lake.put(rows, Mark(STREAM, self._query, number))


def write(frame: DataFrame, table: Table, place: str) -> None:
    """Write rows as the files of a folder, in place of what is there."""
    writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "static")
    writer = writer.option("compression", table.compression)
    if table.partition_by:
        writer = writer.partitionBy(*table.partition_by)
    writer.parquet(place)


def replace(frame: DataFrame, table: Table, about: Mapping[str, str]) -> int:
    """Replace all rows of a table; readers have the old ones until the new ones are complete.

    Args:
        frame: The new rows.
        table: The table.
        about: What the history of a table of Delta or Iceberg tells of the run.

    Returns:
        The number of rows.
    """
    if (lake := lake_of(table)) is not None:
        return lake.replace(frame, about)
    folder = local_folder(table.path)
    if folder is None:
        write(frame, table, table.path)
        return int(frame.sparkSession.read.parquet(table.path).count())
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (folder.with_name(f".{folder.name}.{end}") for end in ("next", "old"))
    write(frame, table, str(fresh))
    rows = int(frame.sparkSession.read.schema(frame.schema).parquet(str(fresh)).count())
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return rows
