"""What the pipeline on Spark reaches beside what is possible, in one run (``python -m benchmarks.spark_rates``).

With one task and with two, each in a session of its own, over a broker process on the same machine; messages of 1 KiB:

- *start*: the session, its first job, the first use of a Python source, and for a stream the time from its start to the
  end of its first batch. Shown apart, in no rate.
- *ceiling*: Arrow batches out of nothing into nothing, and into Parquet.
- *sdk*: a loop of the plain SDK that receives and completes, in one process.
- *browse*: a queue as a table, into nothing; its ratio is to the ceiling, goal a tenth. So many messages that it takes
  about as long as the ceiling: both have the start of a process that plans in them, which is shown apart.
- *claim*: a stream that claims, reads and settles, into nothing; its ratio is to the loop of the SDK, goal a half.
- *capture*: as many with the same options into Parquet, by the capture job; its ratio is to the claim, goal 0.8.

The rates of the two streams are those of all batches but the first, by Spark's own progress, of two runs each: claim,
capture, capture, claim, so that neither has the warmer machine. *phases* tells where the time of a batch goes.
The figures that count are the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from benchmarks.spark_ceiling import Ceiling
from benchmarks.spark_session import session
from benchmarks.spark_steady import Steady, steady_of, together
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import silence_sdk_logs

ENV = "SPARK_RATES_CONNECTION_STRING"
BODY = 1024
#: Batches of one run of a stream, the first of which is in no rate.
BATCHES = 4
#: Batches of the run before it: the JVM compiles what it has run often.
WARM = 2
ROOT = Path(__file__).resolve().parents[1]


def timed(work: Callable[[], Any]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        messages: For the loop of the SDK.
        rows: Of a ceiling.
        batch: Messages of a batch of a stream.
        browsed: Messages of the queue that is looked at.
    """

    messages: int
    rows: int
    batch: int
    browsed: int


class Rates:
    """Measures in one session."""

    def __init__(self, server: ServerProcess, folder: Path, sizes: Sizes, tasks: int, *, streams: bool = True) -> None:
        self.server, self.folder, self.tasks = server, folder, tasks
        self.messages, self.rows, self.batch, self.browsed = sizes
        self.has_streams = streams
        self.streams: dict[str, Steady] = {}
        self.browse_start_s = 0.0

    def measure(self) -> dict[str, Any]:
        starts: list[Any] = []
        start_s = timed(lambda: starts.append(session(self.tasks)))
        self.spark = starts[0]
        first_s = timed(lambda: self.spark.range(10).count())
        self.spark.dataSource.register(Ceiling)
        source_s = timed(lambda: self._ceiling(1_000).write.format("noop").mode("overwrite").save())
        try:
            found = self._rates()
        finally:
            self.spark.stop()
        start = {"session_s": start_s, "first_job_s": first_s, "first_python_source_s": source_s}
        start["browse_of_a_hundred_s"] = self.browse_start_s
        start |= {f"{name}_first_batch_s": steady.first_s for name, steady in self.streams.items()}
        return {
            "start": {name: round(seconds, 1) for name, seconds in start.items()},
            "phases_ms": {name: steady.phases_ms for name, steady in self.streams.items()},
            "per_s": {name: round(rate) for name, rate in found.items()},
            "ratio": {
                f"{name}_to_{other}": round(found[name] / found[other], 3)
                for name, other in (("browse", "ceiling"), ("claim", "sdk"), ("capture", "claim"))
                if name in found
            },
        }

    def _rates(self) -> dict[str, float]:
        found: dict[str, float] = {}
        self._ceiling(10_000).write.format("noop").mode("overwrite").save()
        found["ceiling"] = self.rows / timed(
            lambda: self._ceiling(self.rows).write.format("noop").mode("overwrite").save()
        )
        parquet = str(self.folder / f"ceiling-{self.tasks}")
        found["ceiling_parquet"] = self.rows / timed(lambda: self._ceiling(self.rows).write.parquet(parquet))
        self.send("browse", self.browsed)
        self._browse().limit(100).collect()
        self.browse_start_s = timed(lambda: self._browse().limit(100).write.format("noop").mode("overwrite").save())
        found["browse"] = self.browsed / timed(lambda: self._browse().write.format("noop").mode("overwrite").save())
        if not self.has_streams:
            return found
        self.send("sdk")
        found["sdk"] = self.messages / timed(lambda: self.receive("sdk"))
        streams = {"claim": self._claim, "capture": self._capture}
        for name, run in streams.items():
            self.send(name, WARM * self.batch)
            run("warm")
        runs: dict[str, list[Steady]] = {name: [] for name in streams}
        for number, name in enumerate(("claim", "capture", "capture", "claim")):
            self.send(name, BATCHES * self.batch)
            started = datetime.now(UTC)
            runs[name].append(steady_of(streams[name](f"measured-{number}"), started))
            print(f"{name}: {round(runs[name][-1].rate)} messages/s", file=sys.stderr)
        self.streams = {name: together(found) for name, found in runs.items()}
        return found | {name: steady.rate for name, steady in self.streams.items()}

    def _ceiling(self, rows: int) -> Any:
        return self.spark.read.format("ceiling").option("rows", rows).option("tasks", self.tasks).load()

    def _options(self, queue: str) -> dict[str, str]:
        where = {"managementEndpoint": f"http://localhost:{self.server.ready['http_port']}"}
        return {"connectionStringEnv": ENV, "queue": queue, **where}

    def _browse(self) -> Any:
        size = str(max(1, self.browsed // self.tasks))
        return (
            self.spark.read.format("duobus").options(**self._options("browse")).option("maxRecordsPerPartition", size)
        ).load()

    def _limits(self) -> dict[str, str]:
        return {"maxMessagesPerTrigger": str(self.batch)}

    def _claim(self, name: str) -> list[Any]:
        stream = self.spark.readStream.format("duobus").options(**self._options("claim") | self._limits())
        writer = stream.load().writeStream.format("noop")
        checkpoint = str(self.folder / f"claim-{self.tasks}-{name}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return list(query.recentProgress)

    def _capture(self, name: str) -> list[Any]:
        from duobus.spark.jobs import capture
        from duobus.spark.jobs import job as summary

        cfg = self._options("capture") | self._limits() | {"path": str(self.folder / f"captured-{self.tasks}")}
        checkpoint = str(self.folder / f"capture-{self.tasks}-{name}")
        settings = summary.settings_of(cfg | {"checkpoint": checkpoint}, capture.OPTIONS)
        query = capture.started(self.spark, settings, capture.target_of(settings), checkpoint)
        query.awaitTermination()
        return list(query.recentProgress)

    def send(self, queue: str, messages: int = 0) -> None:
        with self._client() as client, client.get_queue_sender(queue) as sender:
            for first in range(0, messages or self.messages, 200):
                sender.send_messages([ServiceBusMessage(os.urandom(BODY)) for _ in range(first, first + 200)])

    def receive(self, queue: str) -> None:
        left = self.messages
        with self._client() as client, client.get_queue_receiver(queue, prefetch_count=1_000) as receiver:
            while left > 0:
                for message in receiver.receive_messages(1_000, max_wait_time=5):
                    receiver.complete_message(message)
                    left -= 1

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.server.connection_string)


def one(sizes: Sizes, tasks: int, *, streams: bool) -> dict[str, Any]:
    """Measure with so many tasks."""
    queues: dict[str, dict[str, Any]] = {name: {} for name in ("sdk", "browse", "claim", "capture")}
    with tempfile.TemporaryDirectory(prefix="duobus-rates-") as temporary:
        folder = Path(temporary)
        with ServerProcess(folder / "server", config=queues_config(queues), arguments=("--emulator",)) as server:
            os.environ[ENV] = server.connection_string
            paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            return Rates(server, folder, sizes, tasks, streams=streams).measure()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less of everything, with smaller batches")
    parser.add_argument("--tasks", type=int, choices=(1, 2), help="only with so many")
    parser.add_argument("--batch", type=int, help="messages of a batch of a stream; capture's own default is 50000")
    parser.add_argument("--no-streams", action="store_true", help="only the ceiling and the browse")
    options = parser.parse_args()
    silence_sdk_logs()
    sizes = Sizes(5_000, 100_000, 5_000, 20_000) if options.quick else Sizes(20_000, 400_000, 10_000, 80_000)
    sizes = sizes._replace(batch=options.batch or sizes.batch)
    if options.tasks:
        print(json.dumps(one(sizes, options.tasks, streams=not options.no_streams)))
        return
    found: dict[str, Any] = {}
    for tasks in (1, 2):
        # In a process of its own: a JVM keeps its environment, and with it the address of the first broker.
        command = [sys.executable, "-m", "benchmarks.spark_rates", "--tasks", str(tasks)]
        command += ["--batch", str(sizes.batch)] + ["--quick"] * options.quick + ["--no-streams"] * options.no_streams
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        found[f"{tasks} tasks"] = json.loads(done.stdout.splitlines()[-1])
        print(f"with {tasks} tasks: {json.dumps(found[f'{tasks} tasks'])}", file=sys.stderr)
    alone, both = found["1 tasks"]["per_s"], found["2 tasks"]["per_s"]
    found["2 tasks to 1"] = {name: round(both[name] / rate, 2) for name, rate in alone.items()}
    print(json.dumps({**sizes._asdict(), "cores": os.cpu_count(), **found}, indent=2))


if __name__ == "__main__":
    main()
