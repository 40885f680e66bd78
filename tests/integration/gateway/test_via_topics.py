"""Sending via a topic to another entity (contract 12.4): the topic keeps the message; no subscription gets a copy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from test_via import active, arrived, connected, queue_of, via_link
from transaction_kit import bodies, coordinator, declare, discharge, outcome, put, send, settle

from duobus.amqp import ACCEPTED, TransactionalState
from duobus.broker import TRANSFER_DEAD_LETTER, transfer_message_count
from duobus.model.descriptions import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from kits.gateway import in_loop, message, serving

DESTINATION = QueueDescription(name="p")
SUBSCRIPTION = "t/Subscriptions/s"
SQL = (RuleDescription(name="sql", filter_type="Sql", sql_filter="sys.Label IS NULL"),)
NEVER = (RuleDescription(name="never", filter_type="False"),)


async def create(server: Server, rules: tuple[RuleDescription, ...] | None = None, **properties: bool) -> None:
    """Create the topic ``t`` with the subscription ``s``."""
    about = SubscriptionDescription(name="s") if rules is None else SubscriptionDescription(name="s", rules=rules)
    await server.unit.topics.create_topic("ns", TopicDescription(name="t", subscriptions=(about,), **properties))


def copies(server: Server) -> int:
    """How many messages the subscription has."""
    return server.unit.namespace("ns").topics["t"].subscriptions["s"].numbers()[0][0]


async def set_status(server: Server, status: str) -> None:
    """Disable the destination, or have it take messages again."""
    await server.unit.update_queue("ns", msgspec.structs.replace(queue_of(server, "p").description, status=status))


def waiting(server: Server) -> int:
    """How many messages wait at the topic for their destinations."""
    return transfer_message_count(server.unit.namespace("ns").topics["t"])


@in_loop
@pytest.mark.parametrize("rules", [None, SQL], ids=["every-message", "a-rule-reads-it"])
@pytest.mark.parametrize("is_partitioned", [False, True], ids=["plain", "partitioned"])
async def test_a_message_sent_via_a_topic_arrives_at_its_destination_and_at_no_subscription(
    rules: tuple[RuleDescription, ...] | None, *, is_partitioned: bool
) -> None:
    async with serving(DESTINATION, stores=2) as server:
        await create(server, rules, enable_partitioning=is_partitioned)
        client = await connected(server)
        assert await outcome(client, put(await via_link(client, via="t"), message(b"there"))) == ACCEPTED
        await arrived(server, "p", 1)
        assert await bodies(client, "p") == [b"there"]
        assert (copies(server), waiting(server)) == (0, 0)
        assert await client.send(await client.sender("t"), b"published") == ACCEPTED
        assert copies(server) == 1


@in_loop
async def test_a_topic_that_refuses_what_no_subscription_takes_does_not_ask_that_of_what_is_sent_via_it() -> None:
    async with serving(DESTINATION) as server:
        await create(server, NEVER, filtering_messages_before_publishing=True)
        client = await connected(server)
        assert await outcome(client, put(await via_link(client, via="t"), message(b"there"))) == ACCEPTED
        await arrived(server, "p", 1)


@in_loop
@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled-back"])
async def test_a_settlement_at_a_subscription_and_a_send_via_its_topic_are_done_together(*, commits: bool) -> None:
    async with serving(DESTINATION, stores=2) as server:
        await create(server)
        client = await connected(server)
        controller, via = await coordinator(client), await via_link(client, via="t")
        await client.send(await client.sender("t"), b"input")
        receiver = await client.receiver(SUBSCRIPTION, credit=1)
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, controller)
        await settle(client, txn, delivery, ACCEPTED)
        assert await send(client, via, txn, b"output") == TransactionalState(txn, ACCEPTED)
        await asyncio.sleep(0.05)
        assert (copies(server), active(server, "p")) == (1, 0), "nothing before the discharge"
        assert await discharge(client, controller, txn, fail=not commits) == ACCEPTED
        if commits:
            await arrived(server, "p", 1)
            assert copies(server) == 0
        else:
            await asyncio.sleep(0.1)
            assert (copies(server), active(server, "p"), waiting(server)) == (1, 0, 0)


@in_loop
@pytest.mark.parametrize("is_partitioned", [False, True], ids=["plain", "partitioned"])
async def test_a_session_that_began_with_its_coordinator_sends_to_others_via_the_subscription_it_receives_from(
    *, is_partitioned: bool
) -> None:
    async with serving(DESTINATION, stores=2) as server:
        await create(server, enable_partitioning=is_partitioned)
        plain = await connected(server)
        assert await plain.send(await plain.sender("t"), b"input") == ACCEPTED
        client = await connected(server)
        controller = await coordinator(client)
        receiver, other = await client.receiver(SUBSCRIPTION, credit=1), await client.sender("p")
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, controller)
        await settle(client, txn, delivery, ACCEPTED)
        assert await send(client, other, txn, b"output") == TransactionalState(txn, ACCEPTED)
        assert await discharge(client, controller, txn) == ACCEPTED
        await arrived(server, "p", 1)
        assert await bodies(plain, "p") == [b"output"]
        assert (copies(server), waiting(server)) == (0, 0)
        subscription = server.unit.namespace("ns").topics["t"].subscriptions["s"]
        assert transfer_message_count(subscription) == 0


@in_loop
async def test_what_waits_at_a_topic_for_its_destination_is_there_after_a_restart(tmp_path: Path) -> None:
    durable = {"data": tmp_path, "ephemeral": False}
    async with serving(DESTINATION, **durable) as server:
        await create(server)
        client = await connected(server)
        link = await via_link(client, via="t")
        await server.unit.update_queue(
            "ns", msgspec.structs.replace(queue_of(server, "p").description, status="Disabled")
        )
        assert await outcome(client, put(link, message(b"there"))) == ACCEPTED
        assert (waiting(server), active(server, "p")) == (1, 0)
    async with serving(DESTINATION, **durable) as server:
        assert waiting(server) == 1
        await server.unit.update_queue(
            "ns", msgspec.structs.replace(queue_of(server, "p").description, status="Active")
        )
        await arrived(server, "p", 1)
        assert (copies(server), waiting(server)) == (0, 0)


@in_loop
async def test_what_waits_at_a_subscription_for_its_destination_is_there_after_a_restart(tmp_path: Path) -> None:
    durable = {"data": tmp_path, "ephemeral": False}
    async with serving(DESTINATION, **durable) as server:
        await create(server)
        client = await connected(server)
        controller = await coordinator(client)
        await client.receiver(SUBSCRIPTION)
        other = await client.sender("p")
        txn = await declare(client, controller)
        assert await send(client, other, txn, b"output") == TransactionalState(txn, ACCEPTED)
        await set_status(server, "Disabled")
        assert await discharge(client, controller, txn) == ACCEPTED
        assert active(server, "p") == 0
    async with serving(DESTINATION, **durable) as server:
        await set_status(server, "Active")
        await arrived(server, "p", 1)
        assert (copies(server), waiting(server)) == (0, 0)
        client = await connected(server)
        assert await client.send(await client.sender("t"), message(b"published")) == ACCEPTED
        _, payload = await client.receive(await client.receiver(SUBSCRIPTION, credit=1))
        assert payload.endswith(b"published")


@in_loop
async def test_a_destination_that_is_gone_leaves_the_message_at_the_topic_as_a_transfer_dead_letter() -> None:
    async with serving(DESTINATION) as server:
        await create(server)
        client = await connected(server)
        link = await via_link(client, via="t")
        await server.unit.delete_queue("ns", "p")
        assert await outcome(client, put(link, message(b"kept"))) == ACCEPTED
        topic = server.unit.namespace("ns").topics["t"]
        for _ in range(500):
            if topic.numbers()[0][TRANSFER_DEAD_LETTER]:
                break
            await asyncio.sleep(0.01)
        assert topic.numbers()[0] == [0, 0, 1, 0, 0]
        assert (copies(server), waiting(server)) == (0, 0)
