"""Qpid Proton's Python binding against a real broker, in an environment of its own: it is built from source."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kits.programs import CACHE, Pool, ProgramBus, do_without, run_program

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
#: Set where a Proton that cannot be built is to be a failure instead of a skip.
REQUIRED = "DUOBUS_REQUIRE_PROTON"

#: A build from source on a slow machine.
INSTALL_LIMIT_S = 600.0

#: Kinds of queues with the number of each that a run may use up.
POOL: Pool = {"plain": (20, {}), "large": (1, {"MaxMessageSizeInKilobytes": 2048})}


class ProtonBus(ProgramBus):
    """A broker process, and what programs with Proton have to know of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, POOL)

    def login(self) -> dict[str, Any]:
        """Address, rule and key with all rights, and an untouched queue."""
        return {"url": f"amqp://localhost:{self.port}", **self.credentials(), "queue": self.queue()}


class Proton:
    """Runs programs with the interpreter that has Proton."""

    def __init__(self, python: Path) -> None:
        self._python = python

    def run(self, program: str, **given: Any) -> tuple[dict[str, Any], str]:
        """Run a program within LIMIT_S; returns what it told, and the trace of its frames."""
        command = [self._python, PROGRAMS / f"{program}.py"]
        return run_program(program, command, given, {"PN_TRACE_FRM": "1"})


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
        do_without(f"{problem}: no end within {INSTALL_LIMIT_S:g} s", REQUIRED)
    if done.returncode:
        do_without(f"{problem}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}", REQUIRED)
