"""The reader of a stream against a real broker, called as Spark calls it but without a JVM."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from kit_stream import SCHEMA, Stream
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    StringType,
    StructType,  # type: ignore[attr-defined]
)
from spark_bus import Bus

from duobus.spark.body_encoder import sequence_sections, value_section
from duobus.spark.claims.engine import Seen
from duobus.spark.connection import new_client
from duobus.spark.data_source import DuobusDataSource
from duobus.spark.errors import CheckpointError, DataLoss, EntityError, OptionError
from duobus.spark.offsets import ClaimOffset, Key
from duobus.spark.recovery import dead_letter_numbers


@pytest.mark.parametrize("partitioned", [False, True])
def test_what_was_sent_comes_out_once_and_is_gone_after_the_next_claim(bus: Bus, partitioned: bool) -> None:
    queue = bus.queue(enable_partitioning=partitioned)
    bus.send(queue, [f"{n}" for n in range(450)])
    stream = Stream(bus, queue=queue)
    found = stream.batch(300)
    assert len(found) == 300
    assert bus.counts(queue)[0] == 450
    found += stream.batch(300)
    assert bus.counts(queue)[0] == 150
    assert stream.claim() == stream.start
    assert bus.counts(queue)[0] == 0
    assert sorted(found) == sorted(f"{n}".encode() for n in range(450))
    stream.stop()


def test_tasks_read_in_order_of_number(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(120)])
    stream = Stream(bus, queue=queue)
    assert stream.batch(120) == [f"{n}".encode() for n in range(120)]
    stream.stop()


def test_a_process_that_ends_before_the_offset_is_written_takes_nothing_with_it(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    first = Stream(bus, queue=queue)
    first.claim(2)
    first.stop()
    second = Stream(bus, queue=queue)
    assert second.batch(2) == [b"a", b"b"]
    second.stop()


def test_a_batch_replays_with_the_same_rows_while_a_rival_receives(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(10)])
    first = Stream(bus, queue=queue)
    end = first.claim(6)
    rows = first.rows(end)
    first.stop()
    with new_client(bus.place) as client, client.get_queue_receiver(queue) as rival:
        taken = rival.receive_messages(max_message_count=20, max_wait_time=1)
        for message in taken:
            rival.complete_message(message)
    assert len(taken) == 4
    second = Stream(bus, queue=queue)
    assert second.rows(end) == rows
    second.start = end
    assert second.claim() == end
    assert bus.counts(queue)[0] == 0
    second.stop()


def test_what_was_listed_and_not_deferred_is_dropped_and_claimed_again(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b", "c"])
    first = Stream(bus, queue=queue)
    end = first.claim(3)
    first.stop()
    second = Stream(bus, queue=queue)
    assert second.rows(end) == []
    second.start = end
    assert second.batch(3) == [b"a", b"b", b"c"]
    second.claim()
    assert bus.counts(queue)[0] == 0
    second.stop()


def test_what_another_stream_deferred_since_is_neither_read_nor_removed(bus: Bus) -> None:
    """Both streams list the message; only one has deferred it, which the delivery count tells."""
    queue = bus.queue()
    bus.send(queue, ["a"])
    first = Stream(bus, queue=queue)
    end = first.claim(1)
    first.stop()
    other = Stream(bus, queue=queue)
    others_end = other.claim(1)
    assert [row["body"] for row in other.rows(others_end)] == [b"a"]
    again = Stream(bus, queue=queue)
    assert again.rows(end) == []
    again.start = end
    assert again.claim() == end
    assert [row["body"] for row in other.rows(others_end)] == [b"a"]
    for stream in (other, again):
        stream.stop()


def test_a_deferral_raises_no_delivery_count_here(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, ["a"])
    stream = Stream(bus, queue=queue)
    end = stream.claim(1)
    stream.rows(end)
    claim = ClaimOffset.from_json(end).claim
    seen = stream.reader._access.seen(claim)
    assert set(seen[Key(queue)].values()) == {Seen(is_deferred=True, deliveries=0)}
    stream.stop()


def test_a_message_that_somebody_took_by_number_fails_the_read(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duobus.spark.source.partition_reader.TIMEOUT_MS", 200)
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    stream = Stream(bus, queue=queue)
    end = stream.claim(2)
    parts = stream.reader.partitions(stream.start, end)
    (number, _) = next(iter(ClaimOffset.from_json(end).claim.values()))
    with new_client(bus.place) as client, client.get_queue_receiver(queue, receive_mode="receiveanddelete") as thief:
        thief.receive_deferred_messages([number])
    with pytest.raises(DataLoss, match=rf"1 claimed messages of '{queue}' are gone.*\({number} gone\)"):
        list(stream.reader.read(parts[0]))
    lenient = Stream(bus, queue=queue, failOnDataLoss="false")
    assert [row["body"] for batch in lenient.reader.read(parts[0]) for row in batch.to_pylist()] == [b"b"]
    for one in (stream, lenient):
        one.stop()


def test_several_queues_are_one_stream_and_none_goes_short(bus: Bus) -> None:
    queues = [bus.queue() for _ in range(3)]
    for queue in queues:
        bus.send(queue, [f"{queue} {n}" for n in range(40)])
    stream = Stream(bus, queues=",".join(queues))
    end = stream.claim(90)
    rows = stream.rows(end)
    assert {queue: sum(row["entity"] == queue for row in rows) for queue in queues} == dict.fromkeys(queues, 30)
    stream.start = end
    rest = stream.batch(90)
    assert len(rest) == 30
    stream.claim()
    assert [bus.counts(queue)[0] for queue in queues] == [0, 0, 0]
    stream.stop()


def test_a_pattern_finds_queues_by_their_path(bus: Bus) -> None:
    queue = bus.queue("by-pattern")
    bus.send(queue, ["a"])
    stream = Stream(bus, queuesPattern=f"{queue[:-1]}?")
    assert b"a" in stream.batch(10)
    stream.stop()


def test_a_pattern_that_nothing_matches_is_told(bus: Bus) -> None:
    with pytest.raises(EntityError, match="No queue matches"):
        Stream(bus, queuesPattern="nothing-like-this-*")


def test_a_subscription_is_read_and_settled(bus: Bus) -> None:
    topic, subscription = bus.subscription()
    bus.send(topic, ["a", "b"], is_topic=True)
    stream = Stream(bus, topic=topic, subscription=subscription)
    end = stream.claim(2)
    rows = stream.rows(end)
    assert [(row["body"], row["entity"]) for row in rows] == [
        (b"a", f"{topic}/subscriptions/all"),
        (b"b", f"{topic}/subscriptions/all"),
    ]
    stream.start = end
    assert stream.claim() == end
    stream.stop()
    assert Stream(bus, topic=topic, subscription=subscription).batch() == []


def test_a_dead_letter_queue_is_read_and_settled(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    with new_client(bus.place) as client, client.get_queue_receiver(queue) as receiver:
        for message in receiver.receive_messages(max_message_count=2, max_wait_time=5):
            receiver.dead_letter_message(message, reason="bad")
    schema = StructType().add("body", BinaryType()).add("dead_letter_reason", StringType()).add("entity", StringType())
    stream = Stream(bus, schema, queue=queue, subQueue="deadletter")
    end = stream.claim(2)
    assert stream.rows(end) == [{"body": body, "dead_letter_reason": "bad", "entity": queue} for body in (b"a", b"b")]
    stream.start = end
    stream.claim()
    assert bus.counts(queue) == (0, 0)
    stream.stop()


def test_sessions_are_read_whole_and_in_order(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    for session in "xyz":
        bus.send(queue, [ServiceBusMessage(f"{session}{n}", session_id=session) for n in range(5)])
    stream = Stream(bus, queue=queue, exclusive="true", maxWaitTime="2s")
    end = stream.claim()
    assert {key.session for key in ClaimOffset.from_json(end).claim} == {"x", "y", "z"}
    bodies = [row["body"].decode() for row in stream.rows(end)]
    for session in "xyz":
        assert [body for body in bodies if body[0] == session] == [f"{session}{n}" for n in range(5)]
    stream.start = end
    assert stream.claim() == end
    assert bus.counts(queue)[0] == 0
    stream.stop()


def test_a_session_that_another_receiver_holds_is_waited_for_and_then_told(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    bus.send(queue, [ServiceBusMessage("a", session_id="x")])
    stream = Stream(bus, queue=queue, exclusive="true", claimTimeout="1s")
    end = stream.claim(1)
    parts = stream.reader.partitions(stream.start, end)
    with (
        new_client(bus.place) as client,
        client.get_queue_receiver(queue, session_id="x"),
        pytest.raises(EntityError, match=r"session 'x' of .* is held by another receiver"),
    ):
        list(stream.reader.read(parts[0]))
    assert [row["body"] for batch in stream.reader.read(parts[0]) for row in batch.to_pylist()] == [b"a"]
    stream.stop()


def test_an_entity_with_sessions_asks_for_exclusive(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    stream = Stream(bus, queue=queue)
    with pytest.raises(EntityError, match="exclusive=true"):
        stream.claim()
    stream.stop()


def test_a_missing_entity_is_named(bus: Bus) -> None:
    # Without retries of the SDK, which would take eleven seconds to come to the same end.
    stream = Stream(bus, queue="not-there", retryTotal="0")
    with pytest.raises(EntityError, match="There is no 'not-there'"):
        stream.claim()
    stream.stop()


def test_a_lock_too_short_is_refused_before_anything_is_taken(bus: Bus) -> None:
    queue = bus.queue(lock_duration="PT5S")
    bus.send(queue, ["a"])
    stream = Stream(bus, queue=queue)
    with pytest.raises(EntityError, match="a claim needs 15 s"):
        stream.claim()
    assert bus.counts(queue)[0] == 1


def test_a_checkpoint_of_another_entity_settles_nothing(bus: Bus) -> None:
    one, other = bus.queue(), bus.queue()
    bus.send(one, ["a"])
    stream = Stream(bus, queue=one)
    end = stream.claim(1)
    stream.rows(end)
    stream.stop()
    wrong = Stream(bus, queue=other)
    with pytest.raises(CheckpointError, match=f"claimed messages of '{one}'"):
        wrong.reader.latestOffset(end, ReadMaxRows(5))
    assert bus.counts(one)[0] == 1
    wrong.stop()


def test_available_now_takes_what_there_was_and_ends_without_a_wait(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(10)])
    stream = Stream(bus, queue=queue)
    stream.reader.prepareForTriggerAvailableNow()
    bus.send(queue, ["late"])
    assert len(stream.batch(6)) == 6
    assert len(stream.batch(6)) == 4
    assert stream.claim(6) == stream.start
    assert bus.counts(queue)[0] == 1
    stream.stop()


def test_available_now_without_the_right_to_count_ends_with_what_came_later(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duobus.spark.source.claim_stream.waiting_messages", lambda place, entities: None)
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    stream = Stream(bus, queue=queue)
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.batch(2)) == 2
    bus.send(queue, ["late", "later"])
    assert len(stream.batch(1)) == 1
    assert stream.claim() == stream.start
    stream.stop()


def test_a_trigger_without_a_limit_is_limited_all_the_same(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(30)])
    stream = Stream(bus, queue=queue, maxMessagesPerTrigger="2")
    end = stream.reader.latestOffset(stream.start, ReadAllAvailable())
    assert len(stream.rows(end)) == 20
    stream.stop()


def test_a_batch_ends_near_the_bytes_it_may_have(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, ["x" * 5_000 for _ in range(40)])
    stream = Stream(bus, queue=queue, maxBytesPerTrigger="50000")
    first = ReadMaxBytes(50_000)
    assert stream.reader.getDefaultReadLimit() == first
    end = stream.reader.latestOffset(stream.start, first)
    assert sum(map(len, ClaimOffset.from_json(end).claim.values())) == 10
    stream.stop()


def test_nothing_secret_travels_to_tasks(bus: Bus, spark_server: Any) -> None:
    key = spark_server.connection_string.split("SharedAccessKey=")[1].split(";")[0].encode()
    stream = Stream(bus, queue=bus.queue())
    stream.claim()
    assert key not in pickle.dumps(stream.reader)
    assert key.decode() not in repr(stream.reader._access._place)
    stream.stop()


def test_a_batch_that_never_finishes_goes_to_the_dead_letter_queue(bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    options = {"queue": queue, "maxAttempts": "2", "attemptsPath": str(tmp_path / "attempts")}
    first = Stream(bus, **options)
    end = first.claim(2)
    assert len(first.rows(end)) == 2
    first.reader.partitions(first.start, end)
    first.stop()
    second = Stream(bus, **options)
    assert len(second.rows(end)) == 2
    second.stop()
    third = Stream(bus, **options)
    assert third.rows(end) == []
    assert bus.counts(queue) == (0, 2)
    third.start = end
    assert third.claim() == end
    third.stop()
    dead = Stream(bus, StructType().add("dead_letter_reason", StringType()), queue=queue, subQueue="deadletter")
    assert dead.rows(dead.claim(2)) == [{"dead_letter_reason": "SparkMaxAttempts"}] * 2
    dead.stop()


def test_what_was_moved_from_within_the_batch_does_not_hold_up_the_rest(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(20)])
    stream = Stream(bus, queue=queue)
    end = stream.claim(20)
    stream.rows(end)
    numbers = list(ClaimOffset.from_json(end).claim[Key(queue)])
    with new_client(bus.place) as client:
        assert dead_letter_numbers(client, Key(queue), dict.fromkeys(numbers[3:5], ("why", ""))) == 2
    stream.reader.commit(end)
    assert bus.counts(queue) == (0, 2)
    stream.stop()


def test_a_body_that_is_no_data_comes_as_its_amqp_section(bus: Bus) -> None:
    queue = bus.queue()
    with new_client(bus.place) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(AmqpAnnotatedMessage(value_body="é"))
        sender.send_messages(AmqpAnnotatedMessage(sequence_body=[[True, "x"]]))
    schema = StructType().add("body", BinaryType()).add("body_type", StringType())
    stream = Stream(bus, schema, queue=queue)
    assert stream.rows(stream.claim(2)) == [
        {"body": value_section("é"), "body_type": "value"},
        {"body": sequence_sections([[True, "x"]]), "body_type": "sequence"},
    ]
    stream.stop()


def test_without_bodies_they_are_null_and_their_kind_is_told(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, ["a"])
    schema = StructType().add("body", BinaryType()).add("body_type", StringType())
    stream = Stream(bus, schema, queue=queue, includeBody="false")
    assert stream.rows(stream.claim(1)) == [{"body": None, "body_type": "data"}]
    stream.stop()


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"maxMessages": "7"}, 7),
        ({"maxMessages": "1000"}, 20),
        # Two bytes each: the fourth reaches the limit.
        ({"maxBytes": "7"}, 4),
        ({"maxBytes": "7", "maxMessages": "3"}, 3),
    ],
)
def test_a_batch_read_with_limits_gives_the_first_messages_in_one_task(
    bus: Bus, limits: dict[str, str], count: int
) -> None:
    queues = [bus.queue(), bus.queue()]
    for queue in queues:
        bus.send(queue, [f"{number:02}" for number in range(10)])
    given = {**bus.options, "queues": ",".join(queues), "maxRecordsPerPartition": "2", **limits}
    reader = DuobusDataSource(given).reader(SCHEMA)
    (part,) = reader.partitions()
    found = [row for batch in reader.read(part) for row in batch.to_pylist()]
    expected = [(queue, f"{number:02}".encode()) for queue in queues for number in range(10)]
    assert [(row["entity"], row["body"]) for row in found] == expected[:count]


@pytest.mark.parametrize("name", ["maxMessages", "maxBytes"])
def test_a_limit_of_a_batch_read_is_refused_for_streams_with_the_name_of_theirs(name: str) -> None:
    for mode, told in (("browse", f"{name}PerTrigger"), ("claim", "readMode=browse")):
        given = {"connectionStringEnv": "NONE", "queue": "q", "readMode": mode, name: "5"}
        with pytest.raises(OptionError, match=told):
            DuobusDataSource(given).streamReader(SCHEMA).initialOffset()


def test_a_batch_read_does_not_consume(bus: Bus) -> None:
    given = {**bus.options, "queue": "any", "readMode": "claim"}
    with pytest.raises(OptionError, match="availableNow"):
        DuobusDataSource(given).reader(SCHEMA)
