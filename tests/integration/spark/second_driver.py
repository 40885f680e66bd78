"""A driver of its own, with a JVM of its own, that runs a query on the checkpoint of another one.

Reads a JSON object from its arguments, and writes one: ``{"error": text or null}``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

#: Longest wait for the other driver.
WAIT_S = 240


def wait_for(file: Path) -> None:
    """Wait until the other driver has come somewhere."""
    until = time.monotonic() + WAIT_S
    while not file.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{file} did not come")
        time.sleep(0.05)


def main() -> None:
    from pyspark.sql import SparkSession

    from duobus.spark.jobs import capture
    from duobus.spark.jobs import job as summary
    from kits.spark_start import SESSION

    about: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(about["folder"])
    builder = SparkSession.builder.master("local[1]").appName("second driver")
    for name, value in SESSION.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    (folder / "second-is-ready").touch()
    wait_for(folder / "first-has-read")
    try:
        capture.run(spark, about["settings"])
        error = None
    except summary.JobError as failed:
        error = str(failed)
    print(json.dumps({"error": error}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
