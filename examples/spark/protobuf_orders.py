"""Read orders in Protobuf, of a message type that the program describes itself: neither protoc nor a JAR is needed.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/spark/protobuf_orders.py queue.1

With a .proto file of yours, ``protoc --descriptor_set_out=orders.desc`` gives the same description as a file, and
``FileDescriptorSet.FromString`` reads that file.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

PLACE = {"connectionStringEnv": "SERVICEBUS_CONNECTION_STRING"}
COLUMNS = "sequence_number bigint, id string, amount double, lines int"


def order_class() -> Any:
    """The class of an order: ``message Order { string id = 1; double amount = 2; int32 lines = 3; }``."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    order = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(
        {"id": kinds.TYPE_STRING, "amount": kinds.TYPE_DOUBLE, "lines": kinds.TYPE_INT32}.items(), start=1
    ):
        order.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode the bodies of a task."""
    order_of = order_class().FromString
    types = pa.schema(
        [("sequence_number", pa.int64()), ("id", pa.string()), ("amount", pa.float64()), ("lines", pa.int32())]
    )
    for batch in batches:
        rows = []
        for number, body in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            order = order_of(body)
            rows.append({"sequence_number": number, "id": order.id, "amount": order.amount, "lines": order.lines})
        yield pa.RecordBatch.from_pylist(rows, schema=types)


def orders(spark: SparkSession, queue: str) -> DataFrame:
    """All orders of a queue."""
    messages = spark.read.format("duobus").options(**PLACE, queue=queue).load()
    return messages.select("sequence_number", "body").mapInArrow(decoded, COLUMNS)


def main(queue: str) -> None:
    """Print the orders."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("orders in Protobuf").getOrCreate()
    try:
        orders(spark, queue).orderBy("sequence_number").show(truncate=False)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
