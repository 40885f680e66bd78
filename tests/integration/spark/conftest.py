"""One Spark session and one broker process for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_bus import CONNECTION_ENV, Bus

from duobus.testing.server import ServerProcess, queues_config
from kits.spark_start import SESSION, java, spark_environment
from kits.warm_python import python_of_spark


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running ``duobus serve`` for tests of Spark; they create the queues they need, under names of their own."""
    with ServerProcess(tmp_path_factory.mktemp("spark-server"), config=queues_config({})) as process:
        yield process
        # What clients left open is not waited for.
        process.kill()


@pytest.fixture(scope="session")
def place_options(spark_server: ServerProcess) -> dict[str, str]:
    """Options of the data source that lead to the broker of these tests."""
    os.environ[CONNECTION_ENV] = spark_server.connection_string
    return {
        "connectionStringEnv": CONNECTION_ENV,
        "managementEndpoint": f"http://localhost:{spark_server.ready['http_port']}",
    }


@pytest.fixture(scope="session")
def bus(place_options: dict[str, str]) -> Bus:
    """The broker of these tests."""
    return Bus(place_options)


@pytest.fixture(scope="session")
def installed_java() -> None:
    """Whatever needs a JVM is skipped where there is none."""
    if java() is None:
        pytest.skip("no Java: Spark needs Java 17 or newer")


@pytest.fixture(scope="session")
def python_program(installed_java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What Spark's Python is for the session, and for drivers that are programs of their own."""
    with python_of_spark(tmp_path_factory.mktemp("python")) as python:
        yield python


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_server: ServerProcess, python_program: Path) -> Iterator[Any]:
    """The session; the JVM and the Python workers get their environment from here, once."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.update(spark_environment())
    os.environ[CONNECTION_ENV] = spark_server.connection_string
    # Workers find modules of the tests, such as credential providers, as they find those of the project.
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    # Two attempts of a task, so that tests can let one fail.
    builder = pyspark_sql.SparkSession.builder.master("local[2,2]").appName("duobus tests")
    for name, value in SESSION.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    # The JVM keeps what it begins with. Later servers of this process must not: in another environment of the
    # interpreter they would not begin in a fork.
    with pytest.MonkeyPatch.context() as at_start:
        at_start.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            at_start.setenv(name, str(python_program))
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
