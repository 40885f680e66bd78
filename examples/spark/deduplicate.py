"""Take messages out of a queue and write each message id once, however often senders repeat it within a day.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/spark/deduplicate.py queue.1 /data/orders /data/checkpoints/orders

Spark remembers the ids in its checkpoint. An id that comes again after more than a day counts as new.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import coalesce, concat_ws, lit
from pyspark.sql.streaming import StreamingQuery

PLACE = {"connectionStringEnv": "SERVICEBUS_CONNECTION_STRING"}


def start(spark: SparkSession, queue: str, path: str, checkpoint: str) -> StreamingQuery:
    """Start the query, which ends when the queue is empty."""
    messages = spark.readStream.format("duobus").options(**PLACE, queue=queue).load()
    # Without an id a message is told from others by its place; to Spark two nulls would be the same id.
    place = concat_ws("/", lit("no id"), "namespace", "entity", "sequence_number")
    once = (
        messages.withColumn("key", coalesce("message_id", place))
        .withWatermark("enqueued_time", "1 day")
        .dropDuplicatesWithinWatermark(["key"])
        .drop("key")
    )
    writer = once.writeStream.format("parquet").option("path", path).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def main(queue: str, path: str, checkpoint: str) -> None:
    """Run the query to its end."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("deduplicate").getOrCreate()
    try:
        start(spark, queue, path, checkpoint).awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
