"""The columns of captured messages: those of a message, and its date, its hour and its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duobus.spark.schema import NAMES, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Columns that a capture adds to those of a message.
PLACES: Final = ("date", "hour", "batch_id")


def short(query: str) -> str:
    """The first digits of the id of a query, which stand in the names of its batches."""
    return query[:8]


def batch_name(query: str, batch: int) -> str:
    """The name of a batch, in the column ``batch_id``.

    Args:
        query: Id of the query.
        batch: Number of the batch.
    """
    return f"{short(query)}-{batch:08d}"


def placed(frame: DataFrame, batch: str) -> DataFrame:
    """Messages with their date and hour, in UTC whatever the time zone of the session, and with the name of a batch."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    return frame.withColumns(
        {
            "date": F.expr("date_add(date'1970-01-01', int(floor(unix_seconds(enqueued_time) / 86400)))"),
            "hour": F.floor(F.pmod(F.unix_seconds("enqueued_time"), F.lit(86_400)) / 3_600).cast("int"),
            "batch_id": F.lit(batch),
        }
    )


def table_schema() -> pa.Schema:
    """The columns of a captured message as types of Arrow."""
    import pyarrow as pa

    schema = arrow_schema()
    for name, kind in zip(PLACES, (pa.date32(), pa.int32(), pa.string()), strict=True):
        schema = schema.append(pa.field(name, kind))
    return schema


def in_order(frame: DataFrame) -> DataFrame:
    """The columns of a captured message in their order."""
    return frame.select(*NAMES, *PLACES)
