"""The most memory that a large batch takes where the broker claims it (``python -m benchmarks.spark_claim_memory``).

One batch of ``--rows`` messages is claimed, read by two tasks at a time and settled by a stream with ``availableNow``;
the batch before gives the stream its name and warms everything up. Told is the highest resident memory, in MiB, of the
broker, of the process that runs the source (the driver's part in Python), of the largest process of a task, and of
the JVM: as the kernel has noted it for each process (VmHWM), read ten times a second. For the broker and the JVM, what
they had before the batch is told beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from benchmarks import spark_session
from benchmarks.backlog import PER_SENDER, WINDOW
from benchmarks.load.exchange import Exchange, Limits
from benchmarks.load.link import Target
from benchmarks.load.message import Run
from benchmarks.load.sender import Sender
from benchmarks.load.verify import check_accepted
from benchmarks.peers import EMULATOR_KEY, EMULATOR_RULE
from benchmarks.spark_claims import stat_of
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import silence_sdk_logs

ENV: Final = "SPARK_CLAIM_MEMORY"
QUEUE: Final = "large"
#: What a process is called by its command line.
SOURCE, TASK = "source", "task"


def high_water_mib(pid: int) -> int:
    """The most that a process has had resident, in MiB; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")), 0)


def kind_of(pid: int) -> str | None:
    """What a process of Spark's is; None for those that are not measured."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    if b"python_streaming_source_runner" in words:
        return SOURCE
    return TASK if b"pyspark" in words and b"java" not in words.split(b"\0")[0] else None


class Watch(threading.Thread):
    """Reads the memory of the processes below one until it is told to end.

    Attributes:
        highest: By kind of process, MiB.
    """

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.highest: dict[str, int] = {SOURCE: 0, TASK: 0}
        self._root = root
        self._is_over = threading.Event()

    def run(self) -> None:
        """Until it is told."""
        while not self._is_over.wait(0.1):
            for pid in below(self._root):
                kind = kind_of(pid)
                if kind is not None:
                    self.highest[kind] = max(self.highest[kind], high_water_mib(pid))

    def end(self) -> None:
        """End it."""
        self._is_over.set()
        self.join()


def below(root: int) -> list[int]:
    """The processes below one."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = stat_of(int(path.name))
        if fields:
            parents.setdefault(int(fields[1]), []).append(int(path.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        found += (some := parents.get(waiting.pop(), []))
        waiting += some
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages of the batch")
    parser.add_argument("--body", type=int, default=64, help="bytes of each body")
    parser.add_argument("--memory", type=int, default=1024, help="of the broker, in MiB")
    options = parser.parse_args()
    silence_sdk_logs()
    with tempfile.TemporaryDirectory(prefix="duobus-claim-memory-") as temporary:
        folder = Path(temporary)
        arguments = ("--emulator", "--memory", str(options.memory))
        with ServerProcess(folder / "server", config=queues_config({QUEUE: {}}), arguments=arguments) as server:
            print(json.dumps(measured(folder, server, options.rows, options.body)))


def measured(folder: Path, server: ServerProcess, rows: int, body: int) -> dict[str, object]:
    """Take one batch of so many rows."""
    os.environ[ENV] = server.connection_string
    target = Target("127.0.0.1", int(server.ready["amqp_port"]), QUEUE, EMULATOR_RULE, EMULATOR_KEY)
    spark = spark_session.session(2)
    try:
        from duobus.spark import DuobusDataSource

        spark.dataSource.register(DuobusDataSource)
        jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
        stream = spark.readStream.format("duobus").options(
            connectionStringEnv=ENV,
            managementEndpoint=f"http://localhost:{server.ready['http_port']}",
            queue=QUEUE,
            maxMessagesPerTrigger=str(rows),
            maxBytesPerTrigger="16g",
        )

        def run() -> list[int]:
            writer = stream.load().writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return [int(one["numInputRows"]) for one in query.recentProgress if one["numInputRows"]]

        fill(target, 5_000, body)
        run()
        before = {"broker": high_water_mib(server.pid), "jvm": high_water_mib(jvm)}
        fill(target, rows, body)
        filled = high_water_mib(server.pid)
        watch = Watch(jvm)
        watch.start()
        began = time.monotonic()
        batches = run()
        took = time.monotonic() - began
        watch.end()
        after = {"broker": high_water_mib(server.pid), "jvm": high_water_mib(jvm), **watch.highest}
    finally:
        spark.stop()
    return {"rows": rows, "batches": batches, "before": before, "filled": filled, "highest": after, "s": round(took, 1)}


def fill(target: Target, rows: int, body: int) -> None:
    """Send so many messages."""
    for at in range(0, rows, PER_SENDER):
        with closing(Sender(target, Run(), 0, WINDOW, body)) as sender:
            Exchange([sender], [], Limits(messages=min(PER_SENDER, rows - at))).run()
            check_accepted(sender)


if __name__ == "__main__":
    main()
