"""A home of Spark from which its Python processes are quick to start; in all else it is the installed Spark.

Each Python process that Spark starts looks for ``pyspark`` in the archive ``python/lib/pyspark.zip`` of Spark's home
first. Nothing compiled can be kept in there, so that every process compiles two hundred modules anew: a second of
processor time, and a JVM gives such a process only ten seconds to answer. Where the home has no such archive, the
installed package serves, which is the same code.

A JVM of these tests lives for a minute at most. Verifying the classes of Spark again, and compiling methods for a long
run, would take half of its processor time.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

#: What programs of Spark look for in its home, beside the archive.
OF_THE_HOME: Final = ("bin", "jars")
#: Options of each JVM, beside those that a program gives its driver.
_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
#: Variables of Spark's own scripts, for the JVM of a driver and for the one that puts together its command.
JVM_OPTIONS: Final = {
    "SPARK_SUBMIT_OPTS": f"{_JVM} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    "SPARK_LAUNCHER_OPTS": _JVM,
}


def spark_environment(folder: Path) -> dict[str, str]:
    """Variables for whoever starts Spark, with a home in ``folder``; none where Spark is not installed."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        return {}
    home = folder / "spark-home"
    home.mkdir()
    for name in OF_THE_HOME:
        (home / name).symlink_to(Path(spark.origin).parent / name)
    return {"SPARK_HOME": str(home), **JVM_OPTIONS}
