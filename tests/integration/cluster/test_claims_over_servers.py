"""Streams claim from queues of three servers over one PostgreSQL while owners are killed and stores move: exactly once.

DUOBUS_CLAIM_ROUNDS says how many owners are killed; ``make claim-kills`` sets it.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections import Counter
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusMessage
from kit_cluster import Cluster
from kit_query import Query

from duobus.model.access_rules import sign_token

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(os.environ.get("DUOBUS_CLAIM_ROUNDS", "3")) * 60 + 240)]

#: Queues of one store each, and one whose fragments lie in all stores.
PLAIN: Final = [f"claimed{number}" for number in range(3)]
SHARDED: Final = "claimed-all"
#: Messages of a round for each queue, and those of one key.
MESSAGES: Final = 120
KEYED: Final = 20


def ask(cluster: Cluster, server: int, method: str, path: str) -> Any:
    """One request to the operations of a server."""
    url = cluster.http(server)
    token = sign_token(url, "RootManageSharedAccessKey", "SAS_KEY_VALUE", int(time.time()) + 600)
    asked = urllib.request.Request(f"{url}/{path}", headers={"Authorization": token}, method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def address(cluster: Cluster, number: int) -> str:
    """How operators name a server."""
    return cluster.http(number).removeprefix("http://").replace("localhost", "127.0.0.1").rstrip("/")


def begin_move(cluster: Cluster, source: int, target: int) -> str:
    """Ask for a store of one server to come to another; return its number."""
    store: str = cluster.serving(source)[source][0]
    ask(cluster, target, "POST", f"$duobus/cluster/moves?store={store}&to={address(cluster, target)}")
    return store


class Streams:
    """Streams over queues of all stores, each at a server of its own, and what was sent to each."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._names = [*PLAIN, SHARDED]
        self.sent: dict[str, list[str]] = {name: [] for name in self._names}
        with cluster.admin(0) as admin:
            for name in self._names:
                # A send whose answer is lost is sent again.
                admin.create_queue(
                    name,
                    max_delivery_count=1_000,
                    enable_partitioning=name == SHARDED,
                    requires_duplicate_detection=True,
                )
        self.queries = [
            Query(cluster.address(number % len(cluster.servers)), name) for number, name in enumerate(self._names)
        ]

    def feed(self) -> None:
        """Send some messages to each."""
        for name, sent in self.sent.items():
            with self._cluster.client(0) as client, client.get_queue_sender(name) as sender:
                for key in range(len(sent), len(sent) + MESSAGES, KEYED):
                    bodies = [f"{name}/{key + number}" for number in range(KEYED)]
                    sender.send_messages(
                        [ServiceBusMessage(body, message_id=body, partition_key=str(key)) for body in bodies]
                    )
                    sent += bodies

    def await_progress(self) -> None:
        """Nothing dies before the claims of each are under way."""
        for query in self.queries:
            before = query.batches
            while query.batches == before and query.failure is None:
                assert len(query.rows()) < len(self.sent[query.name]), "nothing is left to be claimed"
                time.sleep(0.02)

    def finish(self) -> None:
        """Take what is left."""
        for query in self.queries:
            query.finish()


def test_what_streams_claim_comes_out_once_while_owners_are_killed_and_stores_move(cluster: Cluster) -> None:
    """SP2; the query of the server that is killed fails, too, and goes on when that is back."""
    cluster.await_served()
    streams = Streams(cluster)
    try:
        for number in range(int(os.environ.get("DUOBUS_CLAIM_ROUNDS", "3"))):
            victim = number % len(cluster.servers)
            source, target = (other for other in cluster.servers if other != victim)
            streams.feed()
            streams.await_progress()
            # Both at once: the claim of a queue over all stores is asked of an owner that dies and of one that hands over.
            store = begin_move(cluster, source, target)
            cluster.kill(victim)
            cluster.await_served(source, target)
            cluster.start(victim)
            cluster.await_ready(victim)
            ask(cluster, target, "POST", f"$duobus/cluster/moves?store={store}&to=any")
            cluster.await_served()
    finally:
        streams.finish()
    print({query.name: (query.starts, query.batches, query.claimed_by_broker) for query in streams.queries})
    for query in streams.queries:
        assert query.failure is None, query.failure
        assert Counter(query.rows()) == Counter(streams.sent[query.name])
        assert query.claimed_by_broker > 0
    with cluster.admin(0) as admin:
        left = {name: admin.get_queue_runtime_properties(name).total_message_count for name in streams.sent}
    assert left == dict.fromkeys(streams.sent, 0)
