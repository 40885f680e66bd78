"""The brokers under test: how each is started, addressed and stopped.

A further one (RabbitMQ, say) is a further subclass of `Peer`; the runner knows nothing else of a broker.
"""

import json
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any
from urllib.parse import quote

from benchmarks.load.link import Target
from benchmarks.load.sessions import SUFFIX
from benchmarks.load.workloads import queue_name
from duobus.model.access_rules import sign_token
from duobus.testing.postgres_server import PostgresError, PostgresServer

LOG_TAIL = 2000
_QUEUE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)
EMULATOR_RULE = "RootManageSharedAccessKey"
EMULATOR_KEY = "SAS_KEY_VALUE"
#: As docs/how-to/postgresql.md advises: what is written twice after each checkpoint is written seldom, and segments of
#: the log are used again instead of being laid out anew.
POSTGRES_SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "min_wal_size": "4GB",
    "checkpoint_timeout": "15min",
}
#: Segments (of 16 MiB) that a server's log begins with: more than the measured rounds write.
LOG_SEGMENTS = 128


def lay_out_log(server: PostgresServer, segments: int = LOG_SEGMENTS) -> None:
    """Give a new PostgreSQL server the log of one that has run for a while: segments that are there to be used again.

    A segment that is new is written with zeros and synced by the commit that comes to it first, which doubles what the
    disk has to write; a server does that until its first checkpoints only.
    """
    # One call each: a segment is left only when there is something in it.
    for _ in range(segments):
        server.execute("SELECT pg_logical_emit_message(false, 'bench', 'x')")
        server.execute("SELECT pg_switch_wal()")
    server.execute("CHECKPOINT")


def end_process(process: subprocess.Popen[bytes], timeout: float) -> None:
    """Ask a process to end, and make it end if it does not within so many seconds."""
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_of_log(folder: Path | None) -> str:
    """Return the end of the file `log` in the folder of a peer; nothing when the peer does not run."""
    return "" if folder is None else (folder / "log").read_text(errors="replace")[-LOG_TAIL:]


class PeerError(Exception):
    """A broker did not start, or ended when it should not have; the text holds the end of its log."""


class Peer(ABC):
    """A broker and one way to configure it.

    Attributes:
        name: what the results call it.
        version: which release it is, where that is not this project's commit; known once it has started.
        warm_up_passes: how often every workload runs unmeasured after a start, for brokers that compile while they run.
    """

    warm_up_passes = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = ""

    @abstractmethod
    def start(self) -> float:
        """Start on an empty data folder and wait until it takes connections.

        Returns:
            Seconds from start to readiness.

        Raises:
            PeerError: it did not come up.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop and delete the data; harmless when it does not run."""

    @property
    @abstractmethod
    def target(self) -> Target:
        """Where the load goes."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process whose use of processor and memory counts."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that stand beside the figures of a peer."""
        return {}

    @property
    def unpromised(self) -> Sequence[str]:
        """Sentences about what the peer does not promise and duobus does, to stand beside the figures."""
        return ()

    def connection_string(self) -> str:
        """The connection string for the SDK of Service Bus.

        Raises:
            PeerError: the broker does not speak Service Bus.
        """
        raise PeerError(f"{self.name} does not speak Service Bus")

    @contextmanager
    def queues(self, count: int) -> Iterator[None]:
        """Have `count` further queues, named by `workloads.queue_name`; by default the first link makes a queue."""
        del count
        yield

    def measured(self) -> AbstractContextManager[None]:
        """What goes on beside the broker while it is measured."""
        return nullcontext()

    def log_tail(self) -> str:
        """Return the end of the broker's log, for the report of a failure."""
        return ""

    def supports(self, workload: str) -> bool:
        """Whether the broker knows the workload at all: E needs the batch format of Service Bus, SDK1 its SDK."""
        return bool(workload)


def queue_config(name: str, *, partitioned: bool) -> dict[str, Any]:
    """Return the configuration file, in the emulator's format, of a namespace with one queue, and one of sessions."""
    properties = {
        "DefaultMessageTimeToLive": "PT1H",
        "LockDuration": "PT1M",
        "MaxDeliveryCount": 10,
        "EnablePartitioning": partitioned,
    }
    queues = [
        {"Name": name, "Properties": properties},
        {"Name": name + SUFFIX, "Properties": {**properties, "RequiresSession": True}},
    ]
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": []}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}


class DuobusPeer(Peer):
    """Our broker as `duobus serve` in a process of its own.

    Args:
        name: name of the configuration and of its one queue.
        command: the words that start the `duobus` program.
        stores: message stores of the server.
        partitioned: whether the queue is spread over fragments.
        data_root: the folder in which data folders are made; it should lie on the disk that counts.
        timeout: seconds that start and stop may take.
        python_path: folder that the server takes the package from, instead of where it is installed.
        postgres: whether the stores are in a PostgreSQL server of the peer's own, on the same disk, which syncs.
        ephemeral: whether everything is kept in memory.
        tls: whether the load comes over TLS, with a certificate of the server's own making.
        journal: whether commits go to a journal first.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        stores: int,
        partitioned: bool,
        data_root: Path,
        timeout: float = 30.0,
        python_path: Path | None = None,
        postgres: bool = False,
        ephemeral: bool = False,
        tls: bool = False,
        journal: bool = True,
    ) -> None:
        super().__init__(f"duobus-{name}")
        self._has_journal = journal
        self._is_ephemeral = ephemeral
        self._is_tls = tls
        self._in_postgres = postgres
        self._postgres: PostgresServer | None = None
        self._python_path = python_path
        self._queue = name
        self._command = list(command)
        self._stores = stores
        self._partitioned = partitioned
        self._data_root = data_root
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._ready: dict[str, Any] = {}

    def start(self) -> float:
        """Start the server; see `Peer.start`."""
        self.stop()
        folder = Path(tempfile.mkdtemp(prefix="duobus-bench-", dir=self._data_root))
        self._folder = folder
        config, ready = folder / "Config.json", folder / "ready.json"
        config.write_text(json.dumps(queue_config(self._queue, partitioned=self._partitioned)))
        files = ["--data", str(folder / "data"), "--config", str(config), "--ready-file", str(ready)]
        options = ["--port", "0", "--http-port", "0", "--emulator", *self._store_options(folder)]
        options += ["--ephemeral"] if self._is_ephemeral else []
        options += [] if self._has_journal else ["--no-journal"]
        options += ["--tls-self-signed", "--tls-port", "0"] if self._is_tls else []
        with (folder / "log").open("wb") as log:
            started = perf_counter()
            self._process = subprocess.Popen(
                [*self._command, "serve", *files, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
            )
        self._ready = self._wait_for(ready, started)
        return perf_counter() - started

    def _store_options(self, folder: Path) -> list[str]:
        if not self._in_postgres:
            return ["--stores", str(self._stores)]
        # its processes are another user's, if we are root
        folder.chmod(0o755)
        self._postgres = PostgresServer(folder / "postgres", durable=True, settings=POSTGRES_SETTINGS)
        try:
            self._postgres.create()
            self._postgres.start()
            lay_out_log(self._postgres)
        except PostgresError as error:
            raise PeerError(f"{self.name}: {error}") from error
        return ["--store", self._postgres.url()] * self._stores

    def _environment(self) -> dict[str, str] | None:
        if self._python_path is None:
            return None
        return os.environ | {"PYTHONPATH": str(self._python_path)}

    def _wait_for(self, ready: Path, started: float) -> dict[str, Any]:
        while perf_counter() - started < self._timeout:
            if self._process is None or self._process.poll() is not None:
                raise PeerError(f"{self.name} ended while it started:\n{self.log_tail()}")
            try:
                found = json.loads(ready.read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                # not there yet, or not written to its end
                sleep(0.001)
                continue
            if not isinstance(found, dict) or "amqp_port" not in found:
                raise PeerError(f"{self.name}: its ready file holds no amqp_port")
            return found
        raise PeerError(f"{self.name} was not ready within {self._timeout:g} s:\n{self.log_tail()}")

    def stop(self) -> None:
        """Ask the server to end, make it end if it does not, and delete its folder."""
        process, self._process = self._process, None
        if process is not None:
            end_process(process, self._timeout)
        postgres, self._postgres = self._postgres, None
        if postgres is not None:
            postgres.remove()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def target(self) -> Target:
        """The queue, with the rule and key of the ready file or else the emulator's."""
        parts = dict(
            part.partition("=")[::2] for part in str(self._ready.get("connection_string", "")).split(";") if part
        )
        rule = parts.get("SharedAccessKeyName", EMULATOR_RULE)
        key = parts.get("SharedAccessKey", EMULATOR_KEY)
        if self._is_tls:
            authority = str(self._ready["ca"])
            return Target(
                "127.0.0.1", int(self._ready["tls_port"]), self._queue, rule, key, "localhost", authority=authority
            )
        return Target("127.0.0.1", int(self._ready["amqp_port"]), self._queue, rule, key)

    def connection_string(self) -> str:
        """See `Peer.connection_string`; over TLS only where the load is."""
        return str(self._ready["connection_string"])

    def supports(self, workload: str) -> bool:
        """See `Peer.supports`; the programs of the SDK connect without TLS, so they say nothing about it."""
        return not (self._is_tls and workload.startswith("SDK"))

    @contextmanager
    def queues(self, count: int) -> Iterator[None]:
        """Create the queues over HTTP before, and delete them afterwards; see `Peer.queues`."""
        names = [queue_name(self._queue, number) for number in range(count)]
        self._manage("PUT", names, 201, _QUEUE.encode())
        try:
            yield
        finally:
            self._manage("DELETE", names, 200, b"")

    def _manage(self, method: str, names: Sequence[str], wanted: int, body: bytes) -> None:
        token = sign_token("http://localhost/", EMULATOR_RULE, EMULATOR_KEY, int(time()) + 3600)
        head = {"Authorization": token, "Content-Type": "application/atom+xml"}
        connection = HTTPConnection("localhost", int(self._ready["http_port"]), timeout=self._timeout)
        try:
            for name in names:
                connection.request(method, f"/{quote(name)}?api-version=2021-05", body, head)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != wanted:
                    raise PeerError(f"{self.name}: {method} {name} was answered {answer.status}: {text[:200]!r}")
        except (OSError, HTTPException) as error:
            raise PeerError(f"{self.name}: {method} of queues failed: {error}") from error
        finally:
            connection.close()

    @property
    def pid(self) -> int:
        """The server's process id.

        Raises:
            PeerError: it does not run.
        """
        if self._process is None:
            raise PeerError(f"{self.name} does not run")
        # a launcher may have started the server as a child: the ready file knows the process itself
        return int(self._ready.get("pid", self._process.pid))

    def log_tail(self) -> str:
        """Return the end of what the server printed."""
        return end_of_log(self._folder)
