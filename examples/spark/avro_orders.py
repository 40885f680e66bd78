"""Read orders in Avro whose schemas are in a registry: Confluent's, or that of Azure Event Hubs.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/spark/avro_orders.py queue.1 confluent http://localhost:8081
python examples/spark/avro_orders.py queue.1 azure https://NAMESPACE.servicebus.windows.net

A message says by which schema it was written: Confluent's serializers put a zero and the number of the schema before
the data, Azure's put the id into the content type. Needs fastavro where the executors run, and no JAR.
"""

import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

PLACE = {"connectionStringEnv": "SERVICEBUS_CONNECTION_STRING"}
#: What this program wants of an order, whichever version of the schema wrote it.
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}
COLUMNS = "sequence_number bigint, id string, amount double, currency string"


@dataclass(frozen=True)
class Registry:
    """A registry of schemas. Plain values only: each task makes its requests for itself."""

    kind: str
    url: str
    # Name of the variable with the token: the secret itself stays out of plans.
    token_variable: str = "SCHEMA_REGISTRY_TOKEN"

    def split(self, body: bytes, content_type: str | None) -> tuple[str, bytes]:
        """The id of the schema of a message, and the data."""
        if self.kind == "azure":
            found, _, schema = (content_type or "").partition("+")
            if found != "avro/binary" or not schema:
                raise ValueError(f"the content type {content_type!r} names no schema")
            return schema, body
        if len(body) < 5 or body[0] != 0:
            raise ValueError("the body does not begin with the number of a schema")
        return str(int.from_bytes(body[1:5], "big")), body[5:]

    def schema(self, number: str) -> Any:
        """Fetch a schema."""
        if self.kind == "azure":
            headers = {"Authorization": f"Bearer {os.environ.get(self.token_variable, '')}"}
            address = f"{self.url}/$schemagroups/$schemas/{number}?api-version=2021-10"
            return self._fetched(address, headers)
        return json.loads(self._fetched(f"{self.url}/schemas/ids/{number}", {})["schema"])

    def _fetched(self, address: str, headers: dict[str, str]) -> Any:
        with urlopen(Request(address, headers=headers), timeout=30) as answer:
            return json.load(answer)


def decoded(batches: Iterator[pa.RecordBatch], registry: Registry) -> Iterator[pa.RecordBatch]:
    """Decode the bodies of a task; it fetches each schema once."""
    import fastavro

    wanted = fastavro.parse_schema(ORDER)
    known: dict[str, Any] = {}
    for batch in batches:
        rows = []
        for number, body, content_type in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            schema, data = registry.split(body, content_type)
            if schema not in known:
                known[schema] = fastavro.parse_schema(registry.schema(schema))
            # Of an older schema the columns that came later get their defaults.
            order = fastavro.schemaless_reader(io.BytesIO(data), known[schema], wanted)
            rows.append({"sequence_number": number, **order})
        types = [("sequence_number", pa.int64()), ("id", pa.string()), ("amount", pa.float64())]
        yield pa.RecordBatch.from_pylist(rows, schema=pa.schema([*types, ("currency", pa.string())]))


def orders(spark: SparkSession, queue: str, registry: Registry) -> DataFrame:
    """All orders of a queue."""
    messages = spark.read.format("duobus").options(**PLACE, queue=queue).load()
    chosen = messages.select("sequence_number", "body", "content_type")
    return chosen.mapInArrow(partial(decoded, registry=registry), COLUMNS)


def main(queue: str, kind: str, url: str) -> None:
    """Print the orders."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("orders in Avro").getOrCreate()
    try:
        orders(spark, queue, Registry(kind, url)).orderBy("sequence_number").show(truncate=False)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
