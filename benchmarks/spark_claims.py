"""Where a claim stream does its work, in batches of 10,000 messages of 1 KiB (``python -m benchmarks.spark_claims``).

Told are, for the batches of one run with ``availableNow`` after a run that warms everything up: how long Spark waits
for the source before and while it plans a batch (``latestOffset``, ``queryPlanning``), the processor time of the broker
and of Spark's processes for a message, and by how much two tasks of a batch overlap, from Spark's event log.
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
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import silence_sdk_logs

ENV = "SPARK_CLAIMS_CONNECTION_STRING"
BODY = 1024
QUEUE = "claim"
WARM = 2
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


def measured(batch: int, batches: int, folder: Path, server: ServerProcess) -> dict[str, Any]:
    """Run a stream twice and tell of the second time."""
    events = folder / "events"
    events.mkdir()
    spark_session.CONF["spark.eventLog.enabled"] = "true"
    spark_session.CONF["spark.eventLog.compress"] = "false"
    spark_session.CONF["spark.eventLog.dir"] = events.as_uri()
    spark = spark_session.session(2)
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())

    def send(number: int) -> None:
        with (
            ServiceBusClient.from_connection_string(server.connection_string) as client,
            client.get_queue_sender(QUEUE) as sender,
        ):
            for _ in range(0, number, 200):
                sender.send_messages([ServiceBusMessage(os.urandom(BODY)) for _ in range(200)])

    def run() -> list[Any]:
        where = {"managementEndpoint": f"http://localhost:{server.ready['http_port']}", "connectionStringEnv": ENV}
        limits = {"maxMessagesPerTrigger": str(batch), "minPartitions": "2"}
        stream = spark.readStream.format("duobus").options(queue=QUEUE, **where, **limits).load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [one for one in query.recentProgress if one["numInputRows"]]

    try:
        send(WARM * batch)
        run()
        send(batches * batch)
        before = cpu_s(server.pid, with_children=False), cpu_s(jvm, with_children=True)
        began_ms = time.time() * 1000
        progress = run()
        after = cpu_s(server.pid, with_children=False), cpu_s(jvm, with_children=True)
    finally:
        spark.stop()
    rows = sum(one["numInputRows"] for one in progress)
    broker, others = ((late - early) / rows * 1e6 for early, late in zip(before, after, strict=True))
    return {
        "rows": rows,
        "phases_ms": {name: round(median(one["durationMs"].get(name, 0) for one in progress)) for name in PHASES},
        "broker_us_a_message": round(broker, 1),
        "spark_us_a_message": round(others, 1),
        "overlaps": [round(part, 2) for part in overlaps(events, began_ms)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=10_000, help="messages of a batch")
    parser.add_argument("--batches", type=int, default=4, help="batches that are measured")
    options = parser.parse_args()
    silence_sdk_logs()
    with tempfile.TemporaryDirectory(prefix="duobus-claims-") as temporary:
        folder = Path(temporary)
        with ServerProcess(folder / "server", config=queues_config({QUEUE: {}}), arguments=("--emulator",)) as server:
            os.environ[ENV] = server.connection_string
            print(json.dumps(measured(options.batch, options.batches, folder, server)))


if __name__ == "__main__":
    main()
