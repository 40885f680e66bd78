"""Servers over one PostgreSQL, as benchmarks measure them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from zlib import crc32

from benchmarks.load import workloads
from benchmarks.load.link import Target
from benchmarks.load.sessions import SUFFIX
from benchmarks.peers import EMULATOR_KEY, EMULATOR_RULE, LOG_SEGMENTS, POSTGRES_SETTINGS, lay_out_log
from duobus.testing import server as server_process
from duobus.testing.postgres_server import PostgresServer

SERVERS: Final = 2
NAMESPACE: Final = "sbemulatorns"
START_S: Final = 60.0
#: Between two looks: a process that starts, or takes stores over, tells nobody of it.
LOOK_S: Final = 0.01
#: What a smoke run has in place of the rounds and seconds that are asked for.
QUICK_ROUNDS, QUICK_S = 1, 0.3


def store_of(queue: str, stores: int = SERVERS) -> int:
    """The store in which a queue is created (``duobus.cluster.directory``)."""
    return crc32(f"{NAMESPACE}/{queue}".encode()) % stores + 1


def queue_in(store: int, stores: int = SERVERS) -> str:
    """A name that belongs into a store."""
    return next(name for name in (f"passing-{number}" for number in range(100)) if store_of(name, stores) == store)


class JoinedServers:
    """Servers over one PostgreSQL, and a queue in each store.

    Args:
        folder: For all that they write.
        servers: How many.
        stores: How many they share.
        options: More words for each server.
        partitioned: Names of queues that have several fragments; with sessions if they end with SUFFIX.
        segments: Of the database's log, laid out before anything is measured.
        has_standby: The database acknowledges nothing that a second PostgreSQL does not have on disk.
    """

    def __init__(
        self,
        folder: Path,
        *,
        servers: int = SERVERS,
        stores: int = SERVERS,
        options: Sequence[str] = (),
        partitioned: Sequence[str] = (),
        segments: int = LOG_SEGMENTS,
        has_standby: bool = False,
    ) -> None:
        self.servers = range(servers)
        self._stores = stores
        self._folder = folder
        self._segments = segments
        self._options = options
        self._partitioned = partitioned
        folder.chmod(0o755)
        self._postgres = PostgresServer(folder / "postgres", durable=True, settings=POSTGRES_SETTINGS)
        self._standby: PostgresServer | None = None
        if has_standby:
            self._standby = PostgresServer(folder / "standby", durable=True, settings=POSTGRES_SETTINGS)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._known: dict[int, dict[str, Any]] = {}
        self.queues = {store: queue_in(store, stores) for store in range(1, stores + 1)}

    def __enter__(self) -> JoinedServers:
        self._postgres.create()
        self._postgres.start()
        lay_out_log(self._postgres, self._segments)
        if self._standby is not None:
            self._standby.become_standby(self._postgres)
        names: list[dict[str, Any]] = [{"Name": name} for name in self.queues.values()]
        for name in self._partitioned:
            names.append({"Name": name, "Properties": {"EnablePartitioning": True}})
            names[-1]["Properties"]["RequiresSession"] = name.endswith(SUFFIX)
        for queue in names:
            queue.setdefault("Properties", {})["LockDuration"] = "PT1M"
        config = {"UserConfig": {"Namespaces": [{"Name": NAMESPACE, "Queues": names, "Topics": []}]}}
        (self._folder / "Config.json").write_text(json.dumps(config))
        for server in self.servers:
            self.start(server)
        self.await_shared()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        if self._standby is not None:
            self._standby.remove()
        self._postgres.remove()

    def start(self, server: int) -> None:
        """Start a server and wait until it is ready."""
        data = self._folder / f"server-{server}"
        data.mkdir(exist_ok=True)
        ready = data / "ready.json"
        ready.unlink(missing_ok=True)
        words = ["--join", self._postgres.url(), "--emulator", "--stores", str(self._stores), "--port", "0"]
        words += ["--http-port", "0", "--data", str(data), "--ready-file", str(ready)]
        words += ["--config", str(self._folder / "Config.json"), *self._options]
        with (data / "log").open("ab") as log:
            command = [sys.executable, "-m", "duobus", "serve", *words]
            self._processes[server] = server_process.start_process(command, log)
        end = time.monotonic() + START_S
        while not ready.exists():
            if self._processes[server].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"server {server} did not start: {(data / 'log').read_text()[-2000:]}")
            time.sleep(LOOK_S)
        self._known[server] = json.loads(ready.read_text())

    def stores(self, server: int) -> list[int]:
        """The stores that a server has opened."""
        try:
            with urllib.request.urlopen(f"{self._known[server]['admin_url']}/health", timeout=5) as answer:
                found = json.load(answer)["stores"]
        except OSError:
            return []
        return [int(store) for store, state in found.items() if state == "open"]

    def await_shared(self) -> None:
        """Wait until each server has its share of the stores."""

        def is_shared() -> bool:
            shares = sorted(len(self.stores(server)) for server in self.servers)
            return sum(shares) == self._stores and shares[-1] - shares[0] <= 1

        self._await(is_shared)

    def _await(self, is_so: Any) -> None:
        end = time.monotonic() + START_S
        while not is_so():
            if time.monotonic() > end:
                raise RuntimeError("the servers do not share the stores out")
            time.sleep(LOOK_S)

    def target(self, server: int, queue: str) -> Target:
        """A queue, by way of a server."""
        return Target("127.0.0.1", int(self._known[server]["amqp_port"]), queue, EMULATOR_RULE, EMULATOR_KEY)

    def owner_of(self, store: int) -> int:
        """The server that has a store."""
        return next(server for server in self.servers if store in self.stores(server))

    def cpu_s(self) -> float:
        """Processor time that the servers have taken, in seconds."""
        return sum(cpu_time_of(process.pid) for process in self._processes.values())

    def database_cpu_s(self) -> float:
        """Processor time that the database and its standby have taken, with their processes that live, in seconds."""
        return sum(_tree_cpu_s(one.pid) for one in (self._postgres, self._standby) if one is not None)

    def failover(self, victim: int, what: signal.Signals) -> float:
        """Seconds from a signal to one server until the other has opened all stores; both are there afterwards."""
        other = (victim + 1) % len(self.servers)
        begun = time.monotonic()
        self._processes[victim].send_signal(what)
        self._await(lambda: len(self.stores(other)) == self._stores)
        took = time.monotonic() - begun
        self._processes[victim].wait(START_S)
        self.start(victim)
        self.await_shared()
        return took


def _tree_cpu_s(parent: int) -> float:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return sum(cpu_time_of(pid) for pid in (parent, *map(int, children)))


def cpu_time_of(pid: int) -> float:
    """Processor time of all threads of a process since its start, in seconds."""
    # user and system time, the 14th and 15th field; the name before them may have blanks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ProcessorTime(workloads.Observer):
    """What processes took while a workload was measured, in seconds, each as one of the functions tells it."""

    def __init__(self, *told: Callable[[], float]) -> None:
        self.seconds = [0.0] * len(told)
        self._told = told

    def begin(self) -> None:
        self.seconds = [before - tell() for before, tell in zip(self.seconds, self._told, strict=True)]

    def end(self) -> None:
        self.seconds = [before + tell() for before, tell in zip(self.seconds, self._told, strict=True)]


def options_of(module: str, doc: str, names: Sequence[str], *, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """The options that benchmarks of several servers have in common, with these defaults.

    Args:
        module: Its name, without that of the package.
        doc: Its docstring.
        names: The workloads.
        rounds: Of each workload.
        seconds: For which each sends.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=doc.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds of each workload ({rounds})")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"time that each sends for ({seconds:g})")
    parser.add_argument("--workloads", default=",".join(names), help="names with commas between")
    parser.add_argument("--data-root", default=tempfile.gettempdir(), help="folder on the disk that counts")
    parser.add_argument("--quick", action="store_true", help="one short round, for a smoke test; no bounds")
    return parser


def parsed(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the rounds, seconds and segments of a smoke run if one is asked for."""
    options = parser.parse_args(words)
    options.segments = LOG_SEGMENTS
    options.workloads = options.workloads.split(",")
    if options.quick:
        options.rounds, options.seconds, options.segments = QUICK_ROUNDS, QUICK_S, 0
    return options
