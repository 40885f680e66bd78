"""Fragments that move between the stores of two servers under traffic, with the official SDK (decision 0070)."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import SqlRuleFilter
from click.testing import CliRunner, Result
from kit_cluster import Cluster, running_cluster

from duobus.cli.main import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

#: Only ends a hang.
PATIENCE_S = 60.0
STORES = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two servers with two stores each."""
    with running_cluster(tmp_path_factory.mktemp("moved"), servers=2, stores=STORES) as found:
        found.await_served()
        yield found


def run(cluster: Cluster, *words: str, server: int = 0) -> Result:
    return CliRunner().invoke(main, list(words), env={"DUOBUS_CONNECTION_STRING": cluster.address(server)})


def rows(cluster: Cluster, *words: str, server: int = 0) -> list[dict[str, Any]]:
    found = run(cluster, *words, server=server)
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.stdout.splitlines()]


def places(cluster: Cluster, entity: str) -> dict[int, int]:
    """Fragment to store."""
    return {row["fragment"]: row["store"] for row in rows(cluster, "fragment", "list", entity)}


def owners(cluster: Cluster) -> dict[int, str]:
    """Store to server."""
    return {row["store"]: row["server"] for row in rows(cluster, "cluster", "status", "--stores")}


def elsewhere(cluster: Cluster, store: int) -> int:
    """A store of another server."""
    held = owners(cluster)
    return next(number for number, server in sorted(held.items()) if server != held[store])


def move(cluster: Cluster, entity: str, fragment: int, to: int, *, server: int = 0) -> dict[str, Any]:
    """Move a fragment; refusals that say "try again" are tried again."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = run(cluster, "fragment", "move", entity, str(fragment), "--to", str(to), server=server)
        if found.exit_code == 0:
            status: dict[str, Any] = json.loads(found.stdout)
            return status
        assert "ry again" in found.output or "Wait until" in found.output, found.output
        assert time.monotonic() < end, found.output
        time.sleep(0.2)


def drain(cluster: Cluster, queue: str, number: int, **options: Any) -> list[Any]:
    """Receive and complete messages until there are so many."""
    found: list[Any] = []
    end = time.monotonic() + PATIENCE_S
    while len(found) < number and time.monotonic() < end:
        try:
            with cluster.client(1) as bus, bus.get_queue_receiver(queue, **options) as receiver:
                while len(found) < number:
                    messages = receiver.receive_messages(100, max_wait_time=3)
                    if not messages:
                        break
                    for message in messages:
                        receiver.complete_message(message)
                    found += messages
        except ServiceBusError:
            time.sleep(0.2)
    return found


def test_a_receiver_that_waits_is_given_what_comes_into_a_shard_that_has_moved_to_another_server(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("awaited", enable_partitioning=True)
    with (
        pair.client(1) as bus,
        bus.get_queue_receiver("awaited") as receiver,
        bus.get_queue_sender("awaited") as sender,
    ):
        # Its link is there, and has had nothing of any shard, so that nothing ends it when one moves.
        assert receiver.receive_messages(1, max_wait_time=0.5) == []
        before = places(pair, "awaited")
        for store in set(before.values()):
            move(pair, "awaited", next(one for one, place in before.items() if place == store), elsewhere(pair, store))
        for number in range(64):
            sender.send_messages(ServiceBusMessage(str(number), partition_key=str(number)))
        found: set[str] = set()
        end = time.monotonic() + PATIENCE_S / 2
        while len(found) < 64 and time.monotonic() < end:
            for message in receiver.receive_messages(64, max_wait_time=1):
                found.add(str(message))
                receiver.complete_message(message)
    assert found == {str(number) for number in range(64)}


def test_everything_that_a_partitioned_queue_holds_goes_along_to_a_store_of_another_server(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue(
            "all",
            enable_partitioning=True,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=timedelta(hours=1),
            lock_duration=timedelta(seconds=5),
        )
    with pair.client(0) as bus, bus.get_queue_sender("all") as sender, bus.get_queue_receiver("all") as receiver:
        sender.send_messages([ServiceBusMessage(f"m{i}", message_id=f"m{i}", partition_key="k") for i in range(20)])
        first = receiver.receive_messages(2, max_wait_time=10)
        number = first[0].sequence_number
        assert number is not None
        fragment = number >> 48
        receiver.defer_message(first[0])
        # Locked, and its lock does not go along.
        assert len(first) == 2
        due = datetime.now(UTC) + timedelta(seconds=4)
        sender.schedule_messages(ServiceBusMessage("later", message_id="later", partition_key="k"), due)
        store = places(pair, "all")[fragment]
        to = elsewhere(pair, store)
        status = move(pair, "all", fragment, to)
        assert (status["from"], status["to"], status["state"]) == (store, to, "done")
        assert fragment in status["fragments"]
        assert {places(pair, "all")[number] for number in status["fragments"]} == {to}
    with pair.client(1) as bus, bus.get_queue_sender("all") as sender, bus.get_queue_receiver("all") as receiver:
        # Duplicates are known where it is now.
        sender.send_messages(ServiceBusMessage("m3 again", message_id="m3", partition_key="k"))
        deferred = receiver.receive_deferred_messages([number])
        assert [str(message) for message in deferred] == [str(first[0])]
        receiver.complete_message(deferred[0])
    found = drain(pair, "all", 20)
    assert Counter(map(str, found)) == Counter([f"m{i}" for i in range(20) if f"m{i}" != str(first[0])] + ["later"])
    assert {message.sequence_number >> 48 for message in found} == {fragment}
    assert rows(pair, "cluster", "status", "--moves") == []


def test_sessions_keep_their_order_and_state_over_a_move(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("held", enable_partitioning=True, requires_session=True)
    with pair.client(0) as bus, bus.get_queue_sender("held") as sender:
        sender.send_messages([ServiceBusMessage(str(i), session_id="s") for i in range(10)])
        with bus.get_queue_receiver("held", session_id="s") as receiver:
            receiver.session.set_state(b"half")
            message = receiver.receive_messages(1, max_wait_time=10)[0]
            receiver.complete_message(message)
            assert message.sequence_number is not None
            fragment = message.sequence_number >> 48
    status = move(pair, "held", fragment, elsewhere(pair, places(pair, "held")[fragment]), server=1)
    assert status["state"] == "done"
    with pair.client(0) as bus, bus.get_queue_receiver("held", session_id="s") as receiver:
        assert receiver.session.get_state() == b"half"
        texts: list[str] = []
        while len(texts) < 9:
            for message in receiver.receive_messages(9 - len(texts), max_wait_time=10):
                texts.append(str(message))
                receiver.complete_message(message)
    assert texts == [str(i) for i in range(1, 10)]


def test_a_topic_with_subscriptions_and_rules_moves_and_goes_on_filtering_and_forwarding(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("sink")
        admin.create_topic("t")
        admin.create_subscription("t", "all")
        admin.create_subscription("t", "red", forward_to="sink")
        admin.delete_rule("t", "red", "$Default")
        admin.create_rule("t", "red", "only", filter=SqlRuleFilter("colour = 'red'"))

    def send(first: int) -> None:
        with pair.client(1) as bus, bus.get_topic_sender("t") as sender:
            for i in range(first, first + 4):
                colour = "red" if i % 2 else "blue"
                sender.send_messages(ServiceBusMessage(str(i), application_properties={"colour": colour}))

    send(0)
    store = places(pair, "t")[0]
    assert move(pair, "t", 0, elsewhere(pair, store))["state"] == "done"
    send(4)
    with pair.client(0) as bus, bus.get_subscription_receiver("t", "all") as receiver:
        texts: list[str] = []
        end = time.monotonic() + PATIENCE_S
        while len(texts) < 8 and time.monotonic() < end:
            for message in receiver.receive_messages(8, max_wait_time=2):
                texts.append(str(message))
                receiver.complete_message(message)
    assert sorted(map(int, texts)) == list(range(8))
    assert sorted(int(str(message)) for message in drain(pair, "sink", 4)) == [1, 3, 5, 7]


def test_under_traffic_at_both_servers_nothing_is_lost_or_doubled_by_moves_to_and_fro(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("busy", enable_partitioning=True, lock_duration=timedelta(seconds=5), max_delivery_count=100)
    sent: list[str] = []
    got: Counter[str] = Counter()
    is_over = threading.Event()

    def send() -> None:
        number = 0
        while not is_over.is_set():
            try:
                with pair.client(0) as bus, bus.get_queue_sender("busy") as sender:
                    while not is_over.is_set():
                        texts = [f"{number + i}" for i in range(10)]
                        number += 10
                        sender.send_messages([ServiceBusMessage(text) for text in texts])
                        sent.extend(texts)
                        is_over.wait(0.05)
            except ServiceBusError:
                is_over.wait(0.1)

    def receive() -> None:
        while not is_over.is_set():
            try:
                with pair.client(1) as bus, bus.get_queue_receiver("busy") as receiver:
                    while not is_over.is_set():
                        for message in receiver.receive_messages(50, max_wait_time=1):
                            got[str(message)] += 1
                            receiver.complete_message(message)
            except ServiceBusError:
                is_over.wait(0.1)

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    try:
        for step in range(6):
            fragment = (0, 5, 10, 15)[step % 4]
            store = places(pair, "busy")[fragment]
            status = move(pair, "busy", fragment, elsewhere(pair, store), server=step % 2)
            assert status["state"] == "done"
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    end = time.monotonic() + PATIENCE_S
    while set(sent) - set(got) and time.monotonic() < end:
        for message in drain(pair, "busy", 1):
            got[str(message)] += 1
    assert set(sent) - set(got) == set()
    assert len(sent) > 50


def test_what_cannot_be_moved_is_refused_in_words(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("whole")
    store = places(pair, "whole")[0]
    for words, text in (
        (("none", "0", "--to", "1"), "no queue or topic"),
        (("whole", "7", "--to", "1"), "has no fragment 7"),
        (("whole", "0", "--to", "99"), "no messaging store 99"),
        (("whole", "0", "--to", str(store)), "already"),
        (("all", "16", "--to", "1"), "has no fragment 16"),
    ):
        found = run(pair, "fragment", "move", *words)
        assert found.exit_code != 0
        assert text in found.output, found.output
