"""A driver of Spark for ``tools/lake.py``: captures to a table, and dies where it is told to.

Reads a JSON object from its argument: ``settings`` of the capture, ``conf`` of Spark, and ``dies``: the batch after
whose commit to the table the driver is killed with its JVM, before Spark commits the batch; null: none. Prints the
summary of a capture that came to its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def main() -> None:
    """Capture."""
    from pyspark.sql import SparkSession

    from duobus.spark.jobs import capture

    about = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.master("local[2]").appName("lake")
    for name, value in about["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    write = capture.Writer.__call__

    def killed(self: capture.Writer, frame: Any, batch_id: int) -> None:
        write(self, frame, batch_id)
        if batch_id == about["dies"]:
            os.killpg(0, signal.SIGKILL)

    capture.Writer.__call__ = killed  # type: ignore[method-assign]
    print(json.dumps(capture.run(spark, about["settings"])), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
