"""Servers with remote fragments over one PostgreSQL, as processes of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from benchmarks.proxied_links import LOOK_S, SERVERS, START_S, Pair
from prototypes.remote_fragment.serve import PORTS

#: The same sharded queue in today's way, in today's way with one change (``runs.py``), and by remote fragments.
PROXIED, RUNS, REMOTE = "proxied", "runs", "remote"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Servers(Pair):
    """Two servers, a store for each, and the queues."""

    def __init__(self, folder: Path, *, segments: int) -> None:
        super().__init__(folder, partitioned=(PROXIED, RUNS, REMOTE), segments=segments)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def start(self, server: int) -> None:
        """See Pair: the same with the server of the prototype."""
        ports = self._folder / "ports"
        ports.mkdir(exist_ok=True)
        data = self._folder / f"server-{server}"
        data.mkdir(exist_ok=True)
        ready = data / "ready.json"
        ready.unlink(missing_ok=True)
        words = ["--join", self._postgres.url(), "--emulator", "--stores", str(SERVERS), "--port", "0"]
        words += ["--http-port", "0", "--data", str(data), "--ready-file", str(ready)]
        words += ["--config", str(self._folder / "Config.json"), *self._options]
        program = [sys.executable, "-m", "prototypes.remote_fragment.serve", "serve", *words]
        with (data / "log").open("ab") as log:
            self._processes[server] = subprocess.Popen(
                program, stdout=log, stderr=log, env={**os.environ, PORTS: str(ports)}
            )
        end = time.monotonic() + START_S
        while not ready.exists():
            if self._processes[server].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"server {server} did not start: {(data / 'log').read_text()[-2000:]}")
            time.sleep(LOOK_S)
        self._known[server] = json.loads(ready.read_text())

    def kill(self, server: int) -> None:
        """End a server at once, as a machine does whose power goes."""
        self._processes[server].kill()
        self._processes[server].wait()

    def connection_string(self, server: int) -> str:
        """What an SDK connects to a server with."""
        return str(self._known[server]["connection_string"])

    def cpu_s(self) -> tuple[list[float], float]:
        """Processor seconds of each server until now, and of the database."""
        servers = [_cpu_of(process.pid) for _, process in sorted(self._processes.items())]
        parent = self._postgres.pid
        database = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return servers, sum(_cpu_of(pid) for pid in database if pid == parent or _parent_of(pid) == parent)


def _stat(pid: int) -> list[str]:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _parent_of(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def _cpu_of(pid: int) -> float:
    stat = _stat(pid)
    return (int(stat[11]) + int(stat[12])) / _TICKS if stat else 0.0
