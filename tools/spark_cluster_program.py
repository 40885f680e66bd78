"""What tools/spark_cluster.py submits: reads a queue, computes usage, and tells which processes did it, as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def places(batches: Iterator[Any]) -> Iterator[Any]:
    """Tell where a task runs, and by which Python: an executor has a folder of its own."""
    import sys
    import time
    from pathlib import Path

    import pyarrow

    for batch in batches:
        # Long enough that one executor cannot do the tasks of two.
        time.sleep(1)
        here, prefix = Path.cwd(), Path(sys.prefix)
        python = str(prefix.relative_to(here)) if prefix.is_relative_to(here) else str(prefix)
        told = {"folder": [str(here)], "python": [python]}
        yield pyarrow.RecordBatch.from_pydict({name: value * batch.num_rows for name, value in told.items()})


def main(queue: str, *, is_installed: bool) -> None:
    """Do a bit of everything."""
    from duobus.model.metering import MeteringRecord
    from duobus.spark import DuobusDataSource
    from duobus.spark.jobs.usage import UsageConfig, usage
    from duobus.telemetry.metering_log import MeteringLog

    spark = SparkSession.builder.appName("duobus on a cluster").getOrCreate()
    if not is_installed:
        # What comes as --py-files is not among the packages that Spark looks through by itself.
        spark.dataSource.register(DuobusDataSource)
    reader = spark.read.format("duobus").option("connectionStringEnv", "SERVICEBUS_CONNECTION_STRING")
    messages = reader.option("queue", queue).load()
    found = messages.selectExpr("count(*)", "count(distinct sequence_number)").collect()[0]
    tasks = spark.range(0, 4, 1, 4).mapInArrow(places, "folder string, python string")
    places_of_tasks = tasks.collect()
    executors = sorted({row["folder"] for row in places_of_tasks})
    with tempfile.TemporaryDirectory() as folder:
        MeteringLog(Path(folder) / "metering").write(
            [MeteringRecord("s", number, 0, "n", queue, "send", 5, 500, 5) for number in (1, 2)]
        )
        config = UsageConfig(f"{folder}/compacted", f"{folder}/usage", metering=(folder,))
        told = usage(spark, config)
    print(
        json.dumps(
            {
                "messages": found[0],
                "distinct": found[1],
                "executors": [Path(one).name for one in executors],
                "pythons": sorted({row["python"] for row in places_of_tasks}),
                "operations": told["operations"],
                "spark": spark.version,
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], is_installed="--installed" in sys.argv)
