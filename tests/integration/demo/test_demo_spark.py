"""The part ``spark`` in its short form, with a real Spark session, and how its result is judged."""

import gc
import shutil

import pytest

from duobus.clock import Clock
from duobus.testing.server import DemoFailed
from duobus_demo.progress import Watcher
from duobus_demo.result_table import table_of
from duobus_demo.scenarios.spark import PART, RECONCILED, demand_java, play_spark
from kits.spark_start import spark_environment
from kits.warm_python import python_of_spark

FOUND = dict(zip(RECONCILED, (10, 1, 0, 1, 0), strict=True))
GOOD = {
    "lost": 0,
    "duplicates": 0,
    "altered": 0,
    "missing": [],
    "left": 0,
    "left_behind": [],
    "not_killed": [],
    "totals_wrong": 0,
    "alerts_wrong": 0,
    "reconciled": FOUND,
    "reconciled_expected": FOUND,
}


@pytest.fixture(autouse=True)
def loggers_stay_as_they_are(monkeypatch):
    # They are everybody's in a process of tests.
    monkeypatch.setattr("duobus_demo.scenarios.spark.silence_sdk_logs", lambda: None)


def test_a_good_result_has_no_failures():
    assert PART.failures(GOOD) == []


@pytest.mark.parametrize(
    "change",
    [
        {"lost": 1, "missing": ["order-000001"]},
        {"duplicates": 1},
        {"altered": 1},
        {"not_killed": ["totals"]},
        {"left": 1, "left_behind": ["3 messages in west/orders"]},
        {"totals_wrong": 1},
        {"alerts_wrong": 2},
        {"reconciled": {**FOUND, "doubled": 0}},
    ],
)
def test_each_thing_that_may_go_wrong_is_a_failure(change):
    assert len(PART.failures({**GOOD, **change})) == 1


def test_without_java_the_part_says_what_to_install(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DemoFailed, match="openjdk-17-jre-headless"):
        demand_java()


# Connections of the SDK that broke leave their sockets open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or 21")
def test_the_pipeline_of_the_shop_comes_out_right_though_it_was_killed_in_each_stage(
    tmp_path, tmp_path_factory, monkeypatch
):
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)
    with python_of_spark(tmp_path_factory.mktemp("python")) as python:
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            monkeypatch.setenv(name, str(python))
        result = play_spark(tmp_path, Watcher(), Clock(), 600, total=600)
    gc.collect()
    assert PART.failures(result) == []
    assert result["acknowledged"] == result["sent"] > 0
    assert result["pipeline_kills"] >= 3
    assert result["alerts"] > 10
    assert result["usage"]["operations"] > result["sent"]
    assert (tmp_path / "rate-and-backlog.svg").read_text().startswith("<svg")
    assert table_of(PART.title, result).row_count > 8
