"""One of two drivers, each with a JVM of its own, that run a query on the same checkpoint.

Reads a JSON object from its arguments: the folder in which both tell how far they have come, the settings of the
capture, and whether this is the first driver. The first one reads a batch, and comes to the end of it only when the
second one has done with it. Each writes a JSON object, ``{"error": text or null}``; the first one then captures what
is left.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

#: Longest wait for the other driver.
WAIT_S: Final = 240
#: Files by which the drivers tell each other how far they have come.
SECOND_IS_READY: Final = "second-is-ready"
FIRST_HAS_READ: Final = "first-has-read"
SECOND_IS_OVER: Final = "second-is-over"


def wait_for(file: Path) -> None:
    """Wait until the other driver has come somewhere."""
    until = time.monotonic() + WAIT_S
    while not file.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{file} did not come")
        time.sleep(0.05)


def first(spark: Any, settings: dict[str, str], folder: Path) -> str | None:
    """Capture, the first batch slowly; how that failed."""
    from pyspark.errors import PySparkException

    from duobus.spark.jobs import capture
    from duobus.spark.jobs.lake.captured_columns import batch_name

    checkpoint = settings["checkpoint"]

    def write(frame: Any, batch: int) -> None:
        # Read whole, so that what the other driver settles is not missed here.
        rows = frame.persist()
        rows.count()
        (folder / FIRST_HAS_READ).touch()
        wait_for(Path(checkpoint) / "commits" / str(batch))
        capture.write_batch(rows, settings["path"], batch_name(capture.query_of(spark, checkpoint), batch), "zstd")
        rows.unpersist()

    wait_for(folder / SECOND_IS_READY)
    options = {name: value for name, value in settings.items() if name not in ("path", "checkpoint")}
    frame = spark.readStream.format("duobus").options(**options).load()
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(WAIT_S)
    except PySparkException as failed:
        return str(failed)
    finally:
        query.stop()
    return None


def second(spark: Any, settings: dict[str, str], folder: Path) -> str | None:
    """Capture everything once the first driver has read a batch; how that failed."""
    from duobus.spark.jobs import capture
    from duobus.spark.jobs.job import JobError

    (folder / SECOND_IS_READY).touch()
    wait_for(folder / FIRST_HAS_READ)
    try:
        capture.run(spark, settings)
    except JobError as failed:
        return str(failed)
    finally:
        (folder / SECOND_IS_OVER).touch()
    return None


def main() -> None:
    from duobus.spark.jobs import capture
    from kits.spark_start import small_session

    about: dict[str, Any] = json.loads(sys.argv[1])
    folder, settings = Path(about["folder"]), about["settings"]
    spark = small_session("rival driver")
    error = (first if about["is_first"] else second)(spark, settings, folder)
    print(json.dumps({"error": error}), flush=True)
    if about["is_first"]:
        wait_for(folder / SECOND_IS_OVER)
        capture.run(spark, settings)
    spark.stop()


if __name__ == "__main__":
    main()
