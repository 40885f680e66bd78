"""A home of Spark from which its processes are quick to start; in all else it is the installed Spark.

Each Python process that Spark starts looks for ``pyspark`` in the archive ``python/lib/pyspark.zip`` of Spark's home
first. Nothing compiled can be kept in there, so that every process compiles two hundred modules anew: a second of
processor time, and a JVM gives such a process only ten seconds to answer. Where the home has no such archive, the
installed package serves, which is the same code.

A JVM of these tests lives for some minutes at most. Verifying the classes of Spark again, and compiling methods for a
long run, would take half of its processor time. Half of what remains is the reading of ten thousand classes, which the
JVM takes from an archive of classes in memory instead once ``kits.spark_classes`` has made one; ``make test`` does so
first. The home has one place for ever, because an archive is good for the JARs of one place alone.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from zlib import crc32

ROOT: Final = Path(__file__).resolve().parents[2]
#: What programs of Spark look for in its home, beside the archive.
OF_THE_HOME: Final = ("bin", "jars")
#: Options of each JVM, beside those that a program gives its driver. With one tier of compiled code a JVM has room for
#: 48 MB of that. The session of the tests needs more, so methods were thrown out and compiled again, which took a fifth
#: of its processor time. Spark starts a program for each file that it writes, which ``VFORK`` does in one step.
OF_EACH_JVM: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m -XX:+UseSerialGC -Xshare:auto"
    " -Djdk.lang.Process.launchMechanism=VFORK"
)
#: Those of a driver. Without a word when the archive of classes is not of this JVM: the output may be a program's.
OF_A_DRIVER: Final = (
    f"{OF_EACH_JVM} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -Xlog:disable -Xlog:all=error:stderr"
)
#: Variables of Spark's own scripts, for the JVM of a driver and for the one that puts together its command.
JVM_VARIABLES: Final = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
#: Settings of a session that is quick to start and small, as was measured.
SESSION: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    # Without .crc files.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
}


def spark_home() -> Path | None:
    """The home, which is made where it is missing; None where Spark is not installed."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        return None
    installed = Path(spark.origin).parent
    # Two environments of Python that share a clone have two homes.
    home = ROOT / ".build" / "spark" / f"{version('pyspark')}-{checksum_of(str(installed)):08x}" / "home"
    home.mkdir(parents=True, exist_ok=True)
    for name in OF_THE_HOME:
        # Another process may be making it.
        with suppress(FileExistsError):
            (home / name).symlink_to(installed / name)
    return home


def checksum_of(text: str) -> int:
    """A number of a text, for names of files."""
    return crc32(text.encode())


def java() -> Path | None:
    """The program that Spark's scripts start; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(found).resolve() if found and Path(found).exists() else None


def class_archive() -> Path | None:
    """Where the archive of classes is or would be, for this JVM and this Spark; None without one of both."""
    home, program = spark_home(), java()
    if home is None or program is None:
        return None
    # Another one when either is installed anew: the JVM compares times of files, too.
    names = (f"{path} {path.stat().st_mtime_ns}" for path in (program, (home / "jars").resolve()))
    return home.parent / f"classes-{checksum_of(' '.join(names)):08x}.jsa"


def spark_environment() -> dict[str, str]:
    """Variables for whoever starts Spark; none where Spark is not installed."""
    home, archive = spark_home(), class_archive()
    if home is None:
        return {}
    # An empty one says that it could not be made.
    is_made = archive is not None and archive.exists() and archive.stat().st_size > 0
    shared = f" -XX:SharedArchiveFile={archive}" if is_made else ""
    return {
        "SPARK_HOME": str(home),
        "SPARK_SUBMIT_OPTS": OF_A_DRIVER + shared,
        "SPARK_LAUNCHER_OPTS": OF_EACH_JVM,
    }


def small_session(name: str) -> Any:
    """The session of a program that is a driver by itself, with one task at a time; its log says nothing."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName(name)
    for key, value in SESSION.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark
