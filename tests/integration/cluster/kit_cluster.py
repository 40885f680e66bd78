"""Servers over one catalog in PostgreSQL, as processes, and clients of the SDK for each of them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

import duobus
from duobus.ha.sdk import prompt_client
from duobus.testing import server as server_process
from duobus.testing.ports import HeldPort
from duobus.testing.postgres_server import PostgresServer
from kits.postgres import running_postgres

START_S = 40.0
#: For how long messages of queues under traffic are locked.
LOCK_S = 5
#: Between two sends to a queue under traffic, so that the clients leave the servers something of the machine.
PAUSE_S = 0.2


#: How long a test waits for what several servers do.
WAIT_S = 60.0


def until(what: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def take(receiver: Any, number: int) -> list[Any]:
    """Receive so many messages, or what there is when the time is over."""
    found: list[Any] = []
    end = time.monotonic() + WAIT_S
    while len(found) < number and time.monotonic() < end:
        found += receiver.receive_messages(number - len(found), max_wait_time=2)
    return found


def clock_words(file: Path) -> list[str]:
    """What the command of a server begins with whose clock is off by what a file tells, in nanoseconds."""
    variables = clock_variables(file, sys.path)
    return ["env", *(f"{name}={value}" for name, value in variables.items())]


def clock_variables(file: Path, paths: Iterable[str] = ()) -> dict[str, str]:
    """The variables of such a process, which looks for modules in these folders as well."""
    shim = Path(__file__).with_name("cuts") / "wrong_clock"
    found = os.pathsep.join([str(shim), str(Path(duobus.__file__).parents[1]), *filter(None, paths)])
    return {"PYTHONPATH": found, "DUOBUS_WRONG_CLOCK": str(file)}


def write_clock(file: Path, off_s: float) -> None:
    """From now on the clocks that a file tells are off by so many seconds."""
    file.touch()
    # In place: processes have the file mapped.
    with file.open("r+b") as opened:
        opened.write(struct.pack("<q", int(off_s * 1e9)))


class Plain(RequestsTransport):
    """Speaks plain HTTP: a hook that the SDK offers."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


class Cluster:
    """Three servers."""

    def __init__(
        self,
        folder: Path,
        postgres: PostgresServer,
        *,
        servers: int = 3,
        stores: int = 4,
        elsewhere: int = 0,
        more: Callable[[int], list[str]] | None = None,
    ) -> None:
        self.postgres = postgres
        # The address of the catalog that servers are given.
        self.join = postgres.url()
        # Options that not every server has in common.
        self._more = more or (lambda _number: [])
        self._folder = folder
        self._stores = stores
        # In other databases than the catalog's.
        self._elsewhere = elsewhere
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = [(HeldPort(), HeldPort()) for _ in range(servers)]
        self._known: dict[int, dict[str, Any]] = {}
        self.servers = range(servers)

    def start(self, number: int) -> None:
        """Start a server; again on the ports that it had."""
        port, http_port = self._ports[number]
        data = self._folder / f"server-{number}"
        data.mkdir(exist_ok=True)
        (data / "ready.json").unlink(missing_ok=True)
        options = ["--data", str(data), "--join", self.join, "--emulator", "--stores", str(self._stores)]
        options += ["--port", str(port.number), "--http-port", str(http_port.number), "--tls-port", "0"]
        options += ["--ready-file", str(data / "ready.json"), *self._more(number)]
        with (data / "log").open("ab") as log:
            command = [*self.words(number), sys.executable, "-m", "duobus", "serve", *options]
            self._processes[number] = server_process.start_process(command, log)

    def folder_of(self, number: int) -> Path:
        """The data folder of a server."""
        return self._folder / f"server-{number}"

    def words(self, _number: int) -> list[str]:
        """What the command of a server begins with."""
        return []

    def host(self, _number: int) -> str:
        """Where clients find a server."""
        return "localhost"

    def await_ready(self, number: int) -> None:
        ready = self._folder / f"server-{number}" / "ready.json"
        end = time.monotonic() + START_S
        while not ready.exists():
            assert self._processes[number].poll() is None, self.log_of(number)
            assert time.monotonic() < end, self.log_of(number)
            time.sleep(0.05)
        self._known[number] = json.loads(ready.read_text())

    def log_of(self, number: int) -> str:
        return (self._folder / f"server-{number}" / "log").read_text()[-4000:]

    def address(self, number: int) -> str:
        address: str = self._known[number]["connection_string"]
        return address.replace("localhost", self.host(number))

    def http(self, number: int) -> str:
        address: str = self._known[number]["admin_url"]
        return address.replace("localhost", self.host(number))

    def tls_port(self, number: int) -> int:
        """Where a server takes AMQP over TLS."""
        return int(self._known[number]["tls_port"])

    def client(self, number: int, **options: Any) -> ServiceBusClient:
        return prompt_client(ServiceBusClient.from_connection_string(self.address(number), **options))

    def admin(self, number: int) -> ServiceBusAdministrationClient:
        port = self._known[number]["http_port"]
        address = f"Endpoint=sb://{self.host(number)}:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        return ServiceBusAdministrationClient.from_connection_string(
            address + "SharedAccessKey=SAS_KEY_VALUE", transport=Plain()
        )

    def serving(self, *servers: int) -> dict[int, list[str]]:
        """The stores that are open at each of these servers, all of them unless they are named."""
        found = {}
        for number in servers or self.servers:
            try:
                with urllib.request.urlopen(f"{self.http(number)}/health", timeout=60) as answer:
                    stores = json.load(answer)["stores"]
            except OSError:
                # It says that it can serve nothing now.
                stores = {}
            found[number] = sorted(store for store, state in stores.items() if state == "open")
        return found

    def start_all(self) -> None:
        """Start all servers at a time, and wait until each is ready."""
        for number in self.servers:
            self.start(number)
        for number in self.servers:
            self.await_ready(number)

    def await_served(self, *servers: int) -> float:
        """Wait until these servers have opened all stores, evenly spread; return the seconds that it took."""
        begun = time.monotonic()
        while True:
            found = self.serving(*servers)
            shares = sorted(map(len, found.values()))
            if sum(shares) == self._stores + self._elsewhere and shares[-1] - shares[0] <= 1:
                return time.monotonic() - begun
            assert time.monotonic() < begun + 30, (found, self.log_of(next(iter(found))))
            time.sleep(0.05)

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def signal(self, number: int, what: int) -> None:
        self._processes[number].send_signal(what)

    def terminate(self, number: int) -> float:
        """Stop in good order; return the seconds that it took."""
        begun = time.monotonic()
        self._processes[number].terminate()
        assert self._processes[number].wait(60) == 0, self.log_of(number)
        return time.monotonic() - begun

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def running_cluster(folder: Path, **options: Any) -> Iterator[Cluster]:
    """A cluster that is gone afterwards."""
    with running_postgres(durable=True) as postgres:
        cluster = Cluster(folder, postgres, **options)
        try:
            cluster.start_all()
            yield cluster
        finally:
            cluster.close()


class Traffic:
    """Senders and receivers at every server, each with one queue, and a record of what was acknowledged."""

    def __init__(self, cluster: Cluster, queues: list[str]) -> None:
        self.sent: set[str] = set()
        self.received: dict[str, int] = {}
        self._cluster = cluster
        self._lock = threading.Lock()
        self._deadline = 0.0
        self._is_over = threading.Event()
        self._is_sent = threading.Event()
        self._senders = [threading.Thread(target=self._send, args=(i, name)) for i, name in enumerate(queues)]
        self._receivers = [threading.Thread(target=self._receive, args=(i, name)) for i, name in enumerate(queues)]
        for thread in (*self._senders, *self._receivers):
            thread.start()

    def _client(self, number: int) -> ServiceBusClient:
        return self._cluster.client(number % len(self._cluster.servers), retry_total=1, retry_backoff_factor=0.1)

    def _send(self, number: int, name: str) -> None:
        count = 0
        while not self._is_over.is_set():
            try:
                with self._client(number) as bus, bus.get_queue_sender(name) as sender:
                    while not self._is_over.is_set():
                        texts = [f"{name}-{number}-{count + i}" for i in range(5)]
                        # Counted before: an unanswered one may come or not, and must not be taken for another.
                        count += 5
                        sender.send_messages([ServiceBusMessage(text) for text in texts])
                        with self._lock:
                            self.sent.update(texts)
                        time.sleep(PAUSE_S)
            except (ServiceBusError, OSError):
                time.sleep(0.1)

    def _receive(self, number: int, name: str) -> None:
        # At another server than the sender.
        while True:
            try:
                with self._client(number + 1) as bus, bus.get_queue_receiver(name) as receiver:
                    while True:
                        found = receiver.receive_messages(50, max_wait_time=1)
                        for message in found:
                            # Before it is completed: that may be done though its answer is lost.
                            with self._lock:
                                text = str(message)
                                self.received[text] = self.received.get(text, 0) + 1
                            receiver.complete_message(message)
                        if (
                            not found
                            and self._is_sent.is_set()
                            and (not self.lost or time.monotonic() > self._deadline)
                        ):
                            return
            except (ServiceBusError, OSError):
                time.sleep(0.1)

    def stop(self) -> None:
        """Send no more, and receive what is left."""
        self._is_over.set()
        for thread in self._senders:
            thread.join()
        # A link that ended in good order keeps its locks: its messages come again when these end.
        self._deadline = time.monotonic() + 3 * LOCK_S
        self._is_sent.set()
        for thread in self._receivers:
            thread.join()

    @property
    def lost(self) -> set[str]:
        with self._lock:
            return self.sent - self.received.keys()
