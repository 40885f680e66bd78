"""A release that is killed between its copy and the original, and done again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiver
from kit_sink import body, drained
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StructType
from spark_bus import Bus

from duobus.spark import DuobusDataSource, recovery
from duobus.spark.connection import new_client
from duobus.spark.errors import EntityError
from duobus.spark.recovery import release, sweep
from duobus.spark.sink.resend import ORIGINAL_ID, reactivated_id

pytestmark = pytest.mark.slow


def test_the_id_of_a_copy_is_that_of_its_place() -> None:
    one = reactivated_id("bus", "orders", 7, 1)
    assert one == reactivated_id("bus", "orders", 7, 1)
    others = {reactivated_id("bus", "orders", 8, 1), reactivated_id("bus", "orders", 7, 2)}
    others |= {reactivated_id("bus", "other", 7, 1), reactivated_id("sub", "orders", 7, 1)}
    assert len(others | {one}) == 5


def claimed(bus: Bus, queue: str, checkpoint: Path) -> None:
    """Claim all of a queue, as a query that ends before its batch is committed."""
    schema = StructType().add("sequence_number", LongType()).add("body", BinaryType())
    reader: Any = DuobusDataSource({**bus.options, "queue": queue, "maxWaitTime": "300ms"}).streamReader(schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert reader.partitions(start, end)
    reader.stop()
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(end)}")


@pytest.mark.parametrize(("detects", "expected"), [(True, [b"a", b"b"]), (False, [b"a", b"a", b"b"])])
def test_what_was_sent_twice_is_there_once_where_duplicates_are_detected(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detects: bool, expected: list[bytes]
) -> None:
    queue = bus.queue(requires_duplicate_detection=detects)
    bus.send(queue, [ServiceBusMessage(text, message_id=f"id-{text}") for text in ("a", "b")])
    claimed(bus, queue, tmp_path)

    def killed(receiver: ServiceBusReceiver, message: Any) -> None:
        # The lock of a process that is gone ends, and the message is deferred as before; here at once.
        receiver.defer_message(message)
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(recovery, "LOCKED_AT_ONCE", 1)
        patched.setattr(ServiceBusReceiver, "complete_message", killed)
        with pytest.raises(RuntimeError, match="killed"):
            release(tmp_path, bus.options)
    assert release(tmp_path, bus.options)["messages"] == 2

    found = drained(bus.options, queue)
    assert sorted(map(body, found)) == expected
    if detects:
        originals = [message.application_properties[ORIGINAL_ID.encode()] for message in found]
        assert sorted(originals) == [b"id-a", b"id-b"]
        assert all(message.message_id.startswith("reactivated/") for message in found)
    else:
        assert sorted(message.message_id for message in found) == ["id-a", "id-a", "id-b"]


def test_what_the_killed_one_has_locked_is_told_and_waited_for(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    claimed(bus, queue, tmp_path)
    options = {**bus.options, "retryTotal": "0"}

    def killed(receiver: ServiceBusReceiver, message: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(ServiceBusReceiver, "complete_message", killed)
        with pytest.raises(RuntimeError, match="killed"):
            release(tmp_path, options)
    with pytest.raises(EntityError, match=rf"Claimed messages of '{queue}' are locked by somebody"):
        release(tmp_path, options)


def test_what_somebody_has_held_since_is_left_alone_and_told(bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    claimed(bus, queue, tmp_path)
    with new_client(bus.place) as client, client.get_queue_receiver(queue) as receiver:
        # As when a lock ends: still deferred, with one delivery more.
        (one,) = receiver.receive_deferred_messages([1])
        receiver.abandon_message(one)
    told = release(tmp_path, bus.options)
    assert (told["messages"], told["doubtful"]) == (1, 1)
    swept = sweep(queue, [], bus.options, action="reactivate")
    assert (swept["messages"], swept["sequence_numbers"]) == (1, [1])
    assert sorted(map(body, drained(bus.options, queue))) == [b"a", b"b"]
