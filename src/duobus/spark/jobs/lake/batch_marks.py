"""What a table of Delta or Iceberg keeps in its metadata of whoever appends to it: the writer, and its last batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Kinds of writers: the job, and a stage of a pipeline that reads messages through views.
CAPTURE: Final = "capture"
STREAM: Final = "stream"


@dataclass(frozen=True, slots=True)
class Mark:
    """A batch of a query, as the metadata of a table has it.

    Attributes:
        writer: ``CAPTURE`` or ``STREAM``.
        query: Id of the query; it stays the same over restarts.
        batch: Number of the batch.
    """

    writer: str
    query: str
    batch: int

    @property
    def application(self) -> str:
        """The application by which a Delta table knows the query."""
        return f"duobus-{self.writer}-{self.query}"

    @property
    def key(self) -> str:
        """The property of an Iceberg table that holds the number of the query's last batch."""
        return f"duobus.{self.writer}.{self.query}"

    @property
    def about(self) -> dict[str, str]:
        """What the history of a table tells people; it decides nothing."""
        return {"duobus.query": self.query, "duobus.batch": str(self.batch)}


def collected(frame: DataFrame) -> pa.Table:
    """Return the rows of a frame on the driver, with times in UTC and each column optional, as tables have them.

    The limits of a batch bound how many rows there are, and ``spark.driver.maxResultSize`` bounds those of a report.
    """
    import pyarrow as pa

    rows: Any = frame.toArrow()
    # Spark gives times in the zone of the session.
    return rows.cast(pa.schema([_plain(field) for field in rows.schema]))


def _plain(field: pa.Field) -> pa.Field:
    import pyarrow as pa

    return pa.field(field.name, _plain_type(field.type), nullable=True)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    types = pa.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([_plain(field) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    return kind


#: Types of Spark that an Iceberg table has as a wider one.
_NARROW: Final = re.compile(r"\b(?:tinyint|smallint)\b(?=$|[,>])")


def widened(kind: str) -> str:
    """The type of Spark that a column of an Iceberg table has, in place of one that Iceberg does not know."""
    return _NARROW.sub("int", kind)
