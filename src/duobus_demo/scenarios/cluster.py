"""Part ``cluster``: three servers over two PostgreSQL servers, each of the five killed in the middle of the traffic.

What is sent uses what a partitioned queue and topic have: sessions, duplicate detection, scheduled and deferred
messages, rules and forwarding, by way of whichever server. One sender goes through a pair of namespaces, whose primary
is the first server. Workers turn tasks into results, each in one transaction. Not among the default parts: it needs
PostgreSQL, which it takes from a wheel.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from duobus.clock import Clock
from duobus.ha.events import Diverted, Event, Syphoned
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sync import PairedNamespace, pair_namespace
from duobus.ha.sync.backlog_queues import paths
from duobus.testing.postgres_server import PostgresError, PostgresServer, programs
from duobus.testing.server import DemoFailed, ServerProcess, queues_config
from duobus_demo.clients import endpoints_of, silence_sdk_logs
from duobus_demo.expectations.cluster_account import ClusterAccount
from duobus_demo.expectations.transaction_account import TransactionAccount
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.scenarios.paired import BACKLOG
from duobus_demo.workers.cluster_workers import JOBS, FeatureTraffic, cluster_config
from duobus_demo.workers.transaction_client import TransactionClient
from duobus_demo.workers.transaction_workers import TransactionTraffic, transaction_queues

SERVERS: Final = 3
#: In the database of the catalog, and in the other one.
STORES: Final = (3, 3)
DATABASES: Final = len(STORES)
#: Of each kind of traffic, acknowledged between two kills.
MESSAGES: Final = 60
#: How long a database is away, in seconds.
AWAY_S: Final = 2.0
_PRIMARY_NAME: Final = "cluster"
_BACKLOG_QUEUES: Final = 2
_PHASE_TIMEOUT_S: Final = 90.0
_DRAIN_S: Final = 90.0
_PAUSE_S: Final = 0.02
_INTERVAL: Final = timedelta(seconds=1)
#: Counts of what is sent, and of what comes of it, too.
_SENT: Final = (*FeatureTraffic.FLOWS, "tasks")
_DONE: Final = (*_SENT, "results")


class ClusterScenario:
    """One run of this part.

    Args:
        servers: Running, over one catalog.
        databases: Running: that of the catalog, and the other one.
        secondary: The namespace that keeps jobs while the first server is away, running.
        watcher: Told how it goes.
        clock: Time.
        limit_s: The part may take this long.
        messages: Of each kind of traffic between two kills.
    """

    def __init__(
        self,
        servers: list[ServerProcess],
        databases: list[PostgresServer],
        secondary: ServerProcess,
        watcher: Watcher,
        clock: Clock,
        limit_s: float,
        messages: int = MESSAGES,
    ) -> None:
        self._servers = servers
        self._databases = databases
        self._secondary = secondary
        self._watcher = watcher
        self._clock = clock
        self._messages = messages
        self._account = ClusterAccount()
        self._transactions = TransactionAccount()
        self._began_ms = clock.monotonic_ms()
        self._deadline_ms = self._began_ms + int(limit_s * 1000)
        self._timeline: list[dict[str, Any]] = []
        self._pause = threading.Event()
        self._pair_counts: dict[type[Event], int] = {Diverted: 0, Syphoned: 0}
        self._takeovers: list[float] = []
        self._database_kills = 0

    def play(self) -> dict[str, Any]:
        """Send, kill each server and each database in turn and start it again; return the result's members.

        Raises:
            DemoFailed: Something did not happen in its time.
        """
        with self._paired() as pair:
            traffic = FeatureTraffic(
                self._client, self._account, self._clock, lambda: pair.get_queue_sender(JOBS), _DRAIN_S
            )
            transactions = TransactionTraffic(
                self._client, self._transaction_client, self._transactions, self._clock, _DRAIN_S
            )
            with transactions, traffic:
                for number in range(SERVERS):
                    self._kill_server(number)
                for number in reversed(range(DATABASES)):
                    self._kill_database(number)
                self._progress(self._messages, "messages after the last kill")
                # Both do at a time what is left.
                transactions.stop()
            self._note("all messages received")
        seconds = ", ".join(f"{one:.2f} s" for one in self._takeovers)
        counts, done = self._account.report(), self._transactions.report()
        return {
            "part": "cluster",
            **{_NAMES.get(name, name): number for name, number in counts.items()},
            "diverted": self._pair_counts[Diverted],
            "syphoned": self._pair_counts[Syphoned],
            "faults": self._account.details(),
            "server_kills": len(self._takeovers),
            "database_kills": self._database_kills,
            "takeover_seconds": [round(one, 2) for one in self._takeovers],
            "transactions": done,
            "rows": {
                "Came as two messages": str(counts["doubled"]),
                "Came before their time": str(counts["early"]),
                "Tasks, and their results": f"{done['tasks']}, {done['results']}",
                "Transactions": _in_words(done, _OUTCOMES),
                "Results and tasks": _in_words(done, _TRANSACTION_FAULTS),
                "All takes sends again after": seconds,
                "Databases killed": str(self._database_kills),
            },
            "timeline": self._timeline,
            "seconds": round((self._clock.monotonic_ms() - self._began_ms) / 1000, 2),
        }

    def _client(self, number: int) -> Any:
        return endpoints_of(self._servers[number % SERVERS])[0].client()

    def _transaction_client(self, number: int, name: str) -> TransactionClient:
        return TransactionClient(self._servers[number % SERVERS].connection_string, name, self._clock)

    @contextmanager
    def _paired(self) -> Iterator[PairedNamespace]:
        """A pair of the first server and the secondary, with a syphon."""
        with ExitStack() as stack:
            # Few retries of the SDK's own, so that the pair hears of a failure at once.
            primary, secondary = (
                stack.enter_context(endpoints_of(server)[0].client(retry_total=0))
                for server in (self._servers[0], self._secondary)
            )
            options = SendAvailabilityPairedNamespaceOptions(
                secondary,
                backlog_queue_count=_BACKLOG_QUEUES,
                failover_interval=_INTERVAL,
                ping_primary_interval=_INTERVAL,
                enable_syphon=True,
                primary_name=_PRIMARY_NAME,
                on_event=self._hear,
            )
            pair = pair_namespace(primary, options)
            stack.callback(pair.close)
            yield pair

    def _hear(self, event: Event) -> None:
        if isinstance(event, Diverted | Syphoned):
            # Each kind comes from one thread.
            self._pair_counts[type(event)] += event.messages

    def _kill_server(self, number: int) -> None:
        server, name = self._servers[number], f"server {number + 1}"
        self._progress(self._messages, f"messages before the kill of {name}")
        server.kill()
        self._note(f"{name} killed")
        killed_ms = self._clock.monotonic_ms()
        # In every part of all entities, whoever had it: its new owner takes sends.
        self._progress(self._messages // 4, "messages after the kill", _SENT)
        self._takeovers.append((self._clock.monotonic_ms() - killed_ms) / 1000)
        self._note("everything takes messages")
        server.start()
        self._note(f"{name} started again")

    def _kill_database(self, number: int) -> None:
        database, name = self._databases[number], "the other database" if number else "the database of the catalog"
        self._progress(self._messages, f"messages before the kill of {name}")
        database.stop("immediate")
        self._database_kills += 1
        self._note(f"{name} killed")
        self._pause.wait(AWAY_S)
        database.start()
        self._note(f"{name} started again")

    def _counts(self) -> dict[str, int]:
        return self._account.counts() | self._transactions.counts()

    def _progress(self, more: int, what: str, flows: Sequence[str] = _DONE) -> None:
        """Wait until so many more of each of these are counted."""
        before, began_ms = self._counts(), self._clock.monotonic_ms()
        while any(self._counts().get(flow, 0) < before.get(flow, 0) + more for flow in flows):
            now_ms = self._clock.monotonic_ms()
            if now_ms > min(self._deadline_ms, began_ms + int(_PHASE_TIMEOUT_S * 1000)):
                raise DemoFailed(f"The time was over while waiting for {what}: {self._counts()}.")
            report = self._account.report()
            self._watcher.progress(report["received"], report["acknowledged"])
            self._pause.wait(_PAUSE_S)

    def _note(self, text: str) -> None:
        at_s = (self._clock.monotonic_ms() - self._began_ms) / 1000
        self._timeline.append({"at": round(at_s, 2), "what": text})
        self._watcher.note(f"{text[0].upper()}{text[1:]}.")


#: What the results of other parts call these.
_NAMES: Final = {"repeats": "duplicates", "disordered": "out_of_order"}
_FAULTS: Final = {
    "lost": "acknowledged messages never came out",
    "doubled": "messages came out as two, though duplicates are detected",
    "out_of_order": "messages came out of their session's order",
    "early": "messages came before their time",
}
#: Of an attempt, in the table.
_OUTCOMES: Final = {
    "committed": "committed",
    "rolled_back": "rolled back on purpose",
    "refused": "rolled back by the broker",
    "unknown": "asked for and not answered",
    "unfinished": "broken before",
}
_TRANSACTION_FAULTS: Final = {
    "lost": "lost",
    "doubled": "doubled",
    "undone": "of transactions that were not committed",
    "left": "both there",
    "out_of_order": "out of order",
}


def _in_words(counts: Mapping[str, Any], names: Mapping[str, str]) -> str:
    return "\n".join(f"{counts[name]:,} {text}" for name, text in names.items())


def failures_of(result: dict[str, Any]) -> list[str]:
    """Return what makes a result a failure, one sentence each; empty when it is none."""
    failures = [f"{result[name]} {text}: {result['faults']}." for name, text in _FAULTS.items() if result[name]]
    failures += _transaction_failures(result["transactions"])
    for name, wanted, what in (("server_kills", SERVERS, "servers"), ("database_kills", DATABASES, "databases")):
        if result[name] != wanted:
            failures.append(f"{result[name]} {what} were killed instead of {wanted}.")
    if not result["acknowledged"]:
        failures.append("Nothing was sent.")
    if not result["diverted"]:
        failures.append("No message was diverted by the pair.")
    return failures


def _transaction_failures(done: Mapping[str, Any]) -> list[str]:
    failures = [
        f"{done[name]} tasks or results of transactions: {text}: {done['faults']}."
        for name, text in _TRANSACTION_FAULTS.items()
        if done[name]
    ]
    if not done["is_looked"]:
        failures.append("What was left of the tasks of transactions could not be looked at.")
    for name in ("results", "committed", "rolled_back"):
        if not done[name]:
            failures.append(f"The count of transactions has no {name.replace('_', ' ')}: {done}.")
    return failures


def play_cluster(
    folder: Path, watcher: Watcher, clock: Clock, limit_s: float, messages: int = MESSAGES
) -> dict[str, Any]:
    """Run the part with two PostgreSQL servers and four servers of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished; the text ends with the servers' last words.
    """
    silence_sdk_logs()
    try:
        programs()
    except PostgresError as error:
        raise DemoFailed(f"This part brings its own PostgreSQL. {error}") from error
    with ExitStack() as stack:
        # Its processes are another user's, if we are root; they must be able to enter.
        parent = stack.enter_context(tempfile.TemporaryDirectory(prefix="duobus-demo-pg-", ignore_cleanup_errors=True))
        Path(parent).chmod(0o755)
        databases = [PostgresServer(Path(parent) / f"server-{number}", durable=True) for number in range(DATABASES)]
        try:
            for database in databases:
                stack.callback(database.remove)
                database.create()
                database.start()
            watcher.note("Two PostgreSQL servers are running.")
            return _with_servers(folder, databases, watcher, clock, limit_s, messages)
        except PostgresError as error:
            raise DemoFailed(str(error)) from error


def _with_servers(
    folder: Path, databases: list[PostgresServer], watcher: Watcher, clock: Clock, limit_s: float, messages: int
) -> dict[str, Any]:
    own, elsewhere = STORES
    arguments = ["--emulator", "--join", databases[0].url(), "--stores", str(own), "--tls-self-signed"]
    arguments += ["--store", databases[1].url()] * elsewhere
    config = cluster_config(transaction_queues())
    servers = [
        ServerProcess(folder / f"server-{number}", config=config, arguments=tuple(arguments), clock=clock)
        for number in range(1, SERVERS + 1)
    ]
    backlogs = queues_config(dict.fromkeys(paths(_PRIMARY_NAME, _BACKLOG_QUEUES), BACKLOG))
    secondary = ServerProcess(folder / "secondary", config=backlogs, clock=clock)
    everyone = [*servers, secondary]
    try:
        with ThreadPoolExecutor(len(everyone)) as pool:
            list(pool.map(ServerProcess.start, everyone))
        return ClusterScenario(servers, databases, secondary, watcher, clock, limit_s, messages).play()
    except DemoFailed as error:
        said = "\n".join(server.log_tail(15) for server in servers)
        raise DemoFailed(f"{error}\nThe end of the servers' logs:\n{said}") from error
    finally:
        for server in everyone:
            server.kill()


PART = Scenario("Three servers over two PostgreSQL servers, each of the five killed", play_cluster, failures_of)
