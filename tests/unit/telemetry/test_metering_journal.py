"""The journal of the running minute: what a killed process counted is found again, and found once."""

from __future__ import annotations

import asyncio
import os
from errno import ENOSPC
from pathlib import Path

import pytest

from duobus.clock import Clock
from duobus.model.metering import RECEIVE, SEND, MeteringRecord
from duobus.server.monitoring.metering_writer import MeteringWriter
from duobus.telemetry import metering_journal
from duobus.telemetry.metering_journal import MeteringJournal, file_system, left_behind, read_journal
from duobus.telemetry.metering_log import MeteringCounts, MeteringLog

_MINUTE_MS = 1_700_000_040_000


@pytest.fixture(params=["ext4", "btrfs"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system on which the journal is mapped, and one on which it is written."""
    name = str(request.param)
    monkeypatch.setattr(metering_journal, "file_system", lambda _: name)
    return name


class StillClock(Clock):
    def now_ms(self) -> int:
        return _MINUTE_MS + 5


def counted(folder: Path) -> MeteringCounts:
    counts = MeteringCounts("run-1")
    counts.write_to(MeteringJournal(folder, 1, "run-1", _MINUTE_MS + 7))
    for _ in range(3):
        counts.add("n", "q", SEND, 10, 100, 11, "key")
    counts.add("n", 'q"\n\u2028', RECEIVE, 1, 2, 3)
    return counts


def test_the_records_of_a_journal_are_those_that_the_minute_would_have_given(tmp_path: Path) -> None:
    counts = counted(tmp_path)
    (path,) = left_behind(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    found = read_journal(path)
    assert found == counts.take(_MINUTE_MS)
    assert found[0] == MeteringRecord("run-1", 1, _MINUTE_MS, "n", "q", SEND, 30, 300, 33, "key")


def test_what_was_counted_before_there_was_a_journal_is_in_it(tmp_path: Path) -> None:
    counts = MeteringCounts("run-1")
    counts.add("n", "q", SEND, 1, 1, 1)
    counts.write_to(MeteringJournal(tmp_path, 1, "run-1", _MINUTE_MS))
    counts.add("n", "p", SEND, 1, 1, 1)
    counts.add("n", "q", SEND, 1, 1, 1)
    assert read_journal(left_behind(tmp_path)[0]) == counts.take(_MINUTE_MS)


def test_a_minute_that_is_in_log_and_journal_is_read_once(tmp_path: Path) -> None:
    counts = counted(tmp_path / "metering")
    # Killed between the two: the log is written, the journal still there.
    MeteringLog(tmp_path / "metering").write(counts.take(_MINUTE_MS))
    writer = MeteringWriter(MeteringCounts("run-2"), tmp_path, StillClock())
    writer.begin()
    asyncio.run(writer.close())
    assert [record.operations for record in MeteringLog(tmp_path / "metering").read()] == [33, 3]
    assert left_behind(tmp_path / "metering") == []


def test_a_journal_that_was_left_behind_is_kept_until_its_records_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "metering"
    counted(folder)
    for _ in range(3):
        # Killed again before anything was written.
        MeteringWriter(MeteringCounts("run-2"), tmp_path, StillClock()).begin()
    assert len(left_behind(folder)) == 4
    counts = MeteringCounts("run-3")
    writer = MeteringWriter(counts, tmp_path, StillClock())
    writer.begin()
    counts.add("n", "q", SEND, 1, 1, 1)
    asyncio.run(writer.flush())
    assert len(left_behind(folder)) == 1
    counts.add("n", "q", SEND, 2, 2, 2)
    found = {record.server: record.operations for path in left_behind(folder) for record in read_journal(path)}
    assert found == {"run-3": 2}
    asyncio.run(writer.close())
    assert [record.operations for record in MeteringLog(folder).read()] == [33, 3, 1, 2]
    assert left_behind(folder) == []


def test_a_journal_that_is_damaged_anywhere_gives_what_stands_before(tmp_path: Path) -> None:
    counts = counted(tmp_path)
    whole = counts.take(_MINUTE_MS)
    (path,) = left_behind(tmp_path)
    content = path.read_bytes()[:400]
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x41]) + content[position + 1 :])
        found = read_journal(path)
        assert [record.number for record in found] in ([], [1], [1, 2])
        # The counts themselves are overwritten in place; names never change unseen.
        assert all((record.entity, record.key) in [(one.entity, one.key) for one in whole] for record in found)
        path.write_bytes(content[:position])
        assert len(read_journal(path)) <= 2
    path.write_bytes(os.urandom(5_000))
    assert read_journal(path) == []


def test_a_journal_grows_to_its_limit_and_counting_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering_journal, "SIZE_FIRST", 4_096)
    monkeypatch.setattr(metering_journal, "SIZE_MAX", 16_384)
    counts = MeteringCounts("run-1")
    counts.write_to(MeteringJournal(tmp_path, 1, "run-1", _MINUTE_MS))
    for number in range(1_000):
        counts.add("n", f"queue-{number}", SEND, 1, 1, 1)
        counts.add("n", f"queue-{number}", SEND, 1, 1, 1)
    found = read_journal(left_behind(tmp_path)[0])
    taken = counts.take(_MINUTE_MS)
    assert len(taken) == 1_000
    assert 100 < len(found) < 1_000
    assert found == taken[: len(found)]


def test_a_journal_is_mapped_only_where_a_page_needs_no_new_block(tmp_path: Path, kind: str) -> None:
    counts = counted(tmp_path)
    assert (str(left_behind(tmp_path)[0]) in Path("/proc/self/maps").read_text()) is (kind == "ext4")
    assert len(counts.take(_MINUTE_MS)) == 2


@pytest.mark.parametrize("kind", ["btrfs"], indirect=True)
@pytest.mark.parametrize("entity", ["q", "new"])
def test_a_journal_that_is_refused_stays_as_it_is_and_does_not_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entity: str
) -> None:
    counts = counted(tmp_path)
    asked = 0

    def refuse(*_: object) -> int:
        nonlocal asked
        asked += 1
        raise OSError(ENOSPC, "full")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        for _ in range(5):
            counts.add("n", entity, SEND, 1, 1, 1, "key")
            counts.add("n", "newer", SEND, 1, 1, 1)
    assert asked == 1
    assert [record.operations for record in read_journal(left_behind(tmp_path)[0])] == [33, 3]
    assert sum(record.operations for record in counts.take(_MINUTE_MS)) == 46
    # That of the next minute asks again.
    counts.add("n", entity, SEND, 1, 1, 1)
    counts.write_to(MeteringJournal(tmp_path, 2, "run-1", _MINUTE_MS))
    assert len(read_journal(left_behind(tmp_path)[1])) == 1


def test_the_file_system_of_a_folder_is_that_of_the_mount_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b" / "data"
    folder.mkdir(parents=True)
    mounts = tmp_path / "mountinfo"
    lines = ["1 0 8:1 / / rw,noatime shared:1 - overlay overlay rw"]
    monkeypatch.setattr(metering_journal, "_MOUNTS", mounts)
    found = []
    for point, kind in (("", ""), (tmp_path, "xfs"), (tmp_path / "a b", "btrfs"), (tmp_path / "a b/dat", "nfs")):
        escaped = str(point).replace(" ", "\\040")
        lines += [f"2 1 0:5 /some {escaped} rw - {kind} /dev/x rw,a - b"] if kind else []
        mounts.write_text("\n".join(lines) + "\n")
        found.append(file_system(folder))
    assert found == ["overlay", "xfs", "btrfs", "btrfs"]
    mounts.unlink()
    assert file_system(folder) == ""


def test_a_disk_that_refuses_leaves_counting_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "metering").write_text("in the way")
    counts = MeteringCounts("run-1")
    writer = MeteringWriter(counts, tmp_path, StillClock())
    writer.begin()
    counts.add("n", "q", SEND, 1, 1, 1)
    asyncio.run(writer.flush())
    (tmp_path / "metering").unlink()
    counts.add("n", "q", SEND, 2, 2, 2)
    asyncio.run(writer.close())
    assert [record.operations for record in MeteringLog(tmp_path / "metering").read()] == [1, 2]
