"""An Iceberg table, written by the library ``pyiceberg``: the table keeps each batch once.

One transaction appends the rows and sets a property of the table, which is named after the query that appends and
holds the number of the batch. Before a batch is written its number is looked up there, so a batch whose commit is in
the table is not written again, whatever became of the driver after it. The summary of the snapshot has query and batch
as well, for people; it does not decide, because snapshots expire and properties stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from duobus.spark.jobs.job import JobError
from duobus.spark.jobs.lake.batch_marks import CAPTURE, Mark, collected
from duobus.spark.jobs.lake.captured_columns import batch_name, in_order, placed, table_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame, SparkSession

#: The table is partitioned by these columns as they are: no library but this one and pyarrow is needed for that.
PARTITIONS: Final = ("entity", "date")
#: Times that a commit is tried while other writers commit to the same table.
TRIES_MAX: Final = 10
#: An address of a catalog in a file of SQLite.
SQLITE: Final = "sqlite:///"
#: Two stages of a process that open a catalog for the first time would both make its tables.
_OPENING: Final = Lock()


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """The table; plain values only, since Connect sends them to a server.

    Attributes:
        table: Name of the table, with its namespace.
        catalog: Name of the catalog in the configuration of pyiceberg.
        uri: Address of the catalog; None: as the configuration says.
        warehouse: Place of tables; None: as the configuration says.
        compression: Compression of the files.
        partitions: Columns by which a new table is partitioned.
    """

    table: str
    catalog: str
    uri: str | None
    warehouse: str | None
    compression: str
    partitions: tuple[str, ...] = PARTITIONS

    def __str__(self) -> str:
        return f"The Iceberg table '{self.table}'"

    def prepare(self, _: SparkSession) -> None:
        """Make the table of captured messages if there is none yet.

        Raises:
            JobError: The library is missing, the catalog does not answer, or the table has other columns.
        """
        made = self._asked(lambda: self._made(table_schema()))
        missing = [name for name in table_schema().names if name not in _names_of(made)]
        if missing:
            raise JobError(f"The table '{self.table}' is another one than a capture makes: no {', '.join(missing)}.")

    def append(self, frame: DataFrame, query: str, batch: int) -> None:
        """Append a batch of captured messages, unless the table has the batch.

        Args:
            frame: The messages.
            query: Id of the query; it stays the same over restarts.
            batch: Number of the batch.
        """
        self.put(in_order(placed(frame, batch_name(query, batch))), Mark(CAPTURE, query, batch))

    def put(self, frame: DataFrame, mark: Mark) -> None:
        """Append rows, unless the table has the batch; the table is made if there is none yet.

        Args:
            frame: The rows.
            mark: Of the batch.
        """
        table = self._asked(self.present)
        if table is not None and has_batch(table, mark):
            return
        rows = collected(frame)
        if not rows.num_rows:
            return

        def work(_: Table, transaction: Transaction) -> None:
            transaction.append(rows, snapshot_properties=mark.about)
            transaction.set_properties({mark.key: str(mark.batch)})

        self._committed(table or self._asked(lambda: self._made(rows.schema)), work, lambda now: has_batch(now, mark))

    def replace(self, frame: DataFrame, about: Mapping[str, str]) -> int:
        """Replace all rows in one transaction; readers have the old ones or the new ones.

        Args:
            frame: The new rows.
            about: What the history of the table tells of the commit.

        Returns:
            The number of rows.
        """
        rows = collected(frame)
        table = self._asked(lambda: self._made(rows.schema))

        def work(now: Table, transaction: Transaction) -> None:
            # Without a file there is nothing to delete, of which the library would warn.
            (transaction.overwrite if _has_files(now) else transaction.append)(rows, snapshot_properties=dict(about))

        # Written again it has the same rows, so that a commit whose end nobody knows is tried again.
        self._committed(table, work, lambda _: False)
        return int(rows.num_rows)

    def rows(self, spark: SparkSession) -> DataFrame | None:
        """The rows of the newest snapshot; None where there is no table yet, or one that never had a row.

        Raises:
            JobError: The files of the table do not say alone what its rows are.
        """
        table = self._asked(self.present)
        if table is None:
            return None
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks) or len({_columns_of(one) for one in table.schemas().values()}) > 1:
            raise JobError(
                f"The Iceberg table '{self.table}' has files of deleted rows or columns that were changed, which only "
                "Iceberg's own runtime for Spark reads: compact it with that (rewrite_data_files), or read it there."
            )
        if not tasks:
            return None
        # Folders have names of their own, and the files have all columns.
        reader = spark.read.option("recursiveFileLookup", "true")
        return reader.parquet(*(task.file.file_path for task in tasks)).select(
            *(f"`{name}`" for name in _names_of(table))
        )

    def present(self) -> Table | None:
        """The table as the catalog has it now; None without one."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._catalog().load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _committed(
        self, table: Table, work: Callable[[Table, Transaction], None], is_done: Callable[[Table], bool]
    ) -> None:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        for tries_left in reversed(range(TRIES_MAX)):
            try:
                with table.transaction() as transaction:
                    work(table, transaction)
            except (CommitFailedException, CommitStateUnknownException):
                # Another writer was first, or nobody knows whether this commit is in the table: the table tells.
                table = self._catalog().load_table(self.table)
                if is_done(table):
                    return
                if not tries_left:
                    raise
            else:
                return

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """What a catalog answers.

        Raises:
            JobError: The library is missing, or the catalog does not answer.
        """
        if find_spec("pyiceberg") is None:
            raise JobError("An Iceberg table needs the library of the extra: pip install 'duobus[iceberg]'.")
        try:
            # A catalog is one of many programs, each with errors of its own.
            return ask()
        except Exception as error:
            text = (str(error).splitlines() or [type(error).__name__])[0]
            raise JobError(f"The catalog '{self.catalog}' of Iceberg gives no table '{self.table}': {text}") from error

    def _catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        given: dict[str, Any] = {"uri": self.uri, "warehouse": self.warehouse}
        with _OPENING:
            if self.uri is not None and self.uri.startswith(SQLITE):
                Path(self.uri.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
            return load_catalog(self.catalog, **{name: value for name, value in given.items() if value is not None})

    def _made(self, schema: pa.Schema) -> Table:
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.transforms import IdentityTransform

        catalog = self._catalog()
        if not catalog.table_exists(self.table):
            catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
            codec = {"none": "uncompressed"}.get(self.compression, self.compression)
            properties = {"write.parquet.compression-codec": codec}
            try:
                with (
                    catalog.create_table_transaction(self.table, schema, properties=properties) as making,
                    making.update_spec() as spec,
                ):
                    for column in self.partitions:
                        spec.add_field(column, IdentityTransform(), f"{column}_is")
            except TableAlreadyExistsError:
                pass  # Another writer was first.
        return catalog.load_table(self.table)


def has_batch(table: Table, mark: Mark) -> bool:
    """Whether a table has a batch of a query, or a later one."""
    return int(table.properties.get(mark.key, -1)) >= mark.batch


def _names_of(table: Table) -> list[str]:
    """Names of the columns, without those of fields inside of them."""
    return [field.name for field in table.schema().fields]


def _has_files(table: Table) -> bool:
    snapshot = table.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    return summary is not None and summary.additional_properties.get("total-data-files") != "0"


def _columns_of(schema: Any) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, str(field.field_type)) for field in schema.fields)
