"""Rows into Spark from duobus and from Kafka, for a second of processor time (``python -m benchmarks.spark_kafka``).

The same rows (a number, a time, a body of 1 KiB) are read by the same session in turn: as a stream of micro-batches,
which is a claim of duobus and settles, and as a batch, which is a browse. Counted is the processor time of all
processes: the broker's, Spark's and, with duobus, that of the processes in Python. Kafka is its own server with KRaft,
one broker with two partitions, started here on a port of 127.0.0.1 that the system picks. It and Spark's source for it
come by Maven's client.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from benchmarks import spark_session
from benchmarks.spark_claims import BODY, cpu_s
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import silence_sdk_logs

ROOT: Final = Path(__file__).resolve().parents[1]
POMS: Final = Path(__file__).with_name("kafka")
BUILD: Final = ROOT / ".build" / "kafka"
ENV: Final = "SPARK_KAFKA_CONNECTION_STRING"
#: What of the connector is not in Spark already.
CONNECTOR_GROUPS: Final = "org.apache.kafka,org.apache.commons"
CONNECTOR_ARTIFACTS: Final = (
    "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
)
PARTITIONS: Final = 2
#: Rows of a micro-batch.
BATCH: Final = 10_000
START_S: Final = 90.0
COLUMNS: Final = "sequence_number bigint, enqueued_time timestamp, body binary"


def jars(name: str, *more: str) -> list[Path]:
    """The JARs that one of the POMs names, fetched once."""
    place = BUILD / name
    if not list(place.glob("*.jar")):
        command = ["mvn", "-q", "-B", "-f", str(POMS / f"{name}_pom.xml"), "dependency:copy-dependencies", *more]
        subprocess.run([*command, f"-DoutputDirectory={place}"], check=True)
    return sorted(place.glob("*.jar"))


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def kafka(folder: Path) -> Iterator[tuple[int, str]]:
    """Kafka's server: its process and its address.

    Raises:
        RuntimeError: It did not start; the text has the end of its log.
    """
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "log"),
        "num.partitions": str(PARTITIONS),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    java = ["java", "-Xmx512m", "-cp", ":".join(map(str, jars("server")))]
    formatted = [*java, "kafka.tools.StorageTool", "format", "-t", "c2FtZS1mb3ItYWxsLXJ1bg", "-c", str(settings)]
    done = subprocess.run(formatted, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Kafka's storage was not formatted: {done.stderr[-600:]}")
    log = folder / "kafka.log"
    with log.open("w") as file:
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=file, stderr=file)
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"Kafka did not start: {log.read_text()[-600:]}") from None
                time.sleep(0.2)
        yield process.pid, f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class Bench:
    """One session of Spark, both brokers, and the four ways to read.

    Args:
        folder: For checkpoints.
        server: duobus.
        peer: Process and address of Kafka.
    """

    def __init__(self, folder: Path, server: ServerProcess, peer: tuple[int, str]) -> None:
        connector = jars("connector", f"-DincludeArtifactIds={CONNECTOR_ARTIFACTS}")
        spark_session.CONF["spark.jars"] = ",".join(map(str, connector))
        self.spark = spark_session.session(2)
        self._jvm = int(self.spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
        from duobus.spark import DuobusDataSource

        self.spark.dataSource.register(DuobusDataSource)
        self._folder = folder
        self._server = server
        self._kafka_pid, self._kafka = peer
        self.ways: dict[str, tuple[int, Callable[[int], None], Callable[[], int]]] = {
            "kafka stream": (self._kafka_pid, self._produce, self._kafka_stream),
            "duobus claim": (server.pid, self._send, self._claim),
            "kafka batch": (self._kafka_pid, lambda _: None, self._kafka_batch),
            "duobus browse": (server.pid, lambda _: None, self._browse),
        }

    def fill(self, rows: int) -> None:
        """What is looked at again and again."""
        self._produce(rows, "looked")
        self._send(rows, "looked")

    def _produce(self, rows: int, topic: str = "taken") -> None:
        body = ", ".join(f"sha2(string(id * {BODY // 32} + {part}), 256)" for part in range(BODY // 32))
        found = self.spark.range(rows).selectExpr(f"unhex(concat({body})) value")
        found.write.format("kafka").options(**{"kafka.bootstrap.servers": self._kafka, "topic": topic}).save()

    def _send(self, rows: int, queue: str = "taken") -> None:
        with (
            ServiceBusClient.from_connection_string(self._server.connection_string) as client,
            client.get_queue_sender(queue) as sender,
        ):
            for _ in range(0, rows, 200):
                sender.send_messages([ServiceBusMessage(os.urandom(BODY)) for _ in range(200)])

    def _kafka_options(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._kafka, "subscribe": topic, "startingOffsets": "earliest"}

    def _duobus_options(self, queue: str) -> dict[str, str]:
        http = self._server.ready["http_port"]
        return {"connectionStringEnv": ENV, "managementEndpoint": f"http://localhost:{http}", "queue": queue}

    def _kafka_stream(self) -> int:
        options = self._kafka_options("taken") | {"maxOffsetsPerTrigger": str(BATCH)}
        rows = self.spark.readStream.format("kafka").options(**options).load()
        return self._streamed(rows.select("offset", "timestamp", "value"), "kafka")

    def _claim(self) -> int:
        limits = {"maxMessagesPerTrigger": str(BATCH), "minPartitions": str(PARTITIONS)}
        rows = self.spark.readStream.format("duobus").schema(COLUMNS).options(**self._duobus_options("taken"), **limits)
        return self._streamed(rows.load(), "duobus")

    def _streamed(self, rows: Any, name: str) -> int:
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(self._folder / f"checkpoint-{name}"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(int(one["numInputRows"]) for one in query.recentProgress)

    def _kafka_batch(self) -> int:
        rows = self.spark.read.format("kafka").options(**self._kafka_options("looked")).load()
        return self._counted(rows.select("offset", "timestamp", "value"))

    def _browse(self) -> int:
        rows = self.spark.read.format("duobus").schema(COLUMNS).options(**self._duobus_options("looked")).load()
        return self._counted(rows)

    def _counted(self, rows: Any) -> int:
        from pyspark.sql import Observation, functions

        seen = Observation()
        rows.observe(seen, functions.count("*").alias("rows")).write.format("noop").mode("overwrite").save()
        return int(seen.get["rows"])

    def measured(self, way: str, rows: int) -> dict[str, Any]:
        """Fill, read all of it, and tell what that took.

        Raises:
            RuntimeError: Other rows came than were sent.
        """
        broker, fill, read = self.ways[way]
        fill(rows)
        before = cpu_s(broker, with_children=False), cpu_s(self._jvm, with_children=True)
        began = time.monotonic()
        found = read()
        elapsed_s = time.monotonic() - began
        used = [
            late - early
            for early, late in zip(
                before, (cpu_s(broker, with_children=False), cpu_s(self._jvm, with_children=True)), strict=True
            )
        ]
        if found != rows:
            raise RuntimeError(f"{way}: {found} rows came of {rows}")
        return {
            "way": way,
            "rows": rows,
            "elapsed_s": round(elapsed_s, 1),
            "broker_us_a_row": round(used[0] / rows * 1e6, 1),
            "spark_us_a_row": round(used[1] / rows * 1e6, 1),
            "rows_per_cpu_s": round(rows / sum(used)),
            "load": round(os.getloadavg()[0], 1),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=80_000, help="rows of each way and round")
    parser.add_argument("--rounds", type=int, default=8, help="rounds that are measured, after one that is not (8)")
    parser.add_argument("--quick", action="store_true", help="20,000 rows, one round")
    options = parser.parse_args()
    rows, rounds = (20_000, 1) if options.quick else (options.rows, options.rounds)
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            print(f"{tool} is not on PATH; this needs Java 17 or 21, and Maven", file=sys.stderr)
            return 2
    silence_sdk_logs()
    found: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="duobus-kafka-") as temporary:
        folder = Path(temporary)
        config = queues_config({queue: {} for queue in ("taken", "looked")})
        with (
            kafka(folder) as peer,
            ServerProcess(folder / "server", config=config, arguments=("--emulator",)) as server,
        ):
            os.environ[ENV] = server.connection_string
            bench = Bench(folder, server, peer)
            try:
                bench.fill(rows)
                for number in range(rounds + 1):
                    for way in bench.ways if number % 2 else reversed(bench.ways):
                        told = bench.measured(way, rows)
                        print(json.dumps({"round": number, **told}), flush=True)
                        if number:
                            found.setdefault(way, []).append(told["rows_per_cpu_s"])
            finally:
                bench.spark.stop()
    middle = {way: median(rates) for way, rates in found.items()}
    print(
        json.dumps(
            {
                "claim_of_kafka": round(middle["duobus claim"] / middle["kafka stream"], 2),
                "browse_of_kafka": round(middle["duobus browse"] / middle["kafka batch"], 2),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
