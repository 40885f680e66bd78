"""A Spark session for measurements: with code generation, unlike that of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def session(cores: int, memory: str = "1g") -> Any:
    """A new session on this machine with so many cores and such a heap."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{cores}]").appName("duobus bench")
    builder = builder.config("spark.driver.memory", memory).config("spark.sql.shuffle.partitions", str(2 * cores))
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def memory_of(spark: Any) -> dict[str, int]:
    """The most that the JVM and this process have had resident, in MiB."""
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    return {"jvm_mib_max": _peak(jvm), "driver_mib_max": _peak(os.getpid())}


def cpu_s(spark: Any) -> float:
    """Processor time that the JVM has used: what a busy machine does not blur."""
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    fields = Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0
