"""Send, receive and settle through all ways, and kill an owner: ``python -m prototypes.remote_fragment``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.peers import LOG_SEGMENTS
from prototypes.remote_fragment.drill import drills
from prototypes.remote_fragment.servers import PROXIED, REMOTE, RUNS, Servers

#: The server that the clients are connected to; the other one owns half of each queue.
FRONT, OTHER = 0, 1
STALL_S = 30.0


class Figures(NamedTuple):
    """Of one run: messages a second, the ms from a send to its delivery, and processor time in us a message."""

    rate: float
    latency_ms: float
    front_us: float
    other_us: float
    database_us: float


class _Cpu(workloads.Observer):
    """Reads the processor time of servers and database around the measured part."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._begun = self._ended = ([0.0], 0.0)

    def begin(self) -> None:
        self._begun = self._servers.cpu_s()

    def end(self) -> None:
        self._ended = self._servers.cpu_s()

    def us(self, messages: int) -> list[float]:
        (before, database_before), (after, database_after) = self._begun, self._ended
        spent = [b - a for a, b in zip(before, after, strict=True)] + [database_after - database_before]
        return [seconds / messages * 1e6 for seconds in spent]


def measure(servers: Servers, names: list[str], rounds: int, messages: int) -> dict[str, dict[str, list[Figures]]]:
    """Each workload through each way, in turn."""
    own = next(store for store in servers.queues if servers.owner_of(store) == FRONT)
    other = next(store for store in servers.queues if servers.owner_of(store) == OTHER)
    ways = {
        "plain, of this server": servers.target(FRONT, servers.queues[own]),
        "plain, of the other one": servers.target(FRONT, servers.queues[other]),
        RUNS: servers.target(FRONT, RUNS),
        PROXIED: servers.target(FRONT, PROXIED),
        REMOTE: servers.target(FRONT, REMOTE),
    }
    found: dict[str, dict[str, list[Figures]]] = {name: {way: [] for way in ways} for name in names}
    for target in ways.values():
        workloads.run(target, workloads.parse("C1x1", Limits(messages=2_000, stall=STALL_S)))
    for _ in range(rounds):
        for name in names:
            for way, target in ways.items():
                cpu = _Cpu(servers)
                result = workloads.run(target, workloads.parse(name, Limits(messages=messages, stall=STALL_S)), cpu)
                latency = result.end_to_end_p50_ms or result.send_p50_ms or 0.0
                found[name][way].append(Figures(result.rate, latency, *cpu.us(result.messages)))
    return found


def show(found: dict[str, dict[str, list[Figures]]]) -> None:
    """Medians, and the rounds' spread of the rates."""
    print("workload  way                       msg/s  (lowest - highest)   p50 ms   CPU us/msg: front  other  database")
    for name, ways in found.items():
        for way, rounds in ways.items():
            rates = [figures.rate for figures in rounds]
            of = {field: median(getattr(figures, field) for figures in rounds) for field in Figures._fields}
            print(
                f"{name:9} {way:24} {of['rate']:7,.0f}  ({min(rates):,.0f} - {max(rates):,.0f})   {of['latency_ms']:7.2f}"
                f"   {of['front_us']:17.1f}  {of['other_us']:5.1f}  {of['database_us']:8.1f}"
            )
        for way in (PROXIED, RUNS):
            ratios = [b.rate / a.rate for a, b in zip(ways[way], ways[REMOTE], strict=True)]
            spread = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{name:9} {REMOTE} : {way} = {median(ratios):.2f}  ({spread})")


def main(words: list[str] | None = None) -> int:
    """Do what is asked for."""
    parser: Any = argparse.ArgumentParser(prog="python -m prototypes.remote_fragment", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each workload (5)")
    parser.add_argument("--messages", type=int, default=40_000, help="messages of each run (40,000)")
    parser.add_argument("--workloads", default="A100,C1x1,C4x4", help="names with commas between")
    parser.add_argument("--only", choices=("measure", "drill"), help="one of the two parts")
    parser.add_argument("--json", help="file for the figures of every round")
    parser.add_argument("--quick", action="store_true", help="one small round; its figures mean nothing")
    options = parser.parse_args(words)
    if options.quick:
        options.rounds, options.messages = 1, 2_000
    segments = 0 if options.quick or options.only == "drill" else LOG_SEGMENTS
    with (
        tempfile.TemporaryDirectory(prefix="duobus-remote-") as folder,
        Servers(Path(folder), segments=segments) as servers,
    ):
        if options.only != "drill":
            found = measure(servers, options.workloads.split(","), options.rounds, options.messages)
            show(found)
            if options.json:
                Path(options.json).write_text(json.dumps(found))
        if options.only == "measure":
            return 0
        return drills(servers)


if __name__ == "__main__":
    sys.exit(main())
