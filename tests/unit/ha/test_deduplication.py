"""The window of message ids that are done: durable and bounded (I51, IN8)."""

from __future__ import annotations

import os
import sqlite3
import stat
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


def test_every_record_is_committed_with_a_sync(tmp_path: Path) -> None:
    with SeenMessages(tmp_path / "seen.db") as seen:
        statements: list[str] = []
        seen._database.set_trace_callback(statements.append)
        seen.record("m-1")
        assert [text.split(" ", 1)[0] for text in statements] == ["BEGIN", "INSERT", "DELETE", "PRAGMA", "COMMIT"]
        assert statements[-2] == "PRAGMA synchronous", "how this commit will be is asked for, and not changed"
        (synchronous,) = seen._database.execute("PRAGMA synchronous").fetchone()
        assert synchronous == 2, "FULL"


def test_a_record_that_would_not_be_synced_is_refused_and_nothing_is_remembered(tmp_path: Path) -> None:
    with SeenMessages(tmp_path / "seen.db") as seen:
        seen._database.execute("PRAGMA synchronous=OFF")
        with pytest.raises(sqlite3.OperationalError, match="synchronous is 0"):
            seen.record("m-1")
        assert "m-1" not in seen
        seen._database.execute("PRAGMA synchronous=FULL")
        seen.record("m-1")
    with SeenMessages(tmp_path / "seen.db") as seen:
        assert "m-1" in seen


def test_only_its_owner_can_read_the_file_and_what_sqlite_keeps_beside_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with SeenMessages(tmp_path / "seen.db") as seen:
            seen.record("m-1")
            files = sorted(tmp_path.iterdir())
            assert [path.name for path in files] == ["seen.db", "seen.db-shm", "seen.db-wal"]
            assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600] * 3
    finally:
        os.umask(before)


def test_a_file_that_an_earlier_version_left_readable_is_so_no_more(tmp_path: Path) -> None:
    path = tmp_path / "seen.db"
    with SeenMessages(path) as seen:
        seen.record("m-1")
    path.chmod(0o644)
    with SeenMessages(path) as seen:
        assert "m-1" in seen
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["seen.db", "seen.db-wal", "seen.db-shm"])
def test_a_link_is_refused_and_what_it_leads_to_is_left_alone(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    elsewhere.chmod(0o644)
    if name != "seen.db":
        SeenMessages(tmp_path / "seen.db").close()
    (tmp_path / name).symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="is a link"):
        SeenMessages(tmp_path / "seen.db")
    assert elsewhere.read_bytes() == b"mine"
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o644


def test_a_link_to_nothing_is_refused_and_nothing_is_made_there(tmp_path: Path) -> None:
    (tmp_path / "seen.db").symlink_to(tmp_path / "nothing")
    with pytest.raises(PermissionError, match="is a link"):
        SeenMessages(tmp_path / "seen.db")
    assert not (tmp_path / "nothing").exists()


def test_the_folder_of_a_new_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    SeenMessages(tmp_path / "seen.db").close()
    assert synced == [True]


def test_a_file_is_closed_at_the_end_of_its_block(tmp_path: Path) -> None:
    with SeenMessages(tmp_path / "seen.db") as seen:
        seen.record("m-1")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        seen.record("m-2")
