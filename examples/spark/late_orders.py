"""Write orders to files by day, and send the orders that come too late for their day to a queue (foreachBatch).

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/spark/late_orders.py orders late-orders /data/orders /data/checkpoints/orders

A body is an object like ``{"id": "o1", "at": "2026-11-20T08:00:00Z"}``. A batch that is run again replaces its own
files, and its late orders keep their ids: a queue that detects duplicates has each of them once. Numbers of batches
begin anew with another checkpoint, so each checkpoint needs files of its own.
"""

import os
import sys
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, lit, to_date
from pyspark.sql.streaming import StreamingQuery

PLACE = {"connectionStringEnv": "SERVICEBUS_CONNECTION_STRING"}
LATE = "interval 2 days"


@dataclass(frozen=True)
class Parted:
    """Parts a batch. Plain values only, so that Spark Connect can send it to a server."""

    place: dict[str, str]
    late_queue: str
    path: str

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write a batch; Spark calls this."""
        order = from_json(col("body").cast("string"), "id string, at timestamp").alias("order")
        # Two writes read the batch twice, unless it is kept.
        parted = batch.select("body", "enqueued_time", order).selectExpr(
            "*", f"order.at < enqueued_time - {LATE} as is_late"
        )
        parted = parted.persist()
        try:
            punctual = parted.where("not coalesce(is_late, false)").select("order.*").withColumn("day", to_date("at"))
            files = punctual.withColumn("batch", lit(number)).write.mode("overwrite")
            files.option("partitionOverwriteMode", "dynamic").partitionBy("day", "batch").parquet(self.path)
            late = parted.where("is_late").selectExpr("body", "concat('late-', order.id) as message_id")
            sink = {**self.place, "queue": self.late_queue, "messageIdMode": "column"}
            late.write.format("duobus").options(**sink).mode("append").save()
        finally:
            parted.unpersist()


def start(spark: SparkSession, queue: str, late_queue: str, path: str, checkpoint: str) -> StreamingQuery:
    """Start the query, which ends when the queue is empty."""
    messages = spark.readStream.format("duobus").options(**PLACE, queue=queue).load()
    writer = messages.writeStream.foreachBatch(Parted(PLACE, late_queue, path))
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main(queue: str, late_queue: str, path: str, checkpoint: str) -> None:
    """Run the query to its end."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("late orders").getOrCreate()
    try:
        start(spark, queue, late_queue, path, checkpoint).awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
