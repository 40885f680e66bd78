"""PostgreSQL under a messaging store crashes, is cut off, is replaced by its standby, or is full: nothing is lost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from kit_faults import BIG, fill, need_root, small_disk, until
from kit_postgres import QUEUE, Bus, can_send, start_again

from duobus.testing.postgres_server import PostgresError, PostgresServer, programs
from kits.postgres import running_postgres, synchronous_standby

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    # The SDK forgets the socket of a connection that could not be made.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


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
                start_again(postgres)
            more(100)
        bus.verify()


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
    with synchronous_standby(postgres) as standby:
        both = f"postgresql://postgres@127.0.0.1:{postgres.port},127.0.0.1:{standby.port}/postgres"
        bus = Bus(tmp_path, both)
        with bus.process:
            with bus.traffic() as more:
                more(200)
                postgres.stop("immediate")
                standby.promote()
                more(200)
            bus.verify()


def test_a_store_that_was_unreachable_at_the_start_comes_by_itself(tmp_path: Path, postgres: PostgresServer) -> None:
    bus = Bus(tmp_path, postgres.url())
    with bus.process, bus.traffic() as more:
        more(20)
    postgres.stop()
    with bus.process:
        start_again(postgres)
        with bus.client() as client:
            until(lambda: can_send(bus, client))
        bus.verify()


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
            start_again(postgres)
        until(lambda: can_send(bus, client), 30)
        bus.verify()
    assert "disk" in bus.process.log_path.read_text()


def _can_send_much(bus: Bus, client: ServiceBusClient) -> bool:
    try:
        with client.get_queue_sender(QUEUE) as sender:
            return all(bus.outcomes.send(sender, BIG) for _ in range(50))
    except ServiceBusError:
        return False
