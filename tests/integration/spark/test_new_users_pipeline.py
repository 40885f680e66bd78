"""What a new user builds out of the documentation alone: empty sources, topics, large messages, ``once``, DuckDB."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from azure.servicebus import ServiceBusMessage
from spark_bus import Bus

from duobus.spark.connection import new_client
from duobus.spark.jobs import capture, deadletters
from duobus.spark.jobs.job import JobError

pytestmark = pytest.mark.slow

#: How long the process of a source may take to settle after its query has ended.
TIMEOUT_S = 30.0


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def settings_for(bus: Bus, folder: Path, queue: str, **more: str) -> dict[str, Any]:
    places = {"path": str(folder / "captured"), "checkpoint": str(folder / "checkpoint")}
    return {**bus.options, "queue": queue, **places, **more}


def test_what_is_empty_is_a_table_without_rows(spark: Any, bus: Bus) -> None:
    queue, (topic, subscription) = bus.queue(), bus.subscription()
    for place in ({"queue": queue}, {"topic": topic, "subscription": subscription}):
        assert spark.read.format("duobus").options(**bus.options, **place).load().count() == 0
    # Looks at the dead-letter queue.
    assert deadletters.run(spark, {**bus.options, "queue": queue})["messages"] == 0


def test_a_topic_takes_rows_and_its_subscription_gives_them_back(spark: Any, bus: Bus) -> None:
    topic, subscription = bus.subscription()
    rows = spark.createDataFrame([(f"{n}",) for n in range(5)], "body string")
    rows.write.format("duobus").options(**bus.options, topic=topic, writeId="first").mode("append").save()
    table = spark.read.format("duobus").options(**bus.options, topic=topic, subscription=subscription).load()
    assert sorted(bytes(row.body) for row in table.select("body").collect()) == [b"0", b"1", b"2", b"3", b"4"]
    # What needs two messages reads no more than what needs all, and gives as many as there are.
    assert table.limit(2).count() == 2


@pytest.mark.timeout(180)
def test_a_message_of_50_mb_is_captured(spark: Any, bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue(max_message_size_in_kilobytes=102_400)
    body = bytes(range(256)) * (50 * 4_096)
    with new_client(bus.place) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(body, message_id="large"))
        sender.send_messages(ServiceBusMessage(b"small", message_id="small"))
    summary = capture.run(spark, settings_for(bus, tmp_path, queue, maxBytesPerTrigger="1m"))
    # The first receive asks for one message, so what follows the large one is of another batch.
    assert (summary["batches"], summary["messages"]) == (2, 2)
    found = {
        row["message_id"]: row["body"]
        for path in (tmp_path / "captured").rglob("part-*.parquet")
        for row in pq.ParquetFile(path).read(["message_id", "body"]).to_pylist()
    }
    assert found == {"large": body, "small": b"small"}
    assert bus.counts(queue) == (0, 0)


def test_a_run_of_once_leaves_nothing_claimed_behind(spark: Any, bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(20)])
    checkpoint = str(tmp_path / "checkpoint")
    source = spark.readStream.format("duobus").options(**bus.options, queue=queue, checkpointLocation=checkpoint)
    writer = source.load().writeStream.format("parquet").option("path", str(tmp_path / "table"))
    query = writer.option("checkpointLocation", checkpoint).trigger(once=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert spark.read.parquet(str(tmp_path / "table")).count() == 20
    assert eventually(lambda: bus.counts(queue) == (0, 0))


def test_a_batch_of_once_that_failed_stays_claimed_for_the_next_run(spark: Any, bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    checkpoint = str(tmp_path / "checkpoint")
    source = spark.readStream.format("duobus").options(**bus.options, queue=queue, checkpointLocation=checkpoint)
    found: Counter[bytes] = Counter()

    def write(frame: Any, _: int) -> None:
        rows = frame.collect()
        if not (tmp_path / "good").exists():
            raise RuntimeError("not yet")
        found.update(bytes(row.body) for row in rows)

    def run() -> None:
        writer = source.load().writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        query = writer.trigger(once=True).start()
        try:
            query.awaitTermination(60)
        finally:
            query.stop()

    with pytest.raises(Exception, match="not yet"):
        run()
    # Not committed, so nothing of it may be removed.
    assert bus.counts(queue) == (2, 0)
    (tmp_path / "good").touch()
    run()
    assert found == Counter([b"a", b"b"])
    assert eventually(lambda: bus.counts(queue) == (0, 0))


def test_what_a_killed_capture_left_is_gone_when_the_next_one_has_run(
    spark: Any, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb = pytest.importorskip("duckdb")
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(12)])
    settings = settings_for(bus, tmp_path, queue)
    lake = tmp_path / "captured"

    def read() -> Counter[bytes]:
        rows = duckdb.sql(f"select body from read_parquet('{lake}/**/*.parquet', hive_partitioning = true)").fetchall()
        return Counter(bytes(body) for (body,) in rows)

    write = capture.write_batch

    def killed(frame: Any, path: str, batch: str, compression: str) -> None:
        # As a kill in the middle of Spark's commit leaves it: one file whole, another one torn.
        write(frame, str(tmp_path / "elsewhere"), batch, compression)
        staging = Path(path) / ".spark-staging-0b5ea29b-0ee1-4be2-8d3f-4b3bd2b0a3a9"
        shutil.copytree(tmp_path / "elsewhere", staging)
        whole = next(staging.rglob("part-*.parquet"))
        whole.with_name("part-torn.parquet").write_bytes(whole.read_bytes()[:100])
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(capture, "write_batch", killed)
        with pytest.raises(JobError, match="killed"):
            capture.run(spark, settings)
    with pytest.raises(duckdb.Error):
        read()
    others = lake / ".spark-staging-of-another-capture" / "entity=other" / "batch_id=cafebabe-00000001"
    others.mkdir(parents=True)

    assert capture.run(spark, settings)["messages"] == 12
    assert read() == Counter(f"{n}".encode() for n in range(12))
    assert [path.name for path in lake.glob(".*")] == [".spark-staging-of-another-capture"]
    (one, *_) = (path for path in lake.rglob("part-*.parquet"))
    times = pq.ParquetFile(one).metadata.row_group(0)
    (column,) = (
        times.column(index)
        for index in range(times.num_columns)
        if times.column(index).path_in_schema == "enqueued_time"
    )
    assert column.physical_type == "INT64"
    assert column.statistics.has_min_max


def test_wrong_options_of_a_stream_are_told_before_it_starts(spark: Any, bus: Bus, tmp_path: Path) -> None:
    source = spark.readStream.format("duobus").options(**bus.options, queue="any")
    with pytest.raises(Exception, match="Did you mean 'maxMessagesPerTrigger'") as failed:
        source.option("maxMessagePerTrigger", "5").load()
    assert "UnboundLocalError" not in str(failed.value)
    settings = settings_for(bus, tmp_path, "any", startingOffsets="latest")
    del settings["path"], settings["checkpoint"]
    # Whether it is a stream is known only when the query starts; its own error then comes last.
    frame = spark.readStream.format("duobus").options(**settings).load()
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    try:
        with pytest.raises(Exception, match="'startingOffsets' holds with readMode=browse") as refused:
            query.awaitTermination(60)
    finally:
        query.stop()
    assert "UnboundLocalError" not in str(refused.value)
