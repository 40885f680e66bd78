"""Read orders in JSON from a queue as a table with typed columns, and the bodies that are no order beside them.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/spark/json_orders.py queue.1
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

PLACE = {"connectionStringEnv": "SERVICEBUS_CONNECTION_STRING"}
#: The last column gets the text of a body that is no such object; without it the other columns would just be null.
ORDER = "id string, customer string, amount decimal(12,2), at timestamp, broken string"


def orders(spark: SparkSession, queue: str) -> DataFrame:
    """All messages: the columns of an order, and ``broken`` for what is none."""
    messages = spark.read.format("duobus").options(**PLACE, queue=queue).load()
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"}
    parsed = messages.select("sequence_number", from_json(col("body").cast("string"), ORDER, options).alias("order"))
    return parsed.select("sequence_number", "order.*")


def main(queue: str) -> None:
    """Print the orders."""
    spark = SparkSession.builder.appName("orders in JSON").getOrCreate()
    try:
        orders(spark, queue).orderBy("sequence_number").show(truncate=False)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
