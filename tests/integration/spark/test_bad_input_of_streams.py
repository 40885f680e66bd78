"""What users give wrongly is told by its name, and nothing is settled, sent or lost by it; without a JVM."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus.management import AccessRights
from kit_rights import limited
from kit_stream import SCHEMA, Stream
from spark_bus import Bus

from duobus.spark.data_source import DuobusDataSource
from duobus.spark.errors import CheckpointError, DataLoss, EntityError, OptionError
from duobus.spark.offsets import ClaimOffset
from duobus.spark.source import partition_reader


def test_a_stream_without_the_right_to_listen_names_the_queue_and_takes_nothing(bus: Bus, spark_server: Any) -> None:
    queue, theirs = limited(bus, spark_server, AccessRights.SEND)
    bus.send(queue, ["a", "b"])
    stream = Stream(theirs, queue=queue)
    with pytest.raises(EntityError, match=f"rights do not suffice to read '{queue}'; Listen is needed"):
        stream.claim()
    assert bus.counts(queue) == (2, 0)
    stream.stop()


def test_the_right_to_listen_alone_is_enough_to_claim_settle_and_come_to_an_end(bus: Bus, spark_server: Any) -> None:
    queue, theirs = limited(bus, spark_server, AccessRights.LISTEN)
    bus.send(queue, ["a", "b"])
    stream = Stream(theirs, queue=queue)
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.batch() == [b"a", b"b"]
    assert stream.claim() == stream.start
    assert bus.counts(queue) == (0, 0)
    stream.stop()


def test_a_pattern_without_the_right_to_manage_is_told(bus: Bus, spark_server: Any) -> None:
    queue, theirs = limited(bus, spark_server, AccessRights.LISTEN)
    bus.send(queue, ["a"])
    with pytest.raises(EntityError, match="Manage for queuesPattern"):
        Stream(theirs, queuesPattern="spark-*")
    assert bus.counts(queue) == (1, 0)


def test_a_checkpoint_of_the_other_mode_is_refused_either_way(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, ["a"])
    claims = Stream(bus, queue=queue)
    browses: Any = DuobusDataSource({**bus.options, "queue": queue, "readMode": "browse"}).streamReader(SCHEMA)
    end = claims.claim()
    claims.rows(end)
    with pytest.raises(CheckpointError, match="an offset of readMode=claim"):
        browses.latestOffset(end, browses.getDefaultReadLimit())
    other = Stream(bus, queue=queue)
    with pytest.raises(CheckpointError, match=r"an offset of readMode=browse.*nothing was settled"):
        other.reader.latestOffset(browses.initialOffset(), other.reader.getDefaultReadLimit())
    assert bus.counts(queue) == (1, 0)
    for stream in (claims, other):
        stream.stop()


def test_a_damaged_offset_is_told_and_settles_nothing(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, ["a"])
    stream = Stream(bus, queue=queue)
    end = stream.claim()
    stream.rows(end)
    for damaged in ({**end, "c": {queue: {"0": [1]}}}, {**end, "v": 9}, {**end, "u": "soon"}, "text", None):
        with pytest.raises(CheckpointError, match="nothing was settled"):
            stream.reader.latestOffset(damaged, stream.reader.getDefaultReadLimit())
    assert bus.counts(queue) == (1, 0)
    stream.stop()


def test_a_task_whose_messages_another_driver_has_settled_names_the_checkpoint(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower of two queries on one checkpoint, when it comes to read after the other one has gone on."""
    monkeypatch.setattr(partition_reader, "TIMEOUT_MS", 500)
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    slow = Stream(bus, queue=queue)
    end = slow.claim(1)
    parts = slow.reader.partitions(slow.start, end)
    quick = Stream(bus, queue=queue)
    assert [row["body"] for row in quick.rows(end)] == [b"a"]
    quick.start = end
    assert quick.batch(1) == [b"b"]
    with pytest.raises(DataLoss, match="another query uses this checkpoint"):
        list(slow.reader.read(parts[0]))
    quick.claim()
    assert bus.counts(queue) == (0, 0)
    for stream in (slow, quick):
        stream.stop()


def test_a_second_process_waits_for_the_first_which_still_holds_its_locks(bus: Bus) -> None:
    queue = bus.queue(lock_duration="PT15S")
    bus.send(queue, ["a", "b"])
    first = Stream(bus, queue=queue)
    end = first.claim(2)
    assert ClaimOffset.from_json(end).until_ms is not None
    second = Stream(bus, queue=queue)
    second.reader._claims()
    access, deferred = second.reader._access, []

    def pause() -> None:
        deferred.extend(first.rows(end))

    access.pause = pause
    assert [row["body"] for row in second.rows(end)] == [b"a", b"b"]
    assert len(deferred) == 2
    for stream in (first, second):
        stream.stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger"),
        ({"maxWaitTime": "soon"}, "maxWaitTime"),
        ({"settleOn": "never"}, "settleOn"),
        ({"maxAttempts": "3"}, "'maxAttempts' and 'attemptsPath' go together"),
        ({"minMessagesPerTrigger": "5"}, "'minMessagesPerTrigger' and 'maxTriggerDelay' go together"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"subscription": "s"}, "'topic' and 'subscription' go together"),
        ({"queues": "a,b"}, "'queue' and 'queues' was given"),
    ],
)
def test_a_wrong_option_of_a_stream_is_named_before_anything_is_opened(
    bus: Bus, options: dict[str, str], told: str
) -> None:
    queue = bus.queue()
    bus.send(queue, ["a"])
    with pytest.raises(OptionError, match=told):
        Stream(bus, queue=queue, **options)
    assert bus.counts(queue) == (1, 0)
