"""Part ``spark``: a partitioned queue and a topic captured to Parquet while the driver of Spark is killed once.

Two namespaces get the same orders, one of them with some lost and some doubled on the way; reconciling has to find
exactly these. Usage and cost come from what the first broker has metered. Not among the default parts: it needs Java.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from duobus.clock import Clock
from duobus.testing.server import DemoFailed, ServerProcess
from duobus_demo.clients import UNKNOWN_OUTCOME, endpoints_of, silence_sdk_logs
from duobus_demo.expectations.spark_plan import EAST, QUEUE, SUBSCRIPTION, TOPIC, WEST, Order, compare, orders, replicas
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.throughput_plot import Mark, Sample, draw

ORDERS: Final = 4_000
EVENTS: Final = 1_000
#: Messages of one micro-batch of the stream that is killed: so few that the kill meets it in the middle.
TRIGGER: Final = 800
#: The driver is killed when so much of the queue is in files.
KILL_AT: Final = 0.25
#: Names of the environment variables by which the driver gets its connection strings.
VARIABLES: Final = {WEST: "DUOBUS_DEMO_WEST", EAST: "DUOBUS_DEMO_EAST"}

#: Members of the summary of reconciling that are compared with the plan.
RECONCILED: Final = ("messages", "only_in_a", "only_in_b", "doubled", "body_differs")

_SEND_AT_ONCE: Final = 200
_SAMPLE_S: Final = 0.25
_STOP_S: Final = 20.0
_PROPERTIES: Final = {"EnablePartitioning": True, "LockDuration": "PT30S", "MaxDeliveryCount": 1000}


def spark_config(name: str) -> dict[str, Any]:
    """The contents of the configuration of a namespace."""
    subscription = {"Name": SUBSCRIPTION, "Properties": {"LockDuration": "PT30S", "MaxDeliveryCount": 1000}}
    topic = {"Name": TOPIC, "Properties": {"EnablePartitioning": True}, "Subscriptions": [subscription]}
    entities = {"Queues": [{"Name": QUEUE, "Properties": _PROPERTIES}], "Topics": [topic]}
    return {"UserConfig": {"Namespaces": [{"Name": name, **entities}], "Logging": {"Type": "File"}}}


def demand_java() -> None:
    """Raise DemoFailed unless there is what Spark needs."""
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        raise DemoFailed(
            "Spark needs Java 17 or 21, and none was found: neither JAVA_HOME nor PATH has one. "
            "On Debian and Ubuntu: apt-get install openjdk-17-jre-headless"
        )


class Driver:
    """The driver of Spark as a process in a session of its own, so that it can be killed with all of its workers.

    Args:
        folder: For plan and log.
        steps: Of the plan.
        variables: Environment variables to add.
    """

    def __init__(self, folder: Path, steps: list[dict[str, Any]], variables: dict[str, str]) -> None:
        plan = folder / "plan.json"
        plan.write_text(json.dumps({"steps": steps}, indent=1))
        self._log = folder / "driver.log"
        self.summaries: dict[str, dict[str, Any]] = {}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "duobus_demo.spark_driver", str(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **variables},
                text=True,
            )
        self._reader = threading.Thread(target=self._read, name="driver output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                told = json.loads(line)
                self.summaries[told.pop("step")] = told.get("summary", told)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def go_on(self) -> None:
        """Let the step go on that waits."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL for the driver, the JVM and all Python workers at once; harmless when it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_STOP_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def end(self, timeout_s: float = _STOP_S) -> None:
        """Wait until it has ended by itself.

        Raises:
            DemoFailed: It did not, or it failed.
        """
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"The driver of Spark did not end.\n{self.log_tail()}") from None
        self._reader.join(timeout_s)
        if status:
            raise DemoFailed(f"The driver of Spark ended with status {status}.\n{self.log_tail()}")

    def log_tail(self, lines: int = 40) -> str:
        """The end of what it wrote to its standard error."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])


class Captured:
    """What is in the files of a capture; files are looked at once, as their numbers never change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[Path, int] = {}

    def files(self) -> Iterator[Path]:
        """Files that are complete: not those of a write under way, which come and go."""
        for folder, below, names in os.walk(self._folder):
            below[:] = [name for name in below if not name.startswith((".", "_"))]
            for name in names:
                if name.endswith(".parquet") and not name.startswith((".", "_")):
                    yield Path(folder, name)

    def count(self) -> int:
        """Messages in all files."""
        from pyarrow import ArrowInvalid, parquet

        for path in self.files():
            if path not in self._rows:
                try:
                    self._rows[path] = parquet.read_metadata(path).num_rows
                except (OSError, ArrowInvalid):
                    continue  # It was moved or is being written; the next look finds it.
        return sum(self._rows.values())

    def messages(self) -> Iterator[tuple[str, str]]:
        """(id, digest of the body) of every message."""
        from pyarrow import parquet

        for path in self.files():
            table = parquet.ParquetFile(path).read(columns=["message_id", "body"])
            for message_id, body in zip(table["message_id"].to_pylist(), table["body"].to_pylist(), strict=True):
                yield message_id, hashlib.sha256(body).hexdigest()


class SparkScenario:
    """One run of this part.

    Args:
        west: The broker with everything, running.
        east: The broker with the replicas, running.
        folder: For files, checkpoints and the plot.
        watcher: Told how it goes.
        clock: Time.
        limit_s: The part may take this long.
        total: Orders.
    """

    def __init__(
        self,
        west: ServerProcess,
        east: ServerProcess,
        folder: Path,
        watcher: Watcher,
        clock: Clock,
        limit_s: float,
        total: int = ORDERS,
    ) -> None:
        self._servers = {WEST: west, EAST: east}
        self._folder = folder
        self._watcher = watcher
        self._clock = clock
        self._total = total
        self._events = max(1, total * EVENTS // ORDERS)
        self._trigger = max(1, total * TRIGGER // ORDERS)
        self._began_ms = clock.monotonic_ms()
        self._deadline_ms = self._began_ms + int(limit_s * 1000)
        self._captured = Captured(folder / "lake" / WEST)
        self._samples: list[Sample] = []
        self._marks: list[Mark] = []
        self._pause = threading.Event()
        port = west.ready["http_port"]
        self._management = ServiceBusAdministrationClient.from_connection_string(
            west.connection_string_tls.replace(f":{west.ready['tls_port']}", f":{port}"),
            connection_verify=west.ca,
            retry_total=0,
        )

    def play(self) -> dict[str, Any]:
        """Send, capture, kill, capture on, reconcile, price, draw; return the result's members.

        Raises:
            DemoFailed: Something did not happen in its time.
        """
        sent = {
            WEST: self._send(WEST, QUEUE, orders(self._total)),
            EAST: self._send(EAST, QUEUE, replicas(self._total)),
            TOPIC: self._send(WEST, TOPIC, islice(orders(self._total), self._events)),
        }
        self._note(f"{sum(map(len, sent.values())):,} messages sent")
        with self._management:
            summaries = self._jobs()
        self._note("all jobs done")
        plot = self._folder / "rate-and-backlog.svg"
        title = f"{self._total:,} messages from a partitioned queue to Parquet; the driver is killed once"
        plot.write_text(draw(title, self._samples, self._marks))
        folders = {WEST: WEST, EAST: EAST, TOPIC: TOPIC}
        found = {name: compare(sent[name], Captured(self._folder / "lake" / folders[name]).messages()) for name in sent}
        counts: Counter[str] = Counter()
        for difference in found.values():
            counts.update(difference.report())
        return {
            "part": "spark",
            "sent": sum(map(len, sent.values())),
            # A send that was not answered, or refused, ends the part.
            "acknowledged": sum(map(len, sent.values())),
            "received": sum(len(messages) for messages in sent.values()) - counts["lost"] + counts["doubled"],
            "lost": counts["lost"],
            "duplicates": counts["doubled"],
            "altered": counts["altered"] + counts["strange"],
            "missing": [message_id for difference in found.values() for message_id in difference.lost][:10],
            "driver_kills": sum(mark.what.startswith("driver killed") for mark in self._marks),
            "reconciled": {name: summaries["reconcile"][name] for name in RECONCILED},
            "reconciled_expected": self._expected(sent),
            "usage": summaries["usage"],
            "rows": _rows(summaries["reconcile"], summaries["usage"], plot),
            "plot": str(plot),
            "timeline": [{"at": round(mark.at_s, 2), "what": mark.what} for mark in self._marks],
            "seconds": round(self._now_s(), 2),
        }

    @staticmethod
    def _expected(sent: dict[str, list[tuple[str, str]]]) -> dict[str, int]:
        """What reconciling has to find: by the plan, not by what was captured."""
        west, east = Counter(sent[WEST]), Counter(sent[EAST])
        doubled = sum(count > 1 for count in east.values())
        found = (len(west), len(west - east), len(east.keys() - west.keys()), doubled, 0)
        return dict(zip(RECONCILED, found, strict=True))

    # -- jobs ---------------------------------------------------------------------------------------------------

    def _jobs(self) -> dict[str, dict[str, Any]]:
        driver = self._driver()
        try:
            self._until(driver, lambda: self._captured.count() >= KILL_AT * self._total, "a quarter is captured")
            driver.kill()
            self._note("driver killed")
            driver = self._driver()
            self._until(driver, lambda: WEST in driver.summaries, "the queue is captured")
            self._note("queue captured")
            self._until(driver, lambda: "reconcile" in driver.summaries, "both namespaces are reconciled")
            self._note("two namespaces reconciled")
            # The last minute of metering is written when the broker stops.
            self._servers[WEST].terminate()
            driver.go_on()
            self._until(driver, lambda: "usage" in driver.summaries, "usage is priced")
            driver.end()
        finally:
            driver.kill()
        return driver.summaries

    def _driver(self) -> Driver:
        variables = {VARIABLES[name]: server.connection_string for name, server in self._servers.items()}
        return Driver(self._folder, self._steps(), variables)

    def _steps(self) -> list[dict[str, Any]]:
        lake = self._folder / "lake"

        def capture(name: str, place: str, trigger: int, entity: dict[str, str]) -> dict[str, Any]:
            settings = {
                "connectionStringEnv": VARIABLES[place],
                "managementEndpoint": f"http://127.0.0.1:{self._servers[place].ready['http_port']}",
                "path": str(lake / name),
                "checkpoint": str(self._folder / "checkpoints" / name),
                "maxMessagesPerTrigger": str(trigger),
                **entity,
            }
            return {"name": name, "job": "capture", "settings": settings, "waits": False}

        compared = {"a": str(lake / WEST), "b": str(lake / EAST), "out": str(lake / "both"), "names": f"{WEST},{EAST}"}
        priced = {
            "metering": str(self._folder / WEST / "data"),
            "compacted": str(lake / "metering"),
            "out": str(lake / "usage"),
        }
        return [
            capture(WEST, WEST, self._trigger, {"queue": QUEUE}),
            # Nobody is killed while these are captured, so that few batches do.
            capture(TOPIC, WEST, self._total, {"topic": TOPIC, "subscription": SUBSCRIPTION}),
            capture(EAST, EAST, self._total, {"queue": QUEUE}),
            {"name": "reconcile", "job": "reconcile", "settings": compared, "waits": False},
            {"name": "usage", "job": "usage", "settings": priced, "waits": True},
        ]

    def _until(self, driver: Driver, is_reached: Callable[[], bool], what: str) -> None:
        while not is_reached():
            if not driver.is_running:
                # What it told last may be on its way still.
                driver.end()
                if is_reached():
                    return
                raise DemoFailed(f"The driver of Spark ended before {what}.\n{driver.log_tail()}")
            if self._clock.monotonic_ms() > self._deadline_ms:
                raise DemoFailed(f"The time was over before {what}.\n{driver.log_tail()}")
            self._sample()
            self._pause.wait(_SAMPLE_S)
        self._sample()

    def _sample(self) -> None:
        server = self._servers[WEST]
        if not server.is_running:
            return
        captured = self._captured.count()
        try:
            backlog = self._management.get_queue_runtime_properties(QUEUE).total_message_count or 0
        except UNKNOWN_OUTCOME:
            return
        self._samples.append(Sample(self._now_s(), captured, backlog))
        self._watcher.progress(captured, self._total)

    # -- traffic ------------------------------------------------------------------------------------------------

    def _send(self, place: str, entity: str, messages: Iterable[Order]) -> list[tuple[str, str]]:
        """Send; returns (id, digest) of each."""
        sent: list[tuple[str, str]] = []
        source = iter(messages)
        try:
            with endpoints_of(self._servers[place])[0].client() as client, client.get_topic_sender(entity) as sender:
                while chunk := list(islice(source, _SEND_AT_ONCE)):
                    # What goes together in one batch has one key or none.
                    by_key: dict[str | None, list[Order]] = {}
                    for message in chunk:
                        by_key.setdefault(message.partition_key, []).append(message)
                    for key, group in by_key.items():
                        sender.send_messages([_sdk_message(message, key) for message in group])
                    sent.extend((message.message_id, message.digest) for message in chunk)
        except UNKNOWN_OUTCOME as error:
            raise DemoFailed(f"A send to {entity} of {place} failed: {error}") from error
        return sent

    def _note(self, text: str) -> None:
        self._marks.append(Mark(self._now_s(), text))
        self._watcher.note(f"{text[0].upper()}{text[1:]}.")

    def _now_s(self) -> float:
        return (self._clock.monotonic_ms() - self._began_ms) / 1000


def _sdk_message(message: Order, key: str | None) -> ServiceBusMessage:
    return ServiceBusMessage(message.body, message_id=message.message_id, partition_key=key)


def _rows(reconciled: dict[str, Any], usage: dict[str, Any], plot: Path) -> dict[str, str]:
    """What the table shows beside the counts."""
    rows = {
        "Reconciled": f"{reconciled['messages']:,} messages, {reconciled['only_in_a']:,} only in {WEST}, "
        f"{reconciled['only_in_b']:,} only in {EAST}, {reconciled['doubled']:,} doubled"
    }
    for kind, numbers in usage["by_kind"].items():
        rows[f"Usage: {kind}"] = f"{numbers['operations']:,} operations, {numbers['cost']} {usage['currency']}"
    for numbers in usage["by_entity"]:
        rows[f"Usage of {numbers['entity']}"] = f"{numbers['operations']:,} operations, {numbers['cost']}"
    return {**rows, "Cost": f"{usage['cost']} {usage['currency']}", "Plot": str(plot)}


def failures_of(result: dict[str, Any]) -> list[str]:
    """Return what makes a result a failure, one sentence each; empty when it is none."""
    must_be_zero = {
        "lost": "messages were sent and are in no file",
        "duplicates": "messages are in files twice",
        "altered": "messages are in files that nobody sent so",
    }
    failures = [f"{result[name]} {text}: {result['missing']}." for name, text in must_be_zero.items() if result[name]]
    if result["reconciled"] != result["reconciled_expected"]:
        failures.append(f"Reconciling found {result['reconciled']} and had to find {result['reconciled_expected']}.")
    if result["driver_kills"] != 1:
        failures.append(f"The driver was killed {result['driver_kills']} times instead of once.")
    return failures


def play_spark(folder: Path, watcher: Watcher, clock: Clock, limit_s: float, total: int = ORDERS) -> dict[str, Any]:
    """Run the part in ``folder`` with two brokers of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished; the text ends with the brokers' last words.
    """
    silence_sdk_logs()
    demand_java()
    west, east = (ServerProcess(folder / name, config=spark_config(name), clock=clock) for name in (WEST, EAST))
    try:
        with west, east:
            return SparkScenario(west, east, folder, watcher, clock, limit_s, total).play()
    except DemoFailed as error:
        said = "\n".join(server.log_tail(10) for server in (west, east))
        raise DemoFailed(f"{error}\nThe end of the brokers' logs:\n{said}") from error


PART = Scenario("Two namespaces captured to Parquet, the driver of Spark killed once", play_spark, failures_of)
