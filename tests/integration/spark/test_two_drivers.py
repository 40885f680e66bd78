"""Two drivers, two JVMs, one checkpoint: one of them is told, and nothing is lost or settled twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from kit_drivers import start_driver
from spark_bus import Bus

pytestmark = pytest.mark.slow

MESSAGES = 60


# Both drivers are programs, so that the session which other tests share does not wait for this one.
@pytest.mark.timeout(420)
def test_the_slower_of_two_drivers_on_one_checkpoint_is_told_and_nothing_is_lost(
    bus: Bus, tmp_path: Path, python_program: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(MESSAGES)])
    settings = {
        **bus.options,
        "queue": queue,
        "path": str(tmp_path / "captured"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "maxMessagesPerTrigger": "20",
    }
    drivers = [
        start_driver(
            "rival_driver.py", python_program, {"folder": str(tmp_path), "settings": settings, "is_first": is_first}
        )
        for is_first in (True, False)
    ]
    try:
        first, second = (json.loads(driver.communicate(timeout=300)[0].splitlines()[-1]) for driver in drivers)
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()
    assert [driver.returncode for driver in drivers] == [0, 0]
    # The second one read the batch again, was quicker, and went on.
    assert second == {"error": None}
    assert "CONCURRENT_STREAM_LOG_UPDATE" in first["error"]

    found = parquet.read_table(settings["path"])["body"].to_pylist()
    assert Counter(found) == Counter(f"{n}".encode() for n in range(MESSAGES))
    assert bus.counts(queue) == (0, 0)
