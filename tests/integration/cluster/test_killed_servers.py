"""Servers over one PostgreSQL that are killed, stopped and drained in turn, under traffic of the SDK: lost 0."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest
from kit_cluster import LOCK_S, Cluster, Traffic

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # The SDK leaves the sockets of a server that was killed to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

#: Issue 10: ownership fails over in under 5 s after SIGKILL. A machine that does other things, too, gets twice that.
FAILOVER_S = 10.0
#: ... and in under 1 s on drain, likewise.
DRAIN_S = 4.0


def test_nothing_acknowledged_is_lost_when_each_server_is_killed_stopped_and_drained(cluster: Cluster) -> None:
    cluster.await_served()
    queues = [f"k{number}" for number in range(6)]
    with cluster.admin(0) as admin:
        for name in queues:
            admin.create_queue(name, lock_duration=timedelta(seconds=LOCK_S))
    traffic = Traffic(cluster, queues)
    took: list[tuple[str, int, float]] = []
    try:
        for victim in cluster.servers:
            others = [number for number in cluster.servers if number != victim]
            time.sleep(1)
            cluster.kill(victim)
            took.append(("kill", victim, cluster.await_served(*others)))
            cluster.start(victim)
            cluster.await_ready(victim)
            cluster.await_served()
        time.sleep(1)
        cluster.signal(1, signal.SIGSTOP)
        took.append(("stop", 1, cluster.await_served(0, 2)))
        cluster.signal(1, signal.SIGCONT)
        cluster.await_served()
        time.sleep(1)
        begun = time.monotonic()
        stopped_s = cluster.terminate(2)
        cluster.await_served(0, 1)
        took.append(("drain", 2, time.monotonic() - begun))
        cluster.start(2)
        cluster.await_ready(2)
        cluster.await_served()
    finally:
        traffic.stop()
    print(f"sent {len(traffic.sent)}, received {len(traffic.received)}, took {took}, stopped in {stopped_s:.2f} s")
    assert traffic.lost == set()
    assert len(traffic.sent) > 100
    for what, _, seconds in took:
        assert seconds < (stopped_s + DRAIN_S if what == "drain" else FAILOVER_S), took


def test_nothing_acknowledged_is_lost_when_postgresql_crashes(cluster: Cluster) -> None:
    cluster.await_served()
    queues = [f"c{number}" for number in range(3)]
    with cluster.admin(1) as admin:
        for name in queues:
            admin.create_queue(name, lock_duration=timedelta(seconds=LOCK_S))
    traffic = Traffic(cluster, queues)
    try:
        for away_s in (0.0, 4.0):
            time.sleep(1)
            cluster.postgres.stop("immediate")
            # Shorter than a lease, and longer.
            time.sleep(away_s)
            cluster.postgres.start()
            print(f"away for {away_s} s, served again {cluster.await_served():.2f} s after its start")
    finally:
        traffic.stop()
    print(f"sent {len(traffic.sent)}, received {len(traffic.received)}")
    assert traffic.lost == set()
    assert len(traffic.sent) > 50
