"""Topics and subscriptions with the Python SDK, sync and asyncio, on a broker that a configuration has made."""

from __future__ import annotations

import datetime
import gc
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError
from kit_sdk import Sdk, bodies, opened, within_the_limit

from duobus.testing.server import ServerProcess

SUBSCRIPTIONS: list[dict[str, Any]] = [
    {"Name": "all", "Properties": {}},
    {"Name": "others", "Properties": {"MaxDeliveryCount": 1}},
]


def configuration() -> dict[str, Any]:
    """Topics for the tests of this file, two flavours each."""
    grouped = {"Name": "grouped", "Properties": {"RequiresSession": True}}
    topics = [{"Name": f"plain-{index}", "Properties": {}, "Subscriptions": SUBSCRIPTIONS} for index in range(30)]
    topics += [
        {"Name": f"parted-{index}", "Properties": {"EnablePartitioning": True}, "Subscriptions": SUBSCRIPTIONS}
        for index in range(4)
    ]
    topics += [{"Name": f"sessions-{index}", "Subscriptions": [*SUBSCRIPTIONS, grouped]} for index in range(4)]
    namespace = {"Name": "sbemulatorns", "Queues": [], "Topics": topics}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


class TopicBus:
    """The broker process and its unused topics."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self._used: dict[str, int] = {}

    @property
    def connection_string(self) -> str:
        return self.process.connection_string

    def topic(self, kind: str = "plain") -> str:
        index = self._used[kind] = self._used.get(kind, -1) + 1
        return f"{kind}-{index}"


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicBus]:
    """A broker with many topics."""
    process = ServerProcess(tmp_path_factory.mktemp("topics"), config=configuration())
    with process:
        yield TopicBus(process)
    gc.collect()


def subscriber(client: Any, topic: str, name: str, **options: Any) -> Any:
    return opened(client.inner.get_subscription_receiver(topic, name, **options))


async def settled(result: Any) -> Any:
    """What a call of either flavour comes to."""
    return await result if inspect.isawaitable(result) else result


def publisher(client: Any, topic: str) -> Any:
    return opened(client.inner.get_topic_sender(topic))


@within_the_limit
async def test_what_is_published_comes_from_every_subscription(topics: TopicBus, sdk: Sdk) -> None:
    topic = topics.topic()
    async with sdk.client(topics.connection_string) as client:
        async with publisher(client, topic) as sender:
            await sender.send_messages(ServiceBusMessage(b"one", subject="s", application_properties={"k": 1}))
            await sender.send_messages([ServiceBusMessage(b"two"), ServiceBusMessage(b"three")])
        for name in ("all", "OTHERS"):
            async with subscriber(client, topic.upper(), name) as receiver:
                found: list[Any] = []
                while len(found) < 3:
                    found += await receiver.receive_messages(max_message_count=3, max_wait_time=2)
                assert [b"".join(message.body) for message in found] == [b"one", b"two", b"three"]
                assert [message.sequence_number for message in found] == [1, 2, 3]
                assert [message.enqueued_sequence_number for message in found] == [1, 2, 3]
                assert found[0].application_properties == {b"k": 1}
                for message in found:
                    await receiver.complete_message(message)
                assert await receiver.receive_messages(max_wait_time=0.3) == []


@within_the_limit
async def test_a_partitioned_topic_delivers_all_and_keeps_the_order_of_a_key(topics: TopicBus, sdk: Sdk) -> None:
    topic = topics.topic("parted")
    async with sdk.client(topics.connection_string) as client:
        async with publisher(client, topic) as sender:
            for index in range(20):
                await sender.send_messages(ServiceBusMessage(b"%d" % index))
            keyed = [ServiceBusMessage(b"k%d" % index, partition_key="key") for index in range(5)]
            for message in keyed:
                await sender.send_messages(message)
        for name in ("all", "others"):
            async with subscriber(client, topic, name) as receiver:
                found = await bodies(receiver, 25)
                assert sorted(found) == sorted([b"%d" % n for n in range(20)] + [b"k%d" % n for n in range(5)])
                assert [body for body in found if body.startswith(b"k")] == [b"k%d" % n for n in range(5)]


@within_the_limit
async def test_dead_letters_of_one_subscription_are_its_own(topics: TopicBus, sdk: Sdk) -> None:
    topic = topics.topic()
    async with sdk.client(topics.connection_string) as client:
        async with publisher(client, topic) as sender:
            await sender.send_messages(ServiceBusMessage(b"bad", application_properties={"k": "v"}))
        async with subscriber(client, topic, "all") as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            await receiver.dead_letter_message(message, reason="why", error_description="because")
        async with subscriber(client, topic, "all", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            assert (message.dead_letter_reason, message.dead_letter_error_description) == ("why", "because")
            await receiver.complete_message(message)
        async with subscriber(client, topic, "others") as receiver:
            assert await bodies(receiver, 1) == [b"bad"]
        async with subscriber(client, topic, "others", sub_queue="deadletter") as receiver:
            assert await receiver.receive_messages(max_wait_time=0.3) == []


@within_the_limit
async def test_abandon_defer_peek_renew_and_removing_work_as_on_a_queue(topics: TopicBus, sdk: Sdk) -> None:
    topic = topics.topic()
    async with sdk.client(topics.connection_string) as client:
        async with publisher(client, topic) as sender:
            for body in (b"one", b"two", b"three"):
                await sender.send_messages(ServiceBusMessage(body))
        async with subscriber(client, topic, "all") as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            await receiver.abandon_message(message)
            (message,) = await receiver.receive_messages(max_wait_time=20)
            assert (message.sequence_number, message.enqueued_sequence_number) == (1, 1)
            assert message.delivery_count == 1
            assert await receiver.renew_message_lock(message) > datetime.datetime.now(datetime.UTC)
            await receiver.defer_message(message)
            (deferred,) = await receiver.receive_deferred_messages([1])
            assert b"".join(deferred.body) == b"one"
            await receiver.complete_message(deferred)
            assert [b"".join(m.body) for m in await receiver.peek_messages(10)] == [b"two", b"three"]
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with subscriber(client, topic, "others", receive_mode=mode) as receiver:
            found: list[Any] = []
            while len(found) < 3:
                found += await receiver.receive_messages(max_message_count=3, max_wait_time=2)
            assert [b"".join(message.body) for message in found] == [b"one", b"two", b"three"]


@within_the_limit
async def test_scheduled_messages_come_when_they_are_due_unless_cancelled(topics: TopicBus, sdk: Sdk) -> None:
    topic = topics.topic()
    async with sdk.client(topics.connection_string) as client:
        due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
        async with publisher(client, topic) as sender:
            messages = [ServiceBusMessage(b"cancelled"), ServiceBusMessage(b"kept")]
            first, second = await sender.schedule_messages(messages, due)
            await sender.cancel_scheduled_messages([first])
        for name in ("all", "others"):
            async with subscriber(client, topic, name) as receiver:
                (message,) = await receiver.receive_messages(max_wait_time=20)
                assert b"".join(message.body) == b"kept"
                assert message.enqueued_sequence_number == second
                assert message.enqueued_time_utc >= due - datetime.timedelta(milliseconds=5)


@within_the_limit
async def test_sessions_are_those_of_a_subscription(topics: TopicBus, sdk: Sdk) -> None:
    topic = topics.topic("sessions")
    async with sdk.client(topics.connection_string) as client:
        async with publisher(client, topic) as sender:
            await sender.send_messages(ServiceBusMessage(b"alone"))
            for index in range(3):
                await sender.send_messages(ServiceBusMessage(b"%d" % index, session_id="s"))
        async with subscriber(client, topic, "grouped", session_id="s") as receiver:
            await settled(receiver.session.set_state(b"kept"))
            assert await bodies(receiver, 3) == [b"0", b"1", b"2"]
            assert await settled(receiver.session.get_state()) == b"kept"
        async with subscriber(client, topic, "grouped", sub_queue="deadletter") as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            assert message.dead_letter_reason == "SessionIdIsNull"
        async with subscriber(client, topic, "all") as receiver:
            assert await bodies(receiver, 4) == [b"alone", b"0", b"1", b"2"]


@within_the_limit
async def test_missing_topics_and_subscriptions_and_the_wrong_side_are_refused(topics: TopicBus, sdk: Sdk) -> None:
    topic = topics.topic()
    async with sdk.client(topics.connection_string) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            async with subscriber(client, topic, "missing") as receiver:
                await receiver.receive_messages(max_wait_time=1)
        with pytest.raises(ServiceBusAuthenticationError):
            async with publisher(client, "missing") as sender:
                await sender.send_messages(ServiceBusMessage(b"x"))
        with pytest.raises(ServiceBusError, match="from the topic"):
            async with client.receiver(topic) as receiver:
                await receiver.receive_messages(max_wait_time=1)
        with pytest.raises(ServiceBusError, match="to a subscription"):
            async with client.sender(f"{topic}/Subscriptions/all") as sender:
                await sender.send_messages(ServiceBusMessage(b"x"))
