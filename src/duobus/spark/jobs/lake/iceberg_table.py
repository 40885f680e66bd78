"""An Iceberg table as the target of a capture, written by the library ``pyiceberg``: the table keeps each batch once.

One transaction appends the messages and sets a property of the table, which is named after the query of the capture
and holds the number of the batch. Before a batch is written its number is looked up there, so a batch whose commit is
in the table is not written again, whatever became of the driver after it. The summary of the snapshot has query and
batch as well, for people; it does not decide, because snapshots expire and properties stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from duobus.spark.jobs.job import JobError
from duobus.spark.jobs.lake.captured_columns import batch_name, collected, placed, table_schema

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

#: The table is partitioned by these columns as they are: no library but this one and pyarrow is needed for that.
PARTITIONS: Final = ("entity", "date")
#: Before the id of a query, in the name of the property that holds the query's last batch.
BATCH_OF: Final = "duobus.capture."
#: Times that a commit is tried while other writers commit to the same table.
TRIES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """The table; plain values only, since Connect sends them to a server.

    Attributes:
        table: Name of the table, with its namespace.
        catalog: Name of the catalog in the configuration of pyiceberg.
        uri: Address of the catalog; None: as the configuration says.
        warehouse: Place of tables; None: as the configuration says.
        compression: Compression of the files.
    """

    table: str
    catalog: str
    uri: str | None
    warehouse: str | None
    compression: str

    def prepare(self, _: SparkSession) -> None:
        """Make the table if there is none yet.

        Raises:
            JobError: The library is missing, the catalog does not answer, or the table has other columns.
        """
        if find_spec("pyiceberg") is None:
            raise JobError("An Iceberg table needs the library of the extra: pip install 'duobus[iceberg]'.")
        try:
            # A catalog is one of many programs, each with errors of its own.
            made = self._made()
        except Exception as error:
            text = (str(error).splitlines() or [type(error).__name__])[0]
            raise JobError(f"The catalog '{self.catalog}' of Iceberg gives no table '{self.table}': {text}") from error
        missing = [name for name in table_schema().names if name not in made.schema().column_names]
        if missing:
            raise JobError(f"The table '{self.table}' is another one than a capture makes: no {', '.join(missing)}.")

    def append(self, frame: DataFrame, query: str, batch: int) -> None:
        """Append a batch, unless the table has the batch.

        Args:
            frame: The messages.
            query: Id of the query; it stays the same over restarts.
            batch: Number of the batch.
        """
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        table = self._catalog().load_table(self.table)
        if has_batch(table, query, batch):
            return
        messages = collected(placed(frame, batch_name(query, batch)))
        if not messages.num_rows:
            return
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                with table.transaction() as transaction:
                    told = {"duobus.query": query, "duobus.batch": str(batch)}
                    transaction.append(messages, snapshot_properties=told)
                    transaction.set_properties({f"{BATCH_OF}{query}": str(batch)})
            except (CommitFailedException, CommitStateUnknownException):
                # Another writer was first, or nobody knows whether this commit is in the table: the table tells.
                table = self._catalog().load_table(self.table)
                if has_batch(table, query, batch):
                    return
                if not tries_left:
                    raise
            else:
                return

    def _catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        given: dict[str, Any] = {"uri": self.uri, "warehouse": self.warehouse}
        return load_catalog(self.catalog, **{name: value for name, value in given.items() if value is not None})

    def _made(self) -> Table:
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.transforms import IdentityTransform

        catalog = self._catalog()
        if not catalog.table_exists(self.table):
            catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
            codec = {"none": "uncompressed"}.get(self.compression, self.compression)
            properties = {"write.parquet.compression-codec": codec}
            try:
                with (
                    catalog.create_table_transaction(self.table, table_schema(), properties=properties) as making,
                    making.update_spec() as spec,
                ):
                    for column in PARTITIONS:
                        spec.add_field(column, IdentityTransform(), f"{column}_is")
            except TableAlreadyExistsError:
                pass  # Another capture was first.
        return catalog.load_table(self.table)


def has_batch(table: Table, query: str, batch: int) -> bool:
    """Whether a table has the batch of a query, or a later one."""
    return int(table.properties.get(f"{BATCH_OF}{query}", -1)) >= batch
