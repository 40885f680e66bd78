"""The commands that the README shows run as they are written, against a real broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from duobus.testing.server import ServerProcess

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readme_starts_a_broker_creates_a_queue_and_sends_through_it(tmp_path: Path) -> None:
    section = README.read_text().split("\n## Send and receive\n", 1)[1].split("\n## ", 1)[0]
    serve, create = re.findall(r"^```sh\n(.*?)\n```$", section, re.MULTILINE | re.DOTALL)
    assert serve == "duobus serve --data ./bus --emulator"
    assert create == "duobus queue create orders"
    (python,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    # The broker as the first line starts it, but for the ports.
    with ServerProcess(tmp_path / "server", arguments=("--emulator",)) as server:
        environment = os.environ | {"DUOBUS_CONNECTION_STRING": server.connection_string}
        command = [sys.executable, "-m", *create.split()]
        made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["enablePartitioning"] is True
        code = python.replace("sb://localhost;", f"sb://localhost:{server.ready['amqp_port']};")
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environment
        )
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_the_commands_in_the_readme_make_a_queue_and_move_a_message(tmp_path: Path) -> None:
    section = README.read_text().split("\n## On the command line\n", 1)[1].split("\n## ", 1)[0]
    (shell,) = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    command = tmp_path / "bin" / "duobus"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m duobus "$@"\n')
    command.chmod(0o755)
    with ServerProcess(tmp_path / "server") as server:
        environment = os.environ | {
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            "DUOBUS_CONNECTION_STRING": server.connection_string,
        }
        done = subprocess.run(
            ["sh", "-e", "-c", shell],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    created, received, shown = done.stdout.split("\n", 2)
    assert json.loads(created)["enablePartitioning"] is True
    message = json.loads(received)
    assert (message["body"], message["properties"]) == ("hello", {"colour": "red"})
    assert json.loads(shown)["totalMessageCount"] == 0
