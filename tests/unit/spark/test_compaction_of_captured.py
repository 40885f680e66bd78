"""Small files of captured messages become few, and whoever reads meanwhile sees each message once; without a JVM."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from duobus.cli.commands import spark as cli
from duobus.cli.main import main
from duobus.spark.errors import OptionError
from duobus.spark.jobs import compact
from duobus.spark.jobs.job import JobError
from duobus.spark.jobs.lake import compaction
from duobus.spark.jobs.lake.compaction import TOLD_MAX, Rules, compact_folder
from duobus.spark.jobs.lake.folder_lock import NOTES, writing
from duobus.spark.jobs.lake.hour_folders import BatchFolder, Finished, finished, to_compact
from duobus.spark.jobs.lake.reader_marks import READERS, marks_in, note_read

HOUR = "entity=orders/date=2026-11-20/hour=8"
QUERY = "aaaaaaaa"
MEGABYTE = 1 << 20


def write(root: Path, batch: str, numbers: range, hour: str = HOUR, name: str = "part-0.parquet") -> Path:
    """Write messages as a capture does."""
    folder = root / hour / f"batch_id={batch}"
    folder.mkdir(parents=True, exist_ok=True)
    columns = {"sequence_number": pa.array(numbers, pa.int64()), "body": pa.array([b"x" * 100] * len(numbers))}
    pq.write_table(pa.table(columns), folder / name)
    return folder / name


def captured(root: Path, batches: int = 6) -> Path:
    for number in range(batches):
        write(root, f"{QUERY}-{number:08d}", range(number * 10, number * 10 + 10))
    write(root, f"{QUERY}-00000000", range(1_000, 1_010), "entity=orders/date=2026-11-20/hour=9")
    return root


def seen(root: Path) -> list[int]:
    """The messages that a reader finds, as any reader of Parquet does."""
    files = [
        file for file in root.rglob("*.parquet") if not any(part[0] in "._" for part in file.parts[len(root.parts) :])
    ]
    return sorted(number for file in files for number in pq.read_table(file)["sequence_number"].to_pylist())


def layout(root: Path) -> list[str]:
    return sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file() and file.suffix != ".lock")


def rules(newest: int | None = 5, **given: Any) -> Rules:
    return Rules(Finished({QUERY: newest}, frozenset(given.pop("pending", ()))), given.pop("until_s", 2e10), MEGABYTE)


def run(root: Path, given: Rules | None = None) -> dict[str, Any]:
    return compact_folder(root, given or rules(), lambda _: None)


def test_the_files_of_an_hour_become_one_with_all_its_messages(tmp_path: Path) -> None:
    captured(tmp_path)
    told = run(tmp_path)
    assert (told["hours"], told["files_before"], told["files_after"], told["messages"]) == (1, 6, 1, 60)
    assert seen(tmp_path) == [*range(60), *range(1_000, 1_010)]
    assert len(list((tmp_path / HOUR).rglob("*.parquet"))) == 1
    assert run(tmp_path)["hours"] == 0


def test_compacted_files_and_new_batches_become_one_again(tmp_path: Path) -> None:
    captured(tmp_path)
    run(tmp_path)
    write(tmp_path, f"{QUERY}-00000006", range(60, 70))
    assert run(tmp_path, rules(6))["files_before"] == 2
    assert seen(tmp_path) == [*range(70), *range(1_000, 1_010)]


def test_a_batch_that_is_not_committed_stays_as_it_is(tmp_path: Path) -> None:
    captured(tmp_path)
    told = run(tmp_path, rules(newest=3))
    assert (told["files_before"], told["batches_left"]) == (4, 2)
    assert {path.name for path in (tmp_path / HOUR).iterdir()} >= {f"batch_id={QUERY}-{n:08d}" for n in (4, 5)}
    # Spark writes it a second time, and replaces the first.
    shutil.rmtree(tmp_path / HOUR / f"batch_id={QUERY}-00000004")
    write(tmp_path, f"{QUERY}-00000004", range(40, 50), name="part-1.parquet")
    assert seen(tmp_path) == [*range(60), *range(1_000, 1_010)]


def test_batches_of_unknown_queries_and_batches_that_have_just_been_written_stay_as_they_are(tmp_path: Path) -> None:
    captured(tmp_path)
    assert run(tmp_path, Rules(Finished({}, frozenset()), 2e10, MEGABYTE))["batches_left"] == 7
    assert run(tmp_path, rules(until_s=1.0))["batches_left"] == 7
    assert run(tmp_path, rules(newest=None))["hours"] == 1


def test_batches_that_a_reader_of_new_ones_has_not_read_keep_their_names(tmp_path: Path) -> None:
    captured(tmp_path)
    note_read(str(tmp_path), "stage a", {QUERY: 3})
    note_read(str(tmp_path), "stage b", {QUERY: 4})
    marked = replace(rules().finished, readers=marks_in(tmp_path))
    told = run(tmp_path, replace(rules(), finished=marked))
    assert (told["files_before"], told["batches_left"]) == (4, 2)
    assert [text[:32] for text in told["left_alone"]] == [
        "stage a has not read 2 of the ba",
        "stage b has not read 1 of the ba",
    ]
    # The note is named as the file that it is: a reader that is gone for good is forgotten by removing that file.
    named = [Path(text.rpartition("remove its note ")[2].removesuffix(".")) for text in told["left_alone"]]
    assert sorted(named) == sorted((tmp_path / NOTES / READERS).iterdir())
    # The reader has come further.
    note_read(str(tmp_path), "stage a", {QUERY: 5})
    assert {mark.reader: mark.newest for mark in marks_in(tmp_path)} == {"stage a": {QUERY: 5}, "stage b": {QUERY: 4}}


def test_of_more_readers_than_are_shown_the_number_is_told(tmp_path: Path) -> None:
    captured(tmp_path)
    for number in range(TOLD_MAX + 5):
        note_read(str(tmp_path), f"stage {number:02d}", {QUERY: 3})
    marked = replace(rules().finished, readers=marks_in(tmp_path))
    told = run(tmp_path, replace(rules(), finished=marked))["left_alone"]
    assert len(told) == TOLD_MAX
    assert told[-1] == "6 more reasons are not shown here."


def test_a_reader_that_begins_while_an_hour_is_compacted_has_it_left_as_it_is(tmp_path: Path) -> None:
    captured(tmp_path)

    def tell(_text: str) -> None:
        note_read(str(tmp_path), "stage", {QUERY: 2})

    told = compact_folder(tmp_path, rules(), tell)
    assert told["hours"] == 0
    assert "batch by batch" in told["left_alone"][0]
    assert seen(tmp_path) == [*range(60), *range(1_000, 1_010)]


def test_a_note_of_a_reader_that_cannot_be_read_stops_a_compaction(tmp_path: Path) -> None:
    note_read(str(tmp_path), "stage", {QUERY: 2})
    (note,) = (tmp_path / NOTES / "readers").iterdir()
    note.write_text('{"reader": 1}')
    with pytest.raises(OptionError, match="remove it"):
        finished(tmp_path, [])


def test_the_checkpoint_and_the_notes_of_captures_say_which_batches_are_over(tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "root", tmp_path / "checkpoint"
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": f"{QUERY}-1111-2222-3333-444444444444"}))
    for number in (8, 9):
        (checkpoint / "commits" / str(number)).touch()
    (root / NOTES / "orders").mkdir(parents=True)
    moves = [["0.part", f"{HOUR}/batch_id=bbbbbbbb-1-2/messages.parquet"]]
    (root / NOTES / "orders" / "pending.json").write_text(json.dumps({"moves": moves}))
    over = finished(root, [str(checkpoint)], ["cccccccc-1111"])
    # Older commits are gone from the log, which keeps the last hundred.
    assert over.has(HOUR, f"batch_id={QUERY}-00000001")
    assert over.has(HOUR, f"batch_id={QUERY}-00000009")
    assert not over.has(HOUR, f"batch_id={QUERY}-00000010")
    assert over.has(HOUR, "batch_id=cccccccc-00000123")
    assert not over.has(HOUR, "batch_id=bbbbbbbb-1-2")
    assert over.has(HOUR, "batch_id=bbbbbbbb-1-3")
    assert not over.has(HOUR, "batch_id=what")
    with pytest.raises(OptionError, match="is no checkpoint"):
        finished(root, [str(tmp_path)])


def test_files_are_only_written_anew_when_they_become_fewer() -> None:
    def batch(size: int, count: int = 1) -> BatchFolder:
        return BatchFolder(f"b{size}", tuple(Path(str(number)) for number in range(count)), size, 0.0)

    assert to_compact([batch(10), batch(20)], 100)[1] == 1
    assert to_compact([batch(60), batch(70)], 100) == ([], 0)
    assert to_compact([batch(90), batch(90), batch(90)], 200)[1] == 2
    assert to_compact([batch(10), batch(300)], 100) == ([], 0)
    assert to_compact([batch(10)], 100) == ([], 0)
    assert to_compact([batch(300, 30)], 100)[1] == 3


def test_messages_go_into_as_many_files_as_their_bytes_need(tmp_path: Path) -> None:
    captured(tmp_path)
    size = sum(file.stat().st_size for file in (tmp_path / HOUR).rglob("*.parquet"))
    told = compact_folder(tmp_path, Rules(Finished({QUERY: 5}, frozenset()), 2e10, size // 3 + 1), lambda _: None)
    assert told["files_after"] == 3
    counts = [pq.read_metadata(file).num_rows for file in sorted((tmp_path / HOUR).rglob("*.parquet"))]
    assert counts == [20, 20, 20]
    assert seen(tmp_path) == [*range(60), *range(1_000, 1_010)]


class Killed(BaseException):
    """The process has died."""


#: What a compaction does to the disk, one after the other.
STEPS = ("written", "batches_of", "_link", "sync_folder", "exchange", "rmtree")


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", [0, 1])
@pytest.mark.parametrize("step", STEPS)
def test_a_compaction_that_is_killed_anywhere_ends_the_same_when_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, call: int, is_done: bool
) -> None:
    undisturbed, root = tmp_path / "undisturbed", tmp_path / "root"
    for folder in (undisturbed, root):
        captured(folder)
        write(folder, "cccccccc-00000000", range(500, 510))  # of a query that nobody knows
    run(undisturbed)
    everything = seen(undisturbed)
    left = [call]

    def watched(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **given: Any) -> Any:
            assert seen(root) == everything
            is_now = left[0] == 0
            left[0] -= 1
            if is_now and not is_done:
                raise Killed
            result = work(*arguments, **given)
            if is_now:
                raise Killed
            return result

        return wrapper

    where: Any = compaction.shutil if step == "rmtree" else compaction
    with monkeypatch.context() as patch:
        patch.setattr(where, step, watched(getattr(where, step)))
        try:
            run(root)
        except Killed:
            pass
        else:
            assert (step, call) in {("written", 1), ("_link", 1), ("exchange", 1)}, "the step was not reached"
    assert seen(root) == everything
    run(root)
    assert seen(root) == everything
    assert layout(root) == layout(undisturbed)


def test_a_batch_that_comes_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured(tmp_path)

    def slow(*arguments: Any) -> int:
        write(tmp_path, f"{QUERY}-00000006", range(60, 70))
        return work(*arguments)

    work = compaction.written
    monkeypatch.setattr(compaction, "written", slow)
    run(tmp_path)
    assert seen(tmp_path) == [*range(70), *range(1_000, 1_010)]


def test_a_batch_that_is_changed_meanwhile_leaves_its_hour_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured(tmp_path)

    def slow(*arguments: Any) -> int:
        write(tmp_path, f"{QUERY}-00000002", range(20, 31))
        return work(*arguments)

    work = compaction.written
    monkeypatch.setattr(compaction, "written", slow)
    told = run(tmp_path)
    assert told["hours"] == 0
    assert "were changed meanwhile" in told["left_alone"][0]
    assert seen(tmp_path) == sorted([*range(60), 30, *range(1_000, 1_010)])


def test_places_change_while_no_capture_moves_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured(tmp_path)

    def is_free() -> bool:
        file = os.open(tmp_path / NOTES / "places.lock", os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(file)
        return True

    def watched(one: Path, other: Path) -> None:
        assert not is_free()
        work(one, other)

    work = compaction.exchange
    monkeypatch.setattr(compaction, "exchange", watched)
    run(tmp_path)
    assert is_free()
    with writing(str(tmp_path)), writing(f"file://{tmp_path}"):
        assert not is_free()


def test_files_that_do_not_belong_together_and_damaged_ones_leave_their_hour_as_it_was(tmp_path: Path) -> None:
    captured(tmp_path)
    other = write(tmp_path, f"{QUERY}-00000005", range(0))
    pq.write_table(pa.table({"sequence_number": pa.array([7])}), other)
    assert "has other columns" in run(tmp_path)["left_alone"][0]
    other.write_bytes(b"PAR1 and then nothing")
    told = run(tmp_path)
    assert "cannot be read" in told["left_alone"][0]
    assert told["hours"] == 0
    assert len(list((tmp_path / HOUR).rglob("*.parquet"))) == 6
    assert not (tmp_path / NOTES / "compaction").exists()


def test_one_compaction_is_at_work_at_a_time(tmp_path: Path) -> None:
    captured(tmp_path)
    with compaction._Alone(tmp_path), pytest.raises(JobError, match="Another compaction is at work"):
        run(tmp_path)
    assert run(tmp_path)["hours"] == 1


def test_the_command_compacts_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured(tmp_path / "root")

    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(cli, "new_session", no_spark)
    command = ["spark", "compact", "--captured", str(tmp_path / "root"), "--finished-queries", QUERY, "--json"]
    done = CliRunner().invoke(main, [*command, "--quiet", "0s"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files_after"] == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"captured": "/x", "metering": "/y"}, "'metering' is about metering"),
        ({"metering": "/x", "compacted": "/y", "targetSize": "1m"}, "'targetSize' goes with 'captured'"),
        ({"captured": "s3a://lake/orders"}, "is on no disk of this machine"),
        ({"captured": "/no/such/folder"}, "There is no folder '/no/such/folder'"),
        ({"captured": "/x", "checkpoints": "/no/such/checkpoint"}, "is no checkpoint"),
    ],
)
def test_settings_that_make_no_sense_are_told_by_name(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        compact.run(None, given)  # type: ignore[arg-type]


def test_a_batch_is_old_by_its_newest_file(tmp_path: Path) -> None:
    path = write(tmp_path, f"{QUERY}-00000000", range(3))
    moment = datetime(2026, 11, 20, 8, tzinfo=UTC).timestamp()
    os.utime(path, (moment, moment))
    write(tmp_path, f"{QUERY}-00000001", range(3, 6))
    assert run(tmp_path, rules(until_s=moment))["batches_left"] == 1
