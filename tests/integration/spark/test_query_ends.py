"""What is left of a query that ended: its last batch, staging files, and jobs that a signal stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit_stream import SCHEMA, Stream
from spark_bus import Bus

from duobus.spark import connection
from duobus.spark.connection import demand_reachable, place_of
from duobus.spark.errors import AddressError, OptionError
from duobus.spark.jobs.interruption import WAS_STOPPED, Stopping
from duobus.spark.jobs.staging_files import STALE_S, clear_staging
from duobus.spark.options import CONNECTION_OPTIONS, parse
from duobus.spark.source import query_end as ending
from duobus.spark.source.claim_stream import RefusingReader, stream_reader
from duobus.spark.source.query_end import Ended, Ending, local_folder, settle_committed
from duobus.spark.source.range_reader import batch_reader
from kits.hand_time import HandTime


@pytest.fixture(autouse=True)
def nothing_was_stopped() -> Iterator[None]:
    yield
    WAS_STOPPED.clear()


def written_down(folder: Path, end: Any, *, is_committed: bool, batch: int = 0) -> None:
    """A checkpoint as Spark keeps it."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "offsets" / f"{batch}").write_text(f"v1\n{{}}\n{json.dumps(end)}")
    if is_committed:
        (folder / "commits" / f"{batch}").write_text("v1\n{}")


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_last_batch_is_removed_when_the_process_of_the_source_ends_if_it_is_committed(
    bus: Bus, tmp_path: Path, is_committed: bool
) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b", "c"])
    stream = Stream(bus, queue=queue, checkpointLocation=tmp_path.as_uri())
    end = stream.claim(3)
    assert len(stream.rows(end)) == 3
    written_down(tmp_path, end, is_committed=is_committed)
    stream.stop()
    assert bus.counts(queue) == (0 if is_committed else 3, 0)


def test_a_batch_of_another_source_or_an_earlier_one_is_left_alone(bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue()
    bus.send(queue, ["a", "b"])
    stream = Stream(bus, queue=queue)
    first = stream.claim(2)
    assert len(stream.rows(first)) == 2
    written_down(tmp_path, first, is_committed=True)
    settle_committed(bus.place, str(tmp_path), {**first, "b": 7})
    # A later batch that is not committed may read again what an earlier one lists.
    written_down(tmp_path, {**first, "b": 2}, is_committed=False, batch=1)
    settle_committed(bus.place, str(tmp_path))
    assert bus.counts(queue) == (2, 0)
    (tmp_path / "offsets" / "1").unlink()
    settle_committed(bus.place, str(tmp_path))
    assert bus.counts(queue) == (0, 0)
    stream.stop()


def test_a_checkpoint_that_is_elsewhere_or_damaged_fails_nothing(bus: Bus, tmp_path: Path) -> None:
    settle_committed(bus.place, "s3a://lake/checkpoint")
    settle_committed(bus.place, str(tmp_path / "none"))
    written_down(tmp_path, {}, is_committed=True)
    (tmp_path / "offsets" / "0").write_text("no offsets")
    settle_committed(bus.place, str(tmp_path))
    # The secret is on the nodes alone.
    written_down(tmp_path, {"v": 1, "at": "elsewhere", "b": 1, "c": {}}, is_committed=True)
    settle_committed(place_of(parse({"connectionStringEnv": "NO_SUCH"}, CONNECTION_OPTIONS)), str(tmp_path))
    assert local_folder("file:///a%20b") == Path("/a b")
    assert local_folder("hdfs://x/y") is None


def test_other_processes_keep_their_handler_of_sigterm() -> None:
    before = signal.getsignal(signal.SIGTERM)
    Ending(lambda: None).install()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_call_under_way_is_left_before_anything_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(ending.os, "_exit", done.append)
    told = Ending(lambda: done.append("settled"))
    with told.call():
        with pytest.raises(Ended):
            told._told()
        raise Ended
    told._told()
    assert done == ["settled", 0, "settled", 0]


def test_only_what_this_query_or_nobody_is_writing_is_cleared(tmp_path: Path) -> None:
    clock = HandTime()
    clock.ms = 2_000_000_000_000
    now_s = clock.ms / 1000
    for name, batch, age_s in (
        (".spark-staging-own", "batch_id=abc-00000003", 0),
        (".spark-staging-other", "batch_id=def-00000003", 60),
        (".spark-staging-old", "batch_id=def-00000001", STALE_S + 60),
        ("_temporary", "0", STALE_S + 60),
        ("entity=orders", "batch_id=abc-00000001", STALE_S + 60),
    ):
        folder = tmp_path / name / batch
        folder.mkdir(parents=True)
        for one in (folder, folder.parent):
            os.utime(one, (now_s - age_s, now_s - age_s))
    assert clear_staging(str(tmp_path), "abc", clock) == [".spark-staging-old", ".spark-staging-own", "_temporary"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".spark-staging-other", "entity=orders"]
    assert clear_staging("s3a://lake/orders", "abc", clock) == []
    assert clear_staging(str(tmp_path / "none"), "abc", clock) == []


class FakeQuery:
    """A query in the middle of a batch, which it has done when it has been looked at so often."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.stopped_after: int | None = None
        self.seen = 0

    @property
    def status(self) -> dict[str, Any]:
        self.seen += 1
        return {"message": "Processing new data" if self.seen <= self.looks else "Waiting for next trigger"}

    def stop(self) -> None:
        self.stopped_after = self.seen


def test_a_job_is_stopped_after_the_batch_that_it_is_at() -> None:
    query = FakeQuery(2)
    Stopping(SimpleNamespace(streams=SimpleNamespace(active=[query]))).stop()  # type: ignore[arg-type]
    assert query.stopped_after == 3


def test_ctrl_c_cancels_what_is_no_query_and_raises_nothing() -> None:
    cancelled = threading.Event()
    context = SimpleNamespace(cancelAllJobs=cancelled.set)
    spark = SimpleNamespace(streams=SimpleNamespace(active=[]), sparkContext=context)
    before = signal.getsignal(signal.SIGINT)
    with Stopping(spark).watching() as stopping:  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGINT)
        assert cancelled.wait(60)
    assert stopping.signum == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_an_address_where_nobody_listens_is_told_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REACH_S", 0.5)
    text = f"Endpoint=sb://127.0.0.1:{closed_port()};SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    with pytest.raises(AddressError, match=r"Nobody answers at 127\.0\.0\.1:\d+, the address that 'connectionString'"):
        demand_reachable(place_of(parse({"connectionString": text}, CONNECTION_OPTIONS)))
    given = {"connectionString": text, "queue": "q"}
    with pytest.raises(AddressError):
        stream_reader(given, SCHEMA).initialOffset()
    with pytest.raises(AddressError):
        batch_reader(given, SCHEMA).partitions()


def test_a_reader_with_wrong_options_says_so_at_the_first_call_and_not_when_it_is_made() -> None:
    """Spark's runner raises UnboundLocalError for a reader that cannot be made, and hides why."""
    reader = stream_reader({"connectionString": "Endpoint=sb://x", "queue": "q", "maxWaitTime": "soon"}, SCHEMA)
    assert isinstance(reader, RefusingReader)
    for call in (reader.initialOffset, reader.getDefaultReadLimit, reader.prepareForTriggerAvailableNow):
        with pytest.raises(OptionError, match="maxWaitTime"):
            call()
    with pytest.raises(OptionError, match="maxWaitTime"):
        reader.latestOffset({}, None)
    reader.stop()
