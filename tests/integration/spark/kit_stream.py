"""The reader of a stream, called as Spark calls it but without a JVM."""

from __future__ import annotations

import json
import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructType,  # type: ignore[attr-defined]
)
from spark_bus import Bus

from duobus.spark.data_source import DuobusDataSource

SCHEMA = StructType().add("sequence_number", LongType()).add("body", BinaryType()).add("entity", StringType())


class Stream:
    """One run of a query: the source runner's reader, and copies of it in tasks."""

    def __init__(self, bus: Bus, schema: Any = SCHEMA, **options: str) -> None:
        given = {**bus.options, "maxWaitTime": "300ms", **options}
        self.reader: Any = DuobusDataSource(given).streamReader(schema)
        self.start = self.reader.initialOffset()

    def claim(self, limit: int = 1000) -> Any:
        return json.loads(json.dumps(self.reader.latestOffset(self.start, ReadMaxRows(limit))))

    def rows(self, end: Any) -> list[Any]:
        task = pickle.loads(pickle.dumps(self.reader))
        return [
            row
            for part in self.reader.partitions(self.start, end)
            for batch in task.read(pickle.loads(pickle.dumps(part)))
            for row in batch.to_pylist()
        ]

    def batch(self, limit: int = 1000) -> list[bytes]:
        end = self.claim(limit)
        found = [row["body"] for row in self.rows(end)]
        self.start = end
        return found

    def stop(self) -> None:
        self.reader.stop()
