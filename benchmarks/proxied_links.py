"""What it costs to come in by a server that is not the owner, and how quick owners change, as JSON.

    python -m benchmarks.proxied_links [--rounds 5] [--seconds 3] [--failovers 5] [--quick]

Two servers of its own share a catalog in a PostgreSQL of its own that syncs; each owns one store, and each store has
a queue. The same workloads go to the same queue through its owner and through the other server, in turn, in one run.
For each: the rates, the median of the rounds' ratios, and the processor time of both servers for a message, in
microseconds. It costs what is missing to 1; the bound is 0.35, and the exit status is 1 when one misses it. A100 sends,
B receives, C1x1 and C4x4 do both.

Both servers, the database and the generator share the processors of this machine. So the ratio here holds what a second
process costs, which a machine of its own for each server would not. Processor time depends less on what else runs.

*Failover*: from the signal until the other server has opened the store and says so: after SIGKILL (bound 5 s), which is
the lease and the opening; and after SIGTERM (bound 1 s), when the store is given back.
"""

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
from statistics import median
from types import TracebackType
from typing import Any, Final
from zlib import crc32

from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.load.link import Target
from benchmarks.load.sessions import SUFFIX
from benchmarks.peers import EMULATOR_KEY, EMULATOR_RULE, LOG_SEGMENTS, POSTGRES_SETTINGS, lay_out_log
from duobus.testing.postgres_server import PostgresServer

WORKLOADS: Final = ("A100", "B", "C1x1", "C4x4")
#: Messages of a round of B; the other workloads go by time.
DRAINED: Final = 20_000
SERVERS: Final = 2
NAMESPACE: Final = "sbemulatorns"
COST_MAX: Final = 0.35
KILL_MAX_S: Final = 5.0
DRAIN_MAX_S: Final = 1.0
START_S: Final = 60.0
LOOK_S: Final = 0.01


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
    ) -> None:
        self.servers = range(servers)
        self._stores = stores
        self._folder = folder
        self._segments = segments
        self._options = options
        self._partitioned = partitioned
        folder.chmod(0o755)
        self._postgres = PostgresServer(folder / "postgres", durable=True, settings=POSTGRES_SETTINGS)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._known: dict[int, dict[str, Any]] = {}
        self.queues = {store: queue_in(store, stores) for store in range(1, stores + 1)}

    def __enter__(self) -> JoinedServers:
        self._postgres.create()
        self._postgres.start()
        lay_out_log(self._postgres, self._segments)
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
            self._processes[server] = subprocess.Popen(
                [sys.executable, "-m", "duobus", "serve", *words], stdout=log, stderr=log, env=dict(os.environ)
            )
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
        """Processor time that the database and those of its processes have taken that live, in seconds."""
        parent = self._postgres.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return sum(cpu_time_of(pid) for pid in (parent, *map(int, children)))

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


def costs(pair: JoinedServers, names: Sequence[str], rounds: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Each workload through the owner and through the other server, in turn."""
    store = min(pair.queues)
    queue, owner = pair.queues[store], pair.owner_of(store)
    ways = {"owner": pair.target(owner, queue), "passed": pair.target((owner + 1) % SERVERS, queue)}
    found: dict[str, dict[str, list[float]]] = {name: {way: [] for way in ways} for name in names}
    cpu: dict[str, dict[str, list[float]]] = {name: {way: [] for way in ways} for name in names}
    for target in ways.values():
        workloads.run(target, workloads.parse("C1x1", Limits(seconds=min(1.0, seconds))))
    for _ in range(rounds):
        for name in names:
            for way, target in ways.items():
                limits = Limits(messages=DRAINED) if name == "B" else Limits(seconds=seconds)
                servers = ProcessorTime(pair.cpu_s)
                result = workloads.run(target, workloads.parse(name, limits), servers)
                found[name][way].append(result.rate)
                cpu[name][way].append(servers.seconds[0] / result.messages * 1e6)
    return {
        name: {
            "ratio": median(b / a for a, b in zip(rates["owner"], rates["passed"], strict=True)),
            "ratios": [b / a for a, b in zip(rates["owner"], rates["passed"], strict=True)],
            **{way: median(values) for way, values in rates.items()},
            "cpu_us": {way: median(values) for way, values in cpu[name].items()},
            "extra_cpu_us": [b - a for a, b in zip(cpu[name]["owner"], cpu[name]["passed"], strict=True)],
        }
        for name, rates in found.items()
    }


def failovers(pair: JoinedServers, rounds: int) -> dict[str, list[float]]:
    """Seconds after SIGKILL and on drain."""
    kinds = {"kill_s": signal.SIGKILL, "drain_s": signal.SIGTERM}
    return {name: [pair.failover(number % SERVERS, what) for number in range(rounds)] for name, what in kinds.items()}


def measure(
    folder: Path,
    names: Sequence[str],
    *,
    rounds: int,
    seconds: float,
    failover_rounds: int,
    segments: int = LOG_SEGMENTS,
) -> dict[str, Any]:
    """All of it."""
    with JoinedServers(folder, segments=segments) as pair:
        found = costs(pair, names, rounds, seconds)
        return {"passing": found, "failover": failovers(pair, failover_rounds)}


def missed(found: dict[str, Any]) -> list[str]:
    """The bounds that a result misses."""
    over = [
        f"{name} costs {1 - about['ratio']:.2f}, more than {COST_MAX}"
        for name, about in found["passing"].items()
        if 1 - about["ratio"] > COST_MAX
    ]
    for name, limit in (("kill_s", KILL_MAX_S), ("drain_s", DRAIN_MAX_S)):
        times = found["failover"][name]
        if times and max(times) > limit:
            over.append(f"{name} {max(times):.2f}, more than {limit}")
    return over


def main(words: list[str] | None = None) -> int:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proxied_links", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each workload (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="time that each sends for (3)")
    parser.add_argument("--failovers", type=int, default=5, help="failovers of each kind (5)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="names with commas between")
    parser.add_argument("--data-root", default=tempfile.gettempdir(), help="folder on the disk that counts")
    parser.add_argument("--quick", action="store_true", help="one short round, for a smoke test; no bounds")
    options = parser.parse_args(words)
    if options.quick:
        options.rounds, options.seconds, options.failovers = 1, 0.3, 1
    names = options.workloads.split(",")
    with tempfile.TemporaryDirectory(prefix="duobus-passing-", dir=options.data_root) as folder:
        found = measure(
            Path(folder),
            names,
            rounds=options.rounds,
            seconds=options.seconds,
            failover_rounds=options.failovers,
            segments=0 if options.quick else LOG_SEGMENTS,
        )
    found["missed"] = [] if options.quick else missed(found)
    print(json.dumps(found, indent=1))
    return 1 if found["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
