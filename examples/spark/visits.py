"""Join the clicks of each visitor into visits, which end after half an hour without a click (transformWithState).

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/spark/visits.py queue.1 /data/visits /data/checkpoints/visits

A body is an object like ``{"visitor": "v1", "at": "2026-11-20T08:00:00Z"}``. State needs Spark's RocksDB store, and
protobuf where the executors run.
"""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json, unix_millis
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

PLACE = {"connectionStringEnv": "SERVICEBUS_CONNECTION_STRING"}
PAUSE_MS = 30 * 60 * 1000
VISIT = "visitor string, began timestamp, ended timestamp, clicks bigint"
STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Visits(StatefulProcessor):
    """The visit that a visitor is at: first and last click in milliseconds, and the count of clicks."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._handle = handle
        self._visit = handle.getValueState("visit", "began bigint, ended bigint, clicks bigint")

    def handleInputRows(  # noqa: N802 - Spark's names, which it calls by
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Add clicks to the visit; one that comes after the pause begins the next visit."""
        times = sorted(int(moment) for frame in rows for moment in frame["at_ms"])
        found = self._visit.get()
        visit = None if found is None else [int(number) for number in found]
        for time in times:
            if visit is not None and time - visit[1] > PAUSE_MS:
                yield self._told(key, visit)
                visit = None
            visit = [time, time, 1] if visit is None else [min(visit[0], time), max(visit[1], time), visit[2] + 1]
        if visit is not None:
            self._visit.update(tuple(visit))
            self._handle.registerTimer(visit[1] + PAUSE_MS)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """End the visit, unless a click has come since the timer was set."""
        found = self._visit.get()
        if found is not None and int(found[1]) + PAUSE_MS <= expiredTimerInfo.getExpiryTimeInMs():
            yield self._told(key, [int(number) for number in found])
            self._visit.clear()

    def close(self) -> None:
        """Nothing is open."""

    def _told(self, key: Any, visit: list[int]) -> pd.DataFrame:
        began, ended = (datetime.fromtimestamp(moment / 1000, UTC) for moment in visit[:2])
        return pd.DataFrame({"visitor": [key[0]], "began": [began], "ended": [ended], "clicks": [visit[2]]})


def start(spark: SparkSession, queue: str, path: str, checkpoint: str, **options: str) -> StreamingQuery:
    """Start the query, which ends when the queue is empty. What is read together is a batch, of any order."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORE)
    messages = spark.readStream.format("duobus").options(**PLACE, queue=queue, **options).load()
    clicks = messages.select(from_json(col("body").cast("string"), "visitor string, at timestamp").alias("click"))
    visits = (
        clicks.select("click.visitor", "click.at", unix_millis("click.at").alias("at_ms"))
        .withWatermark("at", "10 minutes")
        .groupBy("visitor")
        .transformWithStateInPandas(Visits(), VISIT, outputMode="Append", timeMode="EventTime")
    )
    writer = visits.writeStream.format("parquet").option("path", path).option("checkpointLocation", checkpoint)
    return writer.outputMode("append").trigger(availableNow=True).start()


def main(queue: str, path: str, checkpoint: str) -> None:
    """Run the query to its end."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("visits").getOrCreate()
    try:
        start(spark, queue, path, checkpoint).awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
