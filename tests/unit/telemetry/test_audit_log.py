"""The audit log: durable before the change, bounded, and readable whatever a crash has left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duobus.errors import ServerBusy
from duobus.model.descriptions import AccessRule, QueueDescription
from duobus.telemetry.audit_log import CREATE, DONE, UNKNOWN, AuditLog, Change, differences, files_of, read_audit


def change(path: str = "q") -> Change:
    return Change(CREATE, "queue", "ns", path, who="rule", origin="127.0.0.1", interface="http")


def test_a_change_is_on_disk_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    log = AuditLog(tmp_path / "audit")
    one = change()
    log.begin(one, 1_700_000_000_000)
    assert len(synced) == 2  # the folder, then the line
    (found,) = read_audit(tmp_path / "audit")
    assert (found["outcome"], found["at"]) == (UNKNOWN, "2023-11-14T22:13:20.000Z")
    log.end(one, 1_700_000_000_001, DONE, {"status": ["Active", "Disabled"]})
    (found,) = read_audit(tmp_path / "audit")
    assert (found["outcome"], found["changes"]) == (DONE, {"status": ["Active", "Disabled"]})
    log.close()
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for _, path in files_of(tmp_path / "audit")} == {0o600}


def test_a_torn_line_swallows_nothing(tmp_path: Path) -> None:
    for path in ("a", "b"):
        log = AuditLog(tmp_path)
        one = change(path)
        log.begin(one, 0)
        log.end(one, 0, DONE)
        log.close()
        with files_of(tmp_path)[-1][1].open("ab") as file:
            file.write(b'{"id": 7, "pi')
    found = list(read_audit(tmp_path))
    assert [(record["path"], record["outcome"]) for record in found] == [("a", DONE), ("b", DONE)]


def test_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, file_bytes_max=1000, files_max=3)
    for number in range(50):
        one = change(f"q{number}")
        log.begin(one, 0)
        log.end(one, 0, DONE)
    log.close()
    files = files_of(tmp_path)
    assert len(files) == 3
    assert all(path.stat().st_size < 1400 for _, path in files)
    assert [record["path"] for record in read_audit(tmp_path)][-1] == "q49"


def test_nothing_is_changed_when_it_cannot_be_written_down(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file where the folder should be")
    with pytest.raises(ServerBusy, match="audit log"):
        AuditLog(tmp_path / "audit").begin(change(), 0)


def test_a_changed_key_shows_as_changed_and_never_itself() -> None:
    rules = [AccessRule(name="r", primary_key=key, secondary_key="other", rights=1) for key in ("one", "two")]
    before, after = (QueueDescription(name="q", authorization_rules=(rule,)) for rule in rules)
    found = differences(before, after)
    assert list(found) == ["authorization_rules"]
    assert "one" not in str(found)
    assert "two" not in str(found)
