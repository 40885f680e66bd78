"""A capture that is killed at any of its file operations, and run again, has each message in one file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from duobus import file_sync
from duobus.arrow import capture_folder
from duobus.arrow.capture_folder import CaptureError, CaptureFolder, escaped
from duobus.spark.schema import arrow_schema

START = datetime(2026, 1, 31, 22, 59, tzinfo=UTC)


class Killed(BaseException):
    """Nothing of the process runs after it."""


def rows(numbers: range) -> list[dict[str, Any]]:
    """Messages of which each is enqueued half an hour after the one before."""
    return [
        {
            "sequence_number": n,
            "enqueued_time": START + timedelta(minutes=30 * n),
            "body": b"%d" % n,
            "entity": "orders",
        }
        for n in numbers
    ]


def microseconds(row: dict[str, Any]) -> int:
    return round(row["enqueued_time"].timestamp() * 1_000_000)


class Queue:
    """Messages that come again until they are settled."""

    def __init__(self, count: int) -> None:
        self.left = {row["sequence_number"]: row for row in rows(range(1, count + 1))}

    def captured(self, path: Path, *, size: int = 3, settles: bool = True) -> None:
        """Capture everything, batch by batch."""
        with CaptureFolder(path, "here", "orders", "orders") as folder:
            while self.left:
                batch = list(self.left.values())[:size]
                fresh = [row for row in batch if not folder.is_there(row["sequence_number"], microseconds(row))]
                folder.write([pa.RecordBatch.from_pylist(fresh, schema=arrow_schema())])
                if not settles:
                    return
                for row in batch:
                    del self.left[row["sequence_number"]]
                folder.settled([row["sequence_number"] for row in batch])


def numbers_in(path: Path) -> list[int]:
    found = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    return sorted(found.column("sequence_number").to_pylist())


def kill_at(count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the process die at one of its syncs; return the list of those that were done."""
    done: list[int] = []

    def dying(real: Any) -> Any:
        def call(*given: Any) -> Any:
            done.append(1)
            if len(done) > count:
                raise Killed
            return real(*given)

        return call

    for name in ("sync_file", "sync_folder"):
        call = dying(getattr(file_sync, name))
        for module in (capture_folder, file_sync):
            monkeypatch.setattr(module, name, call)
    return done


def test_killed_anywhere_and_run_again_each_message_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 0
    for count in range(200):
        path = tmp_path / str(count)
        queue = Queue(8)
        with monkeypatch.context() as patch:
            kill_at(count, patch)
            try:
                queue.captured(path)
            except Killed:
                kills += 1
            else:
                break
        queue.captured(path)
        assert numbers_in(path) == list(range(1, 9)), count
        assert not list(path.rglob("*.part"))
    assert kills > 30


def test_killed_before_anything_is_settled_the_messages_are_not_written_again(tmp_path: Path) -> None:
    queue = Queue(3)
    queue.captured(tmp_path, settles=False)
    assert queue.left
    queue.captured(tmp_path)
    assert numbers_in(tmp_path) == [1, 2, 3]
    assert not (tmp_path / "_duobus" / "orders" / "pending.json").exists()


def test_a_message_of_another_time_with_the_same_number_is_another_message(tmp_path: Path) -> None:
    with CaptureFolder(tmp_path, "here", "orders", "orders") as folder:
        (row,) = rows(range(1, 2))
        folder.write([pa.RecordBatch.from_pylist([row], schema=arrow_schema())])
        assert folder.is_there(1, microseconds(row))
        assert not folder.is_there(1, microseconds(row) + 1)
        folder.settled([1])
        later = row | {"enqueued_time": row["enqueued_time"] + timedelta(seconds=1)}
        folder.write([pa.RecordBatch.from_pylist([later], schema=arrow_schema())])
    assert numbers_in(tmp_path) == [1, 1]


def test_the_folders_are_those_of_the_job_of_spark(tmp_path: Path) -> None:
    Queue(1).captured(tmp_path)
    (file,) = tmp_path.rglob("*.parquet")
    parts = file.relative_to(tmp_path).parts
    assert parts[:3] == ("entity=orders", "date=2026-01-31", "hour=23")
    assert parts[3].startswith("batch_id=")
    assert escaped("prices/subscriptions/all") == "prices%2Fsubscriptions%2Fall"


def test_two_captures_at_a_time_are_refused(tmp_path: Path) -> None:
    with (
        CaptureFolder(tmp_path, "here", "orders", "orders"),
        pytest.raises(CaptureError, match="Another process captures 'orders'"),
        CaptureFolder(tmp_path, "here", "orders", "orders"),
    ):
        pass


def test_a_file_that_is_gone_is_told_and_not_forgotten(tmp_path: Path) -> None:
    Queue(2).captured(tmp_path, settles=False)
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(CaptureError, match="is missing, which a capture had written"):
        Queue(2).captured(tmp_path)


def test_a_folder_of_another_namespace_is_refused_while_its_capture_has_not_ended(tmp_path: Path) -> None:
    Queue(2).captured(tmp_path, settles=False)
    with pytest.raises(CaptureError, match="of the namespace 'here'"), CaptureFolder(tmp_path, "x", "orders", "orders"):
        pass


def test_a_note_that_is_damaged_is_told(tmp_path: Path) -> None:
    Queue(2).captured(tmp_path, settles=False)
    (tmp_path / "_duobus" / "orders" / "pending.json").write_text("{")
    with pytest.raises(CaptureError, match="cannot be read"):
        Queue(2).captured(tmp_path)
