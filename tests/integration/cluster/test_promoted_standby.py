"""Two servers over a PostgreSQL whose synchronous standby is promoted under traffic: nothing is lost."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from kit_cluster import LOCK_S, Cluster, Traffic

from duobus.testing.postgres_server import PostgresServer
from kits.postgres import running_postgres, synchronous_standby

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


class _Either(Cluster):
    """Servers that are given the addresses of two PostgreSQL servers, of which one takes writes."""

    def __init__(self, folder: Path, postgres: PostgresServer, standby: PostgresServer) -> None:
        super().__init__(folder, postgres, servers=2)
        self.join = f"postgresql://postgres@127.0.0.1:{postgres.port},127.0.0.1:{standby.port}/postgres"
        self.join += "?target_session_attrs=read-write"


def test_a_synchronous_standby_that_is_promoted_under_traffic_has_everything(tmp_path: Path) -> None:
    with running_postgres(durable=True) as postgres, synchronous_standby(postgres) as standby:
        cluster = _Either(tmp_path, postgres, standby)
        try:
            cluster.start_all()
            cluster.await_served()
            queues = ["p0", "p1", "p2"]
            with cluster.admin(0) as admin:
                for name in queues:
                    admin.create_queue(name, lock_duration=timedelta(seconds=LOCK_S))
            traffic = Traffic(cluster, queues)
            try:
                time.sleep(2)
                before = len(traffic.sent)
                postgres.stop("immediate")
                standby.promote()
                promoted = time.monotonic()
                cluster.await_served()
                print(f"served {time.monotonic() - promoted:.2f} s after the promotion")
                time.sleep(2)
            finally:
                traffic.stop()
            print(f"sent {before} before and {len(traffic.sent) - before} after, received {len(traffic.received)}")
            assert traffic.lost == set()
            assert len(traffic.sent) > before > 0
            # Whoever was killed after this is noticed on the new primary as on the old one.
            cluster.kill(0)
            cluster.await_served(1)
        finally:
            cluster.close()
