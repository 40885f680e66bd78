"""The sink with the real engine and a real broker."""

from __future__ import annotations

import json
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kit_sink import body, drained, make_queue, place, sends_to

from duobus.spark import DuobusDataSource
from duobus.spark.connection import new_administration, new_client
from duobus.spark.sink.writer import BatchWriter, batch_writer
from duobus.testing.server import ServerProcess

pytestmark = pytest.mark.slow


def write(frame: Any, options: dict[str, str], **given: str) -> None:
    frame.write.format("duobus").options(**options, **given).mode("append").save()


def test_rows_of_a_batch_write_arrive_once_though_the_write_is_run_again(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    make_queue(place_options, "sink-batch", detects_duplicates=True)
    frame = spark.range(0, 500, 1, 2).selectExpr("cast(id as string) as body", "'even' as subject")
    given = {"queue": "sink-batch", "writeId": "w1", "reportPath": str(tmp_path / "report")}
    write(frame, place_options, **given)
    write(frame, place_options, **given)
    found = drained(place_options, "sink-batch")
    assert sorted(int(body(message)) for message in found) == list(range(500))
    assert sorted(message.message_id for message in found) == sorted(
        f"w1/{part}/{row}" for part in range(2) for row in range(250)
    )
    report = json.loads((tmp_path / "report" / "w1.json").read_text())
    assert report["rows"] == report["messages"] == 500
    assert report["requests"] == 2


def test_every_column_arrives(spark: Any, place_options: dict[str, str]) -> None:
    make_queue(place_options, "sink-columns", requires_session=True)
    row = spark.sql(
        "select binary('b') as body, 'data' as body_type, 'm' as message_id, 's' as session_id, 's' as partition_key,"
        " 'c' as correlation_id, 'su' as subject, 'text/plain' as content_type, 't' as `to`, 'r' as reply_to,"
        " 'rs' as reply_to_session_id, bigint(90000) as time_to_live_ms,"
        " map('n', '5', 'x', 'y') as application_properties, map('n', 'int') as application_property_types,"
        " bigint(7) as sequence_number, 'sink-columns' as entity"
    )
    write(row, place_options, messageIdMode="column", writeId="c")
    (message,) = drained(place_options, "sink-columns", session_id="s")
    assert body(message) == b"b"
    assert (message.message_id, message.session_id, message.partition_key) == ("m", "s", "s")
    assert (message.correlation_id, message.subject, message.content_type) == ("c", "su", "text/plain")
    assert (message.to, message.reply_to, message.reply_to_session_id) == ("t", "r", "rs")
    assert message.time_to_live == timedelta(seconds=90)
    assert message.application_properties == {b"n": 5, b"x": b"y"}


def test_a_topic_is_written_to_by_a_batch_a_batch_of_a_stream_and_a_stream(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    """SP3."""
    with new_administration(place(place_options)) as management:
        management.create_topic("sink-topic")
        management.create_subscription("sink-topic", "all")
    given = {**place_options, "topic": "sink-topic"}
    write(spark.sql("select 'batch' as body"), given, writeId="w1")
    rows = tmp_path / "rows"
    spark.sql("select 'stream' as body").write.json(str(rows))
    lines = spark.readStream.schema("body string").json(str(rows))
    streaming = lines.writeStream.trigger(availableNow=True)
    start = [
        streaming.format("duobus").options(**given).option("checkpointLocation", str(tmp_path / "sink")),
        lines.writeStream.trigger(availableNow=True)
        .foreachBatch(lambda frame, number: write(frame, given, writeId=f"b{number}"))
        .option("checkpointLocation", str(tmp_path / "each")),
    ]
    for one in start:
        assert one.start().awaitTermination(60)
    with (
        new_client(place(place_options)) as client,
        client.get_subscription_receiver("sink-topic", "all") as receiver,
    ):
        found = [body(message) for message in receiver.peek_messages(10)]
    assert found == [b"batch", b"stream", b"stream"]


def test_a_task_that_fails_after_sixty_sends_is_tried_again_and_each_row_arrives_once(
    spark: Any, place_options: dict[str, str], spark_server: ServerProcess, tmp_path: Path
) -> None:
    """SP3."""
    make_queue(place_options, "sink-retry", detects_duplicates=True)
    marker = tmp_path / "failed-once"

    class FailingWriter(BatchWriter):
        def write(self, iterator: Any) -> Any:
            return super().write(self._broken(iterator))

        def _broken(self, batches: Any) -> Any:
            for batch in batches:
                # Of these bodies twelve fill a batch of the link, so that row 60 sends those before it.
                if batch.column(0)[0].as_py().startswith(b"61.") and not marker.exists():
                    marker.touch()
                    raise RuntimeError("injected")
                yield batch

    class Failing(DuobusDataSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return FailingWriter(batch_writer(dict(self.options), schema, overwrite).settings)

    spark.dataSource.register(Failing)
    frame = spark.range(0, 200, 1, 2).selectExpr("binary(rpad(id || '.', 20000, '.')) as body")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "61")
    try:
        options = {**place_options, "queue": "sink-retry", "writeId": "retry", "reportPath": str(tmp_path / "reports")}
        frame.write.format("failing").options(**options).mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert marker.exists()
    assert sends_to(spark_server.ready["http_port"], "sink-retry") == 260
    # The task that failed has sent all its rows again; the report cannot tell that only sixty of them were known.
    report = json.loads((tmp_path / "reports" / "retry.json").read_text())
    assert (report["messages"], report["repeated"]) == (200, 100)
    assert 200 * 20_000 < report["bytes"] < 200 * 20_200
    found = drained(place_options, "sink-retry")
    assert len({message.message_id for message in found}) == len(found) == 200
    assert sorted(int(body(message).rstrip(b".")) for message in found) == list(range(200))


def test_a_streaming_write_that_dies_in_a_batch_writes_it_again_with_the_same_ids(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    make_queue(place_options, "sink-stream", detects_duplicates=True)
    source = tmp_path / "in"
    spark.range(0, 300, 1, 2).selectExpr("cast(id as string) as body").write.parquet(str(source))

    def run(frame: Any) -> None:
        query = (
            frame.writeStream.format("duobus")
            .options(**place_options, queue="sink-stream", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        finally:
            query.stop()

    run(spark.readStream.schema("body string").parquet(str(source)))
    # As after a crash between the commit of the sink and that of the query.
    for log in (tmp_path / "checkpoint" / "commits").iterdir():
        log.unlink()
    run(spark.readStream.schema("body string").parquet(str(source)))
    found = drained(place_options, "sink-stream")
    assert sorted(int(body(message)) for message in found) == list(range(300))


def test_wrong_options_and_columns_are_refused_before_anything_is_sent(
    spark: Any, place_options: dict[str, str]
) -> None:
    frame = spark.sql("select 'a' as body, 'b' as sesion_id")
    with pytest.raises(Exception, match="Did you mean 'session_id'"):
        write(frame, place_options, queue="nowhere", writeId="x")
    with pytest.raises(Exception, match="Did you mean 'writeId'"):
        write(frame.select("body"), place_options, queue="nowhere", writeIdd="x")
    with pytest.raises(Exception, match="could not be sent to 'nowhere'"):
        # Without retries of the SDK, which would take eleven seconds in each attempt to come to the same end.
        write(frame.select("body"), place_options, queue="nowhere", writeId="x", retryTotal="0")


def test_a_row_that_is_too_large_fails_with_its_id_or_goes_aside(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    make_queue(place_options, "sink-large")
    frame = spark.sql("select repeat('x', id * 150000) as body, string(id) as subject from range(0, 3, 1, 1)")
    with pytest.raises(Exception, match=r"row large/0/2 .*makes a message of 300,\d+ bytes"):
        write(frame, place_options, queue="sink-large", writeId="large")
    drained(place_options, "sink-large")
    aside = str(tmp_path / "aside")
    report = {"writeId": "large", "reportPath": str(tmp_path / "report"), "oversizePath": aside}
    write(frame, place_options, queue="sink-large", onOversize="divert", **report)
    assert [message.subject for message in drained(place_options, "sink-large")] == ["0", "1"]
    (row,) = spark.read.parquet(aside).collect()
    assert (row.subject, len(row.body), row.oversize_id) == ("2", 300_000, "large/0/2")
    assert json.loads((tmp_path / "report" / "large.json").read_text())["diverted"] == 1

    from duobus.spark.oversize import claimed_body

    write(frame, place_options, queue="sink-large", onOversize="claimCheck", **report)
    stub = drained(place_options, "sink-large")[2]
    properties = {name.decode(): value for name, value in stub.application_properties.items()}
    assert properties["x-duobus-claim-check-bytes"] == 300_000
    where = properties["x-duobus-claim-check"].decode()
    assert claimed_body(where, properties["x-duobus-claim-check-sha256"].decode()) == b"x" * 300_000


def test_a_partitioned_queue_with_duplicate_detection_gets_messages_singly(
    spark: Any, place_options: dict[str, str]
) -> None:
    make_queue(place_options, "sink-partitioned", detects_duplicates=True, enable_partitioning=True)
    frame = spark.range(0, 60, 1, 1).selectExpr("string(id) as body")
    for _ in range(2):
        write(frame, place_options, queue="sink-partitioned", writeId="p")
    found = drained(place_options, "sink-partitioned")
    assert sorted(int(body(message)) for message in found) == list(range(60))


def test_a_destination_without_duplicate_detection_is_warned_about(place_options: dict[str, str], spark: Any) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    from duobus.spark.sink.writer import batch_writer

    make_queue(place_options, "sink-forgetful")
    schema = StructType([StructField("body", StringType())])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        batch_writer({**place_options, "queue": "sink-forgetful"}, schema, False)
    texts = [str(warning.message) for warning in told]
    assert any("does not detect duplicates" in text for text in texts)
    assert any("at least once" in text for text in texts)
