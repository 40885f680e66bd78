"""Part ``cluster``: three servers over two PostgreSQL servers, each of the five killed in the middle of the traffic.

A partitioned queue with sessions, one with duplicate detection, scheduled and deferred messages, and a topic with rules
and a subscription that forwards, are used at all servers at a time; the jobs are sent through a pair of namespaces,
whose secondary keeps them while their server or their database is away. A shard is moved to another store, too. Not
among the default parts: it needs PostgreSQL, which it takes from a wheel.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusClient

from duobus.clock import Clock
from duobus.ha.events import Diverted, Event, Syphoned
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sdk import prompt_client
from duobus.ha.sync import pair_namespace
from duobus.model.access_rules import sign_token
from duobus.testing.postgres_server import PostgresError, PostgresServer, programs
from duobus.testing.server import DEFAULT_OPTIONS, DemoFailed, ServerProcess, queues_config
from duobus_demo.clients import endpoints_of, silence_sdk_logs
from duobus_demo.expectations.cluster_account import ClusterAccount
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario
from duobus_demo.workers.cluster_workers import JOBS, ClusterTraffic, cluster_config

SERVERS: Final = 3
#: In each of the two databases.
STORES: Final = 2
DATABASES: Final = ("the catalog's database", "the other database")
#: Of each flow, between two kills.
MESSAGES: Final = 20
#: After a kill, of each flow: it goes on.
AFTER_KILL: Final = 2
#: Longer than a lease lasts, in seconds.
AWAY_S: Final = 4.0
BACKLOG_QUEUES: Final = 2
PRIMARY_NAME: Final = "primary"
_BACKLOGS: Final = tuple(f"{PRIMARY_NAME}/x-servicebus-transfer/{index}" for index in range(BACKLOG_QUEUES))
_BACKLOG: Final = {"MaxDeliveryCount": 2_147_483_647, "DeadLetteringOnMessageExpiration": True}
_PHASE_TIMEOUT_S: Final = 60.0
_DRAIN_S: Final = 60.0
_PAUSE_S: Final = 0.02
_FAULTS: Final = ("lost", "doubled", "out_of_order", "early")


class PairedJobs:
    """What sends jobs through a pair of namespaces; counts what it has diverted."""

    def __init__(self, primary: ServerProcess, secondary: ServerProcess) -> None:
        self.diverted = 0
        self.syphoned = 0
        self._primary = primary
        self._secondary = secondary
        self._lock = threading.Lock()

    def _client(self, server: ServerProcess) -> ServiceBusClient:
        # Without retries of the SDK's own, so that the pair sees a failure at once.
        endpoint = endpoints_of(server)[0]
        return prompt_client(ServiceBusClient.from_connection_string(endpoint.connection_string, retry_total=0))

    def _hear(self, event: Event) -> None:
        with self._lock:
            self.diverted += event.messages if isinstance(event, Diverted) else 0
            self.syphoned += event.messages if isinstance(event, Syphoned) else 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """The pair's sender, for as long as the part runs."""
        options = SendAvailabilityPairedNamespaceOptions(
            self._client(self._secondary),
            backlog_queue_count=BACKLOG_QUEUES,
            failover_interval=timedelta(seconds=1),
            ping_primary_interval=timedelta(seconds=1),
            enable_syphon=True,
            primary_name=PRIMARY_NAME,
            on_event=self._hear,
        )
        pair = pair_namespace(self._client(self._primary), options)
        try:
            yield pair.get_queue_sender(JOBS)
        finally:
            pair.close()


class ClusterScenario:
    """One run of this part.

    Args:
        servers: Running, over one catalog.
        databases: The PostgreSQL servers, that of the catalog first.
        jobs: What sends jobs.
        watcher: Told how it goes.
        clock: Time.
        limit_s: The part may take this long.
        messages: Of each flow between two kills.
    """

    def __init__(
        self,
        servers: list[ServerProcess],
        databases: list[PostgresServer],
        jobs: PairedJobs,
        watcher: Watcher,
        clock: Clock,
        limit_s: float,
        messages: int = MESSAGES,
    ) -> None:
        self._servers = servers
        self._databases = databases
        self._jobs = jobs
        self._watcher = watcher
        self._clock = clock
        self._messages = messages
        self._account = ClusterAccount()
        self._began_ms = clock.monotonic_ms()
        self._deadline_ms = self._began_ms + int(limit_s * 1000)
        self._timeline: list[dict[str, Any]] = []
        self._pause = threading.Event()

    def play(self) -> dict[str, Any]:
        """Send, kill each server and each database in turn and start it again; return the result's members.

        Raises:
            DemoFailed: Something did not happen in its time.
        """
        takeovers: list[float] = []
        moves = 0
        with self._jobs.opened() as sender:
            traffic = ClusterTraffic(
                self._client, self._account, self._clock, lambda: contextlib.nullcontext(sender), _DRAIN_S
            )
            with traffic:
                for number, server in enumerate(self._servers, 1):
                    self._progress(self._messages, "messages before the kill")
                    server.kill()
                    self._note(f"server {number} killed")
                    takeovers.append(self._goes_on())
                    server.start()
                    self._note(f"server {number} started again")
                self._progress(self._messages, "messages before a shard is moved")
                moves = self._move()
                for name, database in reversed(list(zip(DATABASES, self._databases, strict=True))):
                    self._progress(self._messages, "messages before a database ends")
                    database.stop("immediate")
                    self._note(f"{name} killed")
                    self._pause.wait(AWAY_S)
                    database.start()
                    self._note(f"{name} started again")
                    takeovers.append(self._goes_on())
                self._progress(self._messages, "messages after the last kill")
            self._note("all messages received")
        counts = self._account.report()
        return {
            "part": "cluster",
            "acknowledged": counts["acknowledged"],
            "diverted": self._jobs.diverted,
            "syphoned": self._jobs.syphoned,
            "received": counts["received"],
            "duplicates": counts["repeats"],
            "lost": counts["lost"],
            "doubled": counts["doubled"],
            "out_of_order": counts["disordered"],
            "early": counts["early"],
            "details": self._account.details(),
            "kills": len(takeovers),
            "moves": moves,
            "takeover_seconds": [round(seconds, 2) for seconds in takeovers],
            "rows": {
                "Received again, its lock lost": str(counts["repeats"]),
                "One message as two": str(counts["doubled"]),
                "Scheduled and early": str(counts["early"]),
                "All flows go on after": ", ".join(f"{seconds:.2f} s" for seconds in takeovers),
            },
            "timeline": self._timeline,
            "seconds": round((self._clock.monotonic_ms() - self._began_ms) / 1000, 2),
        }

    def _client(self, number: int) -> ServiceBusClient:
        return endpoints_of(self._servers[number % SERVERS])[0].client()

    def _goes_on(self) -> float:
        """Wait until every flow is taken on; return the seconds that it took."""
        began_ms = self._clock.monotonic_ms()
        self._progress(AFTER_KILL, "sends of every flow after the kill")
        self._note("every flow goes on")
        return (self._clock.monotonic_ms() - began_ms) / 1000

    def _move(self) -> int:
        """Have a shard go to another store; return how many have."""
        began_ms = self._clock.monotonic_ms()
        while self._clock.monotonic_ms() < began_ms + int(_PHASE_TIMEOUT_S * 1000):
            rows = self._ask("GET", "fragments", entity=JOBS) or []
            if rows:
                row = rows[0]
                to = row["store"] % (2 * STORES) + 1
                begun = self._ask("POST", "moves", entity=JOBS, fragment=str(row["fragment"]), to=str(to))
                ended = None if begun is None else self._ended(begun)
                if ended == "done":
                    self._note(f"fragments {begun['fragments']} of {JOBS} moved to store {to}")
                    return 1
            # A store may be on its way between servers at this moment.
            self._pause.wait(1.0)
        return 0

    def _ended(self, begun: dict[str, Any]) -> str | None:
        key = {name: begun[name] for name in ("entity", "fragment", "from", "to", "begunMs")}
        for _ in range(round(_PHASE_TIMEOUT_S)):
            found = [one for one in self._ask("GET", "moves") or () if key.items() <= one.items()]
            if found and found[0]["state"] != "running":
                return str(found[0]["state"])
            self._pause.wait(0.5)
        return None

    def _ask(self, method: str, path: str, **query: str) -> Any:
        """What a server says; None when it refuses."""
        base = str(self._servers[0].ready["admin_url"])
        token = sign_token(base, "RootManageSharedAccessKey", "SAS_KEY_VALUE", self._clock.now_ms() // 1000 + 600)
        url = f"{base}/$duobus/{path}?{urllib.parse.urlencode(query)}"
        asked = urllib.request.Request(url, method=method, headers={"Authorization": token})
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def _progress(self, more: int, what: str) -> None:
        """Wait until every flow has acknowledged so many more."""
        before = self._account.counts()
        began_ms = self._clock.monotonic_ms()
        while not self._is_ahead(before, more):
            if self._clock.monotonic_ms() > min(self._deadline_ms, began_ms + int(_PHASE_TIMEOUT_S * 1000)):
                raise DemoFailed(f"The time was over while waiting for {what}: {self._account.counts()}.")
            report = self._account.report()
            self._watcher.progress(report["received"], report["acknowledged"])
            self._pause.wait(_PAUSE_S)

    def _is_ahead(self, before: dict[str, int], more: int) -> bool:
        counts = self._account.counts()
        return all(counts.get(flow, 0) >= before.get(flow, 0) + more for flow in (JOBS, "visits", "all", "red"))

    def _note(self, text: str) -> None:
        at_s = (self._clock.monotonic_ms() - self._began_ms) / 1000
        self._timeline.append({"at": round(at_s, 2), "what": text})
        self._watcher.note(f"{text[0].upper()}{text[1:]}.")


def failures_of(result: dict[str, Any]) -> list[str]:
    """Return what makes a result a failure, one sentence each; empty when it is none."""
    failures = [f"{result[name]} messages {name}: {result['details']}." for name in _FAULTS if result[name]]
    if result["kills"] != SERVERS + len(DATABASES):
        failures.append(f"{result['kills']} servers and databases were killed instead of {SERVERS + len(DATABASES)}.")
    if not result["moves"]:
        failures.append("No shard was moved.")
    if not result["acknowledged"]:
        failures.append("Nothing was sent.")
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
        databases = []
        try:
            for _ in DATABASES:
                # Its processes are another user's, if we are root; they must be able to enter.
                made = tempfile.TemporaryDirectory(prefix="duobus-demo-pg-", ignore_cleanup_errors=True)
                postgres_folder = stack.enter_context(made)
                Path(postgres_folder).chmod(0o755)
                postgres = PostgresServer(Path(postgres_folder) / "server", durable=True)
                stack.callback(postgres.remove)
                postgres.create()
                postgres.start()
                databases.append(postgres)
            watcher.note("Both PostgreSQL servers are running.")
            return _with_servers(folder, databases, watcher, clock, limit_s, messages)
        except PostgresError as error:
            raise DemoFailed(str(error)) from error


def _with_servers(
    folder: Path, databases: list[PostgresServer], watcher: Watcher, clock: Clock, limit_s: float, messages: int
) -> dict[str, Any]:
    catalog, other = (database.url() for database in databases)
    arguments = ["--emulator", "--join", catalog, "--stores", str(STORES), "--tls-port", "0"]
    arguments += ["--store", other] * STORES
    servers = [
        ServerProcess(folder / f"server-{number}", config=cluster_config(), arguments=arguments, clock=clock)
        for number in range(1, SERVERS + 1)
    ]
    backlogs = queues_config(dict.fromkeys(_BACKLOGS, _BACKLOG))
    secondary = ServerProcess(folder / "secondary", config=backlogs, arguments=DEFAULT_OPTIONS, clock=clock)
    started = [*servers, secondary]
    try:
        # Together: each waits for the catalog that the first of them makes.
        with ThreadPoolExecutor(len(started)) as pool:
            list(pool.map(ServerProcess.start, started))
        jobs = PairedJobs(servers[0], secondary)
        return ClusterScenario(servers, databases, jobs, watcher, clock, limit_s, messages).play()
    except DemoFailed as error:
        said = "\n".join(server.log_tail(15) for server in started)
        raise DemoFailed(f"{error}\nThe end of the servers' logs:\n{said}") from error
    finally:
        for server in started:
            server.kill()


PART = Scenario(
    "Three servers over two PostgreSQL servers, under a pair of namespaces, each of the five killed",
    play_cluster,
    failures_of,
)
