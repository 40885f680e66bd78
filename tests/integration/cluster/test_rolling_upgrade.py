"""Three servers are replaced one by one under SDK traffic, by today's code and back: nothing is lost (I1, I65).

The earlier code comes out of the history that the clone holds; without that history the tests are skipped and counted.
``make upgrades`` begins with each of the commits that the tests of data folders begin with.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from kit_cluster import LOCK_S, Cluster, Traffic

from kits.earlier_commits import COMMITS, IS_LONG, package_of, unpack_commit, words_before
from kits.postgres import running_postgres

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # The SDK leaves the sockets of a server that has stopped to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

#: One for each server that clients send to and receive from.
QUEUES: Final = ("first", "second", "third")
#: Messages that come through between two replacements.
MESSAGES: Final = 200 if IS_LONG else 30
LIMIT_S: Final = 60.0


class Rolling(Cluster):
    """Three servers, each of which runs the earlier package or today's."""

    def __init__(self, folder: Path, postgres: Any, old: Path) -> None:
        super().__init__(folder, postgres, servers=3, stores=3)
        self._old = old
        #: Servers that run the earlier package at their next start.
        self.are_old = set(self.servers)

    def words(self, number: int) -> list[str]:
        return words_before(self._old) if number in self.are_old else []

    def replace(self, number: int) -> None:
        """Drain a server, and start the other version in its place; wait until it has its share of the stores."""
        others = [server for server in self.servers if server != number]
        self.terminate(number)
        self.await_served(*others)
        self.are_old ^= {number}
        self.start(number)
        self.await_ready(number)
        self.await_served()


@pytest.fixture(scope="module", params=COMMITS if IS_LONG else COMMITS[:1])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of an earlier commit; where to import it from."""
    return unpack_commit(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def rolling(tmp_path: Path, old: Path) -> Iterator[Rolling]:
    """The servers, all of the earlier commit, with the queues."""
    with running_postgres(durable=True) as postgres:
        cluster = Rolling(tmp_path, postgres, old)
        try:
            cluster.start_all()
            cluster.await_served()
            with cluster.admin(0) as admin:
                for queue in QUEUES:
                    admin.create_queue(queue, lock_duration=timedelta(seconds=LOCK_S), max_delivery_count=1000)
            yield cluster
        finally:
            cluster.close()


def let_flow(traffic: Traffic) -> None:
    """Wait until that many more messages have come through."""
    target = len(traffic.received) + MESSAGES
    end = time.monotonic() + LIMIT_S
    while len(traffic.received) < target:
        assert time.monotonic() < end, f"{len(traffic.received)} of {target} messages have come"
        time.sleep(0.05)


def test_three_servers_are_upgraded_one_by_one_and_go_back_without_loss(rolling: Rolling, old: Path) -> None:
    assert package_of(rolling.words(0)) == old / "duobus"
    traffic = Traffic(rolling, list(QUEUES))
    try:
        let_flow(traffic)
        for _ in ("to today's version", "and back"):
            for number in rolling.servers:
                rolling.replace(number)
                let_flow(traffic)
            # What a server of the one version left in the stores is there for those of the other one.
            assert rolling.are_old in (set(), set(rolling.servers))
    finally:
        traffic.stop()
    assert not traffic.lost
    assert rolling.are_old == set(rolling.servers)
    assert len(traffic.sent) >= 7 * MESSAGES
