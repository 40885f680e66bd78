"""What a hostile peer costs the others: ``python -m benchmarks.neighbours [--quick]``.

One message at a time is sent and received (workload D) on a queue of its own, in interleaved rounds: alone, beside each
kind of ``benchmarks.hostile``, and beside a process that burns as much processor time as that kind did and talks to
nobody. The last one is the control: what it costs, the machine costs and not the broker. Beside "hot key" the broker is
one whose fragments say busy early (``benchmarks.narrow``), and the queue of the others has fragments in all stores: one
fragment is to refuse, and the others are not to notice (PE17). Results go to
``benchmarks/results/<commit>-neighbours.json`` (of a quick run to ``local-neighbours.json``), a table to the terminal.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import report, usage
from benchmarks.hostile import BAIT, HOT, KINDS
from benchmarks.load import workloads
from benchmarks.load.exchange import Exchange, Limits
from benchmarks.load.link import Target
from benchmarks.load.message import Run
from benchmarks.load.sender import Sender
from benchmarks.load.wire import LoadError
from benchmarks.peers import EMULATOR_KEY, EMULATOR_RULE
from duobus.testing.server import ServerProcess, queues_config

ROOT = Path(__file__).resolve().parents[1]
CALM = "calm"
HOT_KEY = "hot key"
BAIT_MESSAGES = 20_000
FIGURES = ("send_p50_ms", "send_p99_ms", "end_to_end_p50_ms", "end_to_end_p99_ms")
#: What a hostile peer may make of the p99 of others.
BOUND = 1.2


@contextmanager
def beside(kind: str, *arguments: str) -> Iterator[list[float]]:
    """Run a hostile process meanwhile; afterwards the list holds its processor share and how often it met "busy"."""
    command = [sys.executable, "-m", "benchmarks.hostile", kind, *arguments]
    used: list[float] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise LoadError(f"the hostile peer {kind!r} did not come up")
            yield used
            output, _ = process.communicate("\n", timeout=10)
            used.extend(float(line) for line in output.split())
        finally:
            process.kill()


class NarrowServer(ServerProcess):
    """A broker of which a fragment says busy early."""

    def _command(self, ready_file: Path) -> list[str]:
        command = super()._command(ready_file)
        module = command.index("-m")
        return [*command[:module], str(ROOT / "benchmarks" / "narrow.py"), *command[module + 2 :]]


class Bench:
    """Measures one broker.

    Args:
        server: the broker, running, with CALM and BAIT.
        seconds: time that each measurement sends for.
    """

    def __init__(self, server: ServerProcess, seconds: float) -> None:
        port = int(server.ready["amqp_port"])
        self._target = Target("127.0.0.1", port, CALM, EMULATOR_RULE, EMULATOR_KEY)
        self._port = port
        self._pid = int(server.ready["pid"])
        self._seconds = seconds

    def fill_bait(self, count: int) -> None:
        """Give the hostile receivers something to hold."""
        with closing(Sender(self._target._replace(address=BAIT), Run(), 0, 1000, 1024)) as sender:
            Exchange([sender], [], Limits(messages=count)).run()

    def measure(self) -> dict[str, float]:
        """Return the latencies of the well-behaved clients, and the processor share of the broker."""
        before = usage.cpu(self._pid)
        result = workloads.run(self._target, workloads.parse("D", Limits(seconds=self._seconds))).as_dict()
        after = usage.cpu(self._pid)
        share = (after.user + after.system - before.user - before.system) / (after.at - before.at)
        return {**{name: result[name] for name in FIGURES}, "rate": result["rate"], "broker_share": share}

    def round(self, kind: str) -> dict[str, Any]:
        """Measure alone, beside the kind, and beside a spinner of the same cost."""
        alone = self.measure()
        with beside(kind, "--port", str(self._port)) as used:
            hostile = self.measure()
        share, busy = min(1.0, used[0]), used[1]
        if kind == HOT_KEY and not busy:
            raise LoadError("the fragment of the hot key never said that it is busy")
        with beside("spinner", "--share", f"{share:.4f}"):
            control = self.measure()
        return {"alone": alone, "hostile": hostile, "control": control, "attacker_share": share, "busy": busy}


def summarise(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, and of each ratio within a round its range, too."""
    result: dict[str, Any] = {"attacker_share": median(sample["attacker_share"] for sample in samples)}
    for who in ("alone", "hostile", "control"):
        result[who] = {name: median(sample[who][name] for sample in samples) for name in samples[0][who]}
    for name in ("send_p99_ms", "end_to_end_p99_ms"):
        ratios = [sample["hostile"][name] / sample["control"][name] for sample in samples]
        result[f"{name}_ratio"] = report.spread(ratios)
    return result


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results as a table of Markdown; times in milliseconds."""
    rows = [
        "| beside | end to end p50 / p99 alone | with | control | p99, with : control (range) | p99 of sending, with :"
        " control (range) | processor time of attacker, broker |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, found in results.items():
        pairs = " | ".join(
            f"{found[who]['end_to_end_p50_ms']:.2f} / {found[who]['end_to_end_p99_ms']:.2f}"
            for who in ("alone", "hostile", "control")
        )
        rows.append(
            f"| {kind} | {pairs} | {_ratio(found['end_to_end_p99_ms_ratio'])} | {_ratio(found['send_p99_ms_ratio'])} "
            f"| {found['attacker_share']:.0%}, {found['hostile']['broker_share']:.0%} |"
        )
    return "\n".join(rows)


def _ratio(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['min']:.2f} to {spread['max']:.2f})"


def run(kinds: list[str], rounds: int, seconds: float, bait: int = BAIT_MESSAGES) -> dict[str, Any]:
    """Start brokers and measure them; returns the document."""
    name, changed = report.commit(ROOT)
    samples: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        document: dict[str, Any] = {"commit": name, "changed": changed, "rounds": rounds, "seconds": seconds}
        document["conditions"] = report.conditions(Path(folder))
        benches = {
            is_hot: stack.enter_context(_bench(Path(folder) / str(is_hot), is_hot, seconds, bait))
            for is_hot in {kind == HOT_KEY for kind in kinds}
        }
        for number in range(1, rounds + 1):
            for kind in kinds:
                samples[kind].append(benches[kind == HOT_KEY].round(kind))
                _say(number, kind, samples[kind][-1])
    document["results"] = {kind: summarise(found) for kind, found in samples.items()}
    document["samples"] = samples
    return document


@contextmanager
def _bench(folder: Path, is_hot: bool, seconds: float, bait: int) -> Iterator[Bench]:
    """Start one of the two brokers, and get it ready."""
    parted = {"EnablePartitioning": True}
    queues: dict[str, dict[str, Any]] = {CALM: {}, BAIT: {"LockDuration": "PT5S", "MaxDeliveryCount": 2_000_000_000}}
    config = queues_config({CALM: parted, HOT: parted} if is_hot else queues)
    with (NarrowServer if is_hot else ServerProcess)(folder, config=config, arguments=("--emulator",)) as server:
        bench = Bench(server, seconds)
        if not is_hot:
            bench.fill_bait(bait)
        bench.measure()
        yield bench


def _say(number: int, kind: str, sample: dict[str, Any]) -> None:
    figures = " ".join(f"{who} {sample[who]['end_to_end_p99_ms']:.2f}" for who in ("alone", "hostile", "control"))
    print(f"round {number}  {kind}  end to end p99 ms: {figures}", file=sys.stderr, flush=True)


def _end(number: int, _frame: object) -> None:
    """End as at Ctrl-C, so that the broker is stopped and its data deleted, too."""
    sys.exit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Measure, write and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="time that each measurement sends for")
    parser.add_argument("--kinds", default=",".join(KINDS), help="names with commas between")
    parser.add_argument("--output", type=Path, help="instead of a file in benchmarks/results")
    parser.add_argument("--quick", action="store_true", help="one short round: its figures mean nothing")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if any(kind.startswith(name.strip()) for name in options.kinds.split(","))]
    if options.quick:
        options.rounds, options.seconds = 1, 0.2
    document = run(kinds, options.rounds, options.seconds, 2000 if options.quick else BAIT_MESSAGES)
    name = "local" if options.quick else document["commit"]
    output = options.output or ROOT / "benchmarks" / "results" / f"{name}-neighbours.json"
    output.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document["results"]))
    over = [kind for kind in kinds if document["results"][kind]["end_to_end_p99_ms_ratio"]["median"] > BOUND]
    if over:
        print(f"More than {BOUND} times the control: {', '.join(over)}.")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
