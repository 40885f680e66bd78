"""The checker of system call traces finds every answer that left before its data was on disk."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "synctrace.py"
PROGRAM = """
import os, sys
from duobus.storage.sqlite.file import StoreOptions
from duobus.storage.interface import CommitBatch, Put
from duobus.storage.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1], 1, options=StoreOptions(unsafe_no_sync=sys.argv[2] == "unsafe"))
store.open()
store.begin_generation([])
fragment, (source,) = store.add_fragment(1, 0, [0])
for i in range(1, 11):
    batch = CommitBatch(i, i)
    batch.epochs = [(fragment.fragment_key, fragment.epoch)]
    batch.puts = [Put(source.source_key, i, 1, [b"mark-%d-" % i])]
    batch.sources = [(source.source_key, i + 1, 0, b"")]
    store.commit(batch)
    os.write(1, b"ack %d\\n" % i)
"""


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("synctrace", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


synctrace = load_tool()
SEQUENCE = synctrace.Rules(r"-wal$", r"^1<", r"ack (\d+)")
MARK = synctrace.Rules(r"-wal$", r"^1<", r"ack (\d+)", r"mark-(\d+)-")


def hexed(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def write(mark: int, path: str = "/d/a-wal", pid: int = 7) -> str:
    return f'{pid} 10:00:00.1 pwrite64(5<{hexed(path)}>, "{hexed(f"mark-{mark}-")}", 7, 0) = 7'


def sync(path: str = "/d/a-wal", result: str = "0") -> str:
    return f"7 10:00:00.2 fdatasync(5<{hexed(path)}>) = {result}"


def ack(*numbers: int, call: str = "write", fd: str = "1<socket:[9]>") -> str:
    data = "".join(f"ack {number} " for number in numbers)
    return f'8 10:00:00.3 {call}({fd}, "{hexed(data)}", 9) = 9'


def room(path: str = "/d/a-wal") -> str:
    return f'9 10:00:00.1 pwrite64(6<{hexed(path)}>, "{hexed(chr(0) * 9)}", 9, 0) = 9'


SYNC_BEGUN = f"7 10:00:00.2 fdatasync(5<{hexed('/d/a-wal')}> <unfinished ...>"
SYNC_ENDED = "7 10:00:00.4 <... fdatasync resumed>) = 0"
WRITE_BEGUN = f'7 10:00:00.1 pwrite64(5<{hexed("/d/a-wal")}>, "{hexed("mark-1-")}", 7, 0 <unfinished ...>'
WRITE_ENDED = "7 10:00:00.1 <... pwrite64 resumed>) = 7"


@pytest.mark.parametrize("rules", [SEQUENCE, MARK])
@pytest.mark.parametrize(
    "lines",
    [
        [write(1), sync(), ack(1)],
        [write(1), sync(), ack(1, call="sendto"), write(2), sync(), ack(2, call="writev")],
        [write(1), SYNC_BEGUN, SYNC_ENDED, ack(1)],
        [write(1), sync(), room(), ack(1)],
        [WRITE_BEGUN, WRITE_ENDED, SYNC_BEGUN, "9 10:00:00.3 +++ exited with 0 +++", SYNC_ENDED, ack(1)],
        [write(1), sync(result="-1 EIO (Input/output error)"), sync(), ack(1)],
        [write(1), write(1, path="/d/b-wal"), sync(), sync(path="/d/b-wal"), ack(1)],
    ],
)
def test_an_answer_after_its_sync_is_in_order(rules: object, lines: list[str]) -> None:
    report = rules.check(synctrace.parse(lines))  # type: ignore[attr-defined]
    assert report.violations == []
    assert report.acks >= 1


@pytest.mark.parametrize("rules", [SEQUENCE, MARK])
@pytest.mark.parametrize(
    "lines",
    [
        [ack(1)],
        [write(1), ack(1)],
        [write(1), ack(1), sync()],
        [sync(), write(1), ack(1)],
        [write(1), SYNC_BEGUN, ack(1), SYNC_ENDED],
        [write(1), SYNC_BEGUN, ack(1)],
        [WRITE_BEGUN, sync(), WRITE_ENDED, ack(1)],
        [write(1), sync(result="-1 EIO (Input/output error)"), ack(1)],
        [write(1), sync(result="?"), ack(1)],
        [write(1), sync(path="/d/b-wal"), ack(1)],
        [write(1), sync(path="/d/a.db"), ack(1)],
    ],
)
def test_an_answer_before_its_sync_is_a_violation(rules: object, lines: list[str]) -> None:
    assert len(rules.check(synctrace.parse(lines)).violations) == 1  # type: ignore[attr-defined]


def test_two_answers_need_two_writes_under_the_sequence_rule() -> None:
    assert len(SEQUENCE.check(synctrace.parse([write(1), sync(), ack(1), ack(2)])).violations) == 1


def test_operations_may_overlap_under_the_mark_rule() -> None:
    lines = [write(1), write(2), sync(), write(3), ack(1, 2), SYNC_BEGUN, SYNC_ENDED, ack(3)]
    assert MARK.check(synctrace.parse(lines)).violations == []
    lines.remove(SYNC_ENDED)
    (violation,) = MARK.check(synctrace.parse(lines)).violations
    assert "b'3'" in violation


def test_a_page_written_again_does_not_take_a_name_back() -> None:
    assert MARK.check(synctrace.parse([write(1), sync(), write(1), ack(1)])).violations == []


def test_writes_elsewhere_are_neither_data_nor_answers() -> None:
    report = SEQUENCE.check(synctrace.parse([write(1, path="/d/log"), ack(1, fd="4<pipe:[3]>")]))
    assert (report.acks, report.writes) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [[], ["--mark", r"mark-(\d+)-"]])
@pytest.mark.parametrize(("mode", "status"), [("safe", 0), ("unsafe", 1)])
def test_the_real_store_is_found_out_exactly_when_it_does_not_sync(
    tmp_path: Path, mode: str, status: int, rule: list[str]
) -> None:
    reason = synctrace.why_impossible()
    if reason:
        pytest.skip(reason)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store" / "f0.db"), mode]
    tool = [sys.executable, str(TOOL), "--ack", r"ack (\d+)", *rule, "--", *command]
    result = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert (result.returncode, '"acks": 10' in result.stdout) == (status, True), result.stdout


def test_room_that_is_made_in_a_log_stands_for_no_commit() -> None:
    report = SEQUENCE.check(synctrace.parse([write(1), sync(), ack(1), room(), sync(), ack(2)]))
    assert len(report.violations) == 1
    assert "nothing was written" in report.violations[0]
