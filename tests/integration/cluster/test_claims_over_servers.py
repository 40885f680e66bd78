"""Streams claim from queues of three servers over one PostgreSQL while owners are killed and stores move: exactly once.

DUOBUS_CLAIM_ROUNDS says how many owners are killed; ``make claim-kills`` sets it.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from kit_cluster import Cluster
from kit_query import Query

from duobus.model.access_rules import sign_token

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(os.environ.get("DUOBUS_CLAIM_ROUNDS", "2")) * 60 + 240)]

#: Queues of one store each, and one whose fragments lie in all stores.
PLAIN: Final = [f"claimed{number}" for number in range(3)]
SHARDED: Final = "claimed-all"
#: Messages that are sent at a time, with one key, and seconds between two of these.
BURST: Final = 10
EVERY_S: Final = 0.3
#: How long a stream may take for its next batch.
PROGRESS_S: Final = 90.0


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


class Feed(threading.Thread):
    """Sends numbered messages into a queue until it is told to end, each once: what fails is sent again.

    Attributes:
        sent: The bodies of those that were accepted.
    """

    def __init__(self, cluster: Cluster, number: int, queue: str) -> None:
        super().__init__(daemon=True)
        self.sent: list[str] = []
        self._cluster = cluster
        self._server = number
        self._queue = queue
        self._is_over = threading.Event()
        self.start()

    def run(self) -> None:
        """Until the end, at the next server whenever one is away; what was not answered is sent again even then."""
        is_unanswered = False
        while is_unanswered or not self._is_over.is_set():
            self._server = (self._server + 1) % len(self._cluster.servers)
            with (
                suppress(ServiceBusError, OSError),
                self._cluster.client(self._server, retry_total=0) as client,
                client.get_queue_sender(self._queue) as sender,
            ):
                while is_unanswered or not self._is_over.wait(EVERY_S):
                    is_unanswered = True
                    first = len(self.sent)
                    bodies = [f"{self._queue}/{number}" for number in range(first, first + BURST)]
                    # What was stored though its answer is lost is dropped by its id when it comes again.
                    sender.send_messages(
                        [ServiceBusMessage(body, message_id=body, partition_key=str(first)) for body in bodies]
                    )
                    self.sent += bodies
                    is_unanswered = False
            self._is_over.wait(EVERY_S)

    def finish(self) -> None:
        """Send no more."""
        self._is_over.set()
        self.join()


class Streams:
    """Streams over queues of all stores, each at a server of its own, and what is sent to each."""

    def __init__(self, cluster: Cluster) -> None:
        self._names = [*PLAIN, SHARDED]
        with cluster.admin(0) as admin:
            for name in self._names:
                admin.create_queue(
                    name,
                    max_delivery_count=1_000,
                    enable_partitioning=name == SHARDED,
                    requires_duplicate_detection=True,
                )
        self.feeds = {name: Feed(cluster, number, name) for number, name in enumerate(self._names)}
        self.queries = [
            Query(cluster.address(number % len(cluster.servers)), name) for number, name in enumerate(self._names)
        ]

    def await_progress(self) -> None:
        """Nothing dies before the claims of each are under way."""
        until_s = time.monotonic() + PROGRESS_S
        for query in self.queries:
            before = query.batches
            while query.batches == before:
                assert query.failure is None, query.failure
                assert time.monotonic() < until_s, f"{query.name} makes no progress"
                time.sleep(0.02)

    def finish(self) -> None:
        """Send no more, and take what is left."""
        for feed in self.feeds.values():
            feed.finish()
        for query in self.queries:
            query.finish()


def test_what_streams_claim_comes_out_once_while_owners_are_killed_and_stores_move(cluster: Cluster) -> None:
    """SP2; the query of the server that is killed fails, too, and goes on when that is back."""
    cluster.await_served()
    streams = Streams(cluster)
    try:
        for number in range(int(os.environ.get("DUOBUS_CLAIM_ROUNDS", "2"))):
            victim = number % len(cluster.servers)
            source, target = (other for other in cluster.servers if other != victim)
            streams.await_progress()
            # Both at once: a claim over all stores is asked of an owner that dies and of one that hands over.
            store = begin_move(cluster, source, target)
            cluster.kill(victim)
            cluster.await_served(source, target)
            cluster.start(victim)
            cluster.await_ready(victim)
            ask(cluster, target, "POST", f"$duobus/cluster/moves?store={store}&to=any")
            cluster.await_served()
    finally:
        streams.finish()
    print({query.name: (len(query.rows()), query.starts, query.batches) for query in streams.queries})
    for query in streams.queries:
        assert query.failure is None, query.failure
        assert Counter(query.rows()) == Counter(streams.feeds[query.name].sent)
        assert query.claimed_by_broker > 0
    with cluster.admin(0) as admin:
        left = {name: admin.get_queue_runtime_properties(name).total_message_count for name in streams.feeds}
    assert left == dict.fromkeys(streams.feeds, 0)
