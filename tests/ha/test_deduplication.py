"""The window of message ids that are done: durable and bounded (I51, IN8)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from duobus.ha.deduplication import SeenMessages


def test_what_is_recorded_is_there_in_the_next_process(tmp_path: Path) -> None:
    with SeenMessages(tmp_path / "seen.db") as seen:
        assert "m-1" not in seen
        seen.record("m-1", b"42")
    with SeenMessages(tmp_path / "seen.db") as seen:
        assert "m-1" in seen
        assert seen.result("m-1") == b"42"
        assert seen.result("m-2") is None


def test_the_oldest_are_forgotten_beyond_the_window(tmp_path: Path) -> None:
    with SeenMessages(tmp_path / "seen.db", window=3) as seen:
        seen.record_all((f"m-{number}", None) for number in range(5))
        assert [f"m-{number}" in seen for number in range(5)] == [False, False, True, True, True]
        assert len(seen) == 3


def test_a_repeat_keeps_the_first_result_and_its_place(tmp_path: Path) -> None:
    with SeenMessages(tmp_path / "seen.db", window=2) as seen:
        seen.record("a", b"first")
        seen.record("a", b"second")
        seen.record("b")
        assert seen.result("a") == b"first"
        seen.record("c")
        assert "a" not in seen


@pytest.mark.parametrize("message_id", ["", "x" * 129])
def test_ids_that_service_bus_does_not_have_are_refused_and_nothing_is_recorded(
    tmp_path: Path, message_id: str
) -> None:
    with SeenMessages(tmp_path / "seen.db") as seen:
        with pytest.raises(ValueError, match="1 to 128"):
            seen.record_all([("good", None), (message_id, None)])
        assert len(seen) == 0


@pytest.mark.parametrize("window", [0, 100_000_001])
def test_a_window_out_of_range_is_refused(tmp_path: Path, window: int) -> None:
    with pytest.raises(ValueError, match="1 to 100,000,000"):
        SeenMessages(tmp_path / "seen.db", window)


def test_a_file_of_a_newer_version_is_refused_in_clear_words(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "seen.db") as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(ValueError, match="format 99"):
        SeenMessages(tmp_path / "seen.db")


def test_every_record_is_synced(tmp_path: Path) -> None:
    with SeenMessages(tmp_path / "seen.db") as seen:
        (synchronous,) = seen._database.execute("PRAGMA synchronous").fetchone()
        assert synchronous == 2, "FULL"
