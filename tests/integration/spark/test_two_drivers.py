"""Two drivers, two JVMs, one checkpoint: one of them is told, and nothing is lost or settled twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from second_driver import wait_for
from spark_bus import Bus

from duobus.spark.jobs import capture
from duobus.spark.jobs.lake.captured_columns import batch_name

pytestmark = pytest.mark.slow

MESSAGES = 60


@pytest.mark.timeout(420)
def test_the_slower_of_two_drivers_on_one_checkpoint_is_told_and_nothing_is_lost(
    spark: Any, bus: Bus, tmp_path: Path, python_program: Path
) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(MESSAGES)])
    settings = {
        **bus.options,
        "queue": queue,
        "path": str(tmp_path / "captured"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "maxMessagesPerTrigger": "20",
    }
    about = json.dumps({"folder": str(tmp_path), "settings": settings})
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]
    second = subprocess.Popen(
        [sys.executable, str(here / "second_driver.py"), about],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            **dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python_program)),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
    )
    try:
        wait_for(tmp_path / "second-is-ready")
        told = _first(spark, settings, tmp_path)
        output, _ = second.communicate(timeout=200)
    finally:
        second.kill()
        second.wait()
    # The second one read the batch again, was quicker, and went on.
    assert json.loads(output.splitlines()[-1]) == {"error": None}
    assert "CONCURRENT_STREAM_LOG_UPDATE" in told

    capture.run(spark, settings)
    found = spark.read.parquet(settings["path"]).collect()
    assert Counter(row.body for row in found) == Counter(f"{n}".encode() for n in range(MESSAGES))
    assert bus.counts(queue) == (0, 0)


def _first(spark: Any, settings: dict[str, str], folder: Path) -> str:
    """Capture, but come to the end of the first batch only when the other driver has done with it; how that failed."""
    checkpoint = settings["checkpoint"]

    def write(frame: Any, batch: int) -> None:
        # Read whole, so that what the other one settles is not missed here.
        rows = frame.persist()
        rows.count()
        (folder / "first-has-read").touch()
        wait_for(Path(checkpoint) / "commits" / str(batch))
        capture.write_batch(rows, settings["path"], batch_name(capture.query_of(spark, checkpoint), batch), "zstd")
        rows.unpersist()

    options = {name: value for name, value in settings.items() if name not in ("path", "checkpoint")}
    frame = spark.readStream.format("duobus").options(**options).load()
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    try:
        with pytest.raises(Exception, match="CONCURRENT_STREAM_LOG_UPDATE") as failed:
            query.awaitTermination(200)
    finally:
        query.stop()
    return str(failed.value)
