"""Capture into tables of Iceberg and Delta: a driver that dies behind the table's commit writes no message twice."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kit_drivers import start_driver
from spark_bus import Bus

from duobus.spark.jobs import capture
from duobus.spark.jobs.job import JobError

pytestmark = pytest.mark.slow

MESSAGES = 50


def settings_for(bus: Bus, folder: Path, **more: str) -> dict[str, str]:
    """Settings of a capture in five batches, from a queue with messages."""
    queue = bus.queue()
    bus.send(queue, [f"{number}" for number in range(MESSAGES)])
    checkpoint = str(folder / "checkpoint")
    return {**bus.options, "queue": queue, "checkpoint": checkpoint, "maxMessagesPerTrigger": "10", **more}


def captured_by_a_driver(python: Path, settings: dict[str, str], *last: str) -> tuple[int, str]:
    """Capture by a driver, which is killed behind the table's commit of the batch ``last``; its status and output."""
    driver = start_driver("lake_driver.py", python, settings, *last)
    try:
        output, _ = driver.communicate(timeout=300)
    finally:
        driver.kill()
        driver.wait()
    return driver.returncode, output


# Both drivers are programs, so that the session which other tests share does not wait for this one.
@pytest.mark.timeout(420)
def test_a_driver_killed_between_the_commit_of_iceberg_and_that_of_spark_leaves_each_message_once(
    bus: Bus, tmp_path: Path, python_program: Path
) -> None:
    pyiceberg = pytest.importorskip("pyiceberg.catalog")
    catalog = {"catalogUri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    (tmp_path / "warehouse").mkdir()
    settings = settings_for(bus, tmp_path, format="iceberg", table="lake.orders", **catalog)
    status, _ = captured_by_a_driver(python_program, settings, "1")
    assert status == -signal.SIGKILL
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    given = {"uri": catalog["catalogUri"], "warehouse": catalog["warehouse"]}
    table = pyiceberg.load_catalog("default", **given).load_table("lake.orders")
    assert table.scan().to_arrow().num_rows == 20

    status, output = captured_by_a_driver(python_program, settings)
    assert status == 0
    told = json.loads(output.splitlines()[-1])
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
