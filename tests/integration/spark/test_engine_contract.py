"""What the claim protocol leans on in Spark's engine; an upgrade may change it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

pytestmark = pytest.mark.slow


def logging_source(log: str) -> Any:
    """A source that writes each call of Spark into a file. Defined in a function, so that it travels by value."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def told(self, *what: Any) -> None:
            with Path(log).open("a") as file:
                file.write(json.dumps(what) + "\n")

        def prepareForTriggerAvailableNow(self) -> None:
            self.told("prepare")

        def getDefaultReadLimit(self) -> Any:
            return ReadMaxRows(1)

        def initialOffset(self) -> Any:
            return {"n": 0, "z": [1, 2]}

        def latestOffset(self, start: Any, limit: Any) -> Any:
            self.told("latest", start)
            return start if start["n"] >= 3 else {"n": start["n"] + 1, "z": [1, 2]}

        def partitions(self, start: Any, end: Any) -> Any:
            self.told("partitions", start, end)
            return [InputPartition(end["n"])]

        def read(self, partition: Any) -> Any:
            return iter([(partition.value,)])

        def commit(self, end: Any) -> None:
            self.told("commit", end)

        def stop(self) -> None:
            self.told("stop")

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "calls"

        def schema(self) -> str:
            return "n int"

        def streamReader(self, schema: Any) -> Any:
            return Reader()

    return Source


def test_the_engine_calls_as_the_protocol_expects(spark: Any, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    spark.dataSource.register(logging_source(str(log)))
    df = spark.readStream.format("calls").load()
    fails = [1]

    def write(batch: Any, number: int) -> None:
        batch.collect()
        if number in fails:
            fails.remove(number)
            raise RuntimeError("broke")

    def run() -> list[list[Any]]:
        before = len(log.read_text().splitlines()) if log.exists() else 0
        query = (
            df.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            with suppress(StreamingQueryException):
                query.awaitTermination(60)
        finally:
            query.stop()
        return [json.loads(line) for line in log.read_text().splitlines()[before:]]

    def offset(n: int) -> dict[str, Any]:
        return {"n": n, "z": [1, 2]}

    first = run()
    # A batch is committed while the next one is made, and the one that failed is not.
    assert first == [
        ["prepare"],
        ["latest", offset(0)],
        ["partitions", offset(0), offset(1)],
        ["latest", offset(1)],
        ["commit", offset(1)],
        ["partitions", offset(1), offset(2)],
    ]
    second = run()
    # It replays with the same offsets before anything else is asked for.
    assert second[:3] == [["prepare"], ["partitions", offset(1), offset(2)], ["latest", offset(2)]]
    # The last batch is never committed, and nobody is told to stop.
    assert ["commit", offset(3)] not in second
    assert not any(call[0] == "stop" for call in first + second)
    third = run()
    # Offsets are the same as text: lists and order survive the checkpoint, so nothing new is seen.
    assert third == [["prepare"], ["latest", offset(3)]]
