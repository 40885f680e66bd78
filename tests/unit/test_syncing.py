"""What has to be on the disk is brought there in the way that the system needs; on macOS by F_FULLFSYNC."""

from __future__ import annotations

import ast
import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from duobus import file_sync as syncing
from duobus.ha.deduplication import SeenMessages
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.sqlite.file import StoreOptions, connect

SOURCES = Path(syncing.__file__).parent


class FakeFcntl:
    """``fcntl`` as macOS has it."""

    def __init__(self, error: int = 0) -> None:
        self.calls: list[tuple[int, int]] = []
        self._error = error

    def fcntl(self, fd: int, request: int) -> int:
        self.calls.append((fd, request))
        if self._error:
            raise OSError(self._error, "refused")
        return 0


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called of the two that do not reach the disk on macOS."""
    calls: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    monkeypatch.setattr(os, "fdatasync", lambda _: calls.append("fdatasync"), raising=False)
    return calls


def on_macos(monkeypatch: pytest.MonkeyPatch, error: int = 0) -> FakeFcntl:
    fake = FakeFcntl(error)
    monkeypatch.setattr(syncing, "fcntl", fake)
    monkeypatch.setattr(syncing, "FULL_SYNC", 51)
    return fake


@pytest.mark.parametrize("sync", [syncing.sync_file, syncing.full_data_sync])
def test_on_macos_the_drive_is_told_to_write(
    monkeypatch: pytest.MonkeyPatch, synced: list[str], sync: Callable[[int], None]
) -> None:
    fake = on_macos(monkeypatch)
    sync(7)
    assert fake.calls == [(7, 51)]
    assert synced == []


def test_on_macos_a_folder_is_written_too(monkeypatch: pytest.MonkeyPatch, synced: list[str], tmp_path: Path) -> None:
    fake = on_macos(monkeypatch)
    syncing.sync_folder(tmp_path)
    assert [request for _, request in fake.calls] == [51]
    assert synced == []


def test_a_file_system_that_knows_no_full_sync_gets_an_ordinary_one(
    monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    on_macos(monkeypatch, errno.ENOTSUP)
    syncing.sync_file(7)
    assert synced == ["fsync"]


def test_a_disk_that_refuses_a_full_sync_has_refused(monkeypatch: pytest.MonkeyPatch, synced: list[str]) -> None:
    # L3: an ordinary one would succeed, and the data be lost.
    on_macos(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="refused"):
        syncing.sync_file(7)
    assert synced == []


def test_elsewhere_files_are_synced_as_ever(monkeypatch: pytest.MonkeyPatch, synced: list[str]) -> None:
    monkeypatch.setattr(syncing, "FULL_SYNC", None)
    syncing.sync_file(7)
    assert synced == ["fsync"]


@pytest.mark.skipif(syncing.FULL_SYNC is not None or not hasattr(os, "fdatasync"), reason="macOS has another way")
def test_elsewhere_the_data_of_a_file_are_synced_by_the_system_alone() -> None:
    assert syncing.sync_data is os.fdatasync


def test_nobody_syncs_a_file_past_the_one_that_knows_how() -> None:
    found = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path.name != "file_sync.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("fsync", "fdatasync")
    ]
    assert found == []


def test_every_connection_to_sqlite_asks_for_full_syncs(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    store = connect(str(path), StoreOptions())
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    for db in (store, catalog._open()):
        assert (db.pragma("fullfsync"), db.pragma("checkpoint_fullfsync")) == (1, 1)
        db.close()
    seen = SeenMessages(tmp_path / "seen.db")
    databases = [value for value in vars(seen).values() if isinstance(value, sqlite3.Connection)]
    assert [db.execute("PRAGMA fullfsync").fetchone() for db in databases] == [(1,)]
    seen.close()


def test_every_module_that_opens_sqlite_knows_of_full_syncs() -> None:
    # By name: copies whose contents are synced afterwards, and what is opened to be read only.
    excepted = {
        "storage/backup/snapshot.py",
        "storage/catalog/sqlite_connection.py",
        "storage/offline/maintenance.py",
    }
    found = set()
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        if ("sqlite3.connect(" in text or "apsw.Connection(" in text) and "SQLITE_SETTINGS" not in text:
            found.add(str(path.relative_to(SOURCES)))
    assert found - excepted == set()
