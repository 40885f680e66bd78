"""Three servers over one PostgreSQL: any of them serves any client, with the official SDK."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError
from click.testing import CliRunner
from kit_cluster import Cluster

from duobus.cli.main import main
from duobus.model.access_rules import sign_token

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def entities(cluster: Cluster) -> None:
    """Six queues, so that some of them are elsewhere for each server, and one of each other kind."""
    cluster.await_served()
    with cluster.admin(0) as admin:
        for number in range(6):
            admin.create_queue(f"q{number}")
        admin.create_queue("sessions", requires_session=True)
        admin.create_queue("parts", enable_partitioning=True)
        admin.create_topic("topic")
        admin.create_subscription("topic", "all")


@pytest.mark.parametrize("server", range(3))
def test_every_server_sends_to_and_receives_from_every_queue(cluster: Cluster, server: int) -> None:
    with cluster.client(server) as bus:
        for number in range(6):
            with bus.get_queue_sender(f"q{number}") as sender, bus.get_queue_receiver(f"q{number}") as receiver:
                sender.send_messages([ServiceBusMessage(f"{number}-{index}") for index in range(20)])
                found = receiver.receive_messages(20, max_wait_time=5)
                while len(found) < 20:
                    found += receiver.receive_messages(20, max_wait_time=5)
                assert [str(message) for message in found] == [f"{number}-{index}" for index in range(20)]
                for message in found:
                    receiver.complete_message(message)
                assert receiver.peek_messages(1) == []


@pytest.mark.parametrize("server", range(3))
def test_what_a_receiver_can_do_it_can_do_at_every_server(cluster: Cluster, server: int) -> None:
    with cluster.client(server) as bus:
        hour = timedelta(hours=1)
        for name in ("q0", "q1", "q2"):
            with bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
                sender.send_messages(
                    [ServiceBusMessage(str(index), time_to_live=timedelta(hours=1)) for index in range(4)]
                )
                assert len(receiver.peek_messages(10)) == 4
                first, second, third = (receiver.receive_messages(1, max_wait_time=5)[0] for _ in range(3))
                assert receiver.renew_message_lock(first) > datetime.now(UTC)
                receiver.abandon_message(first)
                receiver.dead_letter_message(second, reason="because")
                receiver.defer_message(third)
                assert third.sequence_number is not None
                (deferred,) = receiver.receive_deferred_messages([third.sequence_number])
                receiver.complete_message(deferred)
                with bus.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
                    (forgotten,) = dead.receive_messages(1, max_wait_time=5)
                    assert forgotten.dead_letter_reason == "because"
                    dead.complete_message(forgotten)
                numbers = sender.schedule_messages([ServiceBusMessage("later")], datetime.now(UTC) + hour)
                sender.cancel_scheduled_messages(numbers)
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
            with bus.get_queue_receiver(name, receive_mode=mode) as receiver:
                left = [str(message) for message in receiver.receive_messages(2, max_wait_time=5)]
                while len(left) < 2:
                    left += [str(message) for message in receiver.receive_messages(2, max_wait_time=5)]
                assert sorted(left) == ["0", "3"]


@pytest.mark.parametrize("server", range(3))
def test_sessions_topics_and_partitioned_queues_work_at_every_server(cluster: Cluster, server: int) -> None:
    with cluster.client(server) as bus:
        with bus.get_queue_sender("sessions") as sender:
            sender.send_messages([ServiceBusMessage(str(index), session_id="s") for index in range(3)])
        with bus.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION) as receiver:
            assert receiver.session.session_id == "s"
            receiver.session.set_state(b"state")
            assert receiver.session.get_state() == b"state"
            receiver.session.renew_lock()
            for message in receiver.receive_messages(3, max_wait_time=5):
                receiver.complete_message(message)
        with bus.get_topic_sender("topic") as sender:
            sender.send_messages(ServiceBusMessage("to all"))
        with bus.get_subscription_receiver("topic", "all") as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=5)
            assert str(message) == "to all"
            receiver.complete_message(message)
        with bus.get_queue_sender("parts") as sender, bus.get_queue_receiver("parts") as receiver:
            for index in range(10):
                sender.send_messages(ServiceBusMessage("p", partition_key=str(index)))
            found = 0
            while found < 10:
                for message in receiver.receive_messages(10, max_wait_time=5):
                    receiver.complete_message(message)
                    found += 1


def test_a_large_message_passes_whole(cluster: Cluster) -> None:
    text = "x" * 200_000
    for server in cluster.servers:
        with cluster.client(server) as bus, bus.get_queue_sender("q5") as sender:
            sender.send_messages(ServiceBusMessage(text))
        with cluster.client((server + 1) % 3) as bus, bus.get_queue_receiver("q5") as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=5)
            assert str(message) == text
            receiver.complete_message(message)


def test_an_entity_that_one_server_has_just_made_is_known_to_all_and_gone_when_deleted(cluster: Cluster) -> None:
    for server in cluster.servers:
        other = (server + 1) % 3
        with cluster.admin(server) as admin:
            admin.create_queue(f"fresh-{server}")
        with cluster.client(other) as bus, bus.get_queue_sender(f"fresh-{server}") as sender:
            sender.send_messages(ServiceBusMessage("m"))
        with cluster.admin(other) as admin:
            assert admin.get_queue_runtime_properties(f"fresh-{server}").active_message_count == 1
            admin.delete_queue(f"fresh-{server}")
        with cluster.admin(server) as admin, pytest.raises(ResourceNotFoundError):
            admin.get_queue(f"fresh-{server}")
        # Without retries: the SDK takes a missing entity for a wrong key, and would try for eleven seconds.
        with cluster.client(server, retry_total=0) as bus, pytest.raises(ServiceBusAuthenticationError):
            bus.get_queue_sender(f"fresh-{server}").__enter__()


def test_what_is_nowhere_is_not_found_and_a_wrong_key_opens_nothing_anywhere(cluster: Cluster) -> None:
    for server in cluster.servers:
        with cluster.client(server, retry_total=0) as bus, pytest.raises(ServiceBusAuthenticationError):
            bus.get_queue_sender("nowhere").__enter__()
        address = cluster.address(server).replace("SAS_KEY_VALUE", "wrong")
        for number in range(4):
            with (
                type(cluster.client(server)).from_connection_string(address, retry_total=0) as bus,
                pytest.raises((ServiceBusAuthenticationError, ServiceBusError)),
            ):
                bus.get_queue_sender(f"q{number}").__enter__()


@pytest.mark.parametrize("server", range(3))
def test_every_server_lists_the_entities_of_all(cluster: Cluster, server: int) -> None:
    with cluster.admin(server) as admin:
        assert {f"q{number}" for number in range(6)} < {queue.name for queue in admin.list_queues()}
        assert [topic.name for topic in admin.list_topics()] == ["topic"]
        assert [subscription.name for subscription in admin.list_subscriptions("topic")] == ["all"]
        told = {queue.name: queue.active_message_count for queue in admin.list_queues_runtime_properties()}
        assert all(
            told[f"q{number}"] == admin.get_queue_runtime_properties(f"q{number}").active_message_count
            for number in range(6)
        )
    with urllib.request.urlopen(listing(cluster, server, "$skip=1&$top=2&$filter=startswith(path,'q')")) as answer:
        feed = answer.read().decode()
    assert [f">q{number}</title>" in feed for number in range(6)] == [False, True, True, False, False, False]
    assert "$skip=3&amp;$top=2" in feed


def test_a_list_is_for_those_with_the_right(cluster: Cluster) -> None:
    request = listing(cluster, 0, "$top=5")
    request.headers["Authorization"] = request.headers["Authorization"].replace("sig=", "sig=A")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request)


def listing(cluster: Cluster, server: int, query: str) -> urllib.request.Request:
    """A request for queues."""
    address = cluster.http(server)
    token = sign_token(address, "RootManageSharedAccessKey", "SAS_KEY_VALUE", int(time.time()) + 600)
    return urllib.request.Request(
        f"{address}/$Resources/queues?{query.replace(' ', '%20')}", headers={"Authorization": token}
    )


def test_messages_are_forwarded_between_entities_of_all_servers(cluster: Cluster) -> None:
    names = [f"hop{number}" for number in range(6)]
    with cluster.admin(1) as admin:
        # The last one first: what is forwarded to has to exist.
        admin.create_queue(names[-1])
        for name, target in zip(names[-2::-1], names[:0:-1], strict=True):
            # Four hops at most.
            admin.create_queue(name, forward_to=names[-1] if name in names[:2] else target)
        with pytest.raises(Exception, match="does not exist"):
            admin.create_queue("astray", forward_to="nowhere")
    with cluster.client(0) as bus, bus.get_queue_receiver(names[-1]) as receiver:
        for name in names[:-1]:
            with bus.get_queue_sender(name) as sender:
                sender.send_messages([ServiceBusMessage(f"{name}-{index}") for index in range(10)])
        wanted = {f"{name}-{index}" for name in names[:-1] for index in range(10)}
        found = []
        while len(found) < len(wanted):
            some = receiver.receive_messages(len(wanted), max_wait_time=10)
            assert some, sorted(wanted.difference(found))
            for message in some:
                found.append(str(message))
                receiver.complete_message(message)
        assert sorted(found) == sorted(wanted)
        assert receiver.receive_messages(1, max_wait_time=1) == []


def test_fragments_of_all_stores_are_listed_at_every_server(cluster: Cluster) -> None:
    for server in cluster.servers:
        environment = {"DUOBUS_CONNECTION_STRING": cluster.address(server)}
        found = CliRunner().invoke(main, ["fragment", "list", "parts"], env=environment)
        assert found.exit_code == 0, found.output
        rows = [json.loads(line) for line in found.stdout.splitlines()]
        assert [row["fragment"] for row in rows] == list(range(16))
        assert {row["store"] for row in rows} == {1, 2, 3, 4}
        refused = CliRunner().invoke(main, ["fragment", "list", "nowhere"], env=environment)
        assert "There is no queue or topic 'nowhere' in this namespace" in refused.output


def test_health_tells_what_a_server_has_and_metrics_what_it_passes_on(cluster: Cluster) -> None:
    # A disk or a machine that was slow for seconds may have cost a server a store, which then moves.
    cluster.await_served()
    stores: list[str] = []
    proxied = 0.0
    for server in cluster.servers:
        with urllib.request.urlopen(f"{cluster.http(server)}/health") as answer:
            health = json.load(answer)
        assert health["status"] == "healthy"
        stores += health["stores"]
        with urllib.request.urlopen(f"{cluster.http(server)}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        values = {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}
        assert values["duobus_cluster_nodes"] == 3
        proxied += values["duobus_cluster_passed_messages_total"]
    assert sorted(stores) == ["1", "2", "3", "4"]
    assert proxied > 0
