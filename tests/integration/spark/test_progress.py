"""Streaming queries are seen: figures of source and sink in Spark's progress, and for Prometheus."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from kit_sink import make_queue
from prometheus_client.parser import text_string_to_metric_families
from spark_bus import Bus

from duobus.spark.progress import ProgressListener, watch
from duobus.spark.source.status import status_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture
def listener(spark: Any, tmp_path: Path) -> Iterator[ProgressListener]:
    made = watch(spark, port=0, text_file=tmp_path / "spark.prom", reports={"relayed": str(tmp_path / "reports")})
    try:
        yield made
    finally:
        spark.streams.removeListener(made)
        made.close()


def samples_of(text: str) -> dict[str, float]:
    """The samples of a page by name; a query of these tests has one source."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("query") == "relayed"
    }


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something comes true while the events of Spark are on their way, which no clock of ours drives."""
    until = time.monotonic() + 10
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_a_query_tells_what_waits_is_claimed_and_sent_to_spark_prometheus_and_the_log(
    spark: Any, bus: Bus, tmp_path: Path, listener: ProgressListener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "duobus.spark")
    queue, to = bus.queue(), make_queue(bus.options, "progress-to", detects_duplicates=True)
    bus.send(queue, [f"{number}" for number in range(80)])
    rows = spark.readStream.format("duobus").options(**bus.options, queue=queue, maxMessagesPerTrigger="20").load()
    query = (
        rows.select("body")
        .writeStream.format("duobus")
        .options(**bus.options, queue=to, checkpointLocation=str(tmp_path / "c"), reportPath=str(tmp_path / "reports"))
        .queryName("relayed")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [status_in(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress]
    statuses = [status for status in found if status is not None]
    assert {status.source for status in statuses} == {f"duobus[queue={queue}, mode=claim]"}
    assert [(status.claimed, status.locks_held, status.deferred) for status in statuses] == [
        (20, 20, 0),
        # From the second batch on the broker claims: no lock is held, and what is claimed is deferred.
        *[(20, 0, 20)] * 3,
    ]
    # What the broker claims counts as the broker keeps it, with what is around a body.
    assert statuses[0].claimed_bytes == 30
    assert all(status.claimed_bytes > 40 for status in statuses[1:])
    assert all(status.oldest_age_ms is not None for status in statuses)
    # The first answer of the broker may be slower than the first batch.
    assert all(status.waiting in (None, left) for status, left in zip(statuses, (60, 40, 20, 0), strict=True))
    assert statuses[-1].waiting == statuses[-1].behind == 0
    assert eventually(lambda: "progress: query=relayed batch=3 rows=20" in caplog.text)

    assert eventually(lambda: "duobus_spark_failures_total" in (tmp_path / "spark.prom").read_text())
    (port,) = {listener._server.server_address[1]}
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        told = samples_of(page.read().decode())
    assert told == samples_of((tmp_path / "spark.prom").read_text())
    assert told["duobus_spark_rows_total"] == told["duobus_spark_sent_rows_total"] == 80
    assert (told["duobus_spark_sent_messages_total"], told["duobus_spark_repeated_messages_total"]) == (80, 0)
    assert told["duobus_spark_sent_bytes_total"] > 80
    assert told["duobus_spark_failures_total"] == 0
    # The query has ended, so nothing waits for it.
    assert "duobus_spark_waiting_messages" not in told


def test_the_figures_are_among_the_metrics_of_spark_itself(
    spark: Any, bus: Bus, tmp_path: Path, listener: ProgressListener
) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    rows = spark.readStream.format("duobus").options(**bus.options, queue=queue, readMode="browse").load()
    writer = rows.writeStream.format("noop").queryName("looked")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    name = f"looked.duobus_queue_{queue.replace('-', '_')}_mode_browse.rows"
    try:
        assert eventually(lambda: name in listener._spark_metrics._registry.getGauges().keySet())
        bus.send(queue, ["c"])
        # The first answer of the broker may be slower than the first batch.
        assert eventually(lambda: behind_of(query)[-1:] == [0])
        status = status_in(query.lastProgress["sources"][0]["latestOffset"])
        assert status is not None
        assert status.source == f"duobus[queue={queue}, mode=browse]"
        gauges = whole_registry(spark).getGauges()
        (whole,) = [key for key in gauges.keySet() if key.endswith(f"driver.duobus.{name}")]
        assert eventually(lambda: gauges.get(whole).getValue() == 3.0)
    finally:
        query.stop()


def behind_of(query: Any) -> list[int]:
    """How much a query was behind at each batch, as far as it is known."""
    found = (status_in(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress)
    return [status.behind for status in found if status is not None and status.behind is not None]


def whole_registry(spark: Any) -> Any:
    """The registry that Spark's own ways out of metrics read."""
    lang = spark._jvm.java.lang
    environment, system = (
        lang.Class.forName(f"org.apache.spark.{name}") for name in ("SparkEnv", "metrics.MetricsSystem")
    )
    kind, lookup, nothing = lang.invoke.MethodType.methodType, lang.invoke.MethodHandles.publicLookup(), []
    here = lookup.findStatic(environment, "get", kind(environment)).invokeWithArguments(nothing)
    metrics = lookup.findVirtual(environment, "metricsSystem", kind(system)).invokeWithArguments([here])
    (field,) = [one for one in system.getDeclaredFields() if one.getName().endswith("registry")]
    field.setAccessible(True)
    return field.get(metrics)
