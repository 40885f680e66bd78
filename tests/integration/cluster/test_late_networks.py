"""Networks on which each piece is up to 200 ms late do not change the owner of a store (issue 27, point 5)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from kit_cluster import LOCK_S, Cluster, Traffic

from kits.late_network import LateNetwork, Way, late_network
from kits.postgres import running_postgres

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    # The SDK leaves the sockets of a server that was killed to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
JITTER_S = 0.2
#: Four times as long as a lease lasts.
TRAFFIC_S = 12.0
#: Where servers reach the database.
DATABASE = "127.0.1.100"


class _LateCluster(Cluster):
    """Servers that reach their database and each other over a late network, and clients that do not."""

    network: LateNetwork

    def near(self, number: int) -> str:
        """Where others reach a server."""
        return f"127.0.1.{number + 1}"

    def ways(self) -> list[Way]:
        """All of them."""
        between = [
            Way(self.near(number), port.number, "127.0.0.1", port.number)
            for number in self.servers
            for port in self._ports[number]
        ]
        port = self.postgres.port
        return [Way(DATABASE, port, "127.0.0.1", port), *between]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[_LateCluster]:
    """Three servers that serve everything."""
    with running_postgres(durable=True) as postgres:
        cluster = _LateCluster(tmp_path, postgres, more=lambda number: ["--advertise", cluster.near(number)])
        cluster.join = postgres.url().replace("127.0.0.1", DATABASE)
        with late_network(cluster.ways(), seed=1) as cluster.network:
            try:
                cluster.start_all()
                yield cluster
            finally:
                cluster.close()


def test_no_store_changes_its_owner_while_everything_is_up_to_200_ms_late(cluster: _LateCluster) -> None:
    cluster.await_served()
    queues = [f"late{number}" for number in range(6)]
    with cluster.admin(0) as admin:
        for name in queues:
            admin.create_queue(name, lock_duration=timedelta(seconds=LOCK_S), enable_partitioning=name == "late5")
    statement = "SELECT store_id, term, node_id FROM duobus_catalog.leases ORDER BY store_id"
    before = cluster.postgres.execute(statement)
    cluster.network.be_late(JITTER_S)
    traffic = Traffic(cluster, queues)
    time.sleep(TRAFFIC_S)
    after = cluster.postgres.execute(statement)
    connections = cluster.network.be_late(0)
    traffic.stop()
    print(f"sent {len(traffic.sent)}, connections {connections}")
    assert after == before
    assert traffic.lost == set()
    assert len(traffic.sent) > 100
    # Three servers have connections to the database, and clients of queues elsewhere were passed on.
    assert connections > 6
