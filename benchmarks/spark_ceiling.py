"""A source that costs nothing but what Spark itself costs: the ceiling that others are compared with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

BATCH = 1_000
#: Seven columns, one of them a map: a wide row.
DDL = (
    "body binary, message_id string, sequence_number bigint, enqueued_time timestamp, delivery_count int, "
    "entity string, application_properties map<string,string>"
)


class Ceiling(DataSource):
    """Rows with random bodies of 1 KiB, as Arrow batches; options ``rows`` and ``tasks``."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(schema, int(self.options["rows"]), int(self.options["tasks"]))


class _Reader(DataSourceReader):
    def __init__(self, schema: Any, rows: int, tasks: int) -> None:
        self.schema, self.rows, self.tasks = schema, rows, tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from datetime import UTC, datetime

        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schema, timezone="UTC")
        now = datetime.now(UTC)
        for first in range(0, self.rows // self.tasks, BATCH):
            numbers = list(range(first, first + BATCH))
            random = os.urandom(BATCH * 1024)
            columns = {
                "body": [random[number * 1024 : number * 1024 + 1024] for number in range(BATCH)],
                "message_id": [f"message-{number}" for number in numbers],
                "sequence_number": numbers,
                "enqueued_time": [now] * BATCH,
                "delivery_count": [0] * BATCH,
                "entity": ["orders"] * BATCH,
                "application_properties": [[("sender", "bench")]] * BATCH,
            }
            yield pyarrow.RecordBatch.from_pydict(columns, schema=schema)
