"""What ``duobus serve`` prints to a terminal, and to what is none."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

SERVE = [sys.executable, "-m", "duobus", "serve", "--port", "0", "--http-port", "0", "--stores", "1", "--data"]


def lines_at_a_terminal(folder: Path, number: int) -> list[str]:
    """Start a server at a terminal, and stop it when so many lines are shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*SERVE, str(folder)], stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as shown:
            return [shown.readline().decode().rstrip("\r\n") for _ in range(number)]
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_a_terminal_gets_three_lines_at_the_first_start_and_at_later_ones(tmp_path: Path) -> None:
    first = lines_at_a_terminal(tmp_path, 3)
    later = lines_at_a_terminal(tmp_path, 3)
    for lines in (first, later):
        assert lines[0].startswith("Serving AMQP localhost:")
        assert lines[2].startswith("Next, in another terminal: duobus queue create orders --data ")
    assert first[1].startswith("Connection string (shown once): Endpoint=sb://localhost:")
    assert later[1].startswith("Connection string: duobus key show RootManageSharedAccessKey --data ")
    key = first[1].partition("SharedAccessKey=")[2].partition(";")[0]
    assert key
    assert key not in "\n".join(later)


def test_what_is_no_terminal_gets_one_line_at_the_first_start_and_none_later(tmp_path: Path) -> None:
    printed = []
    for _ in range(2):
        process = subprocess.Popen(
            [*SERVE, str(tmp_path), "--ready-file", str(tmp_path / "ready")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        while "ready" not in process.stderr.readline():
            pass
        process.terminate()
        output, _errors = process.communicate(timeout=60)
        assert process.returncode == 0
        printed.append(output)
    assert printed == [f"Connection string written to {tmp_path / 'connection-string'}\n", ""]
