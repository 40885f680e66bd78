"""The audit log from its end: every change once, the latest first, with its outcome, whatever the pages and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from duobus.telemetry import audit_pages
from duobus.telemetry.audit_log import CREATE, DONE, AuditLog, Change
from duobus.telemetry.audit_pages import Place, read_audit_page


def write(log: AuditLog, path: str, outcome: str | None = DONE, namespace: str = "ns") -> Change:
    change = Change(CREATE, "queue", namespace, path, who="rule", origin="127.0.0.1", interface="http")
    log.begin(change, 1_700_000_000_000)
    if outcome is not None:
        log.end(change, 1_700_000_000_001, outcome, {"a": [None, 1]})
    return change


def pages(folder: Path, limit: int) -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    place: Place | None = None
    while True:
        page = read_audit_page(folder, "NS", place, limit)
        found.append([(one["path"], one["outcome"]) for one in page.changes])
        place = page.following
        if place is None:
            return found
        assert len(found) < 500


def test_a_log_that_is_not_there_or_empty_has_no_changes(tmp_path: Path) -> None:
    assert pages(tmp_path / "none", 10) == [[]]
    (tmp_path / "audit-00000001.jsonl").write_bytes(b"")
    assert pages(tmp_path, 10) == [[]]


def test_the_latest_changes_come_first_each_with_its_outcome(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    write(log, "one")
    write(log, "two", "refused")
    write(log, "three", None)
    log.close()
    page = read_audit_page(tmp_path, "ns", None, 10)
    assert [(one["path"], one["outcome"]) for one in page.changes] == [
        ("three", "unknown"),
        ("two", "refused"),
        ("one", "done"),
    ]
    assert page.changes[2]["changes"] == {"a": [None, 1]}
    assert (page.changes[2]["who"], page.changes[2]["from"], page.changes[2]["door"]) == ("rule", "127.0.0.1", "http")
    assert page.following is None


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
@pytest.mark.parametrize("page_bytes", [700, 5_000, 1 << 20])
def test_pages_over_several_files_have_every_change_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, page_bytes: int
) -> None:
    monkeypatch.setattr(audit_pages, "PAGE_BYTES_MAX", page_bytes)
    log = AuditLog(tmp_path, file_bytes_max=3_000)
    for index in range(60):
        write(log, f"q{index}")
    log.close()
    assert len(list(tmp_path.iterdir())) > 3
    found = pages(tmp_path, limit)
    assert [one for page in found for one in page] == [(f"q{index}", "done") for index in reversed(range(60))]
    assert max(map(len, found)) <= limit


def test_a_change_that_ended_after_later_ones_began_has_its_outcome_on_another_page(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    slow = write(log, "slow", None)
    for index in range(5):
        write(log, f"q{index}")
    log.end(slow, 1_700_000_000_009, DONE)
    log.close()
    assert pages(tmp_path, 2)[-1] == [("q0", "done"), ("slow", "done")] or pages(tmp_path, 2)[-1] == []
    assert [one for page in pages(tmp_path, 2) for one in page][-1] == ("slow", "done")


def test_changes_of_another_namespace_and_torn_lines_are_left_out(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    write(log, "mine")
    write(log, "theirs", namespace="other")
    log.close()
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(b'{"id": 9, "pi')
    assert pages(tmp_path, 10) == [[("mine", "done")]]


def test_a_place_that_is_not_there_any_more_ends_the_list(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    write(log, "one")
    log.close()
    assert read_audit_page(tmp_path, "ns", Place(0, 10), 10).changes == []
    assert len(read_audit_page(tmp_path, "ns", Place(1, 10**9), 10).changes) == 1
