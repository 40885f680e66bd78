"""Spark's Python in the tests: a fork that is to Spark what the interpreter would be."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kits.warm_python import Kind, WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked so on Linux only"),
]

#: What Spark starts for its tasks; it tells its port, and ends with its input.
ARGUMENTS = ("-m", "pyspark.daemon", "pyspark.worker")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    with WarmPython(tmp_path_factory.mktemp("python")) as made:
        yield made


def forks(python: WarmPython) -> list[int]:
    """Processes below the one that waits."""
    text = Path(f"/proc/{python.pid}/task/{python.pid}/children").read_text()
    return [int(number) for number in text.split()]


def begun(python: str | Path) -> subprocess.Popen[bytes]:
    """A process that has told its port."""
    daemon = subprocess.Popen([python, *ARGUMENTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    assert len(daemon.stdout.read(4)) == 4
    return daemon


def test_a_module_runs_in_a_fork_with_the_streams_of_its_program_and_gives_back_its_status(python: WarmPython) -> None:
    forked, plain = begun(python.program), begun(sys.executable)
    assert len(forks(python)) == 1
    for daemon in (forked, plain):
        # As when its JVM goes.
        daemon.communicate(timeout=60)
    assert forked.returncode == plain.returncode
    assert forks(python) == []


def test_a_fork_ends_with_its_program(python: WarmPython) -> None:
    daemon = begun(python.program)
    (fork,) = forks(python)
    descriptor = os.pidfd_open(fork)
    try:
        daemon.terminate()
        # Its input is open still.
        assert select.select([descriptor], [], [], 30)[0]
    finally:
        os.close(descriptor)
        daemon.communicate(timeout=60)


def test_a_program_runs_in_a_fork_and_writes_at_once_where_it_is_asked_to(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys; print(__name__, 'wave' in sys.modules, sys.argv[1:]); sys.stdin.read(); sys.exit(3)"
    )
    (tmp_path / "waits").mkdir()
    with WarmPython(tmp_path / "waits", Kind(["wave"])) as python:
        command = [python.program, program, "an argument"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert running.stdout is not None
        assert running.stdout.readline() == b"__main__ True ['an argument']\n"
        running.communicate(timeout=60)
        assert running.returncode == 3


def test_anything_else_is_answered_by_the_interpreter(python: WarmPython) -> None:
    asked = [str(python.program), "-c", "import sys; print('pandas' in sys.modules); sys.exit(3)"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.returncode) == ("False\n", 3)
