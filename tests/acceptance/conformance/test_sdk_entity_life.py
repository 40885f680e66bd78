"""What the official SDK sees when a queue is changed, disabled, full, idle or gone while it is in use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from kit_sdk import Face, Sdk, bodies, within_the_limit

from duobus.ha.outage import token_refusal
from duobus.model.descriptions import QueueDescription, to_json
from duobus.testing.broker import BrokerThread

KIB = 1024
#: What is said of a queue that was deleted. The SDK attaches again by itself, and its token is not taken for that.
GONE = (MessagingEntityNotFoundError, ServiceBusAuthenticationError)
#: The SDK finds a link that was detached while it was idle with its next call, and attaches it again with a retry.
AGAIN = {"retry_total": 1, "retry_backoff_factor": 0.01}


class Place:
    """A namespace of a broker in this process, whose queues a test changes."""

    def __init__(self, thread: BrokerThread) -> None:
        self._thread = thread
        made = thread.call("add_namespace")
        self.name, self.connection_string = made["name"], made["connection_string"]

    def create(self, **properties: Any) -> str:
        """Create the queue, unchecked: a quota of 1 MiB can be filled."""
        description = to_json(QueueDescription(name="q", **properties)).decode()
        self._thread.call("create_queue", self.name, description)
        return "q"

    async def update(self, **changes: Any) -> None:
        """Change the queue."""
        await asyncio.to_thread(self._thread.call, "update_queue", self.name, "q", changes)

    async def advance(self, seconds: int) -> None:
        """Move broker time ahead."""
        await asyncio.to_thread(self._thread.call, "advance", seconds * 1000)

    async def delete(self) -> None:
        """Delete the queue."""
        await asyncio.to_thread(self._thread.call, "delete_queue", self.name, "q")

    def disable_receiving(self) -> None:
        """Disable it in another thread than a test's."""
        self._thread.call("update_queue", self.name, "q", {"status": "ReceiveDisabled"})

    def delete_now(self) -> None:
        """Delete the queue in another thread than a test's."""
        self._thread.call("delete_queue", self.name, "q")

    def close(self) -> None:
        """Remove the namespace."""
        self._thread.call("remove_namespace", self.name)


@pytest.fixture(scope="module")
def thread() -> Iterator[BrokerThread]:
    """A broker for this module."""
    made = BrokerThread()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def place(thread: BrokerThread) -> Iterator[Place]:
    """A namespace of its own."""
    made = Place(thread)
    yield made
    made.close()


def message(text: str | bytes) -> ServiceBusMessage:
    return ServiceBusMessage(text)


async def refused_to_receive(receiver: Face) -> None:
    with pytest.raises(MessagingEntityDisabledError, match="status"):
        await receiver.receive_messages(max_wait_time=5)


@within_the_limit
async def test_a_queue_that_is_disabled_detaches_both_kinds_of_links(place: Place, sdk: Sdk) -> None:
    queue = place.create()
    async with (
        sdk.client(place.connection_string, **AGAIN) as client,
        client.sender(queue) as sender,
        client.receiver(queue) as receiver,
        client.receiver(queue) as other,
    ):
        await sender.send_messages(message("before"))
        (held,) = await receiver.receive_messages(max_wait_time=20)
        await place.update(status="Disabled")
        with pytest.raises(MessagingEntityDisabledError, match="Disabled"):
            await sender.send_messages(message("refused"))
        await refused_to_receive(other)
        # The lock is good all the same, and is settled by its token: the link is gone.
        await receiver.complete_message(held)
        await place.update(status="Active")
    async with sdk.client(place.connection_string, **AGAIN) as client, client.receiver(queue) as receiver:
        async with client.sender(queue) as sender:
            await sender.send_messages(message("after"))
        assert await bodies(receiver, 1) == [b"after"]


@within_the_limit
async def test_a_queue_that_forbids_to_send_still_lets_receive(place: Place, sdk: Sdk) -> None:
    queue = place.create()
    async with (
        sdk.client(place.connection_string, **AGAIN) as client,
        client.sender(queue) as sender,
        client.receiver(queue) as receiver,
    ):
        await sender.send_messages(message("before"))
        await place.update(status="SendDisabled")
        with pytest.raises(MessagingEntityDisabledError):
            await sender.send_messages(message("refused"))
        assert await bodies(receiver, 1) == [b"before"]


@within_the_limit
async def test_a_queue_that_forbids_to_receive_still_takes_messages(place: Place, sdk: Sdk) -> None:
    queue = place.create()
    async with (
        sdk.client(place.connection_string, **AGAIN) as client,
        client.sender(queue) as sender,
        client.receiver(queue) as receiver,
        client.receiver(queue) as other,
    ):
        await sender.send_messages(message("first"))
        (held,) = await receiver.receive_messages(max_wait_time=20)
        await place.update(status="ReceiveDisabled")
        with pytest.raises(MessagingEntityDisabledError):
            await other.peek_messages()
        await receiver.renew_message_lock(held)
        await sender.send_messages(message("second"))
        await place.update(status="Active")
    async with sdk.client(place.connection_string, **AGAIN) as client, client.receiver(queue) as receiver:
        # The first one's lock still stands, though its holder has gone.
        assert await bodies(receiver, 1) == [b"second"]
        assert await receiver.receive_messages(max_wait_time=0.5) == []


@within_the_limit
async def test_a_queue_that_is_disabled_frees_the_sessions_that_are_held(place: Place, sdk: Sdk) -> None:
    queue = place.create(requires_session=True)
    async with sdk.client(place.connection_string, **AGAIN) as client:
        async with client.sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(body, session_id="s") for body in (b"1", b"2")])
        async with client.receiver(queue, session_id="s") as receiver:
            (first,) = await receiver.receive_messages(max_wait_time=20)
            await place.update(status="Disabled")
            # A session is not accepted again behind the application's back.
            with pytest.raises(ServiceBusError):
                await receiver.complete_message(first)
            with pytest.raises(MessagingEntityDisabledError):
                async with client.receiver(queue, session_id="s"):
                    pass
            await place.update(status="Active")
            async with client.receiver(queue, session_id="s") as other:
                (again,) = await other.receive_messages(max_wait_time=20)
                assert (b"".join(again.body), again.delivery_count) == (b"1", 0)
                await other.complete_message(again)
                assert await bodies(other, 1) == [b"2"]


@within_the_limit
async def test_whoever_waits_for_a_session_hears_that_the_queue_is_disabled_or_gone(place: Place, sdk: Sdk) -> None:
    queue = place.create(requires_session=True)
    for change, error in (
        (place.disable_receiving, MessagingEntityDisabledError),
        (place.delete_now, GONE),
    ):
        # The SDK's ordinary flavour blocks this thread while it waits.
        timer = threading.Timer(0.5, change)
        timer.start()
        with pytest.raises(error):
            async with (
                sdk.client(place.connection_string, **AGAIN) as client,
                client.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20),
            ):
                pass
        timer.join()
        if error is MessagingEntityDisabledError:
            await place.update(status="Active")


@within_the_limit
async def test_a_lock_outlives_a_change_of_the_lock_duration(place: Place, sdk: Sdk) -> None:
    queue = place.create(lock_duration_ms=60_000)
    async with (
        sdk.client(place.connection_string, **AGAIN) as client,
        client.sender(queue) as sender,
        client.receiver(queue) as receiver,
    ):
        await sender.send_messages([message("first"), message("second")])
        (held,) = await receiver.receive_messages(max_wait_time=20)
        until = held.locked_until_utc
        await place.update(lock_duration_ms=10_000)
        (short,) = await receiver.receive_messages(max_wait_time=20)
        assert (until - short.locked_until_utc).total_seconds() > 40
        await receiver.complete_message(held)
        await receiver.complete_message(short)


@within_the_limit
async def test_a_full_queue_refuses_with_the_quota_error_until_something_is_received(place: Place, sdk: Sdk) -> None:
    queue = place.create(max_size_in_megabytes=1)
    async with (
        sdk.client(place.connection_string, **AGAIN) as client,
        client.sender(queue) as sender,
        client.receiver(queue) as receiver,
    ):
        for _ in range(5):
            await sender.send_messages(message(bytes(200 * KIB)))
        with pytest.raises(ServiceBusQuotaExceededError, match="maximum entity size"):
            await sender.send_messages(message(bytes(200 * KIB)))
        await sender.send_messages(message("a small one"))
        assert len(await bodies(receiver, 1)) == 1
        await sender.send_messages(message(bytes(200 * KIB)))
        await place.update(max_size_in_megabytes=1024)
        await sender.send_messages(message(bytes(200 * KIB)))


@within_the_limit
async def test_a_message_beyond_the_limit_of_its_queue_is_refused_and_the_limit_can_be_changed(
    place: Place, sdk: Sdk
) -> None:
    queue = place.create(max_message_size_bytes=64 * KIB)
    async with sdk.client(place.connection_string, **AGAIN) as client, client.sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(message(bytes(64 * KIB)))
        await sender.send_messages(message(bytes(32 * KIB)))
        await place.update(max_message_size_bytes=16 * KIB)
        # The SDK still believes the limit that it was told when it attached; the broker knows better.
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(message(bytes(32 * KIB)))
        await place.update(max_message_size_bytes=256 * KIB)
    async with sdk.client(place.connection_string, **AGAIN) as client, client.sender(queue) as sender:
        await sender.send_messages(message(bytes(200 * KIB)))


@within_the_limit
async def test_links_to_a_queue_that_is_deleted_hear_that_it_could_not_be_found(place: Place, sdk: Sdk) -> None:
    queue = place.create()
    async with (
        sdk.client(place.connection_string, **AGAIN) as client,
        client.sender(queue) as sender,
        client.receiver(queue) as receiver,
    ):
        await sender.send_messages(message("lost"))
        assert len(await receiver.peek_messages()) == 1
        await place.delete()
        for call in (
            lambda: sender.send_messages(message("refused")),
            lambda: receiver.receive_messages(max_wait_time=5),
            receiver.peek_messages,
        ):
            with pytest.raises(GONE) as caught:
                await call()
            # Whoever attaches again hears it as a token that is not taken, of which the SDK keeps the text to itself.
            assert "could not be found" in str(caught.value) or token_refusal(caught.value) is not None


@within_the_limit
async def test_a_queue_that_nobody_uses_goes_and_one_with_a_receiver_stays(thread: BrokerThread, sdk: Sdk) -> None:
    place = Place(thread)
    try:
        queue = place.create(auto_delete_on_idle_ms=300_000)
        async with sdk.client(place.connection_string, **AGAIN) as client:
            async with client.receiver(queue) as receiver:
                assert await receiver.receive_messages(max_wait_time=0.2) == []
                await place.advance(400)
                async with client.sender(queue) as sender:
                    await sender.send_messages(message("still there"))
                assert await bodies(receiver, 1) == [b"still there"]
            # The first look finds that there was a receiver until just now.
            await place.advance(301)
            await place.advance(301)
            with pytest.raises(GONE):
                async with client.sender(queue) as sender:
                    await sender.send_messages(message("refused"))
    finally:
        place.close()


@within_the_limit
async def test_live_links_tell_the_new_time_to_live(place: Place, sdk: Sdk) -> None:
    queue = place.create()
    async with (
        sdk.client(place.connection_string, **AGAIN) as client,
        client.sender(queue) as sender,
        client.receiver(queue) as receiver,
    ):
        await sender.send_messages(message("one"))
        (first,) = await receiver.receive_messages(max_wait_time=20)
        assert first.time_to_live is None
        await place.update(default_message_time_to_live_ms=60_000)
        await sender.send_messages(message("two"))
        (second,) = await receiver.receive_messages(max_wait_time=20)
        assert second.time_to_live.total_seconds() == 60
