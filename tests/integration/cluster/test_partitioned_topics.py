"""A partitioned topic over the stores of three servers, at every server, with the official SDK (decision 0069)."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter
from kit_cluster import Cluster, running_cluster, take, until

from duobus.amqp import LinkAttached, Source, Target, Transfers
from duobus.codec import Int, application_properties, build_message, decode, scan
from duobus.codec.sections import VALUE, find_section
from duobus.model.access_rules import sign_token
from kits.gateway import Client, TcpStream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # The SDK leaves the sockets of a server that was killed to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three servers with three stores."""
    with running_cluster(tmp_path_factory.mktemp("topics"), servers=3, stores=3) as found:
        found.await_served()
        yield found


def _drain(cluster: Cluster, server: int, topic: str, name: str, number: int) -> list[str]:
    """Complete so many messages; there is none more."""
    with cluster.client(server) as bus, bus.get_subscription_receiver(topic, name) as receiver:
        found = take(receiver, number)
        for message in found:
            receiver.complete_message(message)
        assert receiver.receive_messages(1, max_wait_time=1) == []
        return sorted(str(message) for message in found)


def _send(cluster: Cluster, server: int, topic: str, *messages: ServiceBusMessage) -> None:
    with cluster.client(server) as bus, bus.get_topic_sender(topic) as sender:
        for message in messages:
            sender.send_messages(message)


def _numbered(number: int, **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(str(number), application_properties={"n": number, "k": f"{number % 3}"}, **properties)


def test_every_subscription_gets_what_its_rules_say_whichever_server_changed_them(trio: Cluster) -> None:
    with trio.admin(0) as first, trio.admin(1) as second, trio.admin(2) as third:
        first.create_topic("news", enable_partitioning=True)
        first.create_subscription("news", "all")
        second.create_subscription("news", "even")
        third.create_rule("news", "even", "even", filter=SqlRuleFilter("n % 2 = 0"), action=SqlRuleAction("SET e = 1"))
        second.delete_rule("news", "even", "$Default")
        third.create_subscription("news", "third")
        first.delete_rule("news", "third", "$Default")
        second.create_rule("news", "third", "k", filter=CorrelationRuleFilter(properties={"k": "0"}))
        assert [rule.name for rule in third.list_rules("news", "even")] == ["even"]
        with pytest.raises(ResourceExistsError):
            third.create_subscription("news", "All")
        with pytest.raises(ResourceNotFoundError):
            first.delete_rule("news", "third", "$Default")
        for server in trio.servers:
            _send(trio, server, "news", *(_numbered(number) for number in range(server, 30, 3)))
        wanted = {"all": 30, "even": 15, "third": 10}
        for admin in (first, second, third):
            told = {one.name: one.active_message_count for one in admin.list_subscriptions_runtime_properties("news")}
            assert told == wanted
            assert {one.name for one in admin.list_subscriptions("news")} == wanted.keys()
            for name, number in wanted.items():
                assert admin.get_subscription_runtime_properties("news", name).active_message_count == number
            topic = admin.get_topic_runtime_properties("news")
            assert topic.subscription_count == 3
            assert topic.size_in_bytes > 0
            assert "news" in {one.name for one in admin.list_topics()}
            assert not any("~share" in one.name for one in admin.list_topics())
        with trio.client(2) as bus, bus.get_subscription_receiver("news", "even") as receiver:
            peeked = receiver.peek_messages(100, sequence_number=1)
            assert len({message.sequence_number >> 48 for message in peeked}) > 4
            assert all(message.application_properties[b"e"] == 1 for message in peeked)
        assert _drain(trio, 0, "news", "all", 30) == sorted(map(str, range(30)))
        assert _drain(trio, 1, "news", "even", 15) == sorted(map(str, range(0, 30, 2)))
        assert _drain(trio, 2, "news", "third", 10) == sorted(map(str, range(0, 30, 3)))
        second.delete_subscription("news", "third")
        for admin in (first, second, third):
            assert {one.name for one in admin.list_subscriptions("news")} == {"all", "even"}
        with trio.client(0) as bus, pytest.raises(MessagingEntityNotFoundError):
            bus.get_subscription_receiver("news", "third").__enter__()
        properties = third.get_subscription("news", "all")
        properties.max_delivery_count = 3
        third.update_subscription("news", properties)
        assert first.get_subscription("news", "all").max_delivery_count == 3
        first.delete_topic("news")
        with pytest.raises(ResourceNotFoundError):
            second.get_topic("news")


async def _asked(cluster: Cluster, server: int, node: str, operation: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and body of what a management node answers over AMQP."""
    port = re.search(r":(\d+)", cluster.address(server).split("sb://")[1])
    assert port is not None
    client = Client(await TcpStream.connect(int(port[1])))
    name, number = uuid.uuid4().hex, uuid.uuid4()
    replies = client.session.attach_receiver(name, Source(address=node), Target(address=name))
    requests = client.session.attach_sender(f"r{name}", Source(address="c"), Target(address=node))
    for link in (replies, requests):
        await client.wait(LinkAttached, lambda event, link=link: event.link is link)
    replies.grant(1)
    while not requests.sendable():
        await client.pump()
    properties = {"operation": f"com.microsoft:{operation}"}
    requests.send_one(number.bytes, build_message([number, None, None, None, name], properties, body_value=body), True)
    event = await client.wait(Transfers, lambda event: event.link is replies)
    bare = event.payloads[0][scan(event.payloads[0]).bare :]
    await client.stream.close()
    start, value, _ = find_section(bare, VALUE)
    return int(application_properties(bare)["statusCode"]), None if start == value else decode(bare, value)[0]


def test_rules_are_changed_over_amqp_in_all_shards_at_whichever_server(trio: Cluster) -> None:
    with trio.admin(0) as admin:
        admin.create_topic("wire", enable_partitioning=True)
        admin.create_subscription("wire", "s")

    def ask(server: int, operation: str, body: dict[str, Any]) -> tuple[int, Any]:
        return asyncio.run(_asked(trio, server, "wire/Subscriptions/s/$management", operation, body))

    rule = {"rule-name": "big", "rule-description": {"sql-filter": {"expression": "n > 9"}}}
    assert ask(1, "add-rule", rule)[0] == 200
    assert ask(2, "remove-rule", {"rule-name": "$Default"})[0] == 200
    assert ask(0, "add-rule", rule)[0] == 409
    assert ask(1, "remove-rule", {"rule-name": "$Default"})[0] == 404
    assert (
        ask(2, "add-rule", {"rule-name": "wrong", "rule-description": {"sql-filter": {"expression": "n >"}}})[0] == 400
    )
    status, body = ask(2, "enumerate-rules", {"skip": Int(0), "top": Int(10)})
    assert status == 200
    assert [one["rule-description"].value[2] for one in body["rules"]] == ["big"]
    for server in trio.servers:
        _send(trio, server, "wire", *(_numbered(number) for number in range(server, 24, 3)))
    assert _drain(trio, 0, "wire", "s", 14) == sorted(map(str, range(10, 24)))


def test_messages_of_a_subscription_are_settled_deferred_and_dead_lettered_at_any_server(trio: Cluster) -> None:
    with trio.admin(1) as admin:
        admin.create_topic("work", enable_partitioning=True)
        admin.create_subscription("work", "s", max_delivery_count=2)
    _send(trio, 0, "work", *(_numbered(number) for number in range(24)))
    with trio.client(2) as bus, bus.get_subscription_receiver("work", "s") as receiver:
        found = {int(str(message)): message for message in take(receiver, 24)}
        assert len({message.sequence_number >> 48 for message in found.values()}) > 4
        for number, message in found.items():
            if number % 4 == 0:
                receiver.complete_message(message)
            elif number % 4 == 1:
                receiver.dead_letter_message(message, reason="because")
            elif number % 4 == 2:
                receiver.defer_message(message)
            else:
                assert receiver.renew_message_lock(message) > datetime.now(UTC)
                receiver.abandon_message(message)
        deferred = [found[number].sequence_number for number in range(2, 24, 4)]
        for message in receiver.receive_deferred_messages(deferred):
            receiver.complete_message(message)
    with trio.admin(2) as admin:
        told = admin.get_subscription_runtime_properties("work", "s")
        assert (told.active_message_count, told.dead_letter_message_count) == (6, 6)
    assert _drain(trio, 1, "work", "s", 6) == sorted(map(str, range(3, 24, 4)))
    with (
        trio.client(0) as bus,
        bus.get_subscription_receiver("work", "s", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead,
    ):
        messages = take(dead, 6)
        assert {message.dead_letter_reason for message in messages} == {"because"}
        for message in messages:
            dead.complete_message(message)


def test_scheduled_messages_and_duplicates_of_a_topic_meet_in_the_shard_of_their_key(trio: Cluster) -> None:
    with trio.admin(0) as admin:
        admin.create_topic("once", enable_partitioning=True, requires_duplicate_detection=True)
        admin.create_subscription("once", "s")
    for server in trio.servers:
        _send(trio, server, "once", *(_numbered(number, message_id=f"id-{number}") for number in range(12)))
    assert _drain(trio, 2, "once", "s", 12) == sorted(map(str, range(12)))
    with trio.client(1) as bus, bus.get_topic_sender("once") as sender:
        at = datetime.now(UTC) + timedelta(seconds=600)
        numbers = [sender.schedule_messages(_numbered(number), at)[0] for number in range(100, 106)]
        with trio.admin(2) as admin:
            assert admin.get_topic_runtime_properties("once").scheduled_message_count == 6
        sender.cancel_scheduled_messages(numbers[:5])
        with trio.admin(0) as admin:
            assert admin.get_topic_runtime_properties("once").scheduled_message_count == 1
        soon = datetime.now(UTC) + timedelta(seconds=1)
        sender.schedule_messages([_numbered(200, partition_key="p"), _numbered(201, partition_key="p")], soon)
    assert _drain(trio, 0, "once", "s", 2) == ["200", "201"]


def test_sessions_of_a_subscription_are_held_once_at_whichever_server(trio: Cluster) -> None:
    with trio.admin(2) as admin:
        admin.create_topic("talks", enable_partitioning=True)
        admin.create_subscription("talks", "s", requires_session=True)
    names = [f"s{number}" for number in range(6)]
    _send(trio, 1, "talks", *(ServiceBusMessage(f"{name}-{i}", session_id=name) for name in names for i in range(3)))
    for turn, name in enumerate(names):
        with (
            trio.client(turn % 3) as here,
            trio.client((turn + 1) % 3, retry_total=0) as there,
            here.get_subscription_receiver("talks", "s", session_id=name) as receiver,
        ):
            with pytest.raises(ServiceBusError):
                there.get_subscription_receiver("talks", "s", session_id=name).__enter__()
            receiver.session.set_state(name)
            found = take(receiver, 3)
            assert [str(message) for message in found] == [f"{name}-{i}" for i in range(3)]
            for message in found:
                receiver.complete_message(message)
            assert receiver.session.get_state() == name.encode()


def test_a_subscription_forwards_and_a_topic_is_forwarded_to(trio: Cluster) -> None:
    with trio.admin(0) as admin:
        admin.create_topic("inner", enable_partitioning=True)
        admin.create_subscription("inner", "s")
        admin.create_topic("outer", enable_partitioning=True)
        admin.create_subscription("outer", "on", forward_to="inner")
        admin.create_queue("before", enable_partitioning=True, forward_to="outer")
    with trio.client(2) as bus, bus.get_queue_sender("before") as sender:
        for start in range(0, 40, 10):
            sender.send_messages([_numbered(number) for number in range(start, start + 10)])
    assert _drain(trio, 1, "inner", "s", 40) == sorted(map(str, range(40)))


def test_a_killed_server_leaves_the_subscriptions_and_rules_that_were_answered(trio: Cluster) -> None:
    with trio.admin(0) as admin:
        admin.create_topic("kept", enable_partitioning=True)
        admin.create_subscription("kept", "base")
    trio.kill(2)
    made = ["base"]
    try:
        with trio.admin(0) as admin, trio.admin(1) as other:

            def create() -> bool:
                name = f"s{len(made)}"
                try:
                    admin.create_subscription("kept", name)
                except ResourceExistsError:
                    pass
                except HttpResponseError:
                    return False
                made.append(name)
                return len(made) == 4

            until(create)
            while True:
                try:
                    other.create_rule("kept", "base", "odd", filter=SqlRuleFilter("n % 2 = 1"))
                    other.delete_rule("kept", "base", "$Default")
                except ResourceExistsError:
                    other.delete_rule("kept", "base", "$Default")
                except HttpResponseError:
                    time.sleep(0.2)
                    continue
                break
        for server in (0, 1):
            _send(trio, server, "kept", *(_numbered(number) for number in range(server, 20, 2)))
        for name in made[1:]:
            assert _drain(trio, 1, "kept", name, 20) == sorted(map(str, range(20)))
        assert _drain(trio, 0, "kept", "base", 10) == sorted(map(str, range(1, 20, 2)))
    finally:
        trio.start(2)
        trio.await_ready(2)
        trio.await_served()
    _send(trio, 2, "kept", *(_numbered(number) for number in range(6)))
    for name in made[1:]:
        assert _drain(trio, 2, "kept", name, 6) == sorted(map(str, range(6)))


def test_messages_go_to_a_topic_and_come_from_a_subscription_over_http(trio: Cluster) -> None:
    with trio.admin(0) as admin:
        admin.create_topic("plain", enable_partitioning=True)
        admin.create_subscription("plain", "s")
    address = f"{trio.http(0)}/"
    token = sign_token(address, "RootManageSharedAccessKey", "SAS_KEY_VALUE", int(time.time()) + 600)
    for number in range(6):
        request = urllib.request.Request(f"{trio.http(number % 3)}/plain/messages", data=b"%d" % number, method="POST")
        request.add_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201
    found = []
    for number in range(6):
        address = f"{trio.http((number + 1) % 3)}/plain/subscriptions/s/messages/head?timeout=10"
        request = urllib.request.Request(address, method="DELETE")
        request.add_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
            found.append(answer.read().decode())
    assert sorted(found) == [str(number) for number in range(6)]
