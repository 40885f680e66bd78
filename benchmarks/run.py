"""Run the workloads against the broker, in interleaved rounds, and report medians.

    python benchmarks/run.py                     five rounds of everything, some six minutes
    python benchmarks/run.py --quick             smoke run, some ten seconds
    python benchmarks/run.py --workloads A100,C1x1 --configurations plain
    python benchmarks/run.py --configurations plain,compiled      the compiled twin beside pure Python: make compile
    python benchmarks/run.py --configurations plain,postgres      a store in PostgreSQL beside one in a file
    python benchmarks/run.py --configurations plain,consoles --rounds 9      three open consoles, and none
    python benchmarks/run.py --peer rabbitmq     the same rounds with RabbitMQ among them, and the ratios to it
    python benchmarks/run.py --beside HEAD~1 --configurations plain --rounds 9      an earlier commit among them

The results go to `benchmarks/results/<commit>.json` (with a peer to `<commit>-<peer>.json`, beside an earlier commit to
`<commit>-beside-<earlier>.json`, those of a quick run to `local-quick.json`) and as a table to the terminal;
`benchmarks/plot.py` draws the ratios of all of them. Exit status 1 means that a measurement was void: a message lost,
doubled or refused, or a broker that ended.
"""

import argparse
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

if not __package__:
    # started as a file: Python put its folder on the path, not the root of the project
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import rabbitmq, ratios, report, usage
from benchmarks.consoles import WatchedPeer
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.load.wire import LoadError
from benchmarks.peers import DuobusPeer, Peer, PeerError
from tools import compile_twin

ROOT = Path(__file__).resolve().parents[1]
ALL = ("A100", "A1000", "B", "C1x1", "C4x4", "S4x4", "D", "E10")
STARTUPS = 5
_CONFIGURATIONS_HELP = "plain, parted, postgres, consoles, compiled, compiled-parted, compiled-postgres"


class _Meter(workloads.Observer):
    """Reads the broker's processor time around the measured part."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._after = usage.Cpu(0.0, 0.0)

    def begin(self) -> None:
        self._before = usage.cpu(self._pid)

    def end(self) -> None:
        self._after = usage.cpu(self._pid)

    def sample(self, messages: int) -> dict[str, Any]:
        rss, peak = usage.memory_mb(self._pid)
        cpu = usage.per_message(self._pid, self._before, self._after, messages)
        return {"cpu_us": cpu, "rss_mb": rss, "rss_peak_mb": peak}


class Runner:
    """Measures peers.

    Args:
        peers: the brokers, all running.
        names: the workloads.
        seconds: time that each sends for.
        drain_messages: messages of workload B.
        stall: seconds of silence that void a measurement.

    Attributes:
        samples: by peer and workload, one dictionary per round.
        failures: what was void, in words.
    """

    def __init__(
        self, peers: Sequence[Peer], names: Sequence[str], seconds: float, drain_messages: int, stall: float
    ) -> None:
        self._peers = peers
        self._names = names
        self._seconds = seconds
        self._drain_messages = drain_messages
        self._stall = stall
        self.samples: dict[str, dict[str, list[dict[str, Any]]]] = {
            peer.name: {name: [] for name in names if peer.supports(name)} for peer in peers
        }
        self.failures: list[str] = []

    def rounds(self, count: int, warm_up: float) -> None:
        """Warm each peer up, then measure all workloads on all peers in turn, `count` times over.

        In every second round the peers come in the opposite order: what one leaves to the disk and to the system's
        writing is to meet each of the others.

        Raises:
            PeerError: a peer did not come up again after a failure; what was measured until then stays.
        """
        if warm_up > 0:
            for peer in self._peers:
                self._guarded(peer, workloads.parse("C1x1", Limits(seconds=warm_up, stall=self._stall)))
        for number in range(1, count + 1):
            for name in self._names:
                for peer in self._peers if number % 2 else self._peers[::-1]:
                    if peer.supports(name):
                        self._round(number, name, peer)

    def _round(self, number: int, name: str, peer: Peer) -> None:
        limits = Limits(seconds=self._seconds, stall=self._stall)
        if name == "B":
            limits = Limits(messages=self._drain_messages, stall=self._stall)
        sample = self._guarded(peer, workloads.parse(name, limits))
        if sample is not None:
            self.samples[peer.name][name].append({"round": number, **sample})
            print(f"round {number}  {peer.name}  {name}  {sample['rate']:,.0f} msg/s", file=sys.stderr, flush=True)

    def _guarded(self, peer: Peer, workload: workloads.Workload) -> dict[str, Any] | None:
        """Run one workload; after a failure start the broker afresh, since its queue may hold anything now."""
        try:
            meter = _Meter(peer.pid)
            with peer.measured():
                result = workloads.run(peer.target, workload, meter)
            return {**result.as_dict(), **meter.sample(result.messages)}
        except (LoadError, OSError, PeerError) as error:
            self.failures.append(f"{peer.name} {workload.name}: {error}")
            print(f"VOID: {self.failures[-1]}\n{peer.log_tail()}", file=sys.stderr, flush=True)
            peer.start()
            return None

    def results(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the summaries by peer and workload, of those with any sample."""
        return {
            peer: {name: report.summarise(samples) for name, samples in by_name.items() if samples}
            for peer, by_name in self.samples.items()
        }


def startup(peer: Peer, count: int) -> dict[str, float] | None:
    """Start a peer `count` times on an empty folder and return the spread of the seconds until it was ready."""
    times = []
    for _ in range(count):
        times.append(peer.start())
        peer.stop()
    return report.spread(times)


def make_peers(options: argparse.Namespace) -> list[Peer]:
    """Make the peers that the command line names.

    Raises:
        ValueError: No configuration is called so, or there is no compiled twin of the present sources.
    """
    # stores, whether the queue is spread over them, whether the compiled twin runs, whether they are in PostgreSQL
    known = {
        "plain": (1, False, False, False),
        "consoles": (1, False, False, False),
        "parted": (4, True, False, False),
        "compiled": (1, False, True, False),
        "compiled-parted": (4, True, True, False),
        "postgres": (1, False, False, True),
        "compiled-postgres": (1, False, True, True),
    }
    peers: list[Peer] = []
    for name in options.configurations.split(","):
        if name not in known:
            raise ValueError(f"no configuration is called {name!r}: try {', '.join(known)}")
        stores, partitioned, is_compiled, in_postgres = known[name]
        if is_compiled and not compile_twin.is_fresh(compile_twin.TWIN):
            raise ValueError(f"{compile_twin.TWIN} is no compiled twin of the sources as they are: make compile")
        sources: dict[str, Path | None] = {name: compile_twin.TWIN if is_compiled else None}
        if options.beside is not None:
            if is_compiled:
                raise ValueError("an earlier commit is measured in plain Python only: leave --beside or compiled away")
            sources[f"{ratios.BEFORE}{name}"] = report.sources_of(ROOT, options.beside)
        peers += [
            (WatchedPeer if name == "consoles" else DuobusPeer)(
                called,
                shlex.split(options.duobus),
                stores=stores,
                partitioned=partitioned,
                data_root=Path(options.data_root),
                python_path=python_path,
                postgres=in_postgres,
            )
            for called, python_path in sources.items()
        ]
    return peers


def make_rabbit(options: argparse.Namespace) -> rabbitmq.RabbitPeer:
    """Make the peer to compare with, and install it first if that was asked for.

    Raises:
        PeerError: it is not installed, or could not be.
    """
    if options.install_peer and rabbitmq.install():
        print(f"installed {rabbitmq.PACKAGE} from Debian's packages", file=sys.stderr, flush=True)
    return rabbitmq.RabbitPeer(data_root=Path(options.data_root))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workloads", default=",".join(ALL), help="names with commas between")
    parser.add_argument("--configurations", default="plain,parted", help=_CONFIGURATIONS_HELP)
    parser.add_argument("--peer", choices=["rabbitmq"], help="compare with RabbitMQ's quorum queue (Debian's 3.10)")
    parser.add_argument("--beside", metavar="REV", help="measure the sources of an earlier commit in the same rounds")
    parser.add_argument(
        "--install-peer", action="store_true", help="as root: apt-get install the peer if it is missing"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="time that each workload sends for")
    parser.add_argument("--drain-messages", type=int, default=100_000, help="messages of workload B")
    parser.add_argument("--warm-up", type=float, default=1.0, metavar="S", help="unmeasured load before; 0 for none")
    parser.add_argument("--startups", type=int, default=STARTUPS, help="starts on an empty folder; 0 for none")
    parser.add_argument("--stall", type=float, default=30.0, metavar="S", help="silence that voids a measurement")
    parser.add_argument("--quick", action="store_true", help="one short round, for a smoke test")
    parser.add_argument("--data-root", default=tempfile.gettempdir(), help="folder on the disk that counts")
    parser.add_argument("--duobus", default=str(Path(sys.executable).with_name("duobus")), help="command to start")
    parser.add_argument("--output", help="file for the JSON; benchmarks/results/<commit>.json by default")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds, options.drain_messages = 1, 0.3, 10_000
        options.warm_up, options.startups = 0.0, min(options.startups, 1)
    names = options.workloads.split(",")
    try:
        for name in names:
            workloads.parse(name, Limits())
        options.peers = make_peers(options)
    except ValueError as error:
        parser.error(str(error))
    if options.install_peer and options.peer is None:
        parser.error("--install-peer installs what --peer names: give that, too")
    options.names = names
    return options


def _circumstances(options: argparse.Namespace) -> dict[str, Any]:
    name, changed = report.commit(ROOT)
    counts = {"rounds": options.rounds, "seconds": options.seconds, "drain_messages": options.drain_messages}
    beside = {} if options.beside is None else {"beside": report.short_name(ROOT, options.beside)}
    return {"commit": name, "changed": changed, **beside, **counts}


def _write(options: argparse.Namespace, document: dict[str, Any]) -> None:
    beside = "" if options.beside is None else f"-beside-{document['beside']}"
    file = document["commit"] + ("" if options.peer is None else f"-{options.peer}") + beside + ".json"
    if options.quick:
        # a smoke run must not take the place of the commit's real figures
        file = "local-quick.json"
    output = Path(options.output) if options.output else ROOT / "benchmarks" / "results" / file
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")


def _end(number: int, _frame: object) -> None:
    """End as at Ctrl-C, so that the brokers are stopped, too."""
    sys.exit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the JSON and print the table; return 0, or 1 when a measurement was void."""
    options = _options(arguments)
    peers: list[Peer] = options.peers
    rabbit: rabbitmq.RabbitPeer | None = None
    # before the brokers start: what is committed meanwhile is not what they run
    circumstances = _circumstances(options)
    try:
        if options.peer is not None:
            rabbit = make_rabbit(options)
            peers = [*peers, rabbit]
        where = report.conditions(Path(options.data_root))
        with ExitStack() as stack:
            for peer in peers:
                stack.callback(peer.stop)
            startups = {peer.name: startup(peer, options.startups) for peer in peers}
            for peer in peers:
                peer.start()
            runner = Runner(peers, options.names, options.seconds, options.drain_messages, options.stall)
            try:
                runner.rounds(options.rounds, options.warm_up)
            except PeerError as error:
                runner.failures.append(str(error))
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    results = runner.results()
    document = {
        **circumstances,
        "conditions": where,
        "startup_seconds": startups,
        "results": results,
        "samples": runner.samples,
        "failures": runner.failures,
    }
    if rabbit is not None:
        document["peer"] = {"name": rabbit.name, "version": rabbit.version}
        document["ratios"] = ratios.ratios(runner.samples, rabbit.name)
    twins = ratios.of_twins(runner.samples)
    if twins:
        document["compiled"] = twins
    earlier = ratios.of_before(runner.samples)
    if earlier:
        document["beside_ratios"] = earlier
    watched = ratios.of_watched(runner.samples)
    if watched:
        document["consoles"] = watched
    stored = ratios.of_postgres(runner.samples)
    if stored:
        document["postgres"] = stored
    _write(options, document)
    print(report.table(results))
    if twins:
        print(f"\n{ratios.table(twins, 'the same in plain Python')}\n")
    if earlier:
        print(f"\n{ratios.paired_table(earlier, circumstances['beside'])}\n")
    if watched:
        print(f"\n{ratios.paired_table(watched, 'the same without consoles')}\n")
    if stored:
        print(f"\n{ratios.table(stored, 'the same with a store in a file')}\n")
    if rabbit is not None:
        print(f"\n{ratios.table(document['ratios'], rabbit.name)}\n")
    for peer_name, found in startups.items():
        if found:
            print(f"{peer_name} startup {found['median']:.3f} s [{found['min']:.3f}..{found['max']:.3f}]")
    print(f"{where['filesystem']}, fdatasync of 4 KiB {where['fdatasync_ms']:.2f} ms, {where['processors']} processors")
    for failure in runner.failures:
        print(f"VOID: {failure}")
    return 1 if runner.failures else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
