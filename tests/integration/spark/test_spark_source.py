"""The source in a real Spark: batch reads, claim streams, replays, poison rows, and what users do wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from spark_bus import Bus

from duobus.spark.recovery import claims_in, dead_letter, release, sweep

pytestmark = pytest.mark.slow


def read_stream(spark: Any, bus: Bus, **options: str) -> Any:
    return spark.readStream.format("duobus").options(**bus.options, **options).load()


def drain(df: Any, checkpoint: Path, write: Any) -> None:
    """Run a query over what there is, and wait for its end; raises what it failed with."""
    query = df.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    started = query.start()
    try:
        started.awaitTermination(90)
        assert not started.isActive
    finally:
        started.stop()


class Sink:
    """Keeps the rows of each batch, as a sink that takes a batch whole; fails when it is told to."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.fails_at: int | None = None
        self.runs: list[int] = []

    def __call__(self, df: Any, batch: int) -> None:
        self.runs.append(batch)
        rows = df.collect()
        if self.fails_at == batch:
            self.fails_at = None
            raise RuntimeError("the sink broke")
        self.batches[batch] = rows

    def bodies(self) -> list[bytes]:
        return [bytes(row["body"]) for rows in self.batches.values() for row in rows]


def test_a_batch_read_has_every_column_and_leaves_everything_there(spark: Any, bus: Bus) -> None:
    """SP1."""
    queue = bus.queue(enable_partitioning=True)
    bus.send(
        queue,
        [
            ServiceBusMessage(
                f"{n}",
                message_id=f"id-{n}",
                subject="s",
                partition_key=f"k{n % 5}",
                application_properties={"n": n, "t": "x"},
            )
            for n in range(60)
        ],
    )
    df = spark.read.format("duobus").options(**bus.options, queue=queue).load()
    rows = {row["message_id"]: row for row in df.collect()}
    assert set(rows) == {f"id-{n}" for n in range(60)}
    row = rows["id-7"].asDict()
    assert (bytes(row["body"]), row["body_type"], row["subject"], row["partition_key"]) == (b"7", "data", "s", "k2")
    assert row["application_properties"] == {"n": "7", "t": "x"}
    assert row["application_property_types"] == {"n": "long"}
    assert row["sequence_number"] >> 48 == row["fragment"]
    assert (row["entity"], row["state"], row["delivery_count"]) == (queue, "active", 0)
    assert row["enqueued_time"] is not None
    assert bus.counts(queue)[0] == 60


def test_a_batch_read_of_something_empty_has_no_rows(spark: Any, bus: Bus) -> None:
    """SP1."""
    queue, (topic, subscription) = bus.queue(), bus.subscription()
    places = [{"queue": queue}, {"queue": queue, "subQueue": "deadletter"}]
    places += [
        {"topic": topic, "subscription": subscription},
        {"queues": f"{queue},{bus.queue(enable_partitioning=True)}"},
    ]
    for place in places:
        df = spark.read.format("duobus").options(**bus.options, **place).load()
        assert df.collect() == []
        assert df.count() == 0
    bus.send(queue, ["one"])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = spark.read.format("duobus").options(**bus.options, queue=queue, filterPushdown="true").load()
        assert pushed.where("sequence_number > 28").collect() == []
        pushed.createOrReplaceTempView("empty_by_filter")
        assert spark.sql("select * from empty_by_filter where sequence_number > 28").collect() == []
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_columns_and_rows_are_chosen_where_the_messages_are_read(spark: Any, bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(30)])
    reader = spark.read.format("duobus").options(**bus.options, queue=queue, maxRecordsPerPartition="7")
    df = reader.schema("sequence_number bigint, body binary").load()
    assert df.columns == ["sequence_number", "body"]
    assert df.rdd.getNumPartitions() == 5
    assert sorted(int(row["body"]) for row in df.where("sequence_number > 20").collect()) == list(range(20, 30))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = reader.option("filterPushdown", "true").load().where("sequence_number > 28")
        assert pushed.count() == 2
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_a_claim_stream_hands_each_message_over_once_and_empties_the_queue(
    spark: Any, bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(enable_partitioning=True)
    bus.send(queue, [f"{n}" for n in range(500)])
    sink = Sink()
    df = read_stream(spark, bus, queue=queue, maxMessagesPerTrigger="200")
    drain(df, tmp_path, sink)
    assert Counter(sink.bodies()) == Counter(f"{n}".encode() for n in range(500))
    assert [len(rows) for rows in sink.batches.values()] == [200, 200, 100]
    # The first batch is received, and its offset names the stream; the broker claims the others.
    offsets = [claims_in(tmp_path / "offsets" / str(batch))[0] for batch in range(3)]
    assert [offset.parts for offset in offsets] == [0, 1, 1]
    assert len({offset.stream for offset in offsets}) == 1
    bus.send(queue, ["more"])
    drain(df, tmp_path, sink)
    drain(df, tmp_path, sink)
    assert bus.counts(queue)[0] == 0
    assert sink.bodies().count(b"more") == 1


def test_a_batch_that_failed_comes_again_with_the_same_rows_and_nothing_secret_is_kept(
    spark: Any, bus: Bus, tmp_path: Path, spark_server: Any
) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(20)])
    sink = Sink()
    sink.fails_at = 1
    df = read_stream(spark, bus, queue=queue, maxMessagesPerTrigger="10")
    with pytest.raises(Exception, match="the sink broke"):
        drain(df, tmp_path, sink)
    before = (tmp_path / "offsets" / "1").read_text()
    drain(df, tmp_path, sink)
    assert (tmp_path / "offsets" / "1").read_text().splitlines()[2:] == before.splitlines()[2:]
    assert sink.runs.count(1) == 2
    assert Counter(sink.bodies()) == Counter(f"{n}".encode() for n in range(20))
    key = spark_server.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    assert not any(key in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    plan = df._jdf.queryExecution().toString()
    assert key not in plan


def test_poison_rows_go_to_the_dead_letter_queue_with_their_reason(spark: Any, bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    bus.send(queue, ["1", "two", "3"])
    good: list[int] = []

    def write(df: Any, batch: int) -> None:
        from pyspark.sql import functions as f

        read = df.withColumn("number", f.expr("try_cast(cast(body as string) as int)")).persist()
        bad = read.where("number is null").withColumn("why", f.lit("NotANumber")).withColumn("text", f.lit("no int"))
        assert dead_letter(bad, "why", "text", options=bus.options) == 1
        assert dead_letter(bad, "why", "text", options=bus.options) == 0
        good.extend(row["number"] for row in read.where("number is not null").collect())
        read.unpersist()

    df = read_stream(spark, bus, queue=queue)
    drain(df, tmp_path, write)
    drain(df, tmp_path, write)
    assert sorted(good) == [1, 3]
    dead = spark.read.format("duobus").options(**bus.options, queue=queue, subQueue="deadletter").load().collect()
    assert [(bytes(row["body"]), row["dead_letter_reason"], row["dead_letter_error_description"]) for row in dead] == [
        (b"two", "NotANumber", "no int")
    ]


def test_a_claim_that_no_query_finishes_is_released(spark: Any, bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    sink = Sink()
    sink.fails_at = 0
    with pytest.raises(Exception, match="the sink broke"):
        drain(read_stream(spark, bus, queue=queue), tmp_path, sink)
    assert sweep(queue, [tmp_path], bus.options)["messages"] == 0
    told = release(tmp_path, bus.options, action="report")
    assert told == {"batch": 0, "committed": False, "action": "report", "messages": 2, "doubtful": 0}
    assert release(tmp_path, bus.options)["messages"] == 2
    assert release(tmp_path, bus.options)["messages"] == 0
    fresh = Sink()
    drain(read_stream(spark, bus, queue=queue), tmp_path / "fresh", fresh)
    assert sorted(fresh.bodies()) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queue": "q", "maxMessagesPerTriger": "5"}, "Did you mean 'maxMessagesPerTrigger'"),
        ({"queue": "q", "topic": "t"}, "'queue' and 'topic' was given"),
        ({"queue": "q", "readMode": "browse", "maxWaitTime": "5s"}, "holds with readMode=claim"),
    ],
)
def test_a_wrong_option_is_told_by_its_name(
    spark: Any, bus: Bus, tmp_path: Path, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        drain(read_stream(spark, bus, **options), tmp_path, Sink())


def test_a_missing_queue_is_told_by_its_name(spark: Any, bus: Bus, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="There is no 'missing-queue'"):
        # Without retries of the SDK, which would take eleven seconds to come to the same end.
        spark.read.format("duobus").options(**bus.options, queue="missing-queue", retryTotal="0").load().count()


def test_two_queries_on_one_checkpoint_are_refused_and_lose_nothing(spark: Any, bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b", "c"])
    sink = Sink()
    df = read_stream(spark, bus, queue=queue, maxMessagesPerTrigger="1", maxWaitTime="1s")
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    first = writer.start()
    spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
    try:
        with pytest.raises(Exception, match=r"(?i)concurrent|already active|same id"):
            writer.start()
        while len(sink.bodies()) < 3 and first.isActive:
            first.awaitTermination(1)
    finally:
        spark.conf.unset("spark.sql.streaming.stopActiveRunOnRestart")
        first.stop()
    drain(df, tmp_path, sink)
    drain(df, tmp_path, sink)
    assert sorted(sink.bodies()) == [b"a", b"b", b"c"]
    assert bus.counts(queue)[0] == 0


def test_a_browse_stream_reads_each_message_once_and_leaves_it(spark: Any, bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue(enable_partitioning=True)
    bus.send(queue, [f"{n}" for n in range(90)])
    sink = Sink()
    df = read_stream(spark, bus, queue=queue, readMode="browse", maxMessagesPerTrigger="40")
    drain(df, tmp_path, sink)
    bus.send(queue, ["more"])
    drain(df, tmp_path, sink)
    assert Counter(sink.bodies()) == Counter([*(f"{n}".encode() for n in range(90)), b"more"])
    assert bus.counts(queue)[0] == 91
