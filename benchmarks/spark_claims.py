"""Where a claim stream does its work, in batches of 10,000 messages of 1 KiB (``python -m benchmarks.spark_claims``).

Told are, for the batches of one run with ``availableNow`` after a run that warms everything up: the driver's own part
of a batch, which is the time in the calls of its source; how long Spark waits for the source before and while it plans
(``latestOffset``, ``queryPlanning``); the processor time of the broker and of Spark's processes for a message; and by
how much two tasks of a batch overlap, from Spark's event log. With ``--beside`` a stream whose driver receives and
defers, as against Azure, is measured in the same run, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from benchmarks import spark_session
from benchmarks.spark_claim_sources import CALLS_ENV, SOURCES
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import silence_sdk_logs

ENV = "SPARK_CLAIMS_CONNECTION_STRING"
BODY = 1024
#: A queue for each way: a way's messages must not be the other's.
QUEUES = {"claimed": "claim", "received": "receive"}
WARM = 2
ENDING_S = 2.0
PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "triggerExecution")


def stat_of(pid: int) -> list[str]:
    """The fields of a process behind its name; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_s(root: int, *, with_children: bool) -> float:
    """Processor time of a process; with all its descendants, those included that have ended and were waited for."""
    own = stat_of(root)
    ticks = int(own[11]) + int(own[12])
    if with_children:
        ticks += int(own[13]) + int(own[14])
        parents: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*"):
            fields = stat_of(int(path.name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(path.name))
        waiting = list(parents.get(root, []))
        while waiting:
            pid = waiting.pop()
            fields = stat_of(pid)
            ticks += sum(map(int, fields[11:15]))
            waiting += parents.get(pid, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def overlaps(folder: Path, since_ms: float) -> list[float]:
    """Of each stage with two tasks: the part of the shorter one in which the other ran, too."""
    tasks: dict[int, list[tuple[int, int]]] = {}
    for path in folder.glob("**/*"):
        for line in path.read_text().splitlines() if path.is_file() else ():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and event["Task Info"]["Launch Time"] >= since_ms:
                about = event["Task Info"]
                tasks.setdefault(event["Stage ID"], []).append((about["Launch Time"], about["Finish Time"]))
    found = []
    for both in tasks.values():
        if len(both) == 2:
            (first, until), (second, end) = both
            shared = max(0, min(until, end) - max(first, second))
            found.append(shared / max(1, min(until - first, end - second)))
    return found


def calls_of(path: Path, since_ms: float) -> list[float]:
    """The driver's own part of each batch, in ms: its calls up to and with the one that plans the batch."""
    parts: list[float] = []
    whole = 0.0
    for line in path.read_text().splitlines():
        name, began, ms = line.split()
        if float(began) * 1000 >= since_ms:
            whole += float(ms)
            if name == "partitions":
                parts.append(whole)
                whole = 0.0
    return parts


class Bench:
    """One session of Spark and one broker, for runs of both ways.

    Args:
        folder: For checkpoints and logs.
        server: The broker.
        batch: Messages of a batch.
    """

    def __init__(self, folder: Path, server: ServerProcess, batch: int) -> None:
        self._folder = folder
        self._server = server
        self._batch = batch
        self._events = folder / "events"
        self._events.mkdir()
        self._calls = Path(os.environ[CALLS_ENV])
        spark_session.CONF["spark.eventLog.enabled"] = "true"
        spark_session.CONF["spark.eventLog.compress"] = "false"
        spark_session.CONF["spark.eventLog.dir"] = self._events.as_uri()
        self.spark = spark_session.session(2)
        for source in SOURCES.values():
            self.spark.dataSource.register(source)
        self._jvm = int(self.spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())

    def send(self, way: str, batches: int) -> None:
        """Fill the queue of a way."""
        with (
            ServiceBusClient.from_connection_string(self._server.connection_string) as client,
            client.get_queue_sender(QUEUES[way]) as sender,
        ):
            for _ in range(0, batches * self._batch, 200):
                sender.send_messages([ServiceBusMessage(os.urandom(BODY)) for _ in range(200)])

    def run(self, way: str) -> list[Any]:
        """Take what is there; return the progress of the batches."""
        http = self._server.ready["http_port"]
        where = {"managementEndpoint": f"http://localhost:{http}", "connectionStringEnv": ENV}
        limits = {"maxMessagesPerTrigger": str(self._batch), "minPartitions": "2"}
        source = self.spark.readStream.format(SOURCES[way].name())
        stream = source.options(queue=QUEUES[way], **where, **limits).load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(self._folder / way))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [one for one in query.recentProgress if one["numInputRows"]]

    def measured(self, way: str, batches: int) -> dict[str, Any]:
        """Send so many batches and tell how a stream took them."""
        self.send(way, batches)
        before = cpu_s(self._server.pid, with_children=False), cpu_s(self._jvm, with_children=True)
        began_ms = time.time() * 1000
        progress = self.run(way)
        # The process of the source ends behind the query, and is counted when the JVM has waited for it.
        time.sleep(ENDING_S)
        after = cpu_s(self._server.pid, with_children=False), cpu_s(self._jvm, with_children=True)
        rows = sum(one["numInputRows"] for one in progress)
        broker, others = ((late - early) / rows * 1e6 for early, late in zip(before, after, strict=True))
        return {
            "way": way,
            "rows": rows,
            "driver_ms": [round(ms) for ms in calls_of(self._calls, began_ms)],
            "phases_ms": {name: round(median(one["durationMs"].get(name, 0) for one in progress)) for name in PHASES},
            "broker_us_a_message": round(broker, 1),
            "spark_us_a_message": round(others, 1),
            "overlaps": [round(part, 2) for part in overlaps(self._events, began_ms)],
            "load": round(os.getloadavg()[0], 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=10_000, help="messages of a batch")
    parser.add_argument("--batches", type=int, default=4, help="batches that are measured")
    parser.add_argument("--beside", action="store_true", help="measure a driver that receives and defers, too")
    parser.add_argument("--rounds", type=int, default=1, help="times that each way is measured, in turn")
    options = parser.parse_args()
    silence_sdk_logs()
    with tempfile.TemporaryDirectory(prefix="duobus-claims-") as temporary:
        folder = Path(temporary)
        os.environ[CALLS_ENV] = str(folder / "calls")
        config = queues_config({queue: {} for queue in QUEUES.values()})
        with ServerProcess(folder / "server", config=config, arguments=("--emulator",)) as server:
            os.environ[ENV] = server.connection_string
            bench = Bench(folder, server, options.batch)
            ways = list(QUEUES) if options.beside else ["claimed"]
            try:
                for way in ways:
                    bench.send(way, WARM)
                    bench.run(way)
                for number in range(options.rounds):
                    for way in ways if number % 2 else reversed(ways):
                        print(json.dumps(bench.measured(way, options.batches)), flush=True)
            finally:
                bench.spark.stop()


if __name__ == "__main__":
    main()
