"""Joined servers whose clocks are wrong: what time goes over to the next owner, and how it is set back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from click.testing import CliRunner, Result
from kit_cluster import Cluster, clock_words, take, until, write_clock

from duobus.cli.main import main
from duobus.testing.postgres_server import PostgresServer
from kits.postgres import running_postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
#: By how much the clock of the first server is ahead, in seconds.
AHEAD_S = 600


class _ClocksApart(Cluster):
    """Two servers over stores in two databases. The clock of the first is ten minutes ahead."""

    other: PostgresServer

    def words(self, number: int) -> list[str]:
        """See Cluster."""
        if number:
            return []
        clock = self._folder / "clock"
        write_clock(clock, AHEAD_S)
        return clock_words(clock)

    def noted_s(self) -> list[float]:
        """By how much the time that the tables of leases note is ahead of this machine's, for each store."""
        ((schema,),) = self.other.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'duobus_leases_%'")
        statement = "SELECT store_id, broker_ms - extract(epoch FROM noted) * 1000 FROM {}.store_times"
        rows = [
            *self.postgres.execute(statement.format("duobus_catalog")),
            *self.other.execute(statement.format(schema)),
        ]
        return [float(apart_ms) / 1000 for _store_id, apart_ms in sorted(rows)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[_ClocksApart]:
    with running_postgres(durable=True) as postgres, running_postgres(durable=True) as other:
        stores = ["--store", other.url()] * 2
        made = _ClocksApart(tmp_path, postgres, servers=2, stores=2, elsewhere=2, more=lambda _number: stores)
        made.other = other
        try:
            yield made
        finally:
            made.close()


def _clock(*words: str) -> Result:
    return CliRunner().invoke(main, ["store", "clock", *words])


def _ahead_s(cluster: Cluster, number: int) -> list[float]:
    """By how much a message's time is ahead of this machine's, for a message in each of some queues."""
    found = []
    with cluster.client(number) as bus:
        for name in (f"q{one}" for one in range(6)):
            with bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
                sender.send_messages(ServiceBusMessage("x"))
                (message,) = take(receiver, 1)
                assert message.enqueued_time_utc is not None
                found.append((message.enqueued_time_utc - datetime.now(UTC)).total_seconds())
                receiver.complete_message(message)
    return found


def test_time_goes_over_with_idle_stores_and_is_set_back_when_all_servers_are_stopped(cluster: _ClocksApart) -> None:
    cluster.start(0)
    cluster.await_ready(0)
    cluster.await_served(0)
    with cluster.admin(0) as admin:
        for number in range(6):
            admin.create_queue(f"q{number}")
    until(lambda: len(cluster.noted_s()) == 4)
    assert all(abs(apart_s - AHEAD_S) < 5 for apart_s in cluster.noted_s())

    # The stores are idle; the next owner, whose clock is right, goes on at the time of the first.
    cluster.start(1)
    cluster.await_ready(1)
    cluster.await_served(0, 1)
    cluster.kill(0)
    cluster.await_served(1)
    assert all(abs(ahead_s - AHEAD_S) < 10 for ahead_s in _ahead_s(cluster, 1))

    assert "clocks apart" in cluster.log_of(1)

    refused = _clock("--join", cluster.join, "--reset")
    assert refused.exit_code == 1
    assert "Stop all servers of this catalog first" in refused.output
    cluster.terminate(1)
    # The one that was killed counts as alive until its time is over.
    until(lambda: _clock("--join", cluster.join).exit_code == 0)
    shown = json.loads(_clock("--join", cluster.join, "--json").stdout)
    assert [row["store"] for row in shown] == [1, 2, 3, 4]
    assert max(row["aheadSeconds"] for row in shown) > AHEAD_S - 30
    assert not any(row["setBack"] for row in shown)
    assert any(row["setBack"] for row in json.loads(_clock("--join", cluster.join, "--reset", "--json").stdout))

    begun = time.monotonic()
    cluster.start(1)
    cluster.await_ready(1)
    cluster.await_served(1)
    assert all(abs(ahead_s) < 5 + time.monotonic() - begun for ahead_s in _ahead_s(cluster, 1))


def test_a_folder_or_a_catalog_has_to_be_named_and_not_both(tmp_path: Path) -> None:
    assert _clock().exit_code == 2
    assert _clock("--data", str(tmp_path), "--join", "postgresql://localhost/bus").exit_code == 2
