"""Kill the driver, its Python workers and the broker while Spark captures a queue that a rival reads too.

    python tools/spark_kills.py [--kills 50] [--seed 1] [--folder FOLDER] [--json]

A producer sends numbered messages into a partitioned queue, a claim stream writes them into Parquet files by batch, a
rival completes some of them, and processes die by SIGKILL at random instants, some of them twice in a row; the first
kills are one of each kind. In the end every message has to be in the files once, or with the rival: lost 0, doubled 0,
and nothing may be left deferred in the queue. Identifiers and checksums tell.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

QUEUE = "kills"
CONNECTION_ENV = "DUOBUS_SPARK_KILLS"
#: Messages of a batch: small, so that there are many.
BATCH = 60
#: Messages that the producer sends at a time, and seconds between two of them.
BURST, BURST_EVERY_S = 20, 0.1
#: Batches that the producer is ahead of the stream at most, so that the end is not far when it stops.
AHEAD = 4
#: Seconds until the next kill, at random.
PAUSE_S = (0.2, 4.0)
#: What is killed, and how often beside the others.
KINDS = {"driver": 1, "worker": 3, "broker": 2}
#: Chance that a second kill follows at once.
ADJACENT = 0.25
#: Seconds that everything may take to come to its end after the last kill.
END_S = 180.0


def body_of(number: int) -> str:
    """Text that tells whether it came through whole."""
    return f"{number}:{hashlib.sha256(str(number).encode()).hexdigest()}"


# -- the driver, in a process of its own -----------------------------------------------------------------------------


def drive(folder: Path, endpoint: str) -> None:
    """Capture until the file ``end`` is there and nothing is left; starts the query again whenever it failed."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,3]").appName("kills")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = (
        spark.readStream.format("duobus")
        .options(connectionStringEnv=CONNECTION_ENV, managementEndpoint=endpoint)
        .options(queue=QUEUE, maxMessagesPerTrigger=str(BATCH))
        .load()
    )

    def write(df: Any, batch: int) -> None:
        from pyspark.sql import functions as f

        rows = df.select("message_id", "sequence_number", "body").withColumn("batch_id", f.lit(batch))
        rows.write.mode("overwrite").partitionBy("batch_id").parquet(str(folder / "captured"))

    empty = 0
    while empty < 2:
        is_end = (folder / "end").exists()
        query = (
            source.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - whatever a kill made of it
            print("the query failed:", str(error).splitlines()[0][:300], flush=True)
            empty = 0
            time.sleep(0.2)
            continue
        had_rows = any(progress["numInputRows"] for progress in query.recentProgress)
        empty = 0 if had_rows or not is_end else empty + 1
    spark.stop()


# -- the harness -----------------------------------------------------------------------------------------------------


class Producer(threading.Thread):
    """Sends numbered messages until it is told to stop; each once, by duplicate detection."""

    def __init__(self, connection_string: str, taken: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._connection_string = connection_string
        self._taken = taken
        self.stopped = threading.Event()
        self.sent = 0

    def run(self) -> None:
        """Until it is stopped."""
        from azure.servicebus import ServiceBusClient, ServiceBusMessage

        while not self.stopped.is_set():
            with (
                suppress(Exception),
                ServiceBusClient.from_connection_string(self._connection_string) as client,
                client.get_queue_sender(QUEUE) as sender,
            ):
                while not self.stopped.wait(BURST_EVERY_S):
                    first = self.sent
                    if first > self._taken() + AHEAD * BATCH:
                        continue
                    # One key for a burst: a batch goes to one fragment.
                    sender.send_messages(
                        [
                            ServiceBusMessage(body_of(number), message_id=str(number), partition_key=str(first))
                            for number in range(first, first + BURST)
                        ]
                    )
                    self.sent = first + BURST
            self.stopped.wait(0.2)


class Rival(threading.Thread):
    """Receives a few messages now and then, and completes them."""

    def __init__(self, connection_string: str, batches: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._connection_string = connection_string
        self._batches = batches
        self.stopped = threading.Event()
        self.completed: list[str] = []
        #: What it tried to complete when the broker went away: it may be gone, or come again.
        self.unsure: set[str] = set()

    def run(self) -> None:
        """Until it is stopped."""
        from azure.servicebus import ServiceBusClient

        while not self.stopped.is_set():
            with (
                suppress(Exception),
                ServiceBusClient.from_connection_string(self._connection_string) as client,
                client.get_queue_receiver(QUEUE) as receiver,
            ):
                while not self.stopped.wait(0.5):
                    # It leaves most of them to the stream, which may be gone for a while.
                    if len(self.completed) > self._batches() * BATCH / 4:
                        continue
                    for message in receiver.receive_messages(max_message_count=5, max_wait_time=1):
                        identifier = str(message.message_id)
                        self.unsure.add(identifier)
                        receiver.complete_message(message)
                        self.unsure.discard(identifier)
                        self.completed.append(identifier)
            self.stopped.wait(0.2)


def children(pid: int) -> list[int]:
    """All processes below one, whatever groups they are in."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def command_of(pid: int) -> str:
    """The command line of a process; empty when it is gone."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class Driver:
    """The driver's process, started again when it is gone."""

    def __init__(self, folder: Path, endpoint: str, connection_string: str) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._environment = {**os.environ, CONNECTION_ENV: connection_string}
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Start it."""
        self.starts += 1
        with (self._folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--drive", str(self._folder), "--endpoint", self._endpoint],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ended(self) -> int | None:
        """Its exit status; None: it runs."""
        assert self._process is not None
        return self._process.poll()

    def workers(self) -> list[int]:
        """Its Python processes: the source runner, and the workers of tasks."""
        assert self._process is not None
        return [
            pid for pid in children(self._process.pid) if "python" in command_of(pid) and "java" not in command_of(pid)
        ]

    def kill(self) -> None:
        """The driver, the JVM and all their workers, at once."""
        assert self._process is not None
        doomed = [self._process.pid, *children(self._process.pid)]
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def batches_of(folder: Path) -> int:
    """How many batches the stream has planned."""
    names = [path.name for path in (folder / "checkpoint" / "offsets").glob("[0-9]*")]
    return max((int(name) + 1 for name in names), default=0)


def found_in(folder: Path) -> Counter[str]:
    """Identifiers in the captured files, each checked against its body."""
    import pyarrow.parquet

    found: Counter[str] = Counter()
    for path in sorted((folder / "captured").rglob("*.parquet")):
        if any(part.startswith(("_", ".")) for part in path.relative_to(folder / "captured").parts):
            continue
        for row in pyarrow.parquet.ParquetFile(path).read().to_pylist():
            assert row["body"].decode() == body_of(int(row["message_id"])), f"{path}: a body is damaged"
            found[row["message_id"]] += 1
    return found


def judged(found: Counter[str], sent: int, rival: Rival) -> dict[str, Any]:
    """What is lost and doubled, of all that was sent."""
    everything = {str(number) for number in range(sent)}
    theirs = Counter(rival.completed)
    both = found + theirs
    lost = everything - set(both) - rival.unsure
    doubled = {one for one, times in both.items() if times > 1}
    return {
        "sent": sent,
        "captured": sum(found.values()),
        "rival": sum(theirs.values()),
        "unsure": len(rival.unsure - set(both)),
        "lost": len(lost),
        "doubled": len(doubled),
        "unknown": len(set(both) - everything),
        "examples": sorted(lost | doubled)[:10],
    }


def run(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Do everything; the result has what was lost, doubled and forgotten."""
    from duobus.testing.server import ServerProcess, queues_config

    queue = {
        "EnablePartitioning": True,
        "MaxDeliveryCount": 2_000,
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT1H",
        "LockDuration": "PT1M",
    }
    chance = random.Random(seed)
    due = chance.sample(list(KINDS), len(KINDS))
    done: Counter[str] = Counter()
    with ServerProcess(folder / "broker", config=queues_config({QUEUE: queue})) as server:
        text = server.connection_string
        driver = Driver(folder, f"http://localhost:{server.ready['http_port']}", text)
        rival = Rival(text, lambda: batches_of(folder))
        producer = Producer(text, lambda: batches_of(folder) * BATCH + len(rival.completed))
        driver.start()
        producer.start()
        rival.start()
        try:
            while sum(done.values()) < kills:
                # Nothing dies before it has begun: the stream has to have planned a batch since the last kill.
                before = batches_of(folder)
                wait_for(lambda before=before: driver.ended() is not None or batches_of(folder) > before, 120.0)
                time.sleep(chance.uniform(*PAUSE_S))
                for _ in range(2 if chance.random() < ADJACENT else 1):
                    wanted = due[-1] if due else chance.choices(list(KINDS), list(KINDS.values()))[0]
                    done[what := kill_one(chance, driver, server, wanted)] += 1
                    if what in due:
                        due.remove(what)
                    time.sleep(chance.uniform(0, 0.5))
                if driver.ended() is not None:
                    driver.start()
            producer.stopped.set()
            producer.join(30)
            rival.stopped.set()
            rival.join(30)
            (folder / "end").touch()
            began = time.monotonic()
            while driver.ended() != 0:
                if driver.ended() is not None:
                    driver.start()
                if time.monotonic() - began > END_S:
                    raise SystemExit(
                        f"The driver did not come to its end.\n{(folder / 'driver.log').read_text()[-3000:]}"
                    )
                time.sleep(0.2)
            result = judged(found_in(folder), producer.sent, rival)
            result["left_in_queue"] = left_in(server)
        finally:
            driver.kill()
    counts = {"driver_starts": driver.starts, "batches": batches_of(folder)}
    return {"kills": dict(done), "seed": seed, **counts, **result}


def wait_for(condition: Any, seconds: float) -> None:
    """Wait until something holds, or so long."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)


def kill_one(chance: random.Random, driver: Driver, server: Any, what: str) -> str:
    """Kill something; returns what: the broker where what is wanted does not run."""
    workers = driver.workers() if driver.ended() is None else []
    if what == "worker" and workers:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
    elif what == "driver" and driver.ended() is None:
        driver.kill()
    else:
        what = "broker"
        server.restart()
    return what


def left_in(server: Any) -> int:
    """Messages that are still in the queue, in whatever state: everything was settled, so none may be."""
    from duobus.spark.connection import new_administration, place_of
    from duobus.spark.options import CONNECTION_OPTIONS, parse

    os.environ[CONNECTION_ENV] = server.connection_string
    options = {
        "connectionStringEnv": CONNECTION_ENV,
        "managementEndpoint": f"http://localhost:{server.ready['http_port']}",
    }
    with new_administration(place_of(parse(options, CONNECTION_OPTIONS))) as administration:
        return administration.get_queue_runtime_properties(QUEUE).total_message_count or 0


@click.command()
@click.option("--kills", default=50, show_default=True, help="How many.")
@click.option("--seed", default=1, show_default=True, help="Of what is killed and when.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work; by default one that goes in the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--drive", type=click.Path(path_type=Path), hidden=True)
@click.option("--endpoint", hidden=True)
def main(kills: int, seed: int, folder: Path | None, as_json: bool, **given: Any) -> None:
    """Kill processes of Spark and the broker while a queue is captured."""
    if given["drive"] is not None:
        drive(given["drive"], given["endpoint"])
        return
    work = folder or Path(tempfile.mkdtemp(prefix="spark-kills-"))
    work.mkdir(parents=True, exist_ok=True)
    result = run(kills, seed, work)
    print(json.dumps(result) if as_json else "\n".join(f"{name:14} {value}" for name, value in result.items()))
    if result["lost"] or result["doubled"] or result["left_in_queue"] or result["unknown"]:
        raise SystemExit(1)
    if folder is None:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
