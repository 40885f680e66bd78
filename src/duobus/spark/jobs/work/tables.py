"""Tables of metering: the columns of compacted records and of usage, and how a folder of either is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duobus.spark.errors import OptionError
from duobus.spark.jobs.job import cause_of, spark_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

#: A metering record as the broker writes it (model.metering.MeteringRecord).
RECORD: Final = (
    ("server", "string"),
    ("number", "bigint"),
    ("minute_ms", "bigint"),
    ("namespace", "string"),
    ("entity", "string"),
    ("kind", "string"),
    ("messages", "bigint"),
    ("bytes", "bigint"),
    ("operations", "bigint"),
    ("key", "string"),
)
RECORD_DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in RECORD)
#: Compacted: by UTC day of the minute.
COMPACTED_DDL: Final = RECORD_DDL + ", `day` string"

#: What the usage job gives. ``source`` tells from which files and prices a day was computed.
USAGE_DDL: Final = (
    "`namespace` string, `entity` string, `hour` timestamp, `op` string, `key` string, `operations` bigint, "
    "`messages` bigint, `bytes` bigint, `cost` decimal(18,9), `source` string, `day` string"
)

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
#: UTC whatever the time zone of the session: a string made by arithmetic.
DAY_SQL: Final = f"string(date_add(date'1970-01-01', int(minute_ms div {DAY_MS})))"
HOUR_NO_SQL: Final = f"minute_ms div {HOUR_MS}"
HOUR_SQL: Final = "timestamp_seconds(hour_no * 3600)"
DAY_OF_HOUR_SQL: Final = "string(date_add(date'1970-01-01', int(hour_no div 24)))"


def read_table(spark: SparkSession, path: str, ddl: str) -> DataFrame | None:
    """Return the Parquet table in a folder, or None when there is none yet.

    Raises:
        OptionError: There is something else.
    """
    try:
        # Spark Connect looks at the path when it is asked for the columns, and not before.
        found = dict(spark.read.option("mergeSchema", "false").parquet(path).dtypes)
    except spark_errors() as error:
        if is_missing(error):
            return None
        raise OptionError(f"'{path}' holds no Parquet that can be read: {cause_of(error)}") from error
    demand_columns(found, ddl, path)
    return spark.read.schema(ddl).parquet(path)


def is_missing(error: Any) -> bool:
    """Whether Spark says that a path does not exist, or has nothing to take a schema from."""
    return hasattr(error, "getCondition") and error.getCondition() in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


def demand_columns(present: Mapping[str, str], ddl: str, path: str) -> None:
    """Refuse a table that lacks columns or has them in other types.

    Raises:
        OptionError: It does; the text names the folder and the columns.
    """
    wrong: list[str] = []
    for column in dict.fromkeys(ddl.replace("`", "").split(", ")):
        name, _, kind = column.partition(" ")
        # A folder such as day=2026-11-21 is read as a date.
        if name != "day" and present.get(name) != kind:
            wrong.append(f"{name} ({present.get(name, 'missing')}, not {kind})")
    if wrong:
        raise OptionError(f"'{path}' is another table than expected: {', '.join(wrong)}.")
