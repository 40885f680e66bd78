"""PostgreSQL under a messaging store crashes, is cut off, is replaced by its standby, or is full: nothing is lost."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from kit_faults import BIG, Outcomes, fill, need_root, small_disk, until

from duobus.testing.postgres_server import PostgresError, PostgresServer, programs
from duobus.testing.server import ServerProcess, queues_config
from kits.postgres import running_postgres

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    # The SDK forgets the socket of a connection that could not be made.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

QUEUE = "queue"
#: Messages of a list, which is stored as a whole or not at all.
TOGETHER = 20


class Bus:
    """A broker whose only store is in PostgreSQL, and a sender that never gives up."""

    def __init__(self, folder: Path, *addresses: str) -> None:
        options = ["--emulator", "--log-format", "json"]
        for address in addresses:
            options += ["--store", address]
        self.process = ServerProcess(folder, config=queues_config({QUEUE: {}}), arguments=options)
        self.outcomes = Outcomes()
        self._is_over = threading.Event()
        self._sent = 0

    @contextmanager
    def client(self) -> Iterator[ServiceBusClient]:
        """An SDK client that shows every error at once."""
        with ServiceBusClient.from_connection_string(self.process.connection_string, retry_total=0) as client:
            yield client

    @contextmanager
    def traffic(self) -> Iterator[Callable[[int], None]]:
        """Send and receive meanwhile; yields what waits until so many more messages were acknowledged."""
        threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in threads:
            thread.start()
        try:
            yield self._more
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def _more(self, number: int) -> None:
        goal = len(self.outcomes.acknowledged) + number
        until(lambda: len(self.outcomes.acknowledged) >= goal, 40)

    def _send(self) -> None:
        while not self._is_over.is_set():
            try:
                with self.client() as client, client.get_queue_sender(QUEUE) as sender:
                    while not self._is_over.is_set():
                        names = [f"{self._sent + index:032d}" for index in range(TOGETHER)]
                        self._sent += TOGETHER
                        self.outcomes.unknown.update(names)
                        sender.send_messages([ServiceBusMessage(f"{name}:xx") for name in names])
                        self.outcomes.acknowledged.update(names)
            except ServiceBusError:
                time.sleep(0.05)

    def _receive(self) -> None:
        while not self._is_over.is_set():
            try:
                with self.client() as client, client.get_queue_receiver(QUEUE) as receiver:
                    while not self._is_over.is_set():
                        for message in receiver.receive_messages(max_message_count=10, max_wait_time=0.5):
                            # Here and not below: whether it was completed need not become known.
                            self.outcomes.completed.append(self.outcomes.name_of(message))
                            receiver.complete_message(message)
            except ServiceBusError:
                time.sleep(0.05)

    def verify(self) -> None:
        """Empty the queue; every acknowledged message came. One of unknown outcome may have come, too."""
        with self.client() as client:
            self.outcomes.drain(client, QUEUE)
        assert self.outcomes.acknowledged <= set(self.outcomes.completed), "an acknowledged message is lost"
        assert len(self.outcomes.acknowledged) > 0


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """One of this test alone, which syncs."""
    with running_postgres(durable=True) as server:
        yield server


@pytest.mark.parametrize("how", ["immediate", "kill", "fast"])
def test_a_crash_of_postgresql_under_traffic_loses_nothing(tmp_path: Path, postgres: PostgresServer, how: str) -> None:
    bus = Bus(tmp_path, postgres.url())
    with bus.process:
        with bus.traffic() as more:
            for _ in range(2):
                more(100)
                postgres.stop(how)
                time.sleep(0.2)
                _start_again(postgres)
            more(100)
        bus.verify()


def _start_again(postgres: PostgresServer) -> None:
    """After a kill, what is left of the old server has to go first."""
    for _ in range(50):
        try:
            postgres.start()
        except PostgresError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(postgres.log_tail())


def test_sessions_that_are_cut_again_and_again_lose_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    bus = Bus(tmp_path, postgres.url())
    with bus.process:
        with bus.traffic() as more:
            for _ in range(5):
                more(40)
                ours = "application_name LIKE 'duobus-store-%'"
                postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
            more(40)
        bus.verify()


def test_a_broker_that_is_killed_finds_everything_in_postgresql_again(tmp_path: Path, postgres: PostgresServer) -> None:
    bus = Bus(tmp_path, postgres.url())
    with bus.process:
        with bus.traffic() as more:
            for _ in range(2):
                more(100)
                bus.process.restart()
            more(100)
        bus.verify()


def test_a_promoted_standby_has_everything_and_goes_on(tmp_path: Path, postgres: PostgresServer) -> None:
    with tempfile.TemporaryDirectory(prefix="duobus-pg-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        standby = PostgresServer(Path(folder) / "standby", durable=True)
        try:
            standby.copy_of(postgres)
            standby.start()
            postgres.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            postgres.execute("SELECT pg_reload_conf()")
            until(lambda: postgres.execute("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
            both = f"postgresql://postgres@127.0.0.1:{postgres.port},127.0.0.1:{standby.port}/postgres"
            bus = Bus(tmp_path, both)
            with bus.process:
                with bus.traffic() as more:
                    more(200)
                    postgres.stop("immediate")
                    standby.promote()
                    more(200)
                bus.verify()
        finally:
            standby.remove()


def test_a_store_that_was_unreachable_at_the_start_comes_by_itself(tmp_path: Path, postgres: PostgresServer) -> None:
    bus = Bus(tmp_path, postgres.url())
    with bus.process, bus.traffic() as more:
        more(20)
    postgres.stop()
    with bus.process:
        _start_again(postgres)
        with bus.client() as client:
            until(lambda: _can_send(bus, client))
        bus.verify()


def _can_send(bus: Bus, client: ServiceBusClient) -> bool:
    try:
        with client.get_queue_sender(QUEUE) as sender:
            return bus.outcomes.send(sender)
    except ServiceBusError:
        return False


def test_a_full_disk_of_postgresql_refuses_and_loses_nothing(tmp_path: Path) -> None:
    need_root()
    try:
        programs()
    except PostgresError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="duobus-pg-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with small_disk(Path(folder) / "disk", "220m") as disk:
            settings: Mapping[str, str] = {"max_wal_size": "32MB", "min_wal_size": "32MB", "wal_recycle": "off"}
            postgres = PostgresServer(disk / "server", durable=True, settings=settings)
            try:
                postgres.create()
                postgres.start()
                _fill_and_free(tmp_path, postgres, disk)
            finally:
                postgres.remove()


def _fill_and_free(tmp_path: Path, postgres: PostgresServer, disk: Path) -> None:
    bus = Bus(tmp_path, postgres.url())
    with bus.process, bus.client() as client:
        with client.get_queue_sender(QUEUE) as sender:
            assert bus.outcomes.send(sender, BIG)
        filler = fill(disk)
        refused = 0
        while refused < 3:
            refused += not _can_send_much(bus, client)
        filler.unlink()
        if postgres.has_ended:
            # A full disk of its log is a PANIC: it ends, and comes back when there is room.
            _start_again(postgres)
        until(lambda: _can_send(bus, client), 30)
        bus.verify()
    assert "disk" in bus.process.log_path.read_text()


def _can_send_much(bus: Bus, client: ServiceBusClient) -> bool:
    try:
        with client.get_queue_sender(QUEUE) as sender:
            return all(bus.outcomes.send(sender, BIG) for _ in range(50))
    except ServiceBusError:
        return False
