"""A deep backlog in a plain queue: ``python -m benchmarks.backlog [--messages 2000000] [--quick]``.

Fills the queue, reports what the server keeps resident, kills it with SIGKILL, drops the page cache where that is
allowed, starts it again, and measures the time until a new send is accepted and an old message delivered. Then it
drains the backlog with one receiver in several parts and compares their rate with that of short backlogs of a second
queue, which are filled and drained before, between and after them by the same code. The official SDK takes some of
both queues, too, in turns. Every message must come exactly once. Needs about 1.5 KiB of disk a message.
"""

import argparse
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import report, usage
from benchmarks.load import wire
from benchmarks.load.exchange import Exchange, Limits, serve
from benchmarks.load.link import WINDOW as FLOW_WINDOW
from benchmarks.load.link import Target
from benchmarks.load.message import MARKS, Run
from benchmarks.load.receiver import Receiver
from benchmarks.load.sender import Sender
from benchmarks.load.verify import check_accepted
from benchmarks.load.wire import LoadError
from benchmarks.peers import EMULATOR_KEY, EMULATOR_RULE
from duobus.testing.server import ServerProcess, queues_config

ROOT = Path(__file__).resolve().parents[1]
DEEP, SHORT = "deep", "short"
CREDIT = 500
WINDOW = 1000
BODY_BYTES = 1024
#: So many stay in memory, while they wait.
SHORT_MESSAGES = 25_000
#: Short backlogs at each place between the parts.
SHORT_TIMES = 3
#: Turns of the official SDK at a short backlog and at the deep one, and messages that it takes in each.
SDK_TURNS, SDK_MESSAGES = 5, 10_000
#: Messages that one sender sends before another takes its place: it keeps the time of each.
PER_SENDER = 200_000
#: Room for two million messages: an ordinary queue has 1 GiB.
QUEUE = {"LockDuration": "PT5M", "MaxSizeInMegabytes": 5120}
#: What a deep backlog may cost.
RESIDENT_MB_MAX, RATE_SHARE_MIN, READY_SECONDS_MAX = 600.0, 0.9, 5.0


class CountingReceiver(Receiver):
    """A receiver that keeps of each message only that it came, so that millions fit, and that can take a rest.

    Attributes:
        seen: one byte per message, by sender and number.
        limit: messages to receive before it rests; it gives no credit beyond.
    """

    __slots__ = ("limit", "seen")

    def __init__(self, target: Target, run: Run, counts: list[int]) -> None:
        self.seen = [bytearray(count) for count in counts]
        self.limit = 0
        super().__init__(target, run, 0, CREDIT)

    def receive(self, number: int) -> float:
        """Receive and settle so many more messages; returns the rate."""
        self.limit += number
        began = perf_counter()
        self.start()
        return number / (serve([self], self._is_at_rest, 60.0) - began)

    def _is_at_rest(self, now: float) -> bool:
        return self.received >= self.limit and self.settled >= self.limit

    def _top_up(self) -> bytes:
        credit = min(self.credit, self.limit - self.received)
        self._credit_end = self.received + credit
        return wire.flow(self._frames_in, FLOW_WINDOW, 0, FLOW_WINDOW, self.received, credit)

    def feed(self, data: bytes, now: float) -> None:
        """As ``Receiver``; then tick off what came."""
        super().feed(data, now)
        self.tick(b"".join(self.marks))
        self.marks.clear()
        self.reads.clear()
        self.log.clear()

    def tick(self, marks: bytes) -> None:
        """Tick off what came, here or elsewhere.

        Raises:
            LoadError: one came twice.
        """
        for _, sender, number, _ in MARKS.iter_unpack(marks):
            if self.seen[sender][number]:
                raise LoadError(f"message {number} of sender {sender} came twice")
            self.seen[sender][number] = 1

    def check(self) -> None:
        """Make sure that every message came.

        Raises:
            LoadError: some did not.
        """
        missing = sum(found.count(0) for found in self.seen)
        if missing:
            raise LoadError(f"{missing} messages did not come, of {sum(map(len, self.seen))}")


class Looker(Receiver):
    """A receiver that settles nothing."""

    def _answer(self, first: int, expected: int, now: float) -> None:
        self.received = expected


class Bench:
    """Measures one broker."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self._server = server
        self._marks = folder / "marks"

    def target(self, queue: str) -> Target:
        """Where a queue is."""
        return Target("127.0.0.1", int(self._server.ready["amqp_port"]), queue, EMULATOR_RULE, EMULATOR_KEY)

    @property
    def pid(self) -> int:
        """The server's process."""
        return int(self._server.ready["pid"])

    def fill(self, queue: str, run: Run, messages: int) -> list[int]:
        """Send; returns how many each sender sent, all of them accepted once."""
        counts: list[int] = []
        while sum(counts) < messages:
            number = min(PER_SENDER, messages - sum(counts))
            with closing(Sender(self.target(queue), run, len(counts), WINDOW, BODY_BYTES)) as sender:
                Exchange([sender], [], Limits(messages=number)).run()
                check_accepted(sender)
            counts.append(number)
        return counts

    def drain(
        self, run: Run, counts: list[int], taken: bytes, parts: int, short_messages: int
    ) -> tuple[list[float], list[float]]:
        """Receive the deep backlog in parts, short ones before, between and after; returns the rates of both.

        ``taken`` has the marks of those that were received before.
        """
        deep: list[float] = []
        short = [self.short(short_messages) for _ in range(SHORT_TIMES)]
        with closing(CountingReceiver(self.target(DEEP), run, counts)) as receiver:
            receiver.tick(taken)
            left = sum(counts) - len(taken) // MARKS.size
            for part in range(parts, 0, -1):
                deep.append(receiver.receive(left // part))
                left -= left // part
                short += [self.short(short_messages) for _ in range(SHORT_TIMES)]
            receiver.check()
        return deep, short

    def short(self, messages: int) -> float:
        """Fill and drain a short backlog; returns its receive rate."""
        run = Run()
        counts = self.fill(SHORT, run, messages)
        with closing(CountingReceiver(self.target(SHORT), run, counts)) as receiver:
            rate = receiver.receive(messages)
            receiver.check()
        return rate

    def take_with_sdk(self, turns: int, messages: int) -> tuple[list[float], list[float], bytes]:
        """Let the SDK take from the deep backlog and from short ones in turns; the rates of both, and the marks."""
        deep: list[float] = []
        short: list[float] = []
        taken: list[bytes] = []
        for _ in range(turns):
            run = Run()
            counts = self.fill(SHORT, run, messages)
            with closing(CountingReceiver(self.target(SHORT), run, counts)) as ticked:
                rate, marks = self._with_sdk(SHORT, messages)
                ticked.tick(marks)
                ticked.check()
            short.append(rate)
            rate, marks = self._with_sdk(DEEP, messages)
            deep.append(rate)
            taken.append(marks)
        return deep, short, b"".join(taken)

    def _with_sdk(self, queue: str, messages: int) -> tuple[float, bytes]:
        command = [sys.executable, "-m", "benchmarks.sdk_receiver", self._server.connection_string, queue]
        done = subprocess.run(
            [*command, str(messages), str(self._marks)], cwd=ROOT, stdout=subprocess.PIPE, timeout=300, check=False
        )
        if done.returncode:
            raise LoadError(f"the SDK ended with status {done.returncode}")
        return messages / float(done.stdout), self._marks.read_bytes()

    def restart(self) -> dict[str, Any]:
        """SIGKILL, a cold cache where allowed, a start, a send, an old message; seconds since the process was made."""
        self._server.kill()
        is_cold = drop_page_cache()
        began = perf_counter()
        self._server.start(timeout_s=120.0)
        ready = perf_counter() - began
        with closing(Sender(self.target(SHORT), Run(), 0, 1, BODY_BYTES)) as sender:
            Exchange([sender], [], Limits(messages=1)).run()
            check_accepted(sender)
        accepted = perf_counter() - began
        looker = Looker(self.target(DEEP), Run(), 0, 1, takes_foreign=True)
        # Closed without a detach: the message is given back when the connection goes.
        with closing(looker.sock):
            looker.start()
            serve([looker], lambda now: looker.received >= 1, 120.0)
            delivered = perf_counter() - began
        with closing(Receiver(self.target(SHORT), Run(), 0, 1, takes_foreign=True)) as receiver:
            receiver.start()
            serve([receiver], lambda now: receiver.settled >= 1, 30.0)
        return {
            "cold_cache": is_cold,
            "ready_seconds": ready,
            "send_accepted_seconds": accepted,
            "old_message_seconds": delivered,
        }


def drop_page_cache() -> bool:
    """Make the next reads come from the disk; False where that is not allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def run(messages: int, short_messages: int, parts: int, data_root: Path) -> dict[str, Any]:
    """Measure; the data is deleted whatever happens.

    Raises:
        LoadError: a message was lost or doubled, or a step did not happen.
    """
    need = messages * 1600 + short_messages * 4000
    if shutil.disk_usage(data_root).free < 2 * need:
        raise LoadError(f"{data_root} has less than {2 * need / 1e9:.1f} GB free")
    name, changed = report.commit(ROOT)
    document: dict[str, Any] = {"commit": name, "changed": changed, "messages": messages}
    document["conditions"] = report.conditions(data_root)
    with tempfile.TemporaryDirectory(prefix="duobus-backlog-", dir=data_root) as folder:
        server = ServerProcess(
            Path(folder),
            config=queues_config({DEEP: QUEUE, SHORT: QUEUE}),
            arguments=("--emulator", "--stores", "1"),
        )
        with server:
            bench = Bench(server, Path(folder))
            bench.short(short_messages)
            deep = Run()
            began = perf_counter()
            counts = bench.fill(DEEP, deep, messages)
            document["fill_rate"] = messages / (perf_counter() - began)
            document["resident_mb"], document["resident_peak_mb"] = usage.memory_mb(bench.pid)
            files = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            document["disk_mb"] = files / 1e6
            document["restart"] = bench.restart()
            turns = SDK_TURNS if messages >= 4 * SDK_TURNS * SDK_MESSAGES else 1
            document["sdk_deep_rates"], document["sdk_short_rates"], taken = bench.take_with_sdk(
                turns, SDK_MESSAGES if turns > 1 else short_messages
            )
            document["deep_rates"], document["short_rates"] = bench.drain(deep, counts, taken, parts, short_messages)
            document["resident_after_mb"], document["resident_peak_after_mb"] = usage.memory_mb(bench.pid)
    # What the parts took together, against the median of the short ones.
    document["deep_rate"] = len(document["deep_rates"]) / sum(1 / rate for rate in document["deep_rates"])
    document["rate_share"] = document["deep_rate"] / median(document["short_rates"])
    document["sdk_rate_share"] = median(document["sdk_deep_rates"]) / median(document["sdk_short_rates"])
    document["failures"] = failures(document)
    return document


def failures(document: dict[str, Any]) -> list[str]:
    """Which bounds were passed, a sentence each."""
    found = []
    resident = max(document["resident_mb"], document["resident_after_mb"])
    if resident > RESIDENT_MB_MAX:
        found.append(f"{resident:.0f} MB were resident, more than {RESIDENT_MB_MAX:.0f}.")
    slowest = max(document["restart"]["send_accepted_seconds"], document["restart"]["old_message_seconds"])
    if slowest > READY_SECONDS_MAX:
        found.append(f"It took {slowest:.1f} s after the kill until a send and a receive, more than 5.")
    if document["rate_share"] < RATE_SHARE_MIN:
        found.append(f"The backlog was received at {document['rate_share']:.0%} of the rate of a short one.")
    return found


def _end(number: int, _frame: object) -> None:
    """End as at Ctrl-C, so that the broker is stopped and its data deleted, too."""
    sys.exit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the JSON; returns 0, or 1 when a bound was passed or the measurement is void."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--short", type=int, default=SHORT_MESSAGES, help="messages of a short backlog")
    parser.add_argument("--parts", type=int, default=5, help="parts that the deep one is drained in")
    parser.add_argument("--data-root", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--quick", action="store_true", help="a smoke test: 70,000 messages, no bound is judged")
    options = parser.parse_args(arguments)
    if options.quick:
        options.messages, options.short, options.parts = 70_000, 2000, 2
    # For this program's whole life, and not in run(): its caller may be a test process, which lives on.
    gc.disable()
    try:
        document = run(options.messages, options.short, options.parts, options.data_root)
    except LoadError as error:
        print(f"the measurement is void: {error}", file=sys.stderr)
        return 1
    name = "local" if options.quick else document["commit"]
    (ROOT / "benchmarks" / "results" / f"{name}-backlog.json").write_text(json.dumps(document, indent=1) + "\n")
    json.dump(document, sys.stdout, indent=1)
    print()
    if options.quick:
        return 0
    for failure in document["failures"]:
        print(failure, file=sys.stderr)
    return 1 if document["failures"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
