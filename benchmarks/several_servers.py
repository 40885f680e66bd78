"""What a message of a partitioned queue costs on one, two, three or four servers, as JSON.

    python -m benchmarks.several_servers                 one, two, three and four servers, some five minutes
    python -m benchmarks.several_servers --servers 1,3   these only
    python -m benchmarks.several_servers --quick         a smoke run; its figures mean nothing

For each number of servers a PostgreSQL of its own that syncs, and a queue of 16 fragments over four stores, which the
servers share. The workloads go to each of these queues by way of one server, in turn, in one run; those that are not
measured do nothing meanwhile. For each: the rate, the processor time of all servers and of the database for a message
in microseconds, and the median of the rounds' ratios of the servers' processor time to that of one server: what the
same message costs on several.

All servers, the databases and the generator share the processors of this machine, so the rates do not say what more
machines would carry. The processor time does, as far as nothing else runs short.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.joined_servers import JoinedServers, ProcessorTime, options_of, parsed
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.load.sessions import SUFFIX
from benchmarks.peers import LOG_SEGMENTS

WORKLOADS: Final = ("A100", "C1x1", "C4x4", "S4x4")
SERVERS: Final = (1, 2, 3, 4)
STORES: Final = 4
QUEUE: Final = "parted"
#: Silence of a queue that voids a measurement, in seconds.
STALL_S: Final = 30.0

#: By workload and number of servers, one for each round: rate, processor time of the servers, and of the database.
Rounds = dict[str, dict[int, list[tuple[float, float, float]]]]


def compared(found: Rounds) -> dict[str, dict[str, Any]]:
    """The medians of each number of servers, and of the ratios of its processor time to that of the smallest one."""
    told: dict[str, dict[str, Any]] = {}
    for name, by_number in found.items():
        fewest = by_number[min(by_number)]
        told[name] = {
            str(number): {
                "rate": median(rate for rate, _, _ in rounds),
                "servers_cpu_us": median(servers for _, servers, _ in rounds),
                "database_cpu_us": median(database for _, _, database in rounds),
                "cpu_ratios": [mine[1] / one[1] for mine, one in zip(rounds, fewest, strict=True)],
                "cpu_ratio": median(mine[1] / one[1] for mine, one in zip(rounds, fewest, strict=True)),
            }
            for number, rounds in by_number.items()
        }
    return told


def measure(
    folder: Path,
    names: Sequence[str],
    numbers: Sequence[int],
    *,
    rounds: int,
    seconds: float,
    segments: int = LOG_SEGMENTS,
) -> Rounds:
    """Each workload with each number of servers, in turn."""
    # PostgreSQL's own user has to enter it.
    folder.chmod(0o755)
    found: Rounds = {name: {number: [] for number in numbers} for name in names}
    with ExitStack() as stack:
        joined: dict[int, JoinedServers] = {}
        for number in numbers:
            place = folder / f"of-{number}"
            place.mkdir()
            queues = (QUEUE, QUEUE + SUFFIX)
            servers = JoinedServers(place, servers=number, stores=STORES, partitioned=queues, segments=segments)
            joined[number] = stack.enter_context(servers)
            for name in names:
                warm = workloads.parse(name, Limits(seconds=min(1.0, seconds), stall=STALL_S))
                workloads.run(joined[number].target(0, QUEUE), warm)
        for turn in range(rounds):
            for name in names:
                for number in numbers if turn % 2 else reversed(numbers):
                    found[name][number].append(_round(joined[number], name, seconds))
    return found


def _round(joined: JoinedServers, name: str, seconds: float) -> tuple[float, float, float]:
    taken = ProcessorTime(joined.cpu_s, joined.database_cpu_s)
    limits = Limits(seconds=seconds, stall=STALL_S)
    result = workloads.run(joined.target(0, QUEUE), workloads.parse(name, limits), taken)
    servers, database = (1e6 * one / result.messages for one in taken.seconds)
    return result.rate, servers, database


def main(words: list[str] | None = None) -> int:
    """Measure, and print the result."""
    parser = options_of("several_servers", __doc__ or "", WORKLOADS, rounds=5, seconds=2.0)
    parser.add_argument("--servers", default=",".join(map(str, SERVERS)), help="numbers with commas between (1,2,3,4)")
    options = parsed(parser, words)
    with tempfile.TemporaryDirectory(prefix="duobus-servers-", dir=options.data_root) as folder:
        found = measure(
            Path(folder),
            options.workloads,
            sorted(map(int, options.servers.split(","))),
            rounds=options.rounds,
            seconds=options.seconds,
            segments=options.segments,
        )
    print(json.dumps(compared(found), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
