"""Count what waits in a queue, by sender and hour, without taking anything; on this machine or on a cluster.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/spark/count_messages.py queue.1
spark-submit --master spark://10.0.0.1:7077 examples/spark/count_messages.py queue.1
"""

import json
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, date_trunc, lit
from pyspark.sql.functions import count as number_of

# Each process of Spark looks the secret up in its own environment: it stays out of plans.
PLACE = {"connectionStringEnv": "SERVICEBUS_CONNECTION_STRING"}


def count(spark: SparkSession, queue: str) -> DataFrame:
    """Read the queue as a table and count."""
    # Of bodies nothing is fetched that is not asked for.
    columns = "sequence_number bigint, enqueued_time timestamp, application_properties map<string,string>"
    messages = spark.read.format("duobus").schema(columns).options(**PLACE, queue=queue).load()
    sender = coalesce(col("application_properties")["sender"], lit("nobody")).alias("sender")
    hour = date_trunc("hour", "enqueued_time").alias("hour")
    return messages.groupBy(sender, hour).agg(number_of("*").alias("messages"))


def main(queue: str) -> None:
    """Print one line of JSON for each sender and hour."""
    # Without it Spark takes the first python3 on the PATH for its workers.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("count messages").getOrCreate()
    try:
        for row in count(spark, queue).orderBy("sender", "hour").collect():
            print(json.dumps({"sender": row["sender"], "hour": str(row["hour"]), "messages": row["messages"]}))
    finally:
        spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: count_messages.py QUEUE")
    main(sys.argv[1])
