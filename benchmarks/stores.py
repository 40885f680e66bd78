"""What a sick store costs the others, and what several stores cost on one disk: ``python -m benchmarks.stores``.

    python -m benchmarks.stores                    both parts, some five minutes
    python -m benchmarks.stores --parts stall
    python -m benchmarks.stores --parts spread --workloads A100,C1x1 --rounds 3
    python -m benchmarks.stores --quick            a smoke run; its figures mean nothing

``stall``: of four stores one hangs (as ``duobus store stall`` makes it). Meanwhile one message at a time is sent,
awaited and received (workload D): on a plain queue of another store, and on a partitioned queue that has a fourth of
its fragments in the store that hangs. Measured in turn without and with the stall, in the same broker; the p99 may
grow to STALL_BOUND times.

``spread``: a queue of 16 fragments over 4 stores, one of 16 fragments in 1 store and a plain one in 1 store, all on the
same disk, in every workload, in interleaved rounds. The first beside the second tells what several stores cost on one
disk; beside the third, what 16 fragments cost, too. The rate is to be SPREAD_BOUND of either at least.

The results go to ``benchmarks/results/<commit>-stores.json`` (of a quick run to ``local-stores.json``) and as tables
to the terminal. Exit status 1 means that a measurement was void; a bound that was missed is only told.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import ratios, report
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.load.link import Target
from benchmarks.load.wire import LoadError
from benchmarks.peers import EMULATOR_KEY, EMULATOR_RULE, DuobusPeer, PeerError
from benchmarks.run import Runner
from duobus.clock import Clock
from duobus.model.access_rules import sign_token
from duobus.testing.server import ServerProcess, queues_config

ROOT: Final = Path(__file__).resolve().parents[1]
STORES: Final = 4
PARTS: Final = ("stall", "spread")
#: What the p99 of the others may be of what it is without the stall.
STALL_BOUND: Final = 1.2
#: What the rate over four stores has to be of that over one.
SPREAD_BOUND: Final = 0.9
WORKLOADS: Final = ("A1", "A100", "A1000", "B", "C1x1", "C4x4", "S4x4", "D", "E10")
#: What the queue over four stores stands beside: the name in the results, and the words for it.
PARTED, PLAIN_ONE = "parted", "plain"
BESIDE: Final = {PARTED: "16 fragments in 1 store", PLAIN_ONE: "a plain queue in 1 store"}
FIGURES: Final = ("send_p50_ms", "send_p99_ms", "end_to_end_p50_ms", "end_to_end_p99_ms", "rate")
P99: Final = ("send_p99_ms", "end_to_end_p99_ms")
#: A plain queue each: they go to the stores in turn.
PLAIN: Final = ("plain-1", "plain-2")
SPREAD: Final = "spread"
#: How long a store may take to be out, and to be back.
CHANGE_S: Final = 30.0
TOKEN_S: Final = 3_600


class Operator:
    """Asks a broker for drills over HTTP, as ``duobus store`` does; starting that takes longer than a measurement."""

    def __init__(self, server: ServerProcess) -> None:
        self._port = int(server.ready["http_port"])
        self._token = sign_token("http://localhost/", EMULATOR_RULE, EMULATOR_KEY, Clock().now_ms() // 1000 + TOKEN_S)

    def ask(self, method: str, path: str) -> Any:
        """Return the answer.

        Raises:
            LoadError: it is not the one that was hoped for.
        """
        status, text = self._request(method, f"/$duobus/{path}")
        if status != http.client.OK:
            raise LoadError(f"{method} {path}: {status} {text[:200]!r}")
        return json.loads(text)

    def touch(self, queue: str) -> None:
        """Send a message to a queue, whatever comes of it: a store under drill is out as soon as somebody needs it."""
        self._request("POST", f"/{queue}/messages")

    def _request(self, method: str, path: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("localhost", self._port, timeout=CHANGE_S)) as connection:
            connection.request(method, path, headers={"Authorization": self._token})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def store_of(self, queue: str) -> int:
        """Return the store of a plain queue."""
        return int(self.ask("GET", f"fragments?entity={queue}")[0]["store"])

    def wait_until(self, store: int, *, is_open: bool) -> None:
        """Wait until a store is there, or away."""
        began = perf_counter()
        states: dict[int, str] = {}
        while perf_counter() - began < CHANGE_S:
            states = {found["store"]: found["state"] for found in self.ask("GET", "stores")}
            if (states[store] == "open") is is_open:
                return
            # what is asked here takes processor time of the broker
            sleep(0.02)
        raise LoadError(f"store {store} is {states.get(store)} after {CHANGE_S:g} s")


class StallBench:
    """Measures the neighbours of one store.

    Args:
        server: the broker, running, with drills, PLAIN and SPREAD.
        seconds: time that each measurement sends for.
    """

    def __init__(self, server: ServerProcess, seconds: float) -> None:
        self._operator = Operator(server)
        self._port = int(server.ready["amqp_port"])
        self._seconds = seconds
        self.sick = self._operator.store_of(PLAIN[0])
        if self.sick == self._operator.store_of(PLAIN[1]):
            raise LoadError("the two plain queues are in the same store")

    def measure(self, queue: str) -> dict[str, Any]:
        """Return the latencies of one client that sends and receives one message at a time."""
        target = Target("127.0.0.1", self._port, queue, EMULATOR_RULE, EMULATOR_KEY)
        result = workloads.run(target, workloads.parse("D", Limits(seconds=self._seconds))).as_dict()
        return {name: result[name] for name in FIGURES}

    def round(self, *, stalled_first: bool) -> dict[str, dict[str, Any]]:
        """Measure the others without and with the stall, in either order; by queue."""
        found: dict[str, dict[str, Any]] = {PLAIN[1]: {}, SPREAD: {}}
        out_s = 0.0
        for is_stalled in (stalled_first, not stalled_first):
            if is_stalled:
                self._operator.ask("POST", f"stores/{self.sick}/stall")
                began = perf_counter()
                self._operator.touch(PLAIN[0])
                self._operator.wait_until(self.sick, is_open=False)
                out_s = perf_counter() - began
            for queue, sample in found.items():
                sample["stalled" if is_stalled else "sound"] = self.measure(queue)
                if is_stalled:
                    sample["out_s"] = out_s
            if is_stalled:
                self._operator.ask("POST", f"stores/{self.sick}/heal")
                self._operator.wait_until(self.sick, is_open=True)
        return found


def stall(rounds: int, seconds: float, data_root: Path) -> dict[str, Any]:
    """Measure ``stall``; by queue the medians, the spread of the ratios of the rounds, and all samples."""
    samples: dict[str, list[dict[str, Any]]] = {PLAIN[1]: [], SPREAD: []}
    config = queues_config({**{name: {} for name in PLAIN}, SPREAD: {"EnablePartitioning": True}})
    arguments = ("--emulator", "--allow-drills", "--stores", str(STORES))
    with (
        tempfile.TemporaryDirectory(prefix="duobus-stores-", dir=data_root) as folder,
        ServerProcess(Path(folder), config=config, arguments=arguments) as server,
    ):
        bench = StallBench(server, seconds)
        for queue in samples:
            bench.measure(queue)
        for number in range(rounds):
            for queue, sample in bench.round(stalled_first=bool(number % 2)).items():
                samples[queue].append(sample)
                pair = (sample[how]["end_to_end_p99_ms"] for how in ("sound", "stalled"))
                _say(f"round {number + 1}  {queue}  end to end p99 ms: " + " ".join(f"{ms:.2f}" for ms in pair))
    return {"results": {queue: compare(found) for queue, found in samples.items()}, "samples": samples}


def compare(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return medians without and with the stall; of each p99 the ratio of the medians and the range of the rounds'."""
    result: dict[str, Any] = {
        how: {name: median(sample[how][name] for sample in samples) for name in FIGURES} for how in ("sound", "stalled")
    }
    result["out_s"] = report.spread(sample["out_s"] for sample in samples)
    for name in P99:
        each = [sample["stalled"][name] / sample["sound"][name] for sample in samples]
        whole = result["stalled"][name] / result["sound"][name]
        result[f"{name}_ratio"] = {"median": whole, "min": min(each), "max": max(each)}
    return result


def spread(
    names: Sequence[str], rounds: int, seconds: float, data_root: Path, command: Sequence[str], drain: int = 100_000
) -> dict[str, Any]:
    """Measure ``spread``; the ratios by contender (see BESIDE) and workload, all samples, and what was void."""
    four = DuobusPeer("four", command, stores=STORES, partitioned=True, data_root=data_root)
    others = {
        PARTED: DuobusPeer(PARTED, command, stores=1, partitioned=True, data_root=data_root),
        PLAIN_ONE: DuobusPeer(PLAIN_ONE, command, stores=1, partitioned=False, data_root=data_root),
    }
    with ExitStack() as stack:
        for peer in (*others.values(), four):
            stack.callback(peer.stop)
            peer.start()
        runner = Runner([*others.values(), four], names, seconds, drain, stall=30.0)
        try:
            runner.rounds(rounds, warm_up=min(1.0, seconds))
        except PeerError as error:
            runner.failures.append(str(error))
    samples = runner.samples
    found = {
        beside: ratios.ratios({four.name: samples[four.name], peer.name: samples[peer.name]}, peer.name)[four.name]
        for beside, peer in others.items()
    }
    return {"results": found, "samples": samples, "failures": runner.failures}


def stall_table(results: dict[str, dict[str, Any]]) -> str:
    """Lay out the results of ``stall`` as a table of Markdown."""
    rows = [
        "| one store stalls; beside it | end to end p50 / p99 ms without | with | p99 (range) | of sending (range) |",
        "|---|---|---|---|---|",
    ]
    for queue, found in results.items():
        pairs = " | ".join(
            f"{found[how]['end_to_end_p50_ms']:.2f} / {found[how]['end_to_end_p99_ms']:.2f}"
            for how in ("sound", "stalled")
        )
        grown = " | ".join(_range(found[f"{name}_ratio"]) for name in reversed(P99))
        rows.append(f"| {queue} | {pairs} | {grown} |")
    return "\n".join(rows)


def spread_table(results: dict[str, dict[str, Any]]) -> str:
    """Lay out the results of ``spread`` as a table of Markdown for each contender."""
    tables = []
    for beside, by_workload in results.items():
        head = f"16 fragments over 4 stores : {BESIDE[beside]}"
        rows = [f"| {head} | rate (range) | processor time | send p50 |", "|---|---|---|---|"]
        for name, found in by_workload.items():
            others = " | ".join(f"{found[f]['median']:.2f}" if f in found else "" for f in ("cpu", "send_p50"))
            rows.append(f"| {name} | {_range(found['rate'])} | {others} |")
        tables.append("\n".join(rows))
    return "\n\n".join(tables)


def missed(document: dict[str, Any]) -> list[str]:
    """Return each bound that was missed, in words."""
    found = []
    for queue, result in document.get("stall", {}).get("results", {}).items():
        for name in P99:
            ratio = result[f"{name}_ratio"]["median"]
            if ratio > STALL_BOUND:
                found.append(f"{queue}: {name} is {ratio:.2f} times what it is without the stall, not {STALL_BOUND}")
    for beside, results in document.get("spread", {}).get("results", {}).items():
        for name, result in results.items():
            ratio = result["rate"]["median"]
            if ratio < SPREAD_BOUND:
                words = f"{name}: 16 fragments over four stores reach {ratio:.2f} of the rate of {BESIDE[beside]}"
                found.append(f"{words}, not {SPREAD_BOUND}")
    return found


def _range(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _end(number: int, _frame: object) -> None:
    """End as at Ctrl-C, so that the brokers are stopped and their data deleted, too."""
    sys.exit(128 + number)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="names with commas between")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="time that each measurement sends for")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="of spread; names with commas between")
    parser.add_argument("--data-root", type=Path, default=Path(tempfile.gettempdir()), help="on the disk that counts")
    parser.add_argument("--output", type=Path, help="instead of a file in benchmarks/results")
    parser.add_argument("--quick", action="store_true", help="one short round: its figures mean nothing")
    parser.add_argument("--duobus", default=str(Path(sys.executable).with_name("duobus")), help="command to start")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 1, 0.2
    options.parts = options.parts.split(",")
    options.workloads = options.workloads.split(",")
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"no part is called {part!r}: try {', '.join(PARTS)}")
    try:
        for name in options.workloads:
            workloads.parse(name, Limits())
    except ValueError as error:
        parser.error(str(error))
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure, write and print; returns the exit status."""
    options = _options(arguments)
    commit, changed = report.commit(ROOT)
    document: dict[str, Any] = {"commit": commit, "changed": changed, "rounds": options.rounds}
    document |= {"seconds": options.seconds, "conditions": report.conditions(options.data_root)}
    failures: list[str] = []
    if "stall" in options.parts:
        try:
            document["stall"] = stall(options.rounds, options.seconds, options.data_root)
            print(stall_table(document["stall"]["results"]))
        except LoadError as error:
            failures.append(f"stall: {error}")
    if "spread" in options.parts:
        drain = 10_000 if options.quick else 100_000
        command = shlex.split(options.duobus)
        rounds, seconds = options.rounds, options.seconds
        document["spread"] = spread(options.workloads, rounds, seconds, options.data_root, command, drain)
        print(spread_table(document["spread"]["results"]))
        failures += document["spread"]["failures"]
    document["failures"] = failures
    output = options.output
    if output is None:
        output = ROOT / "benchmarks" / "results" / f"{'local' if options.quick else commit}-stores.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")
    for text in missed(document):
        print(f"MISSED: {text}")
    for text in failures:
        print(f"VOID: {text}")
    return 1 if failures else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
