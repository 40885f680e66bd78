"""What a queue that is sharded over two servers carries: ``python -m benchmarks.sharded_queue``.

    python -m benchmarks.sharded_queue            three rounds, some two minutes
    python -m benchmarks.sharded_queue --quick    a smoke run; its figures mean nothing

Two servers of its own share a catalog in a PostgreSQL of its own that syncs; each owns one store. A plain queue in one
of the stores, by way of its owner, beside a queue that is spread over both, by way of either server, in turn, in one
run: the rates, and the median of the rounds' ratios. While one of them is measured, nothing else is sent.

Both servers, the database and the generator share the processors of this machine: what a second server adds to what
the first has, it takes from the others here. So a ratio below 1 tells what spreading costs, and not what it brings.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.joined_servers import SERVERS, JoinedServers, options_of, parsed
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.peers import LOG_SEGMENTS
from benchmarks.proxied_links import WORKLOADS

SPREAD: Final = "spread"
#: Silence of a queue that voids a measurement, in seconds.
STALL_S: Final = 30.0


def compared(rates: dict[str, list[float]]) -> dict[str, Any]:
    """The medians of the ways to a queue, and of the ratios of those to the spread one to the plain one."""
    found: dict[str, Any] = {way: median(values) for way, values in rates.items()}
    for way in rates:
        if way != "plain":
            ratios = [b / a for a, b in zip(rates["plain"], rates[way], strict=True)]
            found[f"{way} ratio"] = median(ratios)
            found[f"{way} ratios"] = ratios
    return found


def measure(
    folder: Path, names: Sequence[str], *, rounds: int, seconds: float, segments: int = LOG_SEGMENTS
) -> dict[str, dict[str, Any]]:
    """Each workload to the plain queue and to the spread one, in turn."""
    with JoinedServers(folder, partitioned=(SPREAD,), segments=segments) as pair:
        store = min(pair.queues)
        ways = {"plain": pair.target(pair.owner_of(store), pair.queues[store])}
        ways |= {f"spread by server {server}": pair.target(server, SPREAD) for server in range(SERVERS)}
        rates: dict[str, dict[str, list[float]]] = {name: {way: [] for way in ways} for name in names}
        for target in ways.values():
            workloads.run(target, workloads.parse("C1x1", Limits(seconds=min(1.0, seconds), stall=STALL_S)))
        for _ in range(rounds):
            for name in names:
                for way, target in ways.items():
                    limits = Limits(seconds=seconds, stall=STALL_S)
                    rates[name][way].append(workloads.run(target, workloads.parse(name, limits)).rate)
    return {name: compared(found) for name, found in rates.items()}


def main(words: list[str] | None = None) -> int:
    """Measure, and print the result."""
    parser = options_of("sharded_queue", __doc__ or "", WORKLOADS, rounds=3, seconds=3.0)
    options = parsed(parser, words)
    with tempfile.TemporaryDirectory(prefix="duobus-spread-", dir=options.data_root) as folder:
        found = measure(
            Path(folder),
            options.workloads,
            rounds=options.rounds,
            seconds=options.seconds,
            segments=options.segments,
        )
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
