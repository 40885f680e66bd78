"""The work of a message is done once, although it comes again (TL12, TL13); over a real broker."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient as BlockingClient
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusConnectionError

from duobus.clock import Clock
from duobus.ha.aio import IdempotentReceiver
from duobus.ha.deduplication import SeenMessages
from duobus.ha.events import LockLost, NotCompleted, Recognised, ResultDiscarded, WorkFailed
from duobus.ha.lock_keeper import LockKeeper
from kits.pair import Bus, Events, body, bounded, client, drain

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


class Hasty(Clock):
    """A clock by which locks of a minute are due to be renewed at once."""

    def now_ms(self) -> int:
        return super().now_ms() + 59_000


class Worker:
    """Does work, and remembers what it did and what was undone."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.undone: list[str] = []
        self.errors: list[Exception] = []

    async def work(self, message: ServiceBusReceivedMessage) -> bytes | None:
        if self.errors:
            raise self.errors.pop()
        self.done.append(body(message))
        return b"result of " + body(message).encode()

    async def undo(self, message: ServiceBusReceivedMessage, result: bytes | None) -> None:
        assert result == b"result of " + body(message).encode()
        self.undone.append(body(message))


@asynccontextmanager
async def receiving(
    bus: Bus, path: Path, **options: Any
) -> AsyncIterator[tuple[IdempotentReceiver, ServiceBusReceiver, Events]]:
    events = Events()
    with SeenMessages(path / "seen.db") as seen:
        async with client(bus.primary) as sdk:
            inner = sdk.get_queue_receiver(bus.orders)
            async with IdempotentReceiver(inner, seen, on_event=events, **options) as receiver:
                yield receiver, inner, events


async def sent(bus: Bus, *texts: str) -> None:
    async with client(bus.primary) as sdk, sdk.get_queue_sender(bus.orders) as sender:
        await sender.send_messages([ServiceBusMessage(text, message_id=f"id of {text}") for text in texts])


def fail_once(inner: ServiceBusReceiver, error: Exception, *, first: bool) -> None:
    """Let the next completion raise; ``first`` before it is done, otherwise after."""
    whole = inner.complete_message

    async def complete(message: ServiceBusReceivedMessage) -> None:
        inner.complete_message = whole  # type: ignore[method-assign]
        if first:
            await inner.abandon_message(message)  # The broker gives it to the next one, as when the lock was lost.
        else:
            await whole(message)
        raise error

    inner.complete_message = complete  # type: ignore[method-assign]


@bounded
async def test_a_message_whose_lock_was_lost_is_recognised_when_it_comes_again(bus: Bus, tmp_path: Path) -> None:
    worker = Worker()
    await sent(bus, "a")
    async with receiving(bus, tmp_path) as (receiver, inner, events):
        fail_once(inner, MessageLockLostError(), first=True)
        assert await receiver.process(worker.work, max_wait_time=5) == 1
        assert len(events.of(LockLost)) == 1
        assert await receiver.process(worker.work, max_wait_time=5) == 0
        assert [event.message_id for event in events.of(Recognised)] == ["id of a"]
    assert worker.done == ["a"]
    assert await drain(bus.primary, bus.orders) == []


@bounded
async def test_the_result_is_kept_over_a_restart_for_whoever_asks(bus: Bus, tmp_path: Path) -> None:
    worker = Worker()
    await sent(bus, "a")
    async with receiving(bus, tmp_path) as (receiver, _, _):
        await receiver.process(worker.work, max_wait_time=5)
    await sent(bus, "a")
    async with receiving(bus, tmp_path) as (receiver, inner, _):
        (message,) = await inner.receive_messages(1, max_wait_time=5)
        assert receiver.result(message) == b"result of a"
        await inner.abandon_message(message)
        assert await receiver.process(worker.work, max_wait_time=5) == 0
    assert worker.done == ["a"]


@bounded
async def test_with_discard_the_result_of_a_lost_lock_is_undone_and_the_work_is_tried_again(
    bus: Bus, tmp_path: Path
) -> None:
    worker = Worker()
    await sent(bus, "a")
    async with receiving(bus, tmp_path, discard=worker.undo) as (receiver, inner, events):
        fail_once(inner, MessageLockLostError(), first=True)
        await receiver.process(worker.work, max_wait_time=5)
        assert (worker.done, worker.undone) == (["a"], ["a"])
        assert len(events.of(ResultDiscarded)) == 1
        await receiver.process(worker.work, max_wait_time=5)
    assert (worker.done, worker.undone) == (["a", "a"], ["a"])
    assert await drain(bus.primary, bus.orders) == []


@pytest.mark.parametrize("error", [ServiceBusConnectionError(), ValueError("Failed to complete the message as ...")])
@bounded
async def test_with_discard_a_completion_that_may_have_been_done_keeps_the_result(
    bus: Bus, tmp_path: Path, error: Exception
) -> None:
    worker = Worker()
    await sent(bus, "a")
    async with receiving(bus, tmp_path, discard=worker.undo) as (receiver, inner, events):
        fail_once(inner, error, first=False)
        await receiver.process(worker.work, max_wait_time=5)
        assert len(events.of(NotCompleted)) == 1
        await sent(bus, "a")
        assert await receiver.process(worker.work, max_wait_time=5) == 0
    assert (worker.done, worker.undone) == (["a"], [])


@bounded
async def test_work_that_raises_gives_the_message_back(bus: Bus, tmp_path: Path) -> None:
    worker = Worker()
    worker.errors = [RuntimeError("not today")]
    await sent(bus, "a")
    async with receiving(bus, tmp_path) as (receiver, _, events):
        await receiver.process(worker.work, max_wait_time=5)
        assert events.of(WorkFailed)[0].error == "not today"
        await receiver.process(worker.work, max_wait_time=5)
    assert worker.done == ["a"]


@bounded
async def test_a_lock_is_renewed_while_the_work_keeps_the_loop_busy(bus: Bus, tmp_path: Path) -> None:
    worker = Worker()
    await sent(bus, "long")
    blocking = BlockingClient.from_connection_string(bus.primary.connection_string, retry_total=0)
    renewed: list[float] = []

    def make_receiver() -> Any:
        inner = blocking.get_queue_receiver(bus.orders)
        whole = inner.renew_message_lock

        def renew(message: ServiceBusReceivedMessage, **how: Any) -> Any:
            renewed.append(time.monotonic())
            return whole(message, **how)

        inner.renew_message_lock = renew  # type: ignore[method-assign]
        return inner

    async def long_work(message: ServiceBusReceivedMessage) -> bytes | None:
        end = time.monotonic() + 60
        while not renewed and time.monotonic() < end:
            sum(range(10_000))  # Nothing else runs in this loop meanwhile.
        return await worker.work(message)

    with blocking, LockKeeper(make_receiver, clock=Hasty()) as keeper:
        async with receiving(bus, tmp_path, keeper=keeper) as (receiver, _, events):
            assert await receiver.process(long_work, max_wait_time=5) == 1
            assert events == []
    assert renewed
    assert await drain(bus.primary, bus.orders) == []
