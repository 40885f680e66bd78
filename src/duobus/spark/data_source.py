"""The format ``duobus``: which reader or writer serves which request. The module imports nothing heavy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from duobus.spark.schema import DDL

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DuobusDataSource(DataSource):
    """Entities of a namespace as tables and streams; the options are in ``docs/reference/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "duobus"

    def schema(self) -> str:
        """The columns, unless the user gave a schema. ``load`` calls this method, so it checks the options as well."""
        from duobus.spark.source.settings import check_early

        check_early(dict(self.options))
        return DDL

    def reader(self, schema: StructType) -> Any:
        """A reader of a batch."""
        return self._made("source.range_reader", "batch_reader", schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        """A reader of a stream: ``readMode`` says which."""
        return self._made("source.claim_stream", "stream_reader", schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """A writer of a batch."""
        return self._made("sink.writer", "batch_writer", schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """A writer of a stream."""
        return self._made("sink.writer", "stream_writer", schema, overwrite)

    def _made(self, module: str, function: str, *arguments: Any) -> Any:
        """Call a function of a module of this package, which is loaded now, with the options and the arguments."""
        return getattr(import_module(f"duobus.spark.{module}"), function)(dict(self.options), *arguments)
