"""Messages without an id get one, which stays the same whatever becomes of them."""

from __future__ import annotations

import json
import random
import re
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from transaction_kit import coordinator, declare, discharge, outcome

from duobus.amqp import ACCEPTED, TransactionalState, Transfers
from duobus.codec import (
    BATCH_FORMAT,
    Symbol,
    Timestamp,
    UInt,
    application_properties,
    build_message,
    data_section,
    header_section,
    with_made_id,
)
from duobus.model.batches import Mailbox, SendBatch
from duobus.model.descriptions import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from duobus.server.settings import EMULATOR_KEY
from kits.gateway import Client, TcpStream, in_loop, serving, settled
from kits.http_client import Http

ID = re.compile("[0-9a-f]{32}")
#: As the SDK for Python writes a message of which nothing was said: thirteen properties, all of them null.
NAMELESS = build_message([None] * 13, data=b"m")

QUEUES = (
    QueueDescription(name="q", forward_dead_lettered_messages_to="graves"),
    QueueDescription(name="plain"),
    QueueDescription(name="graves"),
    QueueDescription(name="sink"),
    QueueDescription(name="sessions", requires_session=True),
    QueueDescription(name="once", requires_duplicate_detection=True),
    QueueDescription(name="through", forward_to="once"),
)
TOPIC = TopicDescription(
    name="t",
    subscriptions=(
        SubscriptionDescription(name="one"),
        SubscriptionDescription(name="on", forward_to="sink"),
        SubscriptionDescription(
            name="ruled",
            rules=(
                RuleDescription(
                    name="changing", filter_type="Sql", sql_filter="sys.MessageId LIKE '%'", sql_action="SET a = 1"
                ),
                RuleDescription(
                    name="removing", filter_type="Sql", sql_filter="TRUE", sql_action="SET sys.MessageId = NULL"
                ),
            ),
        ),
    ),
)


@asynccontextmanager
async def bus(**options: Any) -> AsyncIterator[tuple[Server, ServiceBusClient, Http]]:
    async with serving(*QUEUES, **options) as server:
        if not server.unit.namespace("ns").topics:
            await server.unit.topics.create_topic("ns", TopicDescription(name="t"))
            for subscription in TOPIC.subscriptions:
                await server.unit.topics.create_subscription("ns", "t", subscription)
        address = (
            f"Endpoint=sb://localhost:{server.port('amqp')};SharedAccessKeyName=RootManageSharedAccessKey;"
            f"SharedAccessKey={EMULATOR_KEY};UseDevelopmentEmulator=true;"
        )
        async with ServiceBusClient.from_connection_string(address) as client:
            yield server, client, await Http.connect(server.port("http") or 0)


async def raw(server: Server) -> Client:
    """A client that writes messages as they are given; the SDK for Python gives them ids of its own."""
    return Client(await TcpStream.connect(server.port("amqp") or 0))


async def put(server: Server, entity: str, *payloads: bytes, form: int = 0) -> None:
    client = await raw(server)
    link = await client.sender(entity)
    for payload in payloads:
        first = link.send_one(uuid.uuid4().bytes, payload, False, form)
        assert await outcome(client, first) == ACCEPTED
    await client.stream.close()


def scheduled(seconds: float) -> bytes:
    due_ms = int((datetime.now(UTC) + timedelta(seconds=seconds)).timestamp() * 1000)
    return build_message(data=b"m", annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due_ms)})


async def schedule(server: Server, queue: str, payload: bytes) -> None:
    """Schedule a message through the queue's management node."""
    client = await raw(server)
    node = f"{queue}/$management"
    await client.receiver(node, credit=1)
    link = await client.sender(node)
    properties = {"operation": "com.microsoft:schedule-message", "com.microsoft:server-timeout": UInt(10_000)}
    fields = ["request", None, None, None, "c"]
    body = {"messages": [{"message": payload}]}
    link.send_one(b"1", build_message(fields, properties, body_value=body), True)
    answer = await client.wait(Transfers)
    assert application_properties(answer.payloads[0])["statusCode"] == 200
    await client.stream.close()


@asynccontextmanager
async def taken(receiver: ServiceBusReceiver) -> AsyncIterator[tuple[Any, Any]]:
    """One message, locked, and its receiver."""
    async with receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=5)
        yield message, receiver


async def id_in(client: ServiceBusClient, *entity: str, **options: Any) -> str:
    """The id of the next message, which is removed."""
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    get = client.get_queue_receiver if len(entity) == 1 else client.get_subscription_receiver
    async with taken(get(*entity, receive_mode=mode, **options)) as (message, _):
        return str(message.message_id)


async def peeked(client: ServiceBusClient, queue: str, number: int = 1) -> list[str]:
    async with client.get_queue_receiver(queue) as receiver:
        return [message.message_id for message in await receiver.peek_messages(number)]


async def endpoint(http: Http, path: str, **members: Any) -> dict[str, Any]:
    reply = await http.ask("POST", f"/{path}/$desk", json.dumps(members))
    assert reply.status == 200, reply
    found: dict[str, Any] = json.loads(reply.body)
    return found


async def moved_to_store(server: Server, path: str, store_id: int) -> None:
    server.unit.moves.start("ns", path, server.unit.namespace("ns").queues[path].fragments[0].number, store_id)
    await server.unit.moves.wait()


@in_loop
async def test_every_way_of_sending_gives_an_id_of_32_digits_and_no_two_are_the_same() -> None:
    async with bus() as (server, client, http):
        forms = [NAMELESS, data_section(b"m"), header_section(ttl_ms=99_000) + NAMELESS, scheduled(3600)]
        await put(server, "plain", *forms)
        await put(server, "plain", b"".join(map(data_section, [NAMELESS, data_section(b"m")])), form=BATCH_FORMAT)
        await schedule(server, "plain", scheduled(3600))
        await send_in_transaction(server, "plain", NAMELESS)
        for properties in ({}, {"BrokerProperties": json.dumps({"Label": "l"})}):
            assert (await http.ask("POST", "/plain/messages", "m", properties)).status == 201
        item = {"message": {"body": {"data": ["m"]}}}
        assert (await endpoint(http, "plain", action="send", items=[item]))["sent"] == 1
        found = await peeked(client, "plain", 20)
        assert len(found) == 11
        of_session = build_message([None] * 10 + ["s"], data=b"m")
        await put(server, "sessions", of_session, header_section(ttl_ms=99_000) + of_session)
        async with client.get_queue_receiver("sessions", session_id="s") as receiver:
            for _ in range(2):
                found += [message.message_id for message in await receiver.receive_messages(1, max_wait_time=5)]
        await endpoint(http, "graves/$DeadLetterQueue", action="bury", items=[item])
        (forgotten,) = (await endpoint(http, "graves/$DeadLetterQueue", action="list", messages=True))["messages"]
        found.append(forgotten["message"]["properties"]["messageId"])
        assert len(set(found)) == len(found) == 14
        assert all(ID.fullmatch(one) for one in found), found


async def send_in_transaction(server: Server, queue: str, payload: bytes) -> None:
    client = await raw(server)
    there, link = await coordinator(client), await client.sender(queue)
    txn_id = await declare(client, there)
    await outcome(client, link.send_one(b"1", payload, False, state=TransactionalState(txn_id)))
    assert await discharge(client, there, txn_id) == ACCEPTED
    await client.stream.close()


@in_loop
async def test_all_copies_of_a_topic_have_the_same_id_wherever_they_are_forwarded_and_rules_see_it() -> None:
    async with bus() as (server, client, _):
        await put(server, "t", NAMELESS)
        async with client.get_subscription_receiver("t", "ruled") as receiver:
            changed = await receiver.receive_messages(2, max_wait_time=5)
        found = {str(one.message_id) for one in changed}
        assert sorted(len(one.application_properties) for one in changed) == [1, 2]
        found |= {await id_in(client, "t", "one"), await id_in(client, "sink")}
        assert len(found) == 1
        assert ID.fullmatch(found.pop())


@in_loop
async def test_a_dead_letter_that_is_forwarded_and_one_that_is_resubmitted_keep_their_ids() -> None:
    async with bus() as (server, client, http):
        for queue in ("q", "plain"):
            await put(server, queue, NAMELESS)
            async with taken(client.get_queue_receiver(queue)) as (message, receiver):
                await receiver.dead_letter_message(message, reason="broken")
            if queue == "q":
                assert await id_in(client, "graves") == message.message_id
                continue
            repair = {"set": {"a": 1}, "properties": {"messageId": None}}
            (moved,) = (await endpoint(http, "plain/$DeadLetterQueue", action="resubmit", repair=repair))["moved"]
            assert moved["movedTo"]
            assert await id_in(client, "plain") == message.message_id


@in_loop
async def test_an_id_of_the_broker_counts_for_nothing_in_duplicate_detection_and_one_that_a_client_sends_does() -> None:
    async with bus() as (server, client, _):
        await put(server, "once", NAMELESS)
        await put(server, "through", NAMELESS)
        async with client.get_queue_receiver("once") as receiver:
            first, second = [await receiver.receive_messages(1, max_wait_time=5) for _ in range(2)]
        history = server.unit.namespace("ns").queues["once"].fragments[0].fragment.sources[0].history
        assert not history.known
        # What was received is sent twice: now the id is its sender's.
        again = [ServiceBusMessage("again", message_id=one[0].message_id) for one in (first, second, first)]
        async with client.get_queue_sender("once") as sender:
            for message in again:
                await sender.send_messages(message)
        assert len(history.known) == 2
        assert len(await peeked(client, "once", 9)) == 4


@in_loop
async def test_an_id_that_a_client_writes_as_the_broker_does_is_the_clients() -> None:
    text = uuid.uuid4().hex
    async with bus() as (server, _, _):
        await put(server, "once", *[with_made_id(NAMELESS, 0, text.encode())] * 2)
        source = server.unit.namespace("ns").queues["once"].fragments[0].fragment.sources[0]
        assert source.history.known == {b"s" + text.encode()}
        assert source.numbers[0] == 1


@pytest.mark.parametrize("seed", range(2))
def test_an_id_stays_the_same_whatever_becomes_of_its_message(seed: int, tmp_path: Path) -> None:
    """Events in the order of the seed: settlements, dead-lettering, moves, restarts."""
    rng = random.Random(seed)
    events = ["abandon", "defer", "dead", "desk", "move", "restart", "restart"]
    rng.shuffle(events)
    options = {"data": tmp_path / "data", "ephemeral": False, "stores": 2}
    known: str | None = None

    async def until_restart() -> None:
        nonlocal known
        async with bus(**options) as (server, client, http):
            if known is None:
                await put(server, "plain", NAMELESS)
                (known,) = await peeked(client, "plain")
                assert ID.fullmatch(known)
            while events and (event := events.pop()) != "restart":
                await happens(event, server, client, http)
                assert await peeked(client, "plain") == [known], event

    async def happens(event: str, server: Server, client: ServiceBusClient, http: Http) -> None:
        if event == "move":
            there = server.unit.namespace("ns").queues["plain"].fragments[0].store.store_id
            other = next(store_id for store_id in server.unit.brokers if store_id != there)
            await moved_to_store(server, "plain", other)
        elif event == "desk":
            await dead(client)
            await endpoint(http, "plain/$DeadLetterQueue", action="move", to="sink")
            await dead(client, "sink")
            await endpoint(http, "sink/$DeadLetterQueue", action="move", to="plain")
        elif event == "dead":
            await dead(client)
            await endpoint(http, "plain/$DeadLetterQueue", action="resubmit")
        else:
            async with taken(client.get_queue_receiver("plain")) as (message, receiver):
                assert message.message_id == known
                if event == "defer":
                    await receiver.defer_message(message)
                    (message,) = await receiver.receive_deferred_messages(message.sequence_number)
                    assert message.message_id == known
                    # What is deferred stays so until it is settled otherwise: it goes on as a dead letter.
                    await receiver.dead_letter_message(message)
                else:
                    await receiver.abandon_message(message)
            if event == "defer":
                await endpoint(http, "plain/$DeadLetterQueue", action="resubmit")

    async def dead(client: ServiceBusClient, queue: str = "plain") -> None:
        async with taken(client.get_queue_receiver(queue)) as (message, receiver):
            assert message.message_id == known
            await receiver.dead_letter_message(message)

    while events:
        in_loop(until_restart)()


def test_a_backup_that_goes_on_gives_other_ids_than_the_server_it_was_made_of(tmp_path: Path) -> None:
    options = {"ephemeral": False, "stores": 1}
    found: dict[str, list[str]] = {}

    async def life(name: str) -> None:
        async with bus(data=tmp_path / name, **options) as (server, client, _):
            await put(server, "plain", NAMELESS)
            found[name] = await peeked(client, "plain", 9)

    in_loop(lambda: life("first"))()
    shutil.copytree(tmp_path / "first", tmp_path / "backup")
    before = found["first"]
    for name in ("first", "backup"):
        in_loop(lambda name=name: life(name))()
    assert found["first"][:1] == found["backup"][:1] == before
    # The same fragment and the same count, and two messages that have nothing to do with each other.
    assert found["first"][1] != found["backup"][1]


@in_loop
async def test_a_scheduled_message_has_the_same_id_before_and_after_its_time() -> None:
    async with bus() as (server, client, _):
        await schedule(server, "plain", scheduled(0.5))
        (before,) = await peeked(client, "plain")
        assert ID.fullmatch(before)
        assert await id_in(client, "plain") == before


@in_loop
async def test_a_message_as_large_as_is_allowed_is_forwarded_with_its_id() -> None:
    async with bus() as (server, client, _):
        limit = QUEUES[0].max_message_size_bytes
        largest = data_section(bytes(limit - len(data_section(bytes(1000))) + 1000))
        assert len(largest) == limit
        await put(server, "through", largest)
        assert ID.fullmatch(await id_in(client, "once"))


class Told(Mailbox):
    """What becomes of a batch."""

    def wake(self) -> None:
        """There it is."""


@in_loop
async def test_what_an_earlier_version_has_stored_without_an_id_gets_one_when_it_is_resubmitted() -> None:
    async with bus() as (server, client, http):
        told = Told()
        server.unit.namespace("ns").queues["plain"].send(SendBatch(0, [NAMELESS], True, told))
        await settled(lambda: bool(told.ready))
        async with taken(client.get_queue_receiver("plain")) as (message, receiver):
            assert message.message_id is None
            await receiver.dead_letter_message(message)
        await endpoint(http, "plain/$DeadLetterQueue", action="resubmit")
        assert ID.fullmatch(await id_in(client, "plain"))


@in_loop
async def test_http_and_amqp_tell_the_same_id() -> None:
    async with bus() as (server, client, http):
        await put(server, "plain", NAMELESS)
        (known,) = await peeked(client, "plain")
        reply = await http.ask("DELETE", "/plain/messages/head?timeout=5")
        assert json.loads(reply.header("BrokerProperties") or "{}")["MessageId"] == known
