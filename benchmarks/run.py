"""Run the workloads against the broker, in interleaved rounds, and report medians.

    python benchmarks/run.py                     five rounds of everything, some six minutes
    python benchmarks/run.py --quick             smoke run, some ten seconds
    python benchmarks/run.py --workloads A100,C1x1 --configurations plain
    python benchmarks/run.py --configurations plain,compiled      the compiled twin beside pure Python: make compile
    python benchmarks/run.py --configurations plain,postgres      a store in PostgreSQL beside one in a file
    python benchmarks/run.py --configurations plain,consoles --rounds 9      three open consoles, and none
    python benchmarks/run.py --configurations plain,tls --workloads C1x1      over TLS, and without
    python benchmarks/run.py --configurations plain,ephemeral --workloads D   in memory, and on disk
    python benchmarks/run.py --configurations plain,without-journal       stores with a journal, and without
    python benchmarks/run.py --workloads SDK1,M1000    the official SDK, and 1,000 senders on 1,000 queues
    python benchmarks/run.py --peer rabbitmq     the same rounds with RabbitMQ among them, and the ratios to it
    python benchmarks/run.py --peer artemis --peer rabbitmq       the same with both peers
    python benchmarks/run.py --beside HEAD~1 --configurations plain --rounds 9      an earlier commit among them

The results go to `benchmarks/results/<commit>.json` (with peers to `<commit>-<peer>.json`, beside an earlier commit to
`<commit>-beside-<earlier>.json`, those of a quick run to `local-quick.json`) and as a table to the terminal;
`benchmarks/plot.py` draws the ratios to a peer of all of them. SDK1 and M1000 are measured only when they are named.
SDK1 is of duobus only: no other broker speaks what the SDK speaks. Exit status 1 means that a measurement was void: a
message lost, doubled or refused, or a broker that ended.
"""

import argparse
import json
import resource
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

if not __package__:
    # started as a file: Python put its folder on the path, not the root of the project
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import artemis_peer, rabbitmq, ratios, report, sdk_programs, usage
from benchmarks.consoles import WatchedPeer
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.load.wire import LoadError
from benchmarks.peers import DuobusPeer, Peer, PeerError
from tools import compile_twin

ROOT = Path(__file__).resolve().parents[1]
ALL = ("A100", "A1000", "B", "C1x1", "C4x4", "S4x4", "D", "E10")
STARTUPS = 5
PEERS = ("rabbitmq", *artemis_peer.NAMES)
#: Descriptors that a thousand connections take, and their peers' in a broker that inherits the limit.
FILES = 8192


class Configuration(NamedTuple):
    """How a broker of this project is started: stores, whether the queue is spread over them, and so on."""

    stores: int = 1
    is_partitioned: bool = False
    is_compiled: bool = False
    is_in_postgres: bool = False
    is_ephemeral: bool = False
    is_over_tls: bool = False
    has_journal: bool = True


CONFIGURATIONS: Final[dict[str, Configuration]] = {
    "plain": Configuration(),
    "consoles": Configuration(),
    "ephemeral": Configuration(is_ephemeral=True),
    "tls": Configuration(is_over_tls=True),
    "without-journal": Configuration(has_journal=False),
    "parted": Configuration(stores=4, is_partitioned=True),
    "compiled": Configuration(is_compiled=True),
    "compiled-parted": Configuration(stores=4, is_partitioned=True, is_compiled=True),
    "postgres": Configuration(is_in_postgres=True),
    "compiled-postgres": Configuration(is_compiled=True, is_in_postgres=True),
}


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
        self._warm_up = 0.0
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
        self._warm_up = warm_up
        for peer in self._peers:
            self._warm(peer)
        for number in range(1, count + 1):
            for name in self._names:
                for peer in self._peers if number % 2 else self._peers[::-1]:
                    if peer.supports(name):
                        self._round(number, name, peer)

    def _warm(self, peer: Peer) -> None:
        """Run unmeasured load, through every workload where the broker compiles what it runs often."""
        if self._warm_up <= 0:
            return
        names = [name for _ in range(peer.warm_up_passes) for name in self._names if peer.supports(name)]
        try:
            for name in names or ["C1x1"]:
                self._run(peer, name, self._warm_up, workloads.Observer())
        except (LoadError, OSError, PeerError) as error:
            self._void(peer, "warm-up", error)

    def _round(self, number: int, name: str, peer: Peer) -> None:
        sample = self._guarded(peer, name)
        if sample is not None:
            self.samples[peer.name][name].append({"round": number, **sample})
            print(f"round {number}  {peer.name}  {name}  {sample['rate']:,.0f} msg/s", file=sys.stderr, flush=True)

    def _guarded(self, peer: Peer, name: str) -> dict[str, Any] | None:
        """Run one workload; after a failure start the broker afresh, since its queue may hold anything now."""
        try:
            meter = _Meter(peer.pid)
            with peer.measured():
                result = self._run(peer, name, self._seconds, meter)
            return {**result.as_dict(), **meter.sample(result.messages)}
        except (LoadError, OSError, PeerError) as error:
            self._void(peer, name, error)
            if peer.warm_up_passes:
                self._warm(peer)
            return None

    def _run(self, peer: Peer, name: str, seconds: float, observer: workloads.Observer) -> workloads.Result:
        if name == sdk_programs.NAME:
            target = peer.target
            return sdk_programs.run(peer.connection_string(), target.address, seconds, observer, self._stall)
        limits = Limits(seconds=seconds, stall=self._stall)
        if name == "B":
            limits = Limits(messages=self._drain_messages, stall=self._stall)
        workload = workloads.parse(name, limits)
        if workload.queues:
            with peer.queues(workload.queues):
                return workloads.run(peer.target, workload, observer)
        return workloads.run(peer.target, workload, observer)

    def _void(self, peer: Peer, name: str, error: Exception) -> None:
        self.failures.append(f"{peer.name} {name}: {error}")
        print(f"VOID: {self.failures[-1]}\n{peer.log_tail()}", file=sys.stderr, flush=True)
        peer.start()

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
    peers: list[Peer] = []
    for name in options.configurations.split(","):
        if name not in CONFIGURATIONS:
            raise ValueError(f"no configuration is called {name!r}: try {', '.join(CONFIGURATIONS)}")
        configuration = CONFIGURATIONS[name]
        is_compiled = configuration.is_compiled
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
                stores=configuration.stores,
                partitioned=configuration.is_partitioned,
                data_root=Path(options.data_root),
                python_path=python_path,
                postgres=configuration.is_in_postgres,
                ephemeral=configuration.is_ephemeral,
                tls=configuration.is_over_tls,
                journal=configuration.has_journal,
            )
            for called, python_path in sources.items()
        ]
    return peers


def make_other(name: str, options: argparse.Namespace) -> Peer:
    """Make a peer to compare with, and install or build it first where that is needed and was asked for.

    Raises:
        PeerError: it is not installed, or could not be.
    """
    data_root = Path(options.data_root)
    if name in artemis_peer.NAMES:
        return artemis_peer.ArtemisPeer(data_root=data_root, program=artemis_peer.build(), name=name)
    if options.install_peer and rabbitmq.install():
        print(f"installed {rabbitmq.PACKAGE} from Debian's packages", file=sys.stderr, flush=True)
    return rabbitmq.RabbitPeer(data_root=data_root)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workloads", default=",".join(ALL), help="names with commas between")
    parser.add_argument("--configurations", default="plain,parted", help=", ".join(CONFIGURATIONS))
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        choices=PEERS,
        help="compare with RabbitMQ's quorum queue (Debian's 3.10) or Artemis (JDK, Maven; aio: libaio); repeatable",
    )
    parser.add_argument("--beside", metavar="REV", help="measure the sources of an earlier commit in the same rounds")
    parser.add_argument(
        "--install-peer", action="store_true", help="as root: apt-get install RabbitMQ if it is missing"
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
            if name != sdk_programs.NAME:
                workloads.parse(name, Limits())
        options.peers = make_peers(options)
    except ValueError as error:
        parser.error(str(error))
    if options.install_peer and "rabbitmq" not in options.peer:
        parser.error("--install-peer installs RabbitMQ: give --peer rabbitmq, too")
    options.peer = list(dict.fromkeys(options.peer))
    options.names = names
    return options


def _circumstances(options: argparse.Namespace) -> dict[str, Any]:
    name, changed = report.commit(ROOT)
    counts = {"rounds": options.rounds, "seconds": options.seconds, "drain_messages": options.drain_messages}
    beside = {} if options.beside is None else {"beside": report.short_name(ROOT, options.beside)}
    return {"commit": name, "changed": changed, **beside, **counts}


def _write(options: argparse.Namespace, document: dict[str, Any]) -> None:
    beside = "" if options.beside is None else f"-beside-{document['beside']}"
    file = document["commit"] + "".join(f"-{peer}" for peer in options.peer) + beside + ".json"
    if options.quick:
        # a smoke run must not take the place of the commit's real figures
        file = "local-quick.json"
    output = Path(options.output) if options.output else ROOT / "benchmarks" / "results" / file
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")


def _compare(samples: ratios.Samples, earlier: str) -> dict[str, tuple[Any, str]]:
    """Compare configurations of this project with each other: by name, what was found and its table."""
    compared = {
        "compiled": (found := ratios.of_twins(samples), ratios.table(found, "the same in plain Python")),
        "beside_ratios": (paired := ratios.of_before(samples), ratios.paired_table(paired, earlier)),
        "consoles": (paired := ratios.of_watched(samples), ratios.paired_table(paired, "the same without consoles")),
        "postgres": (found := ratios.of_postgres(samples), ratios.table(found, "the same with a store in a file")),
        "tls": (found := ratios.of_tls(samples), ratios.table(found, "the same without TLS")),
    }
    return {name: (found, table) for name, (found, table) in compared.items() if found}


def _about(peer: Peer) -> dict[str, Any]:
    return {
        "name": peer.name,
        "version": peer.version,
        "settings": dict(peer.settings),
        "unpromised": list(peer.unpromised),
    }


def _in_words(peer: Peer) -> list[str]:
    """Say how a peer was set up and what its figures do not contain, a line each."""
    settings = ", ".join(f"{name}={value}" for name, value in peer.settings.items())
    return [f"{peer.name} {peer.version}: {settings}", *(f"{peer.name}: {words}" for words in peer.unpromised)]


def _allow_files() -> None:
    """Allow this process and the brokers that it starts as many descriptors as a thousand connections take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))


def _end(number: int, _frame: object) -> None:
    """End as at Ctrl-C, so that the brokers are stopped, too."""
    sys.exit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the JSON and print the table; return 0, or 1 when a measurement was void."""
    options = _options(arguments)
    peers: list[Peer] = options.peers
    others: list[Peer] = []
    # before the brokers start: what is committed meanwhile is not what they run
    circumstances = _circumstances(options)
    try:
        others = [make_other(name, options) for name in options.peer]
        peers = [*peers, *others]
        _allow_files()
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
    compared = _compare(runner.samples, circumstances.get("beside", ""))
    document |= {key: found for key, (found, _) in compared.items()}
    if others:
        document["peers"] = [_about(peer) for peer in others]
        document["peer_ratios"] = ratios.of_peers(runner.samples, [peer.name for peer in others])
    _write(options, document)
    print(report.table(results))
    for _, table in compared.values():
        print(f"\n{table}\n")
    for peer in others:
        print(f"\n{ratios.table(document['peer_ratios'][peer.name], peer.name)}\n")
        print("\n".join(_in_words(peer)))
    for peer_name, found in startups.items():
        if found:
            print(f"{peer_name} startup {found['median']:.3f} s [{found['min']:.3f}..{found['max']:.3f}]")
    print(f"{where['filesystem']}, fdatasync of 4 KiB {where['fdatasync_ms']:.2f} ms, {where['processors']} processors")
    print(f"Python {where['python']}, a fixed piece of work in {where['python_ms']:.1f} ms")
    for failure in runner.failures:
        print(f"VOID: {failure}")
    return 1 if runner.failures else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
