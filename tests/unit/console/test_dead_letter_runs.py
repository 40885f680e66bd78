"""Runs: their files, what is kept for how long, and how they wait for a namespace that is away."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from duobus.console.namespace.address import NamespaceAddress
from duobus.console.namespace.failures import NamespaceError
from duobus.console.namespace.thread_client import WorkNamespace
from duobus.console.screens.dead_letters import job_record as states
from duobus.console.screens.dead_letters.job_files import RUNS_MAX, UNDO_MESSAGES_MAX, UNDO_MS, JobFiles
from duobus.console.screens.dead_letters.job_record import JobRecord
from duobus.console.screens.dead_letters.jobs import RETRY_S, BoundedUndoFile, Job, Stopped, messages_of, work_of
from duobus.console.screens.dead_letters.selection import Selection
from duobus.dead_letters.namespace import DeadLetterError
from duobus.dead_letters.undo_file import read_undo
from kits.manual_clock import ManualClock


def record(number: int = 1, **members: object) -> JobRecord:
    given = {"namespace": "localhost", "who": "root", "action": "resubmit", "begun_ms": number}
    return JobRecord(id=f"{number:016x}", selection=Selection("orders").data(), **(given | members))  # type: ignore[arg-type]


def job(folder: Path, **members: object) -> Job:
    clock = ManualClock()
    address = NamespaceAddress("Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k;")
    return Job(record(**members), WorkNamespace(address, None, clock, is_duobus=True), JobFiles(folder), clock)  # type: ignore[arg-type]


def test_what_is_known_of_a_run_is_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    files = JobFiles(tmp_path / "runs")
    kept = record(state=states.DONE, done=7, reasons={"why": 2}, examples=[(5, "why")])
    files.save(kept)
    assert files.load(0) == {kept.id: kept}
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "runs").iterdir()] == [0o600]


def test_a_run_that_had_not_ended_was_interrupted_and_a_file_of_something_else_is_left_out(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    files.save(record(state=states.RUNNING, done=3))
    (tmp_path / "0000000000000009.json").write_text("{")
    (tmp_path / "notes.json").write_text("{}")
    (found,) = files.load(99).values()
    assert (found.state, found.done, found.ended_ms) == (states.INTERRUPTED, 3, 99)


def test_a_run_of_another_console_that_lives_is_left_to_that_one(tmp_path: Path) -> None:
    living = JobFiles(tmp_path)
    going_on = record(state=states.RUNNING)
    living.save(going_on)
    assert living.hold(going_on.id)
    assert JobFiles(tmp_path).load(0) == {}
    living.release(going_on.id)
    (found,) = JobFiles(tmp_path).load(0).values()
    assert found.state == states.INTERRUPTED
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_undo_files_go_after_a_day_and_when_they_hold_too_much_together(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    half = UNDO_MESSAGES_MAX // 2
    records = {}
    for number in range(1, 4):
        one = record(number, state=states.DONE, recorded=half, undo_until_ms=UNDO_MS + number)
        files.undo_path(one.id).write_text("x")
        records[one.id] = one
    files.sweep(records, 10)
    assert [one.can_be_undone(10) for one in records.values()] == [False, True, True]
    assert [files.undo_path(name).exists() for name in records] == [False, True, True]
    files.sweep(records, UNDO_MS + 2)
    assert [files.undo_path(name).exists() for name in records] == [False, False, True]
    assert len(records) == 3


def test_so_many_runs_are_remembered_and_for_a_week(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    records = {one.id: one for one in (record(number, state=states.DONE) for number in range(1, RUNS_MAX + 4))}
    files.sweep(records, 10)
    assert sorted(one.begun_ms for one in records.values()) == list(range(4, RUNS_MAX + 4))
    files.sweep(records, 8 * 24 * 3_600_000)
    assert records == {}


def failing(*statuses: int) -> Callable[[], str]:
    left = list(statuses)

    def call() -> str:
        if left:
            raise NamespaceError(left.pop(0), "The namespace is away.")
        return "done"

    return call


def test_a_run_waits_for_a_namespace_that_is_away_and_says_so(tmp_path: Path) -> None:
    waiting = job(tmp_path)
    seen = []
    waiting.wait = lambda _: seen.append((waiting.record.state, waiting.record.note))  # type: ignore[method-assign]
    assert waiting.with_retries(failing(502, 503, 504), may_repeat=True) == "done"
    assert seen == [(states.HELD_UP, "The namespace is away.")] * 3
    assert (waiting.record.state, waiting.record.note) == (states.RUNNING, "")


def test_what_may_not_be_done_twice_is_repeated_only_when_it_was_refused(tmp_path: Path) -> None:
    waiting = job(tmp_path)
    waiting.wait = lambda _: None  # type: ignore[method-assign]
    assert waiting.with_retries(failing(503), may_repeat=False) == "done"
    with pytest.raises(NamespaceError):
        waiting.with_retries(failing(502), may_repeat=False)
    with pytest.raises(NamespaceError):
        waiting.with_retries(failing(401), may_repeat=True)


def test_a_run_does_not_wait_for_ever(tmp_path: Path) -> None:
    waiting = job(tmp_path)
    waited: list[float] = []
    waiting.wait = waited.append  # type: ignore[method-assign]
    with pytest.raises(NamespaceError):
        waiting.with_retries(failing(*[502] * 10_000), may_repeat=True)
    assert sum(waited) == RETRY_S


def test_a_run_that_waits_can_be_stopped(tmp_path: Path) -> None:
    waiting = job(tmp_path)
    waiting.stop()
    with pytest.raises(Stopped):
        waiting.with_retries(failing(502), may_repeat=True)


def test_an_undo_file_takes_so_many_messages_and_the_rest_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duobus.console.screens.dead_letters.jobs.UNDO_MESSAGES_MAX", 3)
    running = job(tmp_path)
    path = tmp_path / "undo"
    undo = BoundedUndoFile(path, work_of(running.record, is_client_side=False), running)
    dead = [{"sequenceNumber": n, "reason": None, "description": None, "message": {"body": {}}} for n in range(5)]
    undo.plan(dead[:2])
    undo.done([{"sequenceNumber": n, "movedTo": n + 10} for n in range(2)])
    undo.plan(dead[2:])
    undo.done([{"sequenceNumber": n, "movedTo": n + 10} for n in range(2, 5)])
    undo.plan(dead)
    undo.close()
    assert running.record.recorded == 3
    found = read_undo(path)
    assert [item["movedTo"]["sequenceNumber"] for item in found.items()] == [10, 11, 12]


def test_the_time_left_is_told_by_the_pace_until_now() -> None:
    running = record(0, state=states.RUNNING, expected=400, done=90, left=10)
    assert running.seconds_left(10_000) == 30
    running.state = states.PAUSED
    assert running.seconds_left(10_000) is None


def test_a_file_is_read_line_by_line_and_a_wrong_line_is_named() -> None:
    line = json.dumps({"message": {"body": {"data": ["x"]}}}).encode()
    assert len(list(messages_of(io.BytesIO(line + b"\n\n" + line)))) == 2
    for wrong in (b"{}", b"nonsense", b'{"message": 5}', b"[" * 100_000):
        with pytest.raises(DeadLetterError, match="Line 2 is no exported message"):
            list(messages_of(io.BytesIO(line + b"\n" + wrong)))
