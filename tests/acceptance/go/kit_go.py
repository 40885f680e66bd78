"""Go programs against a real broker: how they are built, how they are run, which queues they get."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from kits.programs import Pool, ProgramBus, built, do_without, run_program, version_of

PROGRAMS = Path(__file__).parent / "programs"
#: Set where a missing Go is to be a failure instead of a skip.
REQUIRED = "DUOBUS_REQUIRE_GO"

#: Downloads and the first compilation of the modules, which takes a minute of two cores.
BUILD_LIMIT_S = 400.0

#: Kinds of queues with the number of each that a run may use up.
POOL: Pool = {
    "plain": (30, {}),
    "impatient": (2, {"LockDuration": "PT5S"}),
    "large": (4, {"MaxMessageSizeInKilobytes": 2048}),
    "partitioned": (2, {"EnablePartitioning": True}),
    "session": (4, {"RequiresSession": True, "LockDuration": "PT5S"}),
    "parted-session": (2, {"RequiresSession": True, "EnablePartitioning": True}),
}


class GoBus(ProgramBus):
    """A broker process, and what Go programs have to know of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, POOL)

    def route(self, transport: str) -> dict[str, Any]:
        """What the SDK needs to take a transport: tcp, tls or websocket."""
        if transport == "tcp":
            return {"connection": self.process.connection_string}
        ready = self.process.ready
        return {
            # The SDK looks for the namespace's name in the certificate, and for a port as well when it has one.
            "connection": re.sub(r"(Endpoint=sb://localhost):\d+", r"\1", self.process.connection_string_tls),
            "endpoint": f"localhost:{ready['tls_port'] if transport == 'tls' else ready['http_port']}",
            "websocket": transport == "websocket",
            "ca": self.process.ca,
        }


class Go:
    """The programs, in one binary."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def run(self, program: str, **given: Any) -> dict[str, Any]:
        """Run a program within LIMIT_S and return what it told."""
        return run_program(program, [self._binary, program], given, {})[0]


def sources() -> list[Path]:
    """Everything that the binary is made of."""
    return sorted(path for path in PROGRAMS.iterdir() if path.suffix in {".go", ".mod", ".sum"})


def build() -> Path:
    """Return the binary of the programs; made once per version of them.

    Skips, or fails where REQUIRED is set, when there is no Go or the modules cannot be had. What does not compile
    is a failure everywhere.
    """
    if shutil.which("go") is None:
        do_without("go is not on PATH", REQUIRED)
    return built(f"go-{version_of(sources())}/programs", "go", _build_into)


def _build_into(binary: Path) -> None:
    problem = _go("mod", "download")
    if problem:
        do_without(f"go mod download failed: {problem}", REQUIRED)
    partial = binary.with_suffix(".partial")
    problem = _go("build", "-o", str(partial), ".")
    assert not problem, f"go build failed: {problem}"
    partial.rename(binary)


def _go(*command: str) -> str:
    """Run a command of go in the programs' folder; returns what went wrong, and nothing when nothing did."""
    # What .git holds is of no interest to the binary, and a checkout of another user would stop the build.
    environment = {**os.environ, "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -mod=readonly -buildvcs=false".strip()}
    try:
        done = subprocess.run(
            ["go", *command],
            cwd=PROGRAMS,
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {BUILD_LIMIT_S:g} s"
    return "" if done.returncode == 0 else done.stderr.strip()[-2000:] or f"status {done.returncode}"
