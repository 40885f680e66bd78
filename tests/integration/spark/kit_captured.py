"""A folder as the job capture writes it, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from duobus.spark.schema import COLUMNS, DDL

START = datetime(2026, 11, 20, 8, tzinfo=UTC)


def row(number: int, **members: Any) -> dict[str, Any]:
    """A captured message; ``number`` is in its sequence number, its body and its time."""
    found: dict[str, Any] = dict.fromkeys(name for name, _ in COLUMNS)
    return {
        **found,
        "body": f"{number}".encode(),
        "body_type": "data",
        "message_id": f"m{number}",
        "sequence_number": number,
        "enqueued_time": START + timedelta(minutes=number),
        "delivery_count": 0,
        "state": "active",
        "application_properties": {},
        "application_property_types": {},
        "namespace": "bus",
        "entity": "orders",
        "fragment": 0,
        **members,
    }


def write_captured(spark: Any, folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as capture does."""
    spark.createDataFrame(rows, DDL).selectExpr(
        "*", "date(enqueued_time) as date", "hour(enqueued_time) as hour", "'q-00000000' as batch_id"
    ).coalesce(1).write.partitionBy("entity", "date", "hour", "batch_id").mode("append").parquet(str(folder))
