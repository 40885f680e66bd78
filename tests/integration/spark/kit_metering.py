"""Metering files and tables for tests of usage."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from duobus.model.metering import SEND, MeteringRecord
from duobus.telemetry.metering_log import MeteringLog

#: 2026-11-21T00:00:00Z.
DAY_MS = 1_795_219_200_000
HOUR_MS = 3_600_000


def record(number: int, minute: int = 0, kind: str = SEND, operations: int = 1, **more: Any) -> MeteringRecord:
    """A record of a minute of that day."""
    about = {"server": "s", "namespace": "n", "entity": "q", "messages": operations, "bytes": 100, "key": "k"} | more
    return MeteringRecord(number=number, minute_ms=DAY_MS + minute * 60_000, kind=kind, operations=operations, **about)


def write(data: Path, records: Iterable[MeteringRecord]) -> Path:
    """Write them as a server does below its data folder."""
    MeteringLog(data / "metering").write(list(records))
    return data


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, table.collect()), key=repr)
