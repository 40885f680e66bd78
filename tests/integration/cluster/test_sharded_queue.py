"""A sharded queue over the stores of two servers, with the official SDK."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AccessRights, AuthorizationRule
from kit_cluster import Cluster, Traffic, running_cluster

from duobus.ha.sdk import prompt_client
from duobus.model.access_rules import sign_token

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # The SDK leaves the sockets of a server that was killed to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

#: Within which keyless sends succeed again when a server is killed (PE4).
AGAIN_S = 5.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two servers with two stores each. The option has no effect any more, and is still taken."""
    folder = tmp_path_factory.mktemp("spread")
    with running_cluster(folder, servers=2, stores=4, more=lambda _number: ["--spread"]) as found:
        found.await_served()
        yield found


def _receive(receiver: object, number: int) -> list[object]:
    found: list[object] = []
    end = time.monotonic() + 60
    while len(found) < number and time.monotonic() < end:
        found += receiver.receive_messages(number - len(found), max_wait_time=2)  # type: ignore[attr-defined]
    return found


def _fragments(messages: list[object]) -> set[int]:
    return {message.sequence_number >> 48 for message in messages}  # type: ignore[attr-defined]


def test_every_server_serves_all_of_a_spread_queue(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("q", enable_partitioning=True, lock_duration=timedelta(seconds=30))
    for server in pair.servers:
        with pair.client(server) as bus, bus.get_queue_sender("q") as sender, bus.get_queue_receiver("q") as receiver:
            for index in range(16):
                sender.send_messages(ServiceBusMessage(str(index)))
            sender.send_messages([ServiceBusMessage(str(index), partition_key="k") for index in range(16, 20)])
            peeked = receiver.peek_messages(100)
            assert len(peeked) == 20
            assert len({number // 4 for number in _fragments(list(peeked))}) == 4
            found = _receive(receiver, 20)
            assert sorted(int(str(message)) for message in found) == list(range(20))
            keyed = [message for message in found if int(str(message)) >= 16]
            assert len(_fragments(keyed)) == 1
            assert receiver.renew_message_lock(found[0]) > datetime.now(UTC)  # type: ignore[arg-type]
            receiver.defer_message(found[0])  # type: ignore[arg-type]
            receiver.defer_message(found[1])  # type: ignore[arg-type]
            for message in found[2:4]:
                receiver.dead_letter_message(message, reason="because")  # type: ignore[arg-type]
            for message in found[4:]:
                receiver.complete_message(message)  # type: ignore[arg-type]
            numbers = [message.sequence_number for message in found[:2]]  # type: ignore[attr-defined]
            for message in receiver.receive_deferred_messages(numbers):
                receiver.complete_message(message)
            with bus.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
                for message in _receive(dead, 2):
                    dead.complete_message(message)  # type: ignore[arg-type]
            numbers = sender.schedule_messages([ServiceBusMessage("later")], datetime.now(UTC) + timedelta(hours=1))
            sender.cancel_scheduled_messages(numbers)
            assert receiver.peek_messages(10) == []


def _http(pair: Cluster, server: int, method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
    token = sign_token(pair.http(server), "RootManageSharedAccessKey", "SAS_KEY_VALUE", int(time.time()) + 600)
    url = f"{pair.http(server)}/{path}"
    asked = urllib.request.Request(url, body, {"Authorization": token, **headers}, method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.status, answer.headers, answer.read()


def test_a_spread_queue_is_used_over_http_at_every_server(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("web", enable_partitioning=True)
    for server in pair.servers:
        for number in range(8):
            assert _http(pair, server, "POST", "web/messages", b"%d" % number)[0] == 201
        keyed = {"BrokerProperties": json.dumps({"PartitionKey": "k"})}
        for number in range(8, 10):
            assert _http(pair, server, "POST", "web/messages", b"%d" % number, **keyed)[0] == 201
        found = set()
        for _ in range(9):
            status, headers, body = _http(pair, server, "POST", "web/messages/head?timeout=10")
            assert status == 201
            found.add(body)
            about = json.loads(headers["BrokerProperties"])
            path = f"web/messages/{about['MessageId']}/{about['LockToken']}"
            assert _http(pair, server, "DELETE", path)[0] == 200
        status, _, body = _http(pair, server, "DELETE", "web/messages/head?timeout=10")
        assert status == 200
        assert {*found, body} == {b"%d" % number for number in range(10)}
        assert _http(pair, server, "DELETE", "web/messages/head?timeout=0")[0] == 204


def _json(pair: Cluster, server: int, method: str, path: str, about: Any = None, **headers: str) -> Any:
    body = None if about is None else json.dumps(about).encode()
    answer = _http(pair, server, method, path, body, **headers)[2]
    return json.loads(answer) if answer else None


def test_a_batch_over_http_is_stored_as_a_whole_at_every_server(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("batches", enable_partitioning=True)
    about = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
    for server in pair.servers:
        keyed = [{"Body": str(number), "BrokerProperties": {"PartitionKey": "k"}} for number in range(3)]
        _json(pair, server, "POST", "batches/messages", keyed, **about)
        _json(pair, server, "POST", "batches/messages", [{"Body": "keyless"}], **about)
    with pair.admin(1) as admin:
        assert admin.get_queue_runtime_properties("batches").active_message_count == 8
        (listed,) = [one for one in admin.list_queues_runtime_properties() if one.name == "batches"]
        assert listed.active_message_count == 8


def test_fragments_of_a_spread_queue_are_listed_at_every_server(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("listed", enable_partitioning=True)
    end = time.monotonic() + 30
    for server in pair.servers:
        while True:
            found = _json(pair, server, "GET", "$duobus/fragments?entity=listed")
            if len(found) == 16:
                break
            assert time.monotonic() < end, found
            time.sleep(0.1)
        assert [row["fragment"] for row in found] == list(range(16))
        assert {row["entity"] for row in found} == {"listed"}
        assert {row["store"] for row in found} == {1, 2, 3, 4}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _json(pair, 0, "GET", "$duobus/fragments?entity=nowhere")


def test_dead_letters_of_a_spread_queue_are_worked_on_at_every_server(pair: Cluster) -> None:
    with pair.admin(0) as admin:
        admin.create_queue("letters", enable_partitioning=True)
    desk = "letters/$deadletterqueue/$desk"
    with (
        pair.client(0) as bus,
        bus.get_queue_sender("letters") as sender,
        bus.get_queue_receiver("letters") as receiver,
    ):
        for number in range(12):
            sender.send_messages(ServiceBusMessage(str(number), partition_key=f"k{number}"))
        for message in _receive(receiver, 12):
            receiver.dead_letter_message(message, reason="because")  # type: ignore[arg-type]
    end = time.monotonic() + 60
    for server in pair.servers:
        # The SDK does not wait until a message is a dead letter.
        while (listed := _json(pair, server, "POST", desk, {"action": "list", "heads": True}))["matched"] < 12:
            assert time.monotonic() < end, listed
            time.sleep(0.1)
        assert listed["next"] is None
        numbers = [row["sequenceNumber"] for row in listed["messages"]]
        assert numbers == sorted(numbers)
        page = _json(pair, server, "POST", desk, {"action": "list", "heads": True, "limit": 5})
        assert [row["sequenceNumber"] for row in page["messages"]] == numbers[:5]
    first: int | None = 0
    moved: list[int] = []
    while first is not None:
        done = _json(pair, 1, "POST", desk, {"action": "resubmit", "first": first})
        moved += [row["sequenceNumber"] for row in done["moved"]]
        first = done["next"]
    assert sorted(moved) == numbers
    items = [{"message": {"body": {"data": ["new"]}, "partitionKey": f"k{number}"}} for number in range(4)]
    sent = _json(pair, 0, "POST", "letters/$desk", {"action": "send", "items": items})
    assert sent["sent"] == 4, sent
    with pair.admin(1) as admin:
        about = admin.get_queue_runtime_properties("letters")
        assert (about.active_message_count, about.dead_letter_message_count) == (16, 0)


def test_the_key_of_a_queues_own_rule_is_good_for_all_of_it_at_every_server(pair: Cluster) -> None:
    key = base64.b64encode(b"k" * 32).decode()
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        key_name="own",
        primary_key=key,
        secondary_key=key,
    )
    with pair.admin(0) as admin:
        admin.create_queue("guarded", enable_partitioning=True, authorization_rules=[rule])
        admin.create_queue("other", enable_partitioning=True)
    for server in pair.servers:
        address = pair.address(server).replace("RootManageSharedAccessKey", "own").replace("SAS_KEY_VALUE", key)
        # A client that is refused would try again for eleven seconds.
        with prompt_client(ServiceBusClient.from_connection_string(address, retry_total=0)) as bus:
            with bus.get_queue_sender("guarded") as sender:
                for number in range(8):
                    sender.send_messages(ServiceBusMessage(str(number)))
            with bus.get_queue_receiver("guarded") as receiver:
                for message in _receive(receiver, 8):
                    receiver.complete_message(message)  # type: ignore[arg-type]
            with pytest.raises(ServiceBusError), bus.get_queue_sender("other") as sender:
                sender.send_messages(ServiceBusMessage("refused"))


def test_a_spread_queue_is_managed_at_every_server(pair: Cluster) -> None:
    with pair.admin(0) as first, pair.admin(1) as second:
        first.create_queue("managed", enable_partitioning=True)
        names = sorted(queue.name for queue in second.list_queues())
        assert "managed" in names
        assert not any("~share" in name for name in names)
        about = second.get_queue("managed")
        assert about.enable_partitioning
        with pair.client(1) as bus, bus.get_queue_sender("managed") as sender:
            for index in range(6):
                sender.send_messages(ServiceBusMessage(str(index)))
        told = first.get_queue_runtime_properties("managed")
        assert told.active_message_count == 6
        assert told.accessed_at_utc >= told.created_at_utc
        about.max_delivery_count = 3
        second.update_queue(about)
        end = time.monotonic() + 60
        while first.get_queue("managed").max_delivery_count != 3:
            assert time.monotonic() < end
            time.sleep(0.1)
        second.delete_queue("managed")
        while True:
            try:
                first.get_queue("managed")
            except ResourceNotFoundError:
                break
            assert time.monotonic() < end
            time.sleep(0.1)
        # The name is free once all owners have deleted their shares.
        while True:
            try:
                first.create_queue("managed", enable_partitioning=True)
            except Exception:  # noqa: BLE001 - whatever the SDK makes of a conflict
                assert time.monotonic() < end
                time.sleep(0.2)
            else:
                break


def test_a_killed_server_takes_its_share_alone_and_loses_nothing(pair: Cluster) -> None:
    """PE1."""
    with pair.admin(0) as admin:
        admin.create_queue("killed", enable_partitioning=True, lock_duration=timedelta(seconds=10))
    # Sender at server 0, receiver at server 1.
    traffic = Traffic(pair, ["killed"])
    try:
        time.sleep(2)
        pair.kill(1)
        killed = time.monotonic()
        with pair.client(0, retry_total=0) as bus:
            waited = None
            while waited is None:
                try:
                    with bus.get_queue_sender("killed") as sender:
                        sender.send_messages(ServiceBusMessage("probe"))
                    waited = time.monotonic() - killed
                except ServiceBusError:
                    time.sleep(0.05)
        assert waited < AGAIN_S
        pair.await_served(0)
        pair.start(1)
        pair.await_ready(1)
        pair.await_served()
    finally:
        traffic.stop()
    assert traffic.sent
    assert not traffic.lost
