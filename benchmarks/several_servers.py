"""What a message of a partitioned queue costs on one, two, three or four servers, as JSON.

    python -m benchmarks.several_servers                 one, two, three and four servers, some five minutes
    python -m benchmarks.several_servers --servers 1,3   these only
    python -m benchmarks.several_servers --servers 3 --standby --peer rabbitmq
                                                         beside three nodes of RabbitMQ with a quorum queue
    python -m benchmarks.several_servers --quick         a smoke run; its figures mean nothing

For each number of servers a PostgreSQL of its own that syncs, and a queue of 16 fragments over four stores, which the
servers share. The workloads go to each of these queues by way of one server, in turn, in one run; those that are not
measured do nothing meanwhile. For each: the rate, the processor time of all servers and of the database for a message
in microseconds, and the median of the rounds' ratios of the servers' processor time to that of one server: what the
same message costs on several.

With a peer, a quorum queue on three nodes of RabbitMQ has its turn in each round, by way of the node that leads it; the
ratios of the rates to the peer's, and their geometric mean, come with the others. RabbitMQ has a message on two of its
three nodes before it accepts it, PostgreSQL alone on one disk; with `--standby` on that of a second PostgreSQL, too.

All servers, the databases and the generator share the processors of this machine, so the rates do not say what more
machines would carry. The processor time does, as far as nothing else runs short.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks import rabbitmq
from benchmarks.joined_servers import JoinedServers, ProcessorTime, cpu_time_of, options_of, parsed
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.load.link import Target
from benchmarks.load.sessions import SUFFIX
from benchmarks.peers import LOG_SEGMENTS, PeerError
from benchmarks.report import geometric_mean

WORKLOADS: Final = ("A100", "C1x1", "C4x4", "S4x4")
SERVERS: Final = (1, 2, 3, 4)
STORES: Final = 4
QUEUE: Final = "parted"
#: Silence of a queue that voids a measurement, in seconds.
STALL_S: Final = 30.0
RABBITMQ: Final = "rabbitmq"
NODES: Final = 3
#: Passes of each workload before the first round: at the second everybody has made its files.
WARM_PASSES: Final = 2

#: By workload, and by number of servers or name of the peer, one for each round: rate, processor time of the servers,
#: and of the database.
Rounds = dict[str, dict[int | str, list[tuple[float, float, float]]]]


class Measured(NamedTuple):
    """What has its turn in each round.

    Attributes:
        target: The queue, by way of one server.
        cpu_s: Processor time that the servers have taken, in seconds.
        database_cpu_s: The same for their database.
        peer: RabbitMQ, if it is that.
    """

    target: Target
    cpu_s: Callable[[], float]
    database_cpu_s: Callable[[], float]
    peer: rabbitmq.RabbitPeer | None = None

    def supports(self, workload: str) -> bool:
        """Whether the workload can be measured here."""
        return self.peer is None or self.peer.supports(workload)


def compared(found: Rounds) -> dict[str, dict[str, Any]]:
    """The medians of each number of servers, of its processor time to that of the smallest, and of rates to a peer's.

    With a peer, the entry ``mean`` has the geometric mean of the ratios of rates, by number of servers.
    """
    told: dict[str, dict[str, Any]] = {}
    to_peer: dict[str, list[float]] = {}
    for name, by_number in found.items():
        fewest = by_number[min(number for number in by_number if isinstance(number, int))]
        theirs = by_number.get(RABBITMQ)
        told[name] = {}
        for number, rounds in by_number.items():
            entry: dict[str, Any] = {
                "rate": median(rate for rate, _, _ in rounds),
                "servers_cpu_us": median(servers for _, servers, _ in rounds),
                "database_cpu_us": median(database for _, _, database in rounds),
            }
            told[name][str(number)] = entry
            if number == RABBITMQ:
                continue
            entry["cpu_ratios"] = [mine[1] / one[1] for mine, one in zip(rounds, fewest, strict=True)]
            entry["cpu_ratio"] = median(entry["cpu_ratios"])
            if theirs:
                entry["peer_ratios"] = [mine[0] / other[0] for mine, other in zip(rounds, theirs, strict=True)]
                entry["peer_ratio"] = median(entry["peer_ratios"])
                to_peer.setdefault(str(number), []).append(entry["peer_ratio"])
    if to_peer:
        told["mean"] = {number: {"peer_ratio": geometric_mean(ratios)} for number, ratios in to_peer.items()}
    return told


def measure(
    folder: Path,
    names: Sequence[str],
    numbers: Sequence[int],
    *,
    rounds: int,
    seconds: float,
    segments: int = LOG_SEGMENTS,
    has_standby: bool = False,
    peer: rabbitmq.RabbitPeer | None = None,
) -> Rounds:
    """Each workload with each number of servers, and with the peer, in turn."""
    # PostgreSQL's own user has to enter it.
    folder.chmod(0o755)
    with ExitStack() as stack:
        measured: dict[int | str, Measured] = {}
        for number in numbers:
            place = folder / f"of-{number}"
            place.mkdir()
            queues = (QUEUE, QUEUE + SUFFIX)
            servers = stack.enter_context(
                JoinedServers(
                    place,
                    servers=number,
                    stores=STORES,
                    partitioned=queues,
                    segments=segments,
                    has_standby=has_standby,
                )
            )
            measured[number] = Measured(servers.target(0, QUEUE), servers.cpu_s, servers.database_cpu_s)
        if peer is not None:
            stack.callback(peer.stop)
            peer.start()
            measured[RABBITMQ] = Measured(peer.target, lambda: sum(map(cpu_time_of, peer.pids)), lambda: 0.0, peer=peer)
        order = [(name, [number for number, one in measured.items() if one.supports(name)]) for name in names]
        for _ in range(WARM_PASSES):
            for name, able in order:
                for one in able:
                    warm = workloads.parse(name, Limits(seconds=min(1.0, seconds), stall=STALL_S))
                    workloads.run(measured[one].target, warm)
        found: Rounds = {name: {number: [] for number in able} for name, able in order}
        for turn in range(rounds):
            for name, able in order:
                for one in able if turn % 2 else reversed(able):
                    found[name][one].append(_round(measured[one], name, seconds))
    return found


def _round(measured: Measured, name: str, seconds: float) -> tuple[float, float, float]:
    taken = ProcessorTime(measured.cpu_s, measured.database_cpu_s)
    limits = Limits(seconds=seconds, stall=STALL_S)
    result = workloads.run(measured.target, workloads.parse(name, limits), taken)
    servers, database = (1e6 * one / result.messages for one in taken.seconds)
    return result.rate, servers, database


def main(words: list[str] | None = None) -> int:
    """Measure, and print the result."""
    parser = options_of("several_servers", __doc__ or "", WORKLOADS, rounds=5, seconds=2.0)
    parser.add_argument("--servers", default=",".join(map(str, SERVERS)), help="numbers with commas between (1,2,3,4)")
    parser.add_argument("--standby", action="store_true", help="each PostgreSQL has a synchronous standby")
    parser.add_argument("--peer", choices=(RABBITMQ,), help=f"beside {NODES} nodes of it; Debian's package")
    options = parsed(parser, words)
    try:
        peer = rabbitmq.RabbitPeer(data_root=Path(options.data_root), nodes=NODES) if options.peer else None
        with tempfile.TemporaryDirectory(prefix="duobus-servers-", dir=options.data_root) as folder:
            found = measure(
                Path(folder),
                options.workloads,
                sorted(map(int, options.servers.split(","))),
                rounds=options.rounds,
                seconds=options.seconds,
                segments=options.segments,
                has_standby=options.standby,
                peer=peer,
            )
    except rabbitmq.NotInstalled:
        how = "make bench ARGS='--peer rabbitmq --install-peer --quick'"
        print(f"RabbitMQ 3 is not here; as root, this installs it: {how}", file=sys.stderr)
        return 1
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    if peer is not None:
        told = ", ".join(f"{name}={value}" for name, value in peer.settings.items())
        print(f"{peer.name} {peer.version}: {told}", file=sys.stderr)
    print(json.dumps(compared(found), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
