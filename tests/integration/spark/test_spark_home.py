"""Python processes of Spark are as quick to start in the tests as ``spark_start`` and ``warm_python`` make them."""

from __future__ import annotations

import sys
from typing import Any

import pyspark
import pytest

pytestmark = pytest.mark.slow


def test_python_processes_of_spark_import_the_installed_package(spark: Any) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.modules["pyspark"].__file__).collect()
    assert found == [pyspark.__file__]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked so on Linux only")
def test_python_processes_of_spark_begin_with_what_they_need(spark: Any) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: "duobus.spark.source.range_reader" in sys.modules)
    assert found.collect() == [True]
