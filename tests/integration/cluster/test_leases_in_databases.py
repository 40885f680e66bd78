"""Three servers, and stores in two PostgreSQL servers: each store's lease is in its own (issue 27, point 4)."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from kit_cluster import Cluster

from duobus.testing.postgres_server import PostgresServer
from kits.postgres import running_postgres

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    # The SDK leaves the sockets of a server that was killed to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
#: Longer than a lease.
AWAY_S = 5.0


class _TwoDatabases(Cluster):
    """Stores 1 and 2 are in the catalog's database, 3 and 4 in the other."""

    other: PostgresServer

    def health(self, number: int) -> dict[str, Any]:
        """What a server says of itself."""
        try:
            with urllib.request.urlopen(f"{self.http(number)}/health", timeout=30) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            found = json.load(error)
        return found

    def queues(self, *stores: int) -> list[str]:
        """The queues that lie in these stores."""
        rows = self.postgres.execute(
            "SELECT e.path, s.store_id FROM duobus_catalog.entities e JOIN duobus_catalog.slots s USING (entity_id)"
        )
        return [path for path, store_id in rows if store_id in stores]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_TwoDatabases]:
    """Three servers that serve everything."""
    with running_postgres(durable=True) as postgres, running_postgres(durable=True) as other:
        folder = tmp_path_factory.mktemp("databases")
        given = ["--store", other.url()] * 2
        cluster = _TwoDatabases(folder, postgres, stores=2, elsewhere=2, more=lambda _number: given)
        cluster.other = other
        try:
            cluster.start_all()
            cluster.await_served()
            with cluster.admin(0) as admin:
                for number in range(16):
                    admin.create_queue(f"q{number}")
            yield cluster
        finally:
            cluster.close()


class _Sender(threading.Thread):
    """Sends to a queue by way of one server, and notes what was acknowledged and when."""

    def __init__(self, cluster: Cluster, number: int, name: str) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.times: list[float] = []
        self.is_over = threading.Event()
        self._cluster, self._number, self._name = cluster, number, name
        self.start()

    def run(self) -> None:
        """See Thread."""
        count = 0
        while not self.is_over.is_set():
            try:
                with (
                    self._cluster.client(self._number, retry_total=1, retry_backoff_factor=0.1) as bus,
                    bus.get_queue_sender(self._name) as sender,
                ):
                    while not self.is_over.is_set():
                        text = f"{self._name}-{self._number}-{count}"
                        count += 1
                        sender.send_messages(ServiceBusMessage(text))
                        self.sent.append(text)
                        self.times.append(time.monotonic())
                        self.is_over.wait(0.05)
            except (ServiceBusError, OSError):
                self.is_over.wait(0.05)

    def stop(self) -> None:
        """Send no more."""
        self.is_over.set()
        self.join()


def _received(cluster: Cluster, number: int, name: str) -> set[str]:
    found: set[str] = set()
    with cluster.client(number) as bus, bus.get_queue_receiver(name) as receiver:
        while messages := receiver.receive_messages(100, max_wait_time=2):
            for message in messages:
                found.add(str(message))
                receiver.complete_message(message)
    return found


def test_each_store_has_its_lease_in_its_own_database(cluster: _TwoDatabases) -> None:
    ((schema,),) = cluster.other.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'duobus_leases_%'")
    assert cluster.other.execute(f"SELECT store_id FROM {schema}.leases ORDER BY store_id") == [(3,), (4,)]
    assert cluster.postgres.execute("SELECT store_id FROM duobus_catalog.leases ORDER BY store_id") == [(1,), (2,)]
    # Servers of earlier versions would look for all leases in the catalog's database: they are refused from now on.
    rows = cluster.postgres.execute("SELECT value FROM duobus_catalog.meta WHERE name = 'format_version'")
    assert rows == [(2,)]


def test_data_go_on_while_the_database_of_the_catalog_is_away_and_management_is_busy(cluster: _TwoDatabases) -> None:
    name = cluster.queues(3, 4)[0]
    senders = [_Sender(cluster, number, name) for number in cluster.servers]
    time.sleep(1)
    cluster.postgres.stop("immediate")
    begun = time.monotonic()
    try:
        time.sleep(AWAY_S)
        told = cluster.health(1)["cluster"]
        with cluster.admin(1) as admin, pytest.raises(HttpResponseError) as refused:
            admin.create_queue("made-meanwhile")
        with cluster.client(2, retry_total=0) as bus, pytest.raises(ServiceBusError) as unknown:
            bus.get_queue_sender("never-made").send_messages(ServiceBusMessage("x"))
    finally:
        ended = time.monotonic()
        cluster.postgres.start()
        served_s = cluster.await_served()
        for sender in senders:
            sender.stop()
    print(f"{[len(sender.sent) for sender in senders]} sent, all served {served_s:.2f} s after the start")
    assert (told["catalog"], list(told["databases"].values())) == ("away", ["reached"])
    assert refused.value.status_code == 503
    assert "server-busy" in str(unknown.value) or "busy" in str(unknown.value)
    for sender in senders:
        meanwhile = [moment for moment in sender.times if begun < moment < ended]
        assert len(meanwhile) > 10
        assert max(after - before for before, after in pairwise(meanwhile)) < AWAY_S / 2
    assert {text for sender in senders for text in sender.sent} <= _received(cluster, 0, name)


def test_a_dead_owners_store_is_taken_over_while_the_catalog_is_away(cluster: _TwoDatabases) -> None:
    cluster.await_served()
    names = cluster.queues(3, 4)
    victim = next(number for number, stores in cluster.serving().items() if {"3", "4"} & set(stores))
    through = next(number for number in cluster.servers if number != victim)
    senders = [_Sender(cluster, through, name) for name in names]
    cluster.postgres.stop("immediate")
    try:
        time.sleep(1)
        cluster.kill(victim)
        before = [len(sender.sent) for sender in senders]
        end = time.monotonic() + 20
        while any(len(sender.sent) < count + 5 for sender, count in zip(senders, before, strict=True)):
            assert time.monotonic() < end, cluster.log_of(through)
            time.sleep(0.05)
        print(f"all send again after {20 - end + time.monotonic():.2f} s")
    finally:
        cluster.postgres.start()
        for sender in senders:
            sender.stop()
    cluster.start(victim)
    cluster.await_ready(victim)
    cluster.await_served()
    for sender, name in zip(senders, names, strict=True):
        assert set(sender.sent) <= _received(cluster, through, name)
