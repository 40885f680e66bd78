"""A driver of Spark for ``tools/lake.py``: captures to a table or runs a pipeline, and dies where it is told to.

Reads a JSON object from its argument. For a capture: ``settings`` of it, ``conf`` of Spark, and ``dies``: the batch
after whose commit to the table the driver is killed with its JVM, before Spark commits the batch; null: none. For a
pipeline: ``document``, and ``dies``: a streaming stage and its batch, or a stage that reports. Prints the summary of a
capture, or the status of a pipeline, that came to its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def pipeline(about: dict[str, Any]) -> None:
    """Run a pipeline once."""
    from pathlib import Path

    from duobus.cli.commands.spark import demand_spark, new_session
    from duobus.pipeline.document.parser import read_document
    from duobus.pipeline.execution import stage_runs, tables
    from duobus.pipeline.execution.runner import run_pipeline
    from duobus.spark.jobs import capture

    document = read_document(Path(about["document"]))
    stage, _, batch = str(about["dies"]).partition(" ")

    def dying(work: Any, name: str) -> Any:
        def dies(*given: Any) -> Any:
            result = work(*given)
            # Of a writer: itself, the rows and the number of the batch.
            if name == stage and (not batch or given[-1] == int(batch)):
                os.killpg(0, signal.SIGKILL)
            return result

        return dies

    capture.Writer.__call__ = dying(capture.Writer.__call__, "orders")  # type: ignore[method-assign]
    tables.BatchWriter.__call__ = dying(tables.BatchWriter.__call__, "seen")  # type: ignore[method-assign]
    vars(stage_runs)["replace"] = dying(tables.replace, "totals")
    demand_spark(needs_spark=True)
    settings = tuple(f"{name}={value}" for name, value in document.conf.items())
    found = run_pipeline(document, lambda: new_session(document.master, settings), once=True)
    print(json.dumps(found, default=str), flush=True)
    if found["failed"]:
        told = [f"{one['stage']}: {one['error']}" for one in found["stages"] if one["error"]]
        sys.exit("\n".join(told))


def main() -> None:
    """Capture, or run a pipeline."""
    about = json.loads(sys.argv[1])
    if "document" in about:
        pipeline(about)
        return
    from pyspark.sql import SparkSession

    from duobus.spark.jobs import capture

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
