"""Read CloudEvents from a queue as a table, in both of their forms, without a line of Python for each message.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/spark/cloud_events.py queue.1

In the structured form the body is a JSON object with the attributes and the data. In the binary form the body is the
data, and the attributes are application properties whose names begin with ``cloudEvents:`` or ``cloudEvents_``.
"""

import sys

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, element_at, from_json, lit, when

PLACE = {"connectionStringEnv": "SERVICEBUS_CONNECTION_STRING"}
ATTRIBUTES = ("specversion", "id", "source", "type", "subject", "time")
#: ``data`` is kept as the JSON text that it is; ``data_base64`` stands for data that is no JSON.
EVENT = ", ".join(f"{name} string" for name in (*ATTRIBUTES, "datacontenttype", "data", "data_base64"))


def events(spark: SparkSession, queue: str) -> DataFrame:
    """The events of a queue; messages that are none are left out."""
    messages = spark.read.format("duobus").options(**PLACE, queue=queue).load()
    is_structured = col("content_type").startswith("application/cloudevents+json")
    text = col("body").cast("string")
    structured = from_json(when(is_structured, text), EVENT)
    table = messages.select(
        "sequence_number",
        *(when(is_structured, structured[name]).otherwise(_property(name)).alias(name) for name in ATTRIBUTES),
        when(is_structured, structured["datacontenttype"]).otherwise(col("content_type")).alias("datacontenttype"),
        when(is_structured, coalesce(structured["data"], structured["data_base64"])).otherwise(text).alias("data"),
    )
    return table.where("specversion is not null and id is not null and source is not null and type is not null")


def _property(name: str) -> Column:
    properties = col("application_properties")
    return coalesce(*(element_at(properties, lit(f"cloudEvents{sign}{name}")) for sign in ":_"))


def main(queue: str) -> None:
    """Print the events."""
    spark = SparkSession.builder.appName("CloudEvents").getOrCreate()
    try:
        events(spark, queue).orderBy("sequence_number").show(truncate=False)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
