"""Capture into tables of Iceberg and Delta: a driver that dies behind the table's commit writes no message twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from spark_bus import Bus

from duobus.spark.jobs import capture
from duobus.spark.jobs.job import JobError
from kits.spark_start import spark_environment

pytestmark = pytest.mark.slow

MESSAGES = 50


def settings_for(bus: Bus, folder: Path, **more: str) -> dict[str, str]:
    """Settings of a capture in five batches, from a queue with messages."""
    queue = bus.queue()
    bus.send(queue, [f"{number}" for number in range(MESSAGES)])
    checkpoint = str(folder / "checkpoint")
    return {**bus.options, "queue": queue, "checkpoint": checkpoint, "maxMessagesPerTrigger": "10", **more}


def driver_of_its_own(python: Path, settings: dict[str, str], *last: str) -> subprocess.CompletedProcess[str]:
    """Capture by a program with a JVM of its own; it is killed behind the table's commit of the batch ``last``."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        **spark_environment(),
        **dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    return subprocess.run(
        [sys.executable, str(here / "lake_driver.py"), json.dumps(settings), *last],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )


# Both drivers are programs, so that the session which other tests share does not wait for this one.
@pytest.mark.timeout(420)
def test_a_driver_killed_between_the_commit_of_iceberg_and_that_of_spark_leaves_each_message_once(
    bus: Bus, tmp_path: Path, python_program: Path
) -> None:
    pyiceberg = pytest.importorskip("pyiceberg.catalog")
    catalog = {"catalogUri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    (tmp_path / "warehouse").mkdir()
    settings = settings_for(bus, tmp_path, format="iceberg", table="lake.orders", **catalog)
    driver = driver_of_its_own(python_program, settings, "1")
    assert driver.returncode == -signal.SIGKILL
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    given = {"uri": catalog["catalogUri"], "warehouse": catalog["warehouse"]}
    table = pyiceberg.load_catalog("default", **given).load_table("lake.orders")
    assert table.scan().to_arrow().num_rows == 20

    again = driver_of_its_own(python_program, settings)
    assert again.returncode == 0
    told = json.loads(again.stdout.splitlines()[-1])
    assert (told["format"], told["table"]) == ("iceberg", "lake.orders")
    rows = table.refresh().scan().to_arrow()
    assert Counter(rows["body"].to_pylist()) == Counter(f"{number}".encode() for number in range(MESSAGES))
    assert len(set(rows["batch_id"].to_pylist())) == 5
    assert bus.counts(settings["queue"]) == (0, 0)


def test_a_capture_that_fails_behind_the_commit_of_delta_leaves_each_message_once(
    spark: Any, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake")
    settings = settings_for(bus, tmp_path, format="delta", path=str(tmp_path / "orders"))
    write = capture.Writer.__call__

    def failing(self: capture.Writer, frame: Any, batch_id: int) -> None:
        write(self, frame, batch_id)
        if batch_id == 1:
            raise RuntimeError("the driver is out of order")

    with monkeypatch.context() as patch:
        patch.setattr(capture.Writer, "__call__", failing)
        with pytest.raises(JobError, match="out of order"):
            capture.run(spark, settings)
    table = deltalake.DeltaTable(settings["path"])
    assert table.version() == 1
    capture.run(spark, settings)
    table.update_incremental()
    rows = table.to_pyarrow_table()
    assert Counter(rows["body"].to_pylist()) == Counter(f"{number}".encode() for number in range(MESSAGES))
    assert bus.counts(settings["queue"]) == (0, 0)
