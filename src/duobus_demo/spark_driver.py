"""The driver of Spark that the part ``spark`` runs, and kills: ``python -m duobus_demo.spark_driver PLAN``.

One session for all jobs of the plan, one after the other. Each line that it prints is a JSON object about a step.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

#: A session for a few thousand messages on the machine of whoever looks; all of it on loopback.
_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    # Of so few rows, compiling the plans would take longer than running them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def _tell(step: str, **members: Any) -> None:
    sys.stdout.write(json.dumps({"step": step, **members}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the plan whose path is the first argument."""
    from pyspark.sql import SparkSession

    plan = json.loads(Path(sys.argv[1]).read_text())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("duobus demo")
    for name, value in _CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    _tell("session", version=spark.version)
    for step in plan["steps"]:
        if step["waits"]:
            sys.stdin.readline()
        job = import_module(f"duobus.spark.jobs.{step['job']}")
        _tell(step["name"], summary=job.run(spark, step["settings"]))
    spark.stop()


if __name__ == "__main__":
    main()
