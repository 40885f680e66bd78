"""Processes of Spark are as quick to start in the tests as ``spark_start`` and ``warm_python`` make them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from kits.spark_start import class_archive

pytestmark = pytest.mark.slow


def test_python_processes_of_spark_import_the_installed_package(spark: Any) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.modules["pyspark"].__file__).collect()
    assert found == [pyspark.__file__]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked so on Linux only")
def test_python_processes_of_spark_begin_with_what_they_need(spark: Any) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: "duobus.spark.source.range_reader" in sys.modules)
    assert found.collect() == [True]


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has in memory is told on Linux only")
def test_the_jvm_begins_from_the_archive_of_classes(spark: Any) -> None:
    archive = class_archive()
    if archive is None or not archive.exists() or not archive.stat().st_size:
        pytest.skip("python -m kits.spark_classes makes the archive, where the JVM can; make test begins with it")
    process = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive) in Path(f"/proc/{process}/maps").read_text()
