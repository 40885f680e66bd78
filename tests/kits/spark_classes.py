"""Make the archive of classes from which the JVMs of the tests begin, where it is missing.

    cd tests && python -m kits.spark_classes

A JVM that starts a session of Spark reads ten thousand classes out of its JARs, for seconds of processor time; the
tests start a dozen of them. From an archive of what one JVM has read the others need half of the time. ``make test``
makes it first (``tools/tests_bytecode.py``). The archive is in ``.build/spark``; it goes with the JVM, the JARs and
their folder, and a JVM for which it is not right begins without it. The JVM that makes the archive does a little of all
that the tests do, with a format in Python of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kits.spark_start import OF_A_DRIVER, SESSION, class_archive, spark_environment

#: Where the modules of the tests are found.
TESTS: Final = Path(__file__).resolve().parents[1]
#: Longest time for it, in seconds, on a machine that is busy.
LIMIT_S: Final = 300.0


def work(folder: Path) -> None:
    """Do in a session what the tests do."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.master("local[2]")
    for name, value in {**SESSION, "spark.sql.warehouse.dir": str(folder / "warehouse")}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(new_format())
    tables(spark, folder / "table")
    stream(spark, folder)
    spark.stop()


def new_stream_reader() -> Any:
    """The reader of a stream of two rows, as a class that travels to the processes of Spark."""
    from pyspark.sql import datasource as api

    class StreamReader(api.DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"at": 0}

        def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"at": 1}

        def partitions(self, *_: Any) -> list[api.InputPartition]:
            return [api.InputPartition(0)]

        def read(self, _: Any) -> Iterator[tuple[int, str]]:
            return iter([(1, "a"), (2, "b")])

    return StreamReader


def new_format() -> Any:
    """A format in Python with two rows, which takes rows as well."""
    from pyspark.sql import datasource as api

    stream_reader = new_stream_reader()

    class Reader(api.DataSourceReader):
        def read(self, _: Any) -> Iterator[tuple[int, str]]:
            return iter([(1, "a"), (2, "b")])

    class Writer(api.DataSourceWriter):
        def write(self, iterator: Iterator[Any]) -> api.WriterCommitMessage:
            list(iterator)
            return api.WriterCommitMessage()

    class Format(api.DataSource):
        @classmethod
        def name(cls) -> str:
            return "trained"

        def schema(self) -> str:
            return "number int, text string"

        def reader(self, *_: Any, **__: Any) -> Reader:
            return Reader()

        def writer(self, *_: Any, **__: Any) -> Writer:
            return Writer()

        def streamReader(self, *_: Any, **__: Any) -> Any:  # noqa: N802 - Spark's name
            return stream_reader()

    return Format


def tables(spark: Any, table: Path) -> None:
    """Read, write, join and count."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    rows = spark.read.format("trained").load()
    rows.write.format("trained").mode("append").save()
    placed = rows.withColumn("day", F.to_date(F.lit("2026-01-01")))
    placed.write.mode("overwrite").partitionBy("day").parquet(str(table))
    spark.createDataFrame([(1, "x")], "number int, name string").createOrReplaceTempView("names")
    spark.read.parquet(str(table)).createOrReplaceTempView("placed")
    spark.sql(
        "select text, name, count(*) as n from placed left join names using (number) group by 1, 2 order by 3"
    ).collect()
    spark.table("placed").join(rows, "number").select(F.to_json(F.struct("*"))).toArrow()
    # An error has classes of its own.
    with suppress(Exception):
        spark.sql("select none from placed").collect()


def stream(spark: Any, folder: Path) -> None:
    """Run a query over what there is."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    def write(frame: Any, batch: int) -> None:
        numbered = frame.withColumn("batch", F.lit(batch))
        numbered.write.mode("append").partitionBy("batch").parquet(str(folder / "batches"))

    writer = spark.readStream.format("trained").load().writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def make(archive: Path) -> None:
    """Make it; where that fails, an empty file tells the next run not to try again."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_suffix(f".{os.getpid()}")
    environment = {
        **os.environ,
        **spark_environment(),
        "SPARK_SUBMIT_OPTS": f"{OF_A_DRIVER} -XX:ArchiveClassesAtExit={fresh}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    log = archive.with_suffix(".log")
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as told, suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "kits.spark_classes", folder],
            cwd=TESTS,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            timeout=LIMIT_S,
            check=False,
        )
    if not fresh.exists():
        print(f"Without an archive of Spark's classes the tests take longer. Why there is none: {log}", file=sys.stderr)
        fresh.touch()
    fresh.replace(archive)


def main() -> None:
    """Make the archive where it is missing; with a folder as its argument: do the work of the JVM that makes it."""
    if len(sys.argv) > 1:
        from pyspark import SparkContext

        try:
            work(Path(sys.argv[1]))
        finally:
            # It is written when the JVM ends, and the driver is what the JVM waits for. An archive of less than all
            # is still good for most.
            gateway: Any = SparkContext._gateway
            if gateway is not None:
                gateway.shutdown()
                gateway.proc.stdin.close()
                gateway.proc.wait()
        return
    archive = class_archive()
    if archive is not None and not archive.exists():
        make(archive)


if __name__ == "__main__":
    main()
