"""A store that is away is told apart from a busy server, in every answer that a client can get (PN3, IN2, PE17).

Over a real server with four stores, one of which is away: refused messages, links that are ended, answers of the
management node, WebSockets and HTTP.
"""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.ha.outage_scope import Away, keys_of, slot_of, store_away
from duobus.ha.transfer import ping
from duobus.model.access_rules import sign_token
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.clients import endpoints_of

SLOTS = 16
QUEUES: dict[str, dict[str, Any]] = {
    "parts": {"EnablePartitioning": True},
    "by-id": {"EnablePartitioning": True, "RequiresDuplicateDetection": True},
    "sessions": {"EnablePartitioning": True, "RequiresSession": True},
    **{f"plain-{number}": {} for number in range(4)},
}


class Place(NamedTuple):
    """A server of which store 2 is away.

    Attributes:
        lost: A queue that lies in it.
        key: A key of the queue ``parts`` that belongs there, and of the others with fragments.
        there: A key that does not.
    """

    server: ServerProcess
    client: ServiceBusClient
    lost: str
    key: str
    there: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    options = ("--emulator", "--tls-self-signed", "--allow-drills", "--stores", "4")
    folder = tmp_path_factory.mktemp("away")
    with ServerProcess(folder, config=queues_config(QUEUES), arguments=options) as server:
        environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
        with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
            done = CliRunner().invoke(main, ["store", "fail", "2"], env=environment)
            assert done.exit_code == 0, done.output
            lost = next(name for name in QUEUES if name.startswith("plain") and refusal(client, name) is not None)
            found = {key: refusal(client, "parts", partition_key=key) for key in map(str, range(12))}
            key = next(key for key, away in found.items() if away is not None)
            there = next(key for key, away in found.items() if away is None)
            yield Place(server, client, lost, key, there)
        server.kill()


def refusal(client: ServiceBusClient, queue: str, **properties: Any) -> Away | None:
    """What the error of a send says is away; None when the message was taken."""
    with client.get_queue_sender(queue) as sender:
        return said(sender, ServiceBusMessage("x", **properties))


def said(sender: Any, message: ServiceBusMessage) -> Away | None:
    try:
        sender.send_messages(message)
    except ServiceBusServerBusyError as error:
        return store_away(error) or Away(f"no mark in {error}", 0, 0, 0)
    return None


def test_of_a_plain_queue_the_entity_is_away(place: Place) -> None:
    assert refusal(place.client, place.lost) == Away(place.lost, 0, 0, 0)
    assert refusal(place.client, place.lost, partition_key="any") == Away(place.lost, 0, 0, 0)


def test_of_a_key_its_fragment_is_away_by_the_number_that_a_client_can_compute(place: Place) -> None:
    slot = slot_of(place.key, SLOTS)
    assert refusal(place.client, "parts", partition_key=place.key) == Away("parts", slot, slot, SLOTS)
    assert refusal(place.client, "PARTS", partition_key=place.key) == Away("parts", slot, slot, SLOTS)
    assert slot_of(place.there, SLOTS) != slot
    # Every key of the slot is away, and the keyless go on.
    other = next(key for key in map(str, count(1_000)) if slot_of(key, SLOTS) == slot)
    assert refusal(place.client, "parts", partition_key=other) == Away("parts", slot, slot, SLOTS)
    assert refusal(place.client, "parts") is None


def test_a_batch_is_refused_with_the_fragment_of_its_key(place: Place) -> None:
    slot = slot_of(place.key, SLOTS)
    messages = [ServiceBusMessage("x", partition_key=place.key) for _ in range(3)]
    with place.client.get_queue_sender("parts") as sender, pytest.raises(ServiceBusServerBusyError) as refused:
        sender.send_messages(messages)
    assert store_away(refused.value) == Away("parts", slot, slot, SLOTS)
    assert keys_of(messages) == {place.key}


def test_a_message_id_that_is_the_key_is_refused_with_its_fragment(place: Place) -> None:
    with place.client.get_queue_sender("by-id") as sender:
        found = [said(sender, ServiceBusMessage("x", message_id=str(number))) for number in range(40)]
    away = {one for one in found if one is not None}
    assert 0 < len(away) < len(found)
    assert {(one.entity, one.slots) for one in away} == {("by-id", SLOTS)}


def test_the_answer_of_the_management_node_says_it(place: Place) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    slot = slot_of(place.key, SLOTS)
    with place.client.get_queue_sender("parts") as sender, pytest.raises(ServiceBusServerBusyError) as refused:
        sender.schedule_messages(ServiceBusMessage("x", partition_key=place.key), later)
    assert store_away(refused.value) == Away("parts", slot, slot, SLOTS)


def test_a_link_that_cannot_be_opened_says_it(place: Place) -> None:
    lost = next(key for key in map(str, count()) if refusal(place.client, "sessions", session_id=key) is not None)
    slot = slot_of(lost, SLOTS)
    with pytest.raises(ServiceBusServerBusyError) as refused:
        place.client.get_queue_receiver("sessions", session_id=lost).__enter__()
    assert store_away(refused.value) == Away("sessions", slot, slot, SLOTS)


@pytest.mark.parametrize("amqp", ["tls", "websocket"])
def test_the_text_comes_through_every_transport(place: Place, amqp: str) -> None:
    route = next(one for one in endpoints_of(place.server) if one.name == amqp)

    async def send() -> None:
        async with route.async_client() as client, client.get_queue_sender(place.lost) as sender:
            await sender.send_messages(ServiceBusMessage("x"))

    with pytest.raises(ServiceBusServerBusyError) as refused:
        asyncio.run(send())
    assert store_away(refused.value) == Away(place.lost, 0, 0, 0)


def test_a_ping_asks_for_the_fragment_of_its_partition_key_and_otherwise_for_any(place: Place) -> None:
    with place.client.get_queue_sender("parts") as sender:
        for _ in range(20):
            sender.send_messages(ping(place.key))
        sender.send_messages(ping(place.there, is_key=True))
        with pytest.raises(ServiceBusServerBusyError) as refused:
            sender.send_messages(ping(place.key, is_key=True))
    assert store_away(refused.value) is not None
    with place.client.get_queue_sender(place.lost) as sender, pytest.raises(ServiceBusServerBusyError):
        sender.send_messages(ping("any"))
    with place.client.get_queue_receiver("parts") as receiver:
        assert all(str(message) == "x" for message in receiver.peek_messages(100))


def test_over_http_the_status_is_503_and_the_body_has_the_sub_code_and_what_is_away(place: Place) -> None:
    slot = slot_of(place.key, SLOTS)
    for queue, properties, mark in (
        (place.lost, "{}", f"StoreUnavailable:{place.lost} "),
        ("parts", f'{{"PartitionKey": "{place.key}"}}', f"StoreUnavailable:parts, Fragment:{slot}/{SLOTS} "),
    ):
        status, headers, body = post(place.server, queue, properties)
        assert status == 503
        assert re.search(r"SubCode=50004\. Server Busy\. .*" + re.escape(mark) + "TrackingId:", body), body
        assert headers["Retry-After"] == "2"
    assert post(place.server, "parts", "{}")[0] == 201


def post(server: ServerProcess, queue: str, properties: str) -> tuple[int, Any, str]:
    parts = dict(part.split("=", 1) for part in server.connection_string.rstrip(";").split(";"))
    address = f"http://localhost:{server.ready['http_port']}/{queue}"
    token = sign_token(address, parts["SharedAccessKeyName"], parts["SharedAccessKey"], 4_000_000_000)
    request = urllib.request.Request(f"{address}/messages", b"x", method="POST")
    request.add_header("Authorization", token)
    request.add_header("BrokerProperties", properties)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()
