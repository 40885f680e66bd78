"""Part ``cluster``: three servers over one PostgreSQL, each of them killed in the middle of the traffic.

Every queue is sent to at one server and received from at another; whichever owns it. Not among the default parts: it
needs PostgreSQL, which it takes from a wheel.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from duobus.clock import Clock
from duobus.testing.postgres_server import PostgresError, PostgresServer, programs
from duobus.testing.server import DemoFailed, ServerProcess, queues_config
from duobus_demo.clients import UNKNOWN_OUTCOME, endpoints_of, silence_sdk_logs
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario

SERVERS: Final = 3
STORES: Final = 4
QUEUES: Final = tuple(f"orders-{number}" for number in range(6))
#: Messages of each queue between two kills.
MESSAGES: Final = 100
AT_ONCE: Final = 5

#: For how long messages are locked, in seconds: the shortest that there is, since the end waits for it.
LOCK_S: Final = 5
_PROPERTIES: Final = {"LockDuration": f"PT{LOCK_S}S", "MaxDeliveryCount": 1000}
_PHASE_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.02
#: Between two sends of a queue. Without it the traffic takes all of the machine, and the servers wait for their turn.
_SEND_EVERY_S: Final = 0.1
_TRY_AGAIN_S: Final = 0.1
_BROKEN: Final = (ServiceBusError, *UNKNOWN_OUTCOME)


class ClusterExpectations:
    """What was acknowledged and what came out, by queue; for use by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acknowledged: dict[str, set[str]] = {queue: set() for queue in QUEUES}
        self._received: Counter[str] = Counter()

    def acknowledged(self, queue: str, texts: list[str]) -> None:
        """These are the broker's from now on."""
        with self._lock:
            self._acknowledged[queue].update(texts)

    def received(self, text: str) -> None:
        """A message was received."""
        with self._lock:
            self._received[text] += 1

    def counts(self) -> dict[str, int]:
        """Acknowledged messages by queue."""
        with self._lock:
            return {queue: len(texts) for queue, texts in self._acknowledged.items()}

    def missing(self) -> list[str]:
        """What was acknowledged and has not come out."""
        with self._lock:
            return [text for texts in self._acknowledged.values() for text in texts if text not in self._received]

    def report(self) -> dict[str, int]:
        """The counts of the result."""
        missing = len(self.missing())
        with self._lock:
            return {
                "acknowledged": sum(map(len, self._acknowledged.values())),
                "received": len(self._received),
                "duplicates": self._received.total() - len(self._received),
                "lost": missing,
            }


class ClusterTraffic:
    """A sender and a receiver for each queue, at servers next to each other; as a context manager it runs them."""

    def __init__(self, servers: list[ServerProcess], expectations: ClusterExpectations, clock: Clock) -> None:
        self._clock = clock
        self._deadline_ms = 0
        self._servers = servers
        self._expectations = expectations
        self._is_over = threading.Event()
        self._is_sent = threading.Event()
        self._senders = [threading.Thread(target=self._send, args=(i, name)) for i, name in enumerate(QUEUES)]
        self._receivers = [threading.Thread(target=self._receive, args=(i, name)) for i, name in enumerate(QUEUES)]

    def __enter__(self) -> ClusterTraffic:
        for thread in (*self._senders, *self._receivers):
            thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Send no more, and receive what is left."""
        self._is_over.set()
        for thread in self._senders:
            thread.join()
        self._deadline_ms = self._clock.monotonic_ms() + 3000 * LOCK_S
        self._is_sent.set()
        for thread in self._receivers:
            thread.join()

    def _is_done(self) -> bool:
        # A link that ended in good order keeps its locks: its messages come again when these end.
        return not self._expectations.missing() or self._clock.monotonic_ms() > self._deadline_ms

    def _server(self, number: int) -> ServerProcess:
        return self._servers[number % len(self._servers)]

    def _send(self, index: int, queue: str) -> None:
        numbers = count()
        # A server that fails is left for the next one.
        for server in map(self._server, count(index)):
            if self._is_over.is_set():
                return
            try:
                with endpoints_of(server)[0].client() as bus, bus.get_queue_sender(queue) as sender:
                    while not self._is_over.is_set():
                        # Numbers are never used again: what was not answered may be there or not.
                        texts = [f"{queue}/{next(numbers)}" for _ in range(AT_ONCE)]
                        sender.send_messages([ServiceBusMessage(text, message_id=text) for text in texts])
                        self._expectations.acknowledged(queue, texts)
                        self._is_over.wait(_SEND_EVERY_S)
            except _BROKEN:
                self._is_over.wait(_TRY_AGAIN_S)

    def _receive(self, index: int, queue: str) -> None:
        for server in map(self._server, count(index + 1)):
            try:
                with endpoints_of(server)[0].client() as bus, bus.get_queue_receiver(queue) as receiver:
                    while True:
                        messages = receiver.receive_messages(50, max_wait_time=1)
                        for message in messages:
                            # Before it is completed: whether a completion that breaks was done, nobody can tell.
                            self._expectations.received(str(message))
                            receiver.complete_message(message)
                        if not messages and self._is_sent.is_set() and self._is_done():
                            return
            except _BROKEN:
                self._is_over.wait(_TRY_AGAIN_S)


class ClusterScenario:
    """One run of this part.

    Args:
        servers: Running, over one catalog.
        watcher: Told how it goes.
        clock: Time.
        limit_s: The part may take this long.
        messages: Of each queue between two kills.
    """

    def __init__(
        self, servers: list[ServerProcess], watcher: Watcher, clock: Clock, limit_s: float, messages: int = MESSAGES
    ) -> None:
        self._servers = servers
        self._watcher = watcher
        self._clock = clock
        self._messages = messages
        self._expectations = ClusterExpectations()
        self._began_ms = clock.monotonic_ms()
        self._deadline_ms = self._began_ms + int(limit_s * 1000)
        self._timeline: list[dict[str, Any]] = []
        self._pause = threading.Event()

    def play(self) -> dict[str, Any]:
        """Send, kill each server in turn and start it again; return the result's members.

        Raises:
            DemoFailed: Something did not happen in its time.
        """
        takeovers = []
        with ClusterTraffic(self._servers, self._expectations, self._clock) as traffic:
            for number, server in enumerate(self._servers, 1):
                self._progress(self._messages, "messages before the kill")
                server.kill()
                self._note(f"server {number} killed")
                killed_ms = self._clock.monotonic_ms()
                # Every queue, whoever had it: its new owner takes sends.
                self._progress(AT_ONCE, "sends to every queue after the kill")
                takeovers.append((self._clock.monotonic_ms() - killed_ms) / 1000)
                self._note("every queue takes messages")
                server.start()
                self._note(f"server {number} started again")
            self._progress(self._messages, "messages after the last kill")
            traffic.finish()
            self._note("all messages received")
        return {
            "part": "cluster",
            **self._expectations.report(),
            "missing": self._expectations.missing()[:10],
            "server_kills": len(takeovers),
            "takeover_seconds": [round(seconds, 2) for seconds in takeovers],
            "rows": {"Queues take sends again after": ", ".join(f"{seconds:.2f} s" for seconds in takeovers)},
            "timeline": self._timeline,
            "seconds": round((self._clock.monotonic_ms() - self._began_ms) / 1000, 2),
        }

    def _progress(self, more: int, what: str) -> None:
        """Wait until every queue has acknowledged so many more."""
        least = {queue: number + more for queue, number in self._expectations.counts().items()}
        began_ms = self._clock.monotonic_ms()
        while any(number < least[queue] for queue, number in self._expectations.counts().items()):
            now_ms = self._clock.monotonic_ms()
            if now_ms > min(self._deadline_ms, began_ms + int(_PHASE_TIMEOUT_S * 1000)):
                raise DemoFailed(f"The time was over while waiting for {what}: {self._expectations.counts()}.")
            report = self._expectations.report()
            self._watcher.progress(report["received"], report["acknowledged"])
            self._pause.wait(_PAUSE_S)

    def _note(self, text: str) -> None:
        at_s = (self._clock.monotonic_ms() - self._began_ms) / 1000
        self._timeline.append({"at": round(at_s, 2), "what": text})
        self._watcher.note(f"{text[0].upper()}{text[1:]}.")


def failures_of(result: dict[str, Any]) -> list[str]:
    """Return what makes a result a failure, one sentence each; empty when it is none."""
    failures = []
    if result["lost"]:
        failures.append(f"{result['lost']} acknowledged messages never came out: {result['missing']}.")
    if result["server_kills"] != SERVERS:
        failures.append(f"{result['server_kills']} servers were killed instead of {SERVERS}.")
    if not result["acknowledged"]:
        failures.append("Nothing was sent.")
    return failures


def play_cluster(
    folder: Path, watcher: Watcher, clock: Clock, limit_s: float, messages: int = MESSAGES
) -> dict[str, Any]:
    """Run the part with a PostgreSQL and three servers of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished; the text ends with the servers' last words.
    """
    silence_sdk_logs()
    try:
        programs()
    except PostgresError as error:
        raise DemoFailed(f"This part brings its own PostgreSQL. {error}") from error
    # Its processes are another user's, if we are root; they must be able to enter.
    with tempfile.TemporaryDirectory(prefix="duobus-demo-pg-", ignore_cleanup_errors=True) as postgres_folder:
        Path(postgres_folder).chmod(0o755)
        postgres = PostgresServer(Path(postgres_folder) / "server", durable=True)
        try:
            postgres.create()
            postgres.start()
            watcher.note("PostgreSQL is running.")
            return _with_servers(folder, postgres.url(), watcher, clock, limit_s, messages)
        except PostgresError as error:
            raise DemoFailed(str(error)) from error
        finally:
            postgres.remove()


def _with_servers(
    folder: Path, url: str, watcher: Watcher, clock: Clock, limit_s: float, messages: int
) -> dict[str, Any]:
    arguments = ("--emulator", "--join", url, "--stores", str(STORES), "--tls-self-signed")
    config = queues_config(dict.fromkeys(QUEUES, _PROPERTIES))
    servers = [
        ServerProcess(folder / f"server-{number}", config=config, arguments=arguments, clock=clock)
        for number in range(1, SERVERS + 1)
    ]
    try:
        for server in servers:
            server.start()
        return ClusterScenario(servers, watcher, clock, limit_s, messages).play()
    except DemoFailed as error:
        said = "\n".join(server.log_tail(15) for server in servers)
        raise DemoFailed(f"{error}\nThe end of the servers' logs:\n{said}") from error
    finally:
        for server in servers:
            server.kill()


PART = Scenario("Three servers over one PostgreSQL, each of them killed", play_cluster, failures_of)
