"""The figures of a stream, as its source tells them in the place of a newest offset."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus.management import AccessRights
from kit_rights import limited
from kit_stream import SCHEMA, Stream
from pyspark.sql.streaming.datasource import ReadMaxRows
from spark_bus import Bus

from duobus.spark.data_source import DuobusDataSource
from duobus.spark.source.status import Status, status_in

pytestmark = pytest.mark.slow


def status_of(reader: Any) -> Status:
    """What a reader tells when the broker has answered."""
    reader.reportLatestOffset()
    reader._backlog._thread.join(20)
    found = status_in(reader.reportLatestOffset())
    assert found is not None
    return found


def test_messages_of_a_committed_batch_are_deferred_until_they_are_settled(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{number}" for number in range(9)])
    stream = Stream(bus, queue=queue, settleOn="commit")
    assert status_of(stream.reader).waiting == 9
    assert len(stream.batch(5)) == 5
    end = stream.claim(3)
    status = status_of(stream.reader)
    # The first batch was received and deferred; the broker has claimed the second, which defers it at once.
    assert (status.deferred, status.claimed, status.locks_held, status.waiting) == (8, 3, 0, 1)
    stream.reader.commit(stream.start)
    stream.rows(end)
    assert (status_of(stream.reader).deferred, status_of(stream.reader).locks_held) == (3, 0)
    stream.stop()


def test_without_the_right_to_manage_what_waits_is_not_told_and_all_else_is(bus: Bus, spark_server: Any) -> None:
    queue, listening = limited(bus, spark_server, AccessRights.LISTEN)
    bus.send(queue, ["a", "b"])
    stream = Stream(listening, queue=queue)
    stream.claim(1)
    status = status_of(stream.reader)
    assert (status.waiting, status.behind, status.claimed) == (None, None, 1)
    stream.stop()


def test_a_stream_that_looks_is_behind_by_the_numbers_after_its_batch(bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [f"{number}" for number in range(9)])
    reader: Any = DuobusDataSource({**bus.options, "queue": queue, "readMode": "browse"}).streamReader(SCHEMA)
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    status = status_of(reader)
    assert (status.source, status.behind) == (f"duobus[queue={queue}, mode=browse]", 5)
    assert status.oldest_age_ms is not None
