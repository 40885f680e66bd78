"""Metering: counts per batch, records per minute, files that survive damage."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from duobus.errors import InternalError
from duobus.model.metering import RECEIVE, SEND, MeteringRecord
from duobus.telemetry.metering_log import MeteringCounts, MeteringLog

_MINUTE_MS = 1_700_000_040_000


def _records(count: int, server: str = "s") -> list[MeteringRecord]:
    return [MeteringRecord(server, number, _MINUTE_MS, "n", "q", SEND, 1, 10, 1) for number in range(1, count + 1)]


def test_batches_of_one_entity_and_kind_add_up_to_one_record() -> None:
    counts = MeteringCounts("run-1")
    counts.add("n", "q", SEND, 100, 1000, 100)
    counts.add("n", "q", SEND, 1, 70_000, 2)
    counts.add("n", "q", RECEIVE, 5, 50, 5)
    counts.add("n", "p", SEND, 1, 1, 1)
    assert counts.take(_MINUTE_MS + 59_999) == [
        MeteringRecord("run-1", 1, _MINUTE_MS, "n", "q", SEND, 101, 71_000, 102),
        MeteringRecord("run-1", 2, _MINUTE_MS, "n", "q", RECEIVE, 5, 50, 5),
        MeteringRecord("run-1", 3, _MINUTE_MS, "n", "p", SEND, 1, 1, 1),
    ]


def test_counting_begins_again_after_a_take_with_new_numbers() -> None:
    counts = MeteringCounts("run-1")
    counts.add("n", "q", SEND, 1, 1, 1)
    counts.take(_MINUTE_MS)
    assert counts.take(_MINUTE_MS) == []
    counts.add("n", "q", SEND, 1, 1, 1)
    assert [record.number for record in counts.take(_MINUTE_MS)] == [2]


def test_totals_go_on_over_the_minutes_and_over_all_keys() -> None:
    counts = MeteringCounts("run-1")
    counts.add("n", "q", SEND, 2, 20, 2, "writer")
    counts.take(_MINUTE_MS)
    counts.add("n", "q", SEND, 1, 10, 3, "second")
    counts.add("n", "q", RECEIVE, 1, 10, 1)
    assert counts.totals == {("n", "q", SEND): [3, 30, 5], ("n", "q", RECEIVE): [1, 10, 1]}


def test_records_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    log = MeteringLog(tmp_path / "metering")
    log.write(_records(3))
    log.write([])
    log.write([MeteringRecord("s", 4, _MINUTE_MS, "n", 'q"\n,"sum":1}', SEND, 1, 10, 1)])
    assert [record.number for record in log.read()] == [1, 2, 3, 4]
    assert list(log.read())[:3] == _records(3)


def test_metering_files_are_private(tmp_path: Path) -> None:
    MeteringLog(tmp_path / "metering").write(_records(1))
    assert stat.S_IMODE((tmp_path / "metering").stat().st_mode) == 0o700
    (path,) = (tmp_path / "metering").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_file_is_followed_by_the_next_and_the_oldest_goes(tmp_path: Path) -> None:
    log = MeteringLog(tmp_path, file_bytes_max=1000, files_max=3)
    records = _records(60)
    for record in records:
        log.write([record])
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 3
    assert files[-1] > "metering-00000003.jsonl"
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    found = list(log.read())
    assert found == records[-len(found) :]
    assert found


def test_a_flipped_bit_anywhere_loses_one_record_and_alters_none(tmp_path: Path) -> None:
    log = MeteringLog(tmp_path)
    records = _records(2)
    log.write(records)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        found = list(log.read())
        assert all(record in records for record in found)
        assert len(found) < 2 or content[position] == 10


def test_a_line_torn_by_a_crash_does_not_swallow_the_next(tmp_path: Path) -> None:
    log = MeteringLog(tmp_path)
    log.write(_records(1))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"server":"s","numb')
    log.write(_records(1, server="t"))
    assert [record.server for record in log.read()] == ["s", "t"]


def test_no_line_is_empty(tmp_path: Path) -> None:
    log = MeteringLog(tmp_path)
    (tmp_path / "metering-00000001.jsonl").touch()
    for server in "abc":
        log.write(_records(2, server=server))
    (path,) = tmp_path.iterdir()
    assert len(path.read_bytes().splitlines()) == 6
    path.write_bytes(path.read_bytes() + b'{"server":"s","numb')
    log.write(_records(1, server="d"))
    assert b"" not in path.read_bytes().splitlines()


def test_records_written_twice_are_read_once(tmp_path: Path) -> None:
    log = MeteringLog(tmp_path)
    log.write(_records(2))
    log.write(_records(3))
    assert list(log.read()) == _records(3)


def test_a_disk_that_refuses_is_reported_and_the_records_can_be_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "metering"
    folder.write_text("in the way")
    log = MeteringLog(folder)
    with pytest.raises(InternalError, match="1 metering record"):
        log.write(_records(1))
    assert list(log.read()) == []
    folder.unlink()
    log.write(_records(1))
    assert list(log.read()) == _records(1)
