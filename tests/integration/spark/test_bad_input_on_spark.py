"""Jobs and the sink tell in one line what was given wrongly, and lose nothing by it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import AccessRights
from kit_rights import limited
from kit_sink import drained
from spark_bus import Bus

from duobus.spark.errors import OptionError
from duobus.spark.jobs import capture
from duobus.spark.jobs.job import JobError

pytestmark = pytest.mark.slow


def settings_for(bus: Bus, folder: Path, queue: str, **more: str) -> dict[str, Any]:
    places = {"path": str(folder / "captured"), "checkpoint": str(folder / "checkpoint")}
    return {**bus.options, "queue": queue, "maxMessagesPerTrigger": "5", **places, **more}


def test_a_capture_that_cannot_go_on_says_why_and_the_next_one_has_everything(
    spark: Any, bus: Bus, tmp_path: Path
) -> None:
    queue, other = bus.queue(), bus.queue()
    texts = [f"{n}".encode() for n in range(12)]
    bus.send(queue, [text.decode() for text in texts])
    bus.send(other, ["not this"])
    good = settings_for(bus, tmp_path, queue)

    with pytest.raises(OptionError, match="Did you mean 'maxMessagesPerTrigger'"):
        capture.run(spark, good | {"maxMessagesPerTriger": "5"})
    with pytest.raises(JobError, match="There is no 'no-such-queue'"):
        # Without retries of the SDK, which would take eleven seconds to come to the same end.
        capture.run(spark, settings_for(bus, tmp_path / "missing", "no-such-queue", retryTotal="0"))
    assert bus.counts(queue) == (12, 0)

    # Where files would go there is one already, so the first batch is claimed and cannot be written.
    in_the_way = tmp_path / "in-the-way"
    in_the_way.write_text("a file")
    with pytest.raises(JobError, match="in-the-way"):
        capture.run(spark, good | {"path": str(in_the_way)})
    assert bus.counts(queue) == (12, 0)

    # Its checkpoint belongs to its queue, in the mode that it began with.
    with pytest.raises(JobError, match=rf"claimed messages of '{queue}'.*nothing was settled"):
        capture.run(spark, good | {"queue": other})
    with pytest.raises(JobError, match="an offset of readMode=claim"):
        capture.run(spark, good | {"readMode": "browse"})
    assert bus.counts(queue) == (12, 0)
    assert bus.counts(other) == (1, 0)

    # An offset that somebody has written into.
    (newest,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    whole = newest.read_text()
    newest.write_text(whole.replace('"v"', '"w"').replace('\\"v\\"', '\\"w\\"'))
    assert newest.read_text() != whole
    with pytest.raises(JobError, match="none of readMode=claim"):
        capture.run(spark, good)
    assert bus.counts(queue) == (12, 0)
    newest.write_text(whole)

    capture.run(spark, good)
    found = spark.read.parquet(good["path"]).collect()
    assert Counter(bytes(row.body) for row in found) == Counter(texts)
    assert bus.counts(queue) == (0, 0)


def test_rights_that_do_not_suffice_are_told_with_the_queue_and_nothing_is_sent_or_taken(
    spark: Any, bus: Bus, spark_server: Any, tmp_path: Path
) -> None:
    queue, listener = limited(bus, spark_server, AccessRights.LISTEN)
    frame = spark.sql("select 'a' as body")
    writer = frame.write.format("duobus").options(**listener.options, queue=queue, writeId="x").mode("append")
    with pytest.raises(Exception, match=rf"(?s)'{queue}'.*Send"):
        writer.save()
    assert bus.counts(queue) == (0, 0)

    queue, sender = limited(bus, spark_server, AccessRights.SEND)
    bus.send(queue, ["a"])
    with pytest.raises(JobError, match=f"rights do not suffice to read '{queue}'; Listen is needed"):
        capture.run(spark, settings_for(sender, tmp_path, queue))
    assert bus.counts(queue) == (1, 0)
    assert [message.sequence_number for message in drained(bus.options, queue)] != []
