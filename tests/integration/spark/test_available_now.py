"""A run with availableNow hands over what there was: a broker that is slow to answer is not an empty one."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kit_stream import Stream
from spark_bus import Bus

from duobus.spark.connection import new_client
from duobus.spark.offsets import Key


def comes_late(stream: Stream, times: int) -> None:
    """Let so many receives end before anything has come."""
    stream.reader._claims()
    access = stream.reader._access
    receive, left = access.receive, [times]

    def late(limit: int, wait_ms: int) -> Any:
        left[0] -= 1
        return {} if left[0] >= 0 else receive(limit, wait_ms)

    access.receive = late


def test_what_the_sdk_leaves_behind_in_a_receive_is_of_the_same_batch(bus: Bus) -> None:
    """Under load a receive ended with 83 of 120: it returns a fixed while after its first message."""
    queue = bus.queue()
    bus.send(queue, [f"{n}" for n in range(120)])
    stream = Stream(bus, queue=queue)
    stream.reader._claims()
    stream.reader._access._receiver(Key(queue))._further_pull_receive_timeout = 0.0
    assert stream.batch(120) == [f"{n}".encode() for n in range(120)]
    stream.stop()


@pytest.mark.parametrize("knows_count", [True, False])
def test_a_run_goes_on_while_messages_wait_that_are_slow_to_come(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, knows_count: bool
) -> None:
    if not knows_count:
        monkeypatch.setattr("duobus.spark.source.claim_stream.waiting_messages", lambda place, entities: None)
    queue = bus.queue()
    bus.send(queue, ["a", "b", "c"])
    stream = Stream(bus, queue=queue, maxWaitTime="5s")
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.batch(2)) == 2
    comes_late(stream, 2)
    assert stream.batch(2) == [b"c"]
    assert stream.claim(2) == stream.start
    assert bus.counts(queue)[0] == 0
    stream.stop()


def test_what_somebody_else_holds_is_told_and_ends_the_run(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b", "c"])
    with new_client(bus.place) as client, client.get_queue_receiver(queue) as rival:
        assert len(rival.receive_messages(max_message_count=1, max_wait_time=5)) == 1
        stream = Stream(bus, queue=queue)
        stream.reader.prepareForTriggerAvailableNow()
        assert len(stream.batch(3)) == 2
        with caplog.at_level(logging.WARNING, logger="duobus.spark"):
            assert stream.claim(3) == stream.start
    assert "another receiver holds them" in caplog.text
    assert bus.counts(queue)[0] == 1
    stream.stop()


def test_what_others_took_in_the_meantime_is_not_waited_for(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    stream = Stream(bus, queue=queue, maxWaitTime="15m")
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.batch(1)) == 1
    with new_client(bus.place) as client, client.get_queue_receiver(queue) as rival:
        (message,) = rival.receive_messages(max_message_count=1, max_wait_time=5)
        rival.complete_message(message)
        stream.reader.commit(stream.start)
        assert bus.counts(queue)[0] == 0
        assert stream.claim(1) == stream.start
    assert "another receiver" not in caplog.text
    stream.stop()
