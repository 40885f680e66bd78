"""The metering of a running server: what is counted reaches the disk, also when the disk refused it for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duobus.clock import Clock
from duobus.errors import InternalError
from duobus.model.metering import SEND
from duobus.server.monitoring import metering_writer as metering
from duobus.server.monitoring.metering_writer import MeteringWriter
from duobus.telemetry.metering_log import MeteringCounts, MeteringLog


def counted(counts: MeteringCounts, number: int = 1) -> None:
    counts.add("n", "q", SEND, number, number, number)


def test_what_was_counted_is_on_disk_after_a_flush(tmp_path: Path) -> None:
    counts = MeteringCounts("s")
    writer = MeteringWriter(counts, tmp_path, Clock())
    counted(counts, 5)
    asyncio.run(writer.flush())
    asyncio.run(writer.flush())
    assert [record.operations for record in MeteringLog(tmp_path / "metering").read()] == [5]


def test_what_the_disk_refuses_is_written_with_the_next_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(log: MeteringLog, records: object) -> None:
        raise InternalError("no room")

    counts = MeteringCounts("s")
    writer = MeteringWriter(counts, tmp_path, Clock())
    with monkeypatch.context() as patch:
        patch.setattr(MeteringLog, "write", refuse)
        counted(counts)
        asyncio.run(writer.flush())
    counted(counts, 2)
    asyncio.run(writer.flush())
    assert [record.operations for record in MeteringLog(tmp_path / "metering").read()] == [1, 2]


def test_only_so_many_records_wait_for_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "UNWRITTEN_MAX", 2)
    (tmp_path / "metering").write_text("a file where the folder should be")
    counts = MeteringCounts("s")
    writer = MeteringWriter(counts, tmp_path, Clock())
    for number in range(1, 6):
        counted(counts, number)
        asyncio.run(writer.flush())
    (tmp_path / "metering").unlink()
    asyncio.run(writer.flush())
    assert [record.operations for record in MeteringLog(tmp_path / "metering").read()] == [4, 5]


def test_an_ephemeral_server_keeps_nothing(tmp_path: Path) -> None:
    counts = MeteringCounts("s")
    counted(counts)
    asyncio.run(MeteringWriter(counts, None, Clock()).flush())
    assert counts.take(0) == []


class HandClock(Clock):
    """A clock that is moved by hand."""

    now = 0

    def now_ms(self) -> int:
        return self.now


def test_what_is_counted_belongs_to_the_minute_in_which_counting_began(tmp_path: Path) -> None:
    clock = HandClock()
    clock.now = 3_599_000
    counts = MeteringCounts("s")
    writer = MeteringWriter(counts, tmp_path, clock)
    counted(counts)
    clock.now = 3_600_004
    asyncio.run(writer.flush())
    counted(counts)
    asyncio.run(writer.flush())
    found = [record.minute_ms for record in MeteringLog(tmp_path / "metering").read()]
    assert found == [3_540_000, 3_600_000]
