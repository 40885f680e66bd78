"""The profiler of the broker, on the real one and for a moment; as a program, since it tunes its whole process."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[3] / "benchmarks" / "profile_server.py"
needs_threads_apart = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="from Python 3.12 on cProfile cannot tell threads apart"
)


def profiled(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@needs_threads_apart
def test_the_event_loop_and_the_thread_of_the_stores_have_a_table_each(tmp_path: Path) -> None:
    # Long enough for the stores to have something to do on a busy machine.
    words = ["C1x1", "--seconds", "1", "--stores", "2", "--partitioned", "--data-root", str(tmp_path), "--top", "30"]
    done = profiled(*words)
    assert done.returncode == 0, done.stderr
    head, *tables = done.stdout.rstrip("\n").split("\n\n")
    assert head.startswith("C1x1: ")
    assert [table.split("\n")[0] for table in tables] == ["event loop", "stores"]
    loop, store = tables
    assert "read_frames" in loop
    assert "apsw" not in loop
    assert "pwritev" in store
    assert "read_frames" not in store
    assert len(loop.split("\n")) == 32
    assert list(tmp_path.iterdir()) == []


def test_without_a_profiler_processor_time_is_by_thread(tmp_path: Path) -> None:
    # Processor time is counted in ticks of 10 ms; of fewer messages a thread may have none.
    done = profiled("B", "--messages", "50000", "--no-profile", "--data-root", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("B: 50,000 messages")
    assert "event loop" in done.stdout
    assert "own us" not in done.stdout


def test_an_unknown_workload_is_a_usage_error() -> None:
    done = profiled("Z9")
    assert done.returncode == 2
    assert "no workload is called 'Z9'" in done.stderr
