"""What the README and the page about the command line show runs as it is written, against a real broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from duobus.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
COMMAND_LINE = ROOT / "docs" / "reference" / "command-line.md"


def section(page: Path, heading: str) -> str:
    """What stands below a heading, up to the next one of its kind."""
    return page.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def command_in(folder: Path) -> Path:
    """A ``duobus`` in this folder, as an installation puts one on the path."""
    command = folder / "duobus"
    folder.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m duobus "$@"\n')
    command.chmod(0o755)
    return command


def run(shell: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run lines of the shell until one fails."""
    return subprocess.run(
        ["sh", "-e", "-c", shell],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_readme_starts_a_broker_and_sends_and_receives(tmp_path: Path) -> None:
    text = section(README, "Start")
    (shell,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    setup, serve, wait, *commands, prompt = shell.splitlines()
    assert (setup, prompt) == ("make setup", ".venv/bin/python")
    assert len(commands) == 3
    command_in(tmp_path / ".venv" / "bin")
    # The broker as the README starts it, but for the ports: they may be taken.
    assert serve.endswith("&")
    free = serve.replace(" serve ", " serve --port 0 --http-port 0 ").removesuffix("&")
    broker = subprocess.Popen(["sh", "-c", f"exec {free}"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        waited = run(wait, tmp_path)
        assert waited.returncode == 0, waited.stderr
        ready = json.loads((tmp_path / "bus" / "ready.json").read_text())
        done = run("\n".join(commands), tmp_path, DUOBUS_CONNECTION_STRING=ready["connection_string"])
        assert done.returncode == 0, done.stderr
        created, received = map(json.loads, done.stdout.splitlines())
        assert created["enablePartitioning"] is True
        assert received["body"] == "two chairs"

        (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        placed = code.replace("sb://localhost;", f"sb://localhost:{ready['amqp_port']};")
        typed = subprocess.run([sys.executable, "-c", placed], capture_output=True, text=True, timeout=60, check=False)
        assert (typed.returncode, typed.stdout) == (0, "one table\n"), typed.stderr
    finally:
        broker.terminate()
        broker.wait(60)


def test_the_readme_can_be_read_in_a_few_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 90


def test_the_commands_of_the_page_make_a_queue_and_move_a_message(tmp_path: Path) -> None:
    (shell,) = re.findall(
        r"^```sh\n(.*?)^```$", section(COMMAND_LINE, "Commands on entities and messages"), re.MULTILINE | re.DOTALL
    )
    command = command_in(tmp_path / "bin")
    with ServerProcess(tmp_path / "server") as server:
        done = run(
            shell,
            tmp_path,
            PATH=f"{command.parent}:{os.environ['PATH']}",
            DUOBUS_CONNECTION_STRING=server.connection_string,
        )
    assert done.returncode == 0, done.stderr
    created, received, shown = done.stdout.split("\n", 2)
    assert json.loads(created)["enablePartitioning"] is True
    message = json.loads(received)
    assert (message["body"], message["properties"]) == ("hello", {"colour": "red"})
    assert json.loads(shown)["totalMessageCount"] == 0
