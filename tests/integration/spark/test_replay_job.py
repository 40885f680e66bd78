"""Replaying captured messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kit_captured import START, row, write_captured
from kit_sink import body, drained, make_queue

from duobus.spark.errors import OptionError
from duobus.spark.jobs import captured_files, replay
from duobus.spark.jobs.job import JobError, settings_of

pytestmark = pytest.mark.slow


def test_a_replay_restores_everything_and_sends_nothing_twice(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    """SP4."""
    make_queue(place_options, "replay-whole", detects_duplicates=True)
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    rows = [row(number) for number in range(40)]
    rows[3] |= {
        "message_id": None,
        "partition_key": "k",
        "subject": "s",
        "time_to_live_ms": 86_400_000,
        "scheduled_enqueue_time": START,
        "application_properties": {"n": "5", "t": "x"},
        "application_property_types": {"n": "long"},
        "delivery_count": 2,
        "dead_letter_reason": "poison",
    }
    rows[4] |= {"body_type": "value", "body": b"\x00\x53\x77\xa1\x02hi"}
    rows[39] |= {"scheduled_enqueue_time": later}
    write_captured(spark, tmp_path / "orders", rows)
    settings = {
        **place_options,
        "path": str(tmp_path / "orders"),
        "queue": "replay-whole",
        "dedupe": "original",
        "runsPath": str(tmp_path / "runs"),
    }
    told: list[str] = []
    would = replay.run(spark, settings | {"dryRun": "true", "runsPath": None}, told.append)
    groups = [{"namespace": "bus", "entity": "orders", "to": "replay-whole", "messages": 40}]
    assert (would["dryRun"], would["messages"], would["groups"]) == (True, 40, groups)
    assert told == ["checking files", "counting"]
    assert drained(place_options, "replay-whole") == []
    summary = replay.run(spark, settings)
    assert summary["groups"] == groups
    # So they are found in Spark's UI.
    assert spark.sparkContext.statusTracker().getJobIdsForGroup("duobus replay")
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None
    assert (summary["rows"], summary["sent"], summary["diverted"]) == (40, 40, 0)
    assert summary["warnings"] == []
    again = replay.run(spark, settings | {"tasks": 2})
    assert again["sent"] == 40
    assert spark.read.parquet(str(tmp_path / "runs")).where("job = 'replay' and is_done").count() == 2

    found = {message.application_properties[b"x-duobus-original-sequence-number"]: message for message in drained(
        place_options, "replay-whole"
    )}  # fmt: skip
    assert sorted(found) == list(range(39))
    assert found[5].message_id == "m5"
    metadata = found[3]
    assert metadata.message_id.endswith("/3")
    assert (metadata.partition_key, metadata.subject) == ("k", "s")
    assert metadata.time_to_live == timedelta(days=1)
    assert metadata.scheduled_enqueue_time_utc is None
    properties = metadata.application_properties
    assert (properties[b"n"], properties[b"t"]) == (5, b"x")
    assert properties[b"x-duobus-original-delivery-count"] == 2
    assert properties[b"x-duobus-original-dead-letter-reason"] == b"poison"
    assert properties[b"x-duobus-original-enqueued-time"] == round(rows[3]["enqueued_time"].timestamp() * 1000)
    assert found[4].body == b"hi"


def test_a_named_run_is_delivered_once_and_another_run_again(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    make_queue(place_options, "replay-run", detects_duplicates=True)
    write_captured(spark, tmp_path / "orders", [row(number, session_id=None) for number in range(30)])
    settings = {
        **place_options,
        "path": str(tmp_path / "orders"),
        "queue": "replay-run",
        "dedupe": "run",
        "from": (START + timedelta(minutes=10)).isoformat(),
        "until": (START + timedelta(minutes=20)).isoformat(),
    }
    with pytest.raises(OptionError, match="names the run"):
        replay.run(spark, settings)
    for name in ("monday", "monday", "tuesday"):
        replay.run(spark, settings | {"run": name})
    found = drained(place_options, "replay-run")
    assert sorted(int(body(message)) for message in found) == sorted([*range(10, 20)] * 2)
    assert {message.application_properties[b"x-duobus-original-message-id"] for message in found} == {
        f"m{number}".encode() for number in range(10, 20)
    }


def test_what_cannot_be_read_is_named_before_anything_is_sent(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    make_queue(place_options, "replay-bad")
    folder = tmp_path / "bad"
    settings = {**place_options, "path": str(folder), "queue": "replay-bad", "dedupe": "original"}
    with pytest.raises(JobError, match="bad"):
        replay.run(spark, settings)

    write_captured(spark, folder, [row(1), row(2, body_type="value", body=b"junk")])
    with pytest.raises(JobError, match=r"nothing was sent: file:.*\.parquet, sequence number 2: the body is no AMQP"):
        replay.run(spark, settings)

    leaf = next(folder.rglob("*.parquet")).parent
    damaged = leaf / "part-damaged.parquet"
    damaged.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(JobError, match=r"part-damaged\.parquet is no Parquet file"):
        replay.run(spark, settings)
    damaged.unlink()

    drifted = spark.sql("select 1 as body, bigint(1) as sequence_number").coalesce(1)
    drifted.write.mode("append").parquet(str(leaf))
    with pytest.raises(JobError, match=r"batch_id=.*/part-.*\.parquet has .*'body' as int32, not as binary"):
        replay.run(spark, settings)
    assert drained(place_options, "replay-bad") == []


def test_a_replay_of_an_hour_looks_at_no_other_folder(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    make_queue(place_options, "replay-hour")
    folder = tmp_path / "orders"
    write_captured(spark, folder, [row(number) for number in (1, 61, 62, 121)])
    for hour in (8, 10):
        next(folder.glob(f"entity=orders/date=2026-11-20/hour={hour}/*/*.parquet")).write_bytes(b"damaged")
    settings = {**place_options, "path": str(folder), "queue": "replay-hour", "dedupe": "original"}
    hour = {"from": (START + timedelta(hours=1)).isoformat(), "until": (START + timedelta(hours=2)).isoformat()}
    assert replay.run(spark, settings | hour | {"entity": "orders"})["rows"] == 2
    assert sorted(int(body(message)) for message in drained(place_options, "replay-hour")) == [61, 62]
    with pytest.raises(JobError, match=r"hour=8/.* is no Parquet file"):
        replay.run(spark, settings)


def test_a_replay_sends_bodies_through_one_shuffle_and_drops_copies_of_a_message(spark: Any, tmp_path: Path) -> None:
    write_captured(spark, tmp_path / "orders", [row(1), row(2, session_id="s"), row(2, session_id="s"), row(3)])
    write_captured(spark, tmp_path / "orders", [row(1, state="deferred")])
    frame = captured_files.captured(spark, str(tmp_path / "orders"))
    sent = replay.outgoing(frame, None, settings_of({"tasks": 3, "queue": "q"}, replay.OPTIONS))
    plan = sent._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning(") == 1, plan
    assert sorted(one.sequence_number for one in sent.select("sequence_number").collect()) == [1, 2, 3]
    assert sent.rdd.getNumPartitions() == 3
