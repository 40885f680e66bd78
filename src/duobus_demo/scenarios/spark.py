"""Part ``spark``: the pipeline of a shop, declared in one document, killed in the middle of each of its stages.

Two namespaces get the same orders, one of them with some lost and some doubled on the way. The pipeline captures both
and a topic to tables, compares the two, sums the orders up in a report, and sends alerts to a topic. Its process group
is killed while each stage runs, and the same command is given again. In the end everything is counted by DuckDB and the
SDK, and priced from what the broker has metered. Not among the default parts: it needs Java.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from duobus.clock import Clock
from duobus.pipeline.state_folder import StateFolder
from duobus.spark.recovery import batches_in
from duobus.testing.server import DemoFailed, ServerProcess
from duobus_demo.clients import UNKNOWN_OUTCOME, endpoints_of, silence_sdk_logs
from duobus_demo.expectations import spark_tables
from duobus_demo.expectations.spark_plan import (
    ALERTS,
    EAST,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    WEST,
    Order,
    alerts_of,
    compare,
    orders,
    replicas,
    totals_of,
)
from duobus_demo.pipeline_process import JVM_OPTIONS, PipelineProcess, write_document
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.throughput_plot import Mark, Sample, draw

ORDERS: Final = 4_000
EVENTS: Final = 1_000
#: Messages of one batch of each capture, as the document has them: of orders and their replicas, and of events. So few
#: that a kill meets all three captures in their middle, with messages claimed.
TRIGGERS: Final = (800, 200)
#: The first kill comes when so much of the queue is in files.
KILL_AT: Final = 0.25
#: Names of the environment variables by which the pipeline gets its connection strings.
VARIABLES: Final = {WEST: "DUOBUS_DEMO_WEST", EAST: "DUOBUS_DEMO_EAST"}
#: The stages of the document, in the order in which a kill is meant for each; several may run at a kill.
STAGES: Final = ("capture-west", "capture-events", "capture-east", "totals", "compare", "alert")

#: Members of the summary of reconciling that are compared with the plan.
RECONCILED: Final = ("messages", "only_in_a", "only_in_b", "doubled", "body_differs")

_SEND_AT_ONCE: Final = 200
_SAMPLE_S: Final = 0.25
#: Between two looks at the stages: they may run for less than a second.
_LOOK_S: Final = 0.02
#: How long a stage has run when the kill comes, at least.
_MIDDLE_S: Final = 0.2
_RECEIVE_S: Final = 3.0
_PRICE_S: Final = 180.0
_PROPERTIES: Final = {"EnablePartitioning": True, "LockDuration": "PT30S", "MaxDeliveryCount": 1000}


def spark_config(name: str) -> dict[str, Any]:
    """The contents of the configuration of a namespace."""
    subscription = {"Name": SUBSCRIPTION, "Properties": {"LockDuration": "PT30S", "MaxDeliveryCount": 1000}}
    topics = [
        {"Name": TOPIC, "Properties": {"EnablePartitioning": True}, "Subscriptions": [subscription]},
        # Without duplicate detection, so that an alert that is sent again is seen twice, by its id.
        {"Name": ALERTS, "Subscriptions": [subscription]},
    ]
    entities = {"Queues": [{"Name": QUEUE, "Properties": _PROPERTIES}], "Topics": topics}
    return {"UserConfig": {"Namespaces": [{"Name": name, **entities}], "Logging": {"Type": "File"}}}


def demand_java() -> None:
    """Raise DemoFailed unless there is what Spark needs."""
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        raise DemoFailed(
            "Spark needs Java 17 or 21, and none was found: neither JAVA_HOME nor PATH has one. "
            "On Debian and Ubuntu: apt-get install openjdk-17-jre-headless"
        )


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


class SparkScenario:
    """One run of this part.

    Args:
        west: The broker with everything, running.
        east: The broker with the replicas, running.
        folder: For the document, its state, the tables and the plot.
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
        self._began_ms = clock.monotonic_ms()
        self._deadline_ms = self._began_ms + int(limit_s * 1000)
        self._lake = folder / "lake"
        self._captured = Captured(self._lake / WEST)
        self._samples: list[Sample] = []
        self._marks: list[Mark] = []
        self._killed: set[str] = set()
        self._pause = threading.Event()
        self._management = _management_of(west)
        ports = {name: server.ready["http_port"] for name, server in self._servers.items()}
        self._document = write_document(
            folder,
            {
                "http://127.0.0.1:5300": f"http://127.0.0.1:{ports[WEST]}",
                "http://127.0.0.1:5301": f"http://127.0.0.1:{ports[EAST]}",
            }
            | {
                f"maxMessagesPerTrigger = {count}": f"maxMessagesPerTrigger = {max(1, total * count // ORDERS)}"
                for count in TRIGGERS
            },
        )
        self._state = StateFolder(folder / "state")

    def play(self) -> dict[str, Any]:
        """Send, run and kill the pipeline, count, price, draw; return the result's members.

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
            self._run()
            left = self._left_behind()
        alerts = self._alerts()
        reconciled = self._state.stage("compare").status()["summary"]
        # The last minute of metering is written when the broker stops.
        self._servers[WEST].terminate()
        usage = self._priced()
        self._note("usage priced")
        plot = self._folder / "rate-and-backlog.svg"
        title = f"{self._total:,} messages from a partitioned queue to Parquet; killed in each stage of the pipeline"
        plot.write_text(draw(title, self._samples, self._marks))
        found = {name: compare(sent[name], spark_tables.captured(self._lake / name)) for name in sent}
        counts: Counter[str] = Counter()
        for difference in found.values():
            counts.update(difference.report())
        due = totals_of(orders(self._total))
        return {
            "part": "spark",
            "sent": sum(map(len, sent.values())),
            # A send that was not answered, or refused, ends the part.
            "acknowledged": sum(map(len, sent.values())),
            "received": sum(len(messages) for messages in sent.values()) - counts["lost"] + counts["doubled"],
            "lost": counts["lost"],
            "duplicates": counts["doubled"],
            "altered": counts["altered"] + counts["strange"],
            "left": len(left),
            "left_behind": left,
            "missing": [message_id for difference in found.values() for message_id in difference.lost][:10],
            "pipeline_kills": sum(mark.what.startswith("killed") for mark in self._marks),
            "not_killed": [name for name in STAGES if name not in self._killed],
            "totals_wrong": _differences(due, spark_tables.totals(self._lake / "totals")),
            "alerts_wrong": _differences(alerts_of(due), {name: bodies[0] for name, bodies in alerts.items()})
            + sum(body != bodies[0] for bodies in alerts.values() for body in bodies),
            "alerts": len(alerts),
            "alerts_repeated": sum(map(len, alerts.values())) - len(alerts),
            "reconciled": {name: reconciled[name] for name in RECONCILED},
            "reconciled_expected": self._expected(sent),
            "usage": usage,
            "rows": _rows(reconciled, alerts, usage, plot),
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

    # -- the pipeline -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Give the same command until it comes to its end, killed while each stage runs."""
        for stage in STAGES:
            if stage not in self._killed:
                self._killed_in(stage)
        process = self._process()
        try:
            self._until(process, lambda: not process.is_running, "the pipeline ends")
            process.end()
        finally:
            process.kill()
        self._note("pipeline ended")

    def _killed_in(self, stage: str) -> None:
        process = self._process()
        try:
            if stage.startswith("capture"):
                self._until(process, lambda: self._captured.count() >= KILL_AT * self._total, "a quarter is captured")
            self._until(process, lambda: bool(process.running_stages([stage])), f"{stage} runs", pause_s=_LOOK_S)
            if stage == "alert":
                self._until(process, lambda: self._hold_in_alerts(process), "an alert is sent", pause_s=_LOOK_S)
            else:
                # Stages that begin at the same time are hit as well, each of them in its middle.
                self._pause.wait(_MIDDLE_S)
        finally:
            process.kill()
        running = process.running_stages(list(STAGES))
        self._killed.update(running)
        self._note(f"killed in {', '.join(running) or 'no stage'}")

    def _hold_in_alerts(self, process: PipelineProcess) -> bool:
        """Stop the pipeline where some alerts are sent and it does not know yet; False while none is, and it goes on.

        The pipeline is stopped for each look: on a busy machine all would be sent before a question about them is
        answered. True, too, when the stage is over.
        """
        process.hold()
        if not process.running_stages(["alert"]) or self._alerts_sent():
            return True
        process.go_on()
        return False

    def _process(self) -> PipelineProcess:
        variables = {VARIABLES[name]: server.connection_string for name, server in self._servers.items()}
        return PipelineProcess(self._document, variables)

    def _alerts_sent(self) -> int:
        try:
            return self._management.get_subscription_runtime_properties(ALERTS, SUBSCRIPTION).total_message_count or 0
        except UNKNOWN_OUTCOME:
            return 0

    def _until(
        self, process: PipelineProcess, is_reached: Callable[[], bool], what: str, pause_s: float = _SAMPLE_S
    ) -> None:
        while not is_reached():
            if not process.is_running:
                raise DemoFailed(f"The pipeline ended before {what}.\n{process.log_tail()}")
            if self._clock.monotonic_ms() > self._deadline_ms:
                raise DemoFailed(f"The time was over before {what}.\n{process.log_tail()}")
            self._sample()
            self._pause.wait(pause_s)
        self._sample()

    def _priced(self) -> dict[str, Any]:
        """Usage and cost, by the command for this."""
        words = ["--metering", str(self._folder / WEST / "data"), "--compacted", str(self._lake / "metering")]
        words += ["--out", str(self._lake / "usage"), "--json", "--no-progress"]
        for setting in (JVM_OPTIONS, "spark.sql.shuffle.partitions=1", "spark.sql.codegen.wholeStage=false"):
            words += ["--conf", setting]
        done = subprocess.run(
            [sys.executable, "-m", "duobus", "spark", "usage", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PRICE_S,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(f"Usage could not be priced: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    # -- what is there in the end ---------------------------------------------------------------------------------

    def _left_behind(self) -> list[str]:
        """Messages, claims, locks and files that nobody would come back for."""
        found = []
        with _management_of(self._servers[EAST]) as east:
            queues: dict[str, Any] = {
                "west/orders": self._management.get_queue_runtime_properties(QUEUE),
                "west/events": self._management.get_subscription_runtime_properties(TOPIC, SUBSCRIPTION),
                "east/orders": east.get_queue_runtime_properties(QUEUE),
            }
        for name, about in queues.items():
            # Deferred messages and those under a lock count as well.
            if about.total_message_count:
                found.append(f"{about.total_message_count} messages in {name}")
        for stage in ("capture-west", "capture-events", "capture-east"):
            # Messages of a claim are deferred, and so counted above; here is what the checkpoint says of it.
            checkpoint = self._state.stage(stage).checkpoint
            if open_ := set(batches_in(checkpoint / "offsets")) - set(batches_in(checkpoint / "commits")):
                found.append(f"a claim of {stage}, of batch {max(open_)}")
        if (holder := self._state.holder()) is not None:
            found.append(f"the lock of the pipeline, by {holder}")
        return found + spark_tables.unfinished_in(self._lake)

    def _alerts(self) -> dict[str, list[dict[str, Any]]]:
        """The bodies of the alerts that came, by their ids."""
        found: dict[str, list[dict[str, Any]]] = {}
        with (
            endpoints_of(self._servers[WEST])[0].client() as client,
            client.get_subscription_receiver(ALERTS, SUBSCRIPTION) as receiver,
        ):
            while messages := receiver.receive_messages(_SEND_AT_ONCE, max_wait_time=_RECEIVE_S):
                for message in messages:
                    found.setdefault(str(message.message_id), []).append(json.loads(str(message)))
                    receiver.complete_message(message)
        return found

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


def _management_of(server: ServerProcess) -> ServiceBusAdministrationClient:
    text = server.connection_string_tls.replace(f":{server.ready['tls_port']}", f":{server.ready['http_port']}")
    return ServiceBusAdministrationClient.from_connection_string(text, connection_verify=server.ca, retry_total=0)


def _sdk_message(message: Order, key: str | None) -> ServiceBusMessage:
    return ServiceBusMessage(
        message.body,
        message_id=message.message_id,
        partition_key=key,
        subject=message.customer,
        application_properties={"amount": message.amount},
    )


def _differences(due: dict[str, Any], found: dict[str, Any]) -> int:
    """How many keys have another value than they should, or none, or should not be there."""
    return sum(due.get(key) != found.get(key) for key in due.keys() | found.keys())


def _rows(
    reconciled: dict[str, Any], alerts: dict[str, list[dict[str, Any]]], usage: dict[str, Any], plot: Path
) -> dict[str, str]:
    """What the table shows beside the counts."""
    rows = {
        "Reconciled": f"{reconciled['messages']:,} messages, {reconciled['only_in_a']:,} only in {WEST}, "
        f"{reconciled['only_in_b']:,} only in {EAST}, {reconciled['doubled']:,} doubled",
        "Alerts": f"{len(alerts):,}, {sum(map(len, alerts.values())) - len(alerts):,} of them sent again",
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
        "totals_wrong": "customers have other totals in the report than they should",
        "alerts_wrong": "alerts are missing, or have other ids or bodies than they should",
    }
    failures = [f"{result[name]} {text}: {result['missing']}." for name, text in must_be_zero.items() if result[name]]
    if result["left"]:
        failures.append(f"Left behind: {'; '.join(result['left_behind'])}.")
    if result["reconciled"] != result["reconciled_expected"]:
        failures.append(f"Reconciling found {result['reconciled']} and had to find {result['reconciled_expected']}.")
    if result["not_killed"]:
        failures.append(f"The pipeline was not killed in {', '.join(result['not_killed'])}.")
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


PART = Scenario("The pipeline of a shop in one document, killed in each of its stages", play_spark, failures_of)
