"""A link of the SDK that was made prompt closes without waiting for whoever keeps its connection alive."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from azure.servicebus import ServiceBusClient as BlockingClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.aio._client_async import AMQPClientAsync
from azure.servicebus._pyamqp.client import AMQPClient
from azure.servicebus.aio import ServiceBusClient

from duobus.ha.sdk import prompt, prompt_client, release_thread
from kits.pair import Bus, bounded

NOWHERE = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=YQ==;UseDevelopmentEmulator=true"
MAKERS = [
    ("get_queue_sender", ("q",)),
    ("get_topic_sender", ("t",)),
    ("get_queue_receiver", ("q",)),
    ("get_subscription_receiver", ("t", "s")),
]


def test_the_thread_is_told_to_end_and_waited_for_no_more() -> None:
    handler = SimpleNamespace(_keep_alive_thread=object(), _shutdown=False)
    release_thread(handler)
    assert (handler._keep_alive_thread, handler._shutdown) == (None, True)


@pytest.mark.parametrize("handler", [None, SimpleNamespace(), SimpleNamespace(_keep_alive_thread=None)])
def test_an_sdk_without_such_a_thread_is_left_alone(handler: Any) -> None:
    before = vars(handler).copy() if handler is not None else None
    release_thread(handler)
    assert handler is None or vars(handler) == before


def test_the_task_of_asyncio_is_cancelled_where_it_sleeps() -> None:
    async def run() -> None:
        task = asyncio.ensure_future(asyncio.sleep(3600))
        handler = SimpleNamespace(_keep_alive_thread=task, _shutdown=False)
        await asyncio.sleep(0)
        release_thread(handler)
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("kind", [BlockingClient, ServiceBusClient])
@pytest.mark.parametrize(("name", "where"), MAKERS)
def test_every_link_of_a_prompt_client_is_prompt_and_made_so_once(kind: Any, name: str, where: Any) -> None:
    client = prompt_client(prompt_client(kind.from_connection_string(NOWHERE)))
    link = getattr(client, name)(*where)
    whole = link.close
    assert prompt(link).close is whole
    assert whole.__doc__ == type(link).close.__doc__


@pytest.mark.parametrize("kind", [BlockingClient, ServiceBusClient])
def test_a_link_goes_with_the_last_that_refers_to_it_and_needs_no_collector(kind: Any) -> None:
    client = prompt_client(kind.from_connection_string(NOWHERE))
    gc.disable()
    try:
        link = client.get_queue_sender("q")
        gone = ref(link)
        del link
        assert gone() is None
    finally:
        gc.enable()


def test_what_is_none_of_the_sdks_stays_as_it_is() -> None:
    link = SimpleNamespace(close=print)
    assert prompt(link).close is print


class Reads:
    """How often a connection of the SDK is read from."""

    def __init__(self, connection: Any) -> None:
        self.count = 0
        self._listen = connection.listen
        connection.listen = self.listen

    def listen(self, **how: Any) -> Any:
        self.count += 1
        return self._listen(**how)


@pytest.mark.slow
def test_a_receiver_that_closes_reads_once_when_its_drain_is_answered_at_once(bus: Bus) -> None:
    with prompt_client(BlockingClient.from_connection_string(bus.primary.connection_string)) as client:
        with client.get_queue_sender(bus.bills) as sender:
            sender.send_messages(ServiceBusMessage("x"))
        receiver = client.get_queue_receiver(bus.bills)
        assert len(receiver.receive_messages(50, max_wait_time=5)) == 1
        reads = Reads(receiver._handler._connection)
        receiver.close()
    assert reads.count == 1


@pytest.mark.slow
@bounded
async def test_a_receiver_of_asyncio_that_closes_reads_once_when_its_drain_is_answered_at_once(bus: Bus) -> None:
    async with prompt_client(ServiceBusClient.from_connection_string(bus.primary.connection_string)) as client:
        async with client.get_queue_sender(bus.bills) as sender:
            await sender.send_messages(ServiceBusMessage("x"))
        receiver = client.get_queue_receiver(bus.bills)
        assert len(await receiver.receive_messages(50, max_wait_time=5)) == 1
        reads = Reads(receiver._handler._connection)
        await receiver.close()
    assert reads.count == 1


@pytest.mark.slow
def test_what_was_on_its_way_to_a_receiver_that_closes_is_given_back(bus: Bus) -> None:
    with prompt_client(BlockingClient.from_connection_string(bus.primary.connection_string)) as client:
        with client.get_queue_sender(bus.orders) as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(20)])
        with client.get_queue_receiver(bus.orders, prefetch_count=50) as receiver:
            assert receiver.peek_messages(1)
        with client.get_queue_receiver(bus.orders) as receiver:
            found: list[str] = []
            while len(found) < 20 and (batch := receiver.receive_messages(20, max_wait_time=5)):
                for message in batch:
                    found.append(str(message))
                    receiver.complete_message(message)
    assert sorted(found, key=int) == [str(number) for number in range(20)]


@pytest.mark.slow
def test_a_link_that_closes_joins_no_thread(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_alive(client: AMQPClient) -> None:
        while not client._shutdown:
            threading.Event().wait(0.05)

    # As the SDK's own, which sleeps a second at a time.
    monkeypatch.setattr(AMQPClient, "_keep_alive", keep_alive)

    def join(timeout: float | None = None) -> None:
        raise AssertionError("a second may pass")

    with prompt_client(BlockingClient.from_connection_string(bus.primary.connection_string)) as client:
        sender, receiver = client.get_queue_sender(bus.orders), client.get_queue_receiver(bus.orders)
        with sender, receiver:
            receiver.peek_messages(1)
            threads: list[Any] = [link._handler._keep_alive_thread for link in (sender, receiver)]
            for thread in threads:
                assert thread.is_alive()
                thread.join = join
    for thread in threads:
        del thread.join
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.slow
@bounded
async def test_a_link_of_asyncio_that_closes_awaits_no_task(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep_alive(client: AMQPClientAsync) -> None:
        while not client._shutdown:  # noqa: ASYNC110 - as the SDK's own
            await asyncio.sleep(0.05)

    # The SDK's own ends by itself when a busy machine is late.
    monkeypatch.setattr(AMQPClientAsync, "_keep_alive_async", keep_alive)
    async with prompt_client(ServiceBusClient.from_connection_string(bus.primary.connection_string)) as client:
        sender, receiver = client.get_queue_sender(bus.orders), client.get_queue_receiver(bus.orders)
        async with sender, receiver:
            await receiver.peek_messages(1)
            keepers: list[Any] = [link._handler._keep_alive_thread for link in (sender, receiver)]
            assert not any(keeper.done() for keeper in keepers)
    # One that was awaited would have seen the end by itself.
    assert all(keeper.cancelled() for keeper in keepers)
