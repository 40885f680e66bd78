"""What Qpid JMS asks for and Service Bus has not: browsers, temporary queues, durable subscribers, topic consumers."""

from __future__ import annotations

import uuid

import pytest
from test_via import connected

from duobus.amqp import ACCEPTED, LinkDetached, Source, Target
from duobus.codec import Symbol, UInt
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from kits.gateway import in_loop, message, serving

COPY = Symbol("copy")
SUBSCRIPTION = "t/Subscriptions/s"
NOT_OFFERED = "amqp:not-implemented"


@in_loop
@pytest.mark.parametrize(
    ("source", "condition"),
    [
        (Source(address="q", distribution_mode=COPY), NOT_OFFERED),
        (
            # A durable subscriber has copies of a topic's messages, and asks for them as a browser does.
            Source(address=SUBSCRIPTION, durable=UInt(2), expiry_policy=Symbol("never"), distribution_mode=COPY),
            NOT_OFFERED,
        ),
        (Source(dynamic=True, capabilities=[Symbol("temporary-queue")]), NOT_OFFERED),
        (Source(address="t"), "amqp:not-allowed"),
    ],
    ids=["browser", "durable-subscriber", "temporary-queue", "topic"],
)
async def test_a_jms_receiver_of_what_is_not_offered_is_refused_and_takes_nothing(
    source: Source, condition: str
) -> None:
    async with serving(QueueDescription(name="q")) as server:
        topic = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="s"),))
        await server.unit.topics.create_topic("ns", topic)
        client = await connected(server)
        for name in ("q", "t"):
            assert await client.send(await client.sender(name), message(b"kept")) == ACCEPTED
        link = client.session.attach_receiver(uuid.uuid4().hex, source, Target(address="c"))
        detached = await client.wait(LinkDetached, lambda event: event.link is link)
        assert detached.error is not None
        assert detached.error.condition == condition
        for path in ("q", SUBSCRIPTION):
            _, payload = await client.receive(await client.receiver(path, credit=1))
            assert payload.endswith(b"kept")
