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

import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.joined_servers import SERVERS, JoinedServers, ProcessorTime, options_of, parsed
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.peers import LOG_SEGMENTS

WORKLOADS: Final = ("A100", "B", "C1x1", "C4x4")
#: Messages of a round of B; the other workloads go by time.
DRAINED: Final = 20_000
COST_MAX: Final = 0.35
KILL_MAX_S: Final = 5.0
DRAIN_MAX_S: Final = 1.0


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
    parser = options_of("proxied_links", __doc__ or "", WORKLOADS, rounds=5, seconds=3.0)
    parser.add_argument("--failovers", type=int, default=5, help="failovers of each kind (5)")
    options = parsed(parser, words)
    if options.quick:
        options.failovers = 1
    names = options.workloads
    with tempfile.TemporaryDirectory(prefix="duobus-passing-", dir=options.data_root) as folder:
        found = measure(
            Path(folder),
            names,
            rounds=options.rounds,
            seconds=options.seconds,
            failover_rounds=options.failovers,
            segments=options.segments,
        )
    found["missed"] = [] if options.quick else missed(found)
    print(json.dumps(found, indent=1))
    return 1 if found["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
