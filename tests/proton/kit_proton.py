"""Qpid Proton's Python binding against a real broker, in an environment of its own: it is built from source."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from duobus.demo.server_process import ServerProcess, queues_config

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
#: Git-ignored; gone with ``make clean``.
CACHE = HERE.parents[1] / ".build"
#: Set where a Proton that cannot be built is to be a failure instead of a skip.
REQUIRED = "DUOBUS_REQUIRE_PROTON"

#: A hang is a failure (contract chapter 21).
LIMIT_S = 20.0
#: A build from source on a slow machine.
INSTALL_LIMIT_S = 600.0

PLAIN_QUEUES = 20
LARGE = "large"


class ProtonBus:
    """A broker process, and what programs have to know of it."""

    def __init__(self, folder: Path) -> None:
        queues: dict[str, dict[str, Any]] = {f"plain-{index}": {} for index in range(PLAIN_QUEUES)}
        queues[LARGE] = {"MaxMessageSizeInKilobytes": 2048}
        self.process = ServerProcess(folder, config=queues_config(queues))
        self._used = 0

    def queue(self) -> str:
        """Name of a queue that no other test has touched."""
        self._used += 1
        assert self._used <= PLAIN_QUEUES, "the pool has no more queues"
        return f"plain-{self._used - 1}"

    def login(self) -> dict[str, Any]:
        """Address, rule and key with all rights, and an untouched queue."""
        parts = self.process.connection_string.rstrip(";").split(";")
        members = dict(part.split("=", 1) for part in parts)
        return {
            "url": f"amqp://localhost:{self.process.ready['amqp_port']}",
            "username": members["SharedAccessKeyName"],
            "password": members["SharedAccessKey"],
            "queue": self.queue(),
        }


class Proton:
    """Runs programs with the interpreter that has Proton."""

    def __init__(self, python: Path) -> None:
        self._python = python

    def run(self, program: str, **given: Any) -> tuple[dict[str, Any], str]:
        """Run a program within LIMIT_S; returns what it told, and the trace of its frames."""
        done = subprocess.run(
            [str(self._python), str(PROGRAMS / f"{program}.py"), json.dumps(given)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, "PN_TRACE_FRM": "1"},
            check=False,
        )
        assert done.returncode == 0, f"{program} ended with status {done.returncode}:\n{done.stderr[-4000:]}"
        lines = done.stdout.splitlines()
        assert len(lines) == 1, f"{program} did not print one line:\n{done.stdout}\n{done.stderr[-4000:]}"
        found: dict[str, Any] = json.loads(lines[0])
        return found, done.stderr


def build() -> Path:
    """Return an interpreter that has what requirements.txt names; made once per version of that file.

    Skips, or fails where REQUIRED is set, when it cannot be built.
    """
    requirements = HERE / "requirements.txt"
    identity = f"{sys.version_info.major}.{sys.version_info.minor}\n{requirements.read_text()}"
    folder = CACHE / f"proton-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    CACHE.mkdir(exist_ok=True)
    # Test processes start at the same time; the first builds, the others wait for it.
    with (CACHE / "proton.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = folder / "bin" / "python"
        # Written last: an environment cannot be moved to its place when it is complete.
        complete = folder / "complete"
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder)], "no virtual environment could be made")
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
            _run([*pip, "-r", str(requirements)], "Qpid Proton could not be built (a compiler and cmake are needed)")
            complete.touch()
    return python


def _run(command: list[str], problem: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        _do_without(f"{problem}: no end within {INSTALL_LIMIT_S:g} s")
    if done.returncode:
        _do_without(f"{problem}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")


def _do_without(reason: str) -> NoReturn:
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}; and {REQUIRED} is set")
    pytest.skip(reason)
