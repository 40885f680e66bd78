"""The Python SDK: sessions by name and next available, state, locks, order."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import azure.servicebus
import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from kit_bus import Bus, unique
from kit_sdk import Face, Sdk, bodies, within_the_limit

from duobus.testing.namespace import Namespace

#: Long enough to see that nothing comes: what is there comes within milliseconds.
NOTHING_S = 0.5
#: The shortest lock there is. Broker time is moved past it.
LOCK_S = 5.0

KINDS = pytest.mark.parametrize("kind", ["sessions", "parted-sessions"])


def message(session_id: str, body: bytes) -> ServiceBusMessage:
    """A message of a session."""
    return ServiceBusMessage(body, session_id=session_id)


def impatient(namespace: Namespace) -> str:
    """A queue with sessions and the shortest lock."""
    return namespace.create_queue("impatient", requires_session=True, lock_duration=timedelta(seconds=LOCK_S))


async def send(client: Face, queue: str, session_id: str, *contents: bytes) -> None:
    """Send messages of one session, in order."""
    async with client.sender(queue) as sender:
        await sender.send_messages([message(session_id, body) for body in contents])


async def receive(receiver: Face, number: int = 1, wait_s: float = 2.0) -> list[bytes]:
    """The next bodies, not settled."""
    found = await receiver.receive_messages(max_message_count=number, max_wait_time=wait_s)
    return [b"".join(each.body) for each in found]


@KINDS
@within_the_limit
async def test_a_session_accepted_by_name_gives_its_messages_in_order(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        await send(client, queue, "a", b"1", b"2", b"3")
        await send(client, queue, "b", b"other")
        async with client.receiver(queue, session_id="a") as receiver:
            session = receiver.inner.session
            assert session.session_id == "a"
            left = (session.locked_until_utc - datetime.now(UTC)).total_seconds()
            assert 30 < left <= 61
            assert await bodies(receiver, 3) == [b"1", b"2", b"3"]
            assert await receive(receiver, wait_s=NOTHING_S) == []


@KINDS
@within_the_limit
async def test_a_session_held_by_another_cannot_be_locked(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        async with client.receiver(queue, session_id="held"):
            with pytest.raises(SessionCannotBeLockedError):
                async with client.receiver(queue, session_id="held"):
                    pass
        # Closing the link frees it at once.
        async with client.receiver(queue, session_id="held") as receiver:
            assert receiver.inner.session.session_id == "held"


@KINDS
@within_the_limit
async def test_the_next_available_session_is_the_one_with_the_oldest_message(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        for name in ("first", "second", "third"):
            await send(client, queue, name, name.encode())
            await asyncio.sleep(0.01)
        async with (
            client.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as first,
            client.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as second,
        ):
            assert [each.inner.session.session_id for each in (first, second)] == ["first", "second"]
            assert await receive(second) == [b"second"]


@KINDS
@within_the_limit
async def test_without_a_session_the_wait_ends_in_time_with_a_timeout(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        began = time.monotonic()
        with pytest.raises(OperationTimeoutError):
            async with client.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1):
                pass
        assert time.monotonic() - began > 0.8


@KINDS
@within_the_limit
async def test_a_waiter_has_the_session_at_once_when_a_message_comes(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with Sdk("asyncio").client(bus.connection_string) as client, sdk.client(bus.connection_string) as other:
        waiting = client.inner.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=50)

        task = asyncio.create_task(waiting.__aenter__())
        async with other.sender(queue) as sender:
            await asyncio.sleep(0.5)
            sent = asyncio.create_task(sender.send_messages(message("late", b"x")))
            # Long before the wait is over.
            async with asyncio.timeout(30):
                await task
            await sent
        assert waiting.session.session_id == "late"
        await waiting.close()


@KINDS
@within_the_limit
async def test_a_waiter_that_gave_up_leaves_no_lock_behind(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        with pytest.raises(OperationTimeoutError):
            async with client.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1):
                pass
        await send(client, queue, "s", b"x")
        async with client.receiver(queue, session_id="s") as receiver:
            assert await bodies(receiver, 1) == [b"x"]


@KINDS
@within_the_limit
async def test_the_state_of_a_session_is_set_replaced_and_cleared(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        async with client.receiver(queue, session_id="stately") as receiver:
            session = Face(receiver.inner.session)
            assert await session.get_state() is None
            await session.set_state("one")
            assert await session.get_state() == b"one"
            await session.set_state(b"\x00two")
            assert await session.get_state() == b"\x00two"
        async with client.receiver(queue, session_id="stately") as receiver:
            session = Face(receiver.inner.session)
            assert await session.get_state() == b"\x00two"
            await session.set_state(None)
            assert await session.get_state() is None
            await session.set_state("three")
            await session.set_state(b"")
            assert await session.get_state() is None


@within_the_limit
async def test_a_state_of_more_than_256_kib_is_refused(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("sessions")
    async with sdk.client(bus.connection_string) as client, client.receiver(queue, session_id="large") as receiver:
        session = Face(receiver.inner.session)
        await session.set_state(b"x" * (256 * 1024))
        with pytest.raises(ServiceBusError, match="262144"):
            await session.set_state(b"x" * (256 * 1024 + 1))
        assert len(await session.get_state()) == 256 * 1024


@within_the_limit
async def test_renewing_prolongs_the_lock_of_the_session_and_its_messages(namespace: Namespace, sdk: Sdk) -> None:
    queue = impatient(namespace)
    async with sdk.client(namespace.connection_string) as client:
        await send(client, queue, "s", b"x")
        async with client.receiver(queue, session_id="s") as receiver:
            session = Face(receiver.inner.session)
            (held,) = await receiver.receive_messages(max_wait_time=20)
            before = session.locked_until_utc
            for _ in range(3):
                namespace.advance(0.44 * LOCK_S)
                assert await session.renew_lock() > before
            await receiver.complete_message(held)


@within_the_limit
async def test_a_session_that_is_not_renewed_is_lost_and_its_messages_come_again(
    namespace: Namespace, sdk: Sdk
) -> None:
    queue = impatient(namespace)
    async with sdk.client(namespace.connection_string) as client:
        await send(client, queue, "s", b"1", b"2")
        async with client.receiver(queue, session_id="s") as receiver:
            (held,) = await receiver.receive_messages(max_wait_time=20)
            # To the SDK, whose clock stays, nothing is late: the broker decides.
            namespace.advance(1.1 * LOCK_S)
            with pytest.raises(SessionLockLostError):
                await receiver.complete_message(held)
            with pytest.raises(SessionLockLostError):
                await Face(receiver.inner.session).set_state(b"too late")
        async with client.receiver(queue, session_id="s") as receiver:
            found = await receiver.receive_messages(max_message_count=2, max_wait_time=2)
            assert [(b"".join(each.body), each.delivery_count) for each in found] == [(b"1", 1), (b"2", 0)]
            assert await Face(receiver.inner.session).get_state() is None


@within_the_limit
async def test_a_session_that_is_read_out_ends_its_wait_without_an_error_after_the_lock(
    namespace: Namespace, sdk: Sdk
) -> None:
    queue = impatient(namespace)
    async with sdk.client(namespace.connection_string) as client:
        await send(client, queue, "s", b"1", b"2")
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with client.receiver(queue, session_id="s", receive_mode=mode) as receiver:
            found = [each for _ in range(2) for each in await receiver.receive_messages(max_wait_time=2)]
            assert [b"".join(each.body) for each in found] == [b"1", b"2"]
            namespace.advance(1.1 * LOCK_S)
            assert await receiver.receive_messages(max_wait_time=NOTHING_S) == []


@within_the_limit
async def test_the_auto_lock_renewer_keeps_a_session(bus: Bus) -> None:
    queue = bus.queue("impatient-sessions")
    async with Sdk("sync").client(bus.connection_string) as client:
        await send(client, queue, "s", b"x")
        with azure.servicebus.AutoLockRenewer() as renewer:
            async with client.receiver(queue, session_id="s") as receiver:
                renewer.register(receiver.inner, receiver.inner.session, max_lock_renewal_duration=30)
                (held,) = await receiver.receive_messages(max_wait_time=20)
                # The renewer goes by its own clock, which nobody moves.
                await asyncio.sleep(1.2 * LOCK_S)
                await receiver.complete_message(held)


@KINDS
@within_the_limit
async def test_an_abandoned_message_comes_before_the_next_of_its_session(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        await send(client, queue, "s", b"1", b"2")
        async with client.receiver(queue, session_id="s") as receiver:
            (first,) = await receiver.receive_messages(max_message_count=1, max_wait_time=2)
            await receiver.abandon_message(first)
            assert await bodies(receiver, 2) == [b"1", b"2"]


@KINDS
@within_the_limit
async def test_deferred_messages_are_their_sessions_alone(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        await send(client, queue, "s", b"1", b"2")
        async with client.receiver(queue, session_id="s") as receiver:
            (first,) = await receiver.receive_messages(max_message_count=1, max_wait_time=2)
            await receiver.defer_message(first)
            assert await bodies(receiver, 1) == [b"2"]
            async with client.receiver(queue, session_id="t") as stranger:
                with pytest.raises(MessageNotFoundError):
                    await stranger.receive_deferred_messages([first.sequence_number])
            (again,) = await receiver.receive_deferred_messages([first.sequence_number])
            assert b"".join(again.body) == b"1"
            await receiver.complete_message(again)
            with pytest.raises(MessageNotFoundError):
                await receiver.receive_deferred_messages([first.sequence_number])


@KINDS
@within_the_limit
async def test_peek_shows_only_the_session(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        await send(client, queue, "a", b"a1", b"a2")
        await send(client, queue, "b", b"b1")
        async with client.receiver(queue, session_id="a") as receiver:
            assert [b"".join(m.body) for m in await receiver.peek_messages(max_message_count=9)] == [b"a1", b"a2"]


@within_the_limit
async def test_a_message_without_a_session_is_refused(bus: Bus, sdk: Sdk) -> None:
    queue = bus.queue("sessions")
    async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
        with pytest.raises(ServiceBusError, match="requires sessions"):
            await sender.send_messages(ServiceBusMessage(b"x"))
        with pytest.raises(ServiceBusError, match="requires sessions"):
            await sender.send_messages([message("s", b"1"), ServiceBusMessage(b"2")])
        with pytest.raises(ServiceBusError, match="requires sessions"):
            await sender.schedule_messages(ServiceBusMessage(b"x"), datetime.now(UTC))


@within_the_limit
async def test_a_plain_receiver_is_refused_where_sessions_are_required(bus: Bus, sdk: Sdk) -> None:
    async with sdk.client(bus.connection_string) as client:
        with pytest.raises(ServiceBusError, match="non-sessionful message receiver"):
            async with client.receiver(bus.queue("sessions")) as receiver:
                await receiver.receive_messages(max_wait_time=1)


@within_the_limit
async def test_a_session_is_refused_where_none_are_required(bus: Bus, sdk: Sdk) -> None:
    async with sdk.client(bus.connection_string) as client:
        with pytest.raises(ServiceBusError, match="not require sessions"):
            async with client.receiver(bus.queue(), session_id="s"):
                pass


@KINDS
@within_the_limit
async def test_the_dead_letter_queue_of_a_session_queue_needs_no_session(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        await send(client, queue, "s", b"bad")
        async with client.receiver(queue, session_id="s") as receiver:
            (held,) = await receiver.receive_messages(max_wait_time=20)
            await receiver.dead_letter_message(held, reason="bad")
        async with client.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (dead,) = await receiver.receive_messages(max_wait_time=20)
            assert (dead.session_id, dead.dead_letter_reason) == ("s", "bad")
            await receiver.renew_message_lock(dead)
            await receiver.complete_message(dead)


@KINDS
@within_the_limit
async def test_receive_and_delete_of_a_session(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with sdk.client(bus.connection_string) as client:
        await send(client, queue, "s", b"1", b"2")
        async with client.receiver(queue, session_id="s", receive_mode=mode) as receiver:
            assert [await receive(receiver), await receive(receiver)] == [[b"1"], [b"2"]]
            assert await receive(receiver, wait_s=NOTHING_S) == []


@KINDS
@within_the_limit
async def test_a_settlement_just_before_the_link_closes_counts(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        await send(client, queue, "s", *(b"%d" % number for number in range(6)))
        for number in range(6):
            async with client.receiver(queue, session_id="s") as receiver:
                (held,) = await receiver.receive_messages(max_wait_time=20)
                assert b"".join(held.body) == b"%d" % number
                await receiver.complete_message(held)


@KINDS
@within_the_limit
async def test_sessions_with_messages_are_listed(bus: Bus, sdk: Sdk, kind: str) -> None:
    queue = bus.queue(kind)
    async with sdk.client(bus.connection_string) as client:
        names = {f"s{unique()}" for _ in range(130)}
        async with client.sender(queue) as sender:
            for name in names:
                await sender.send_messages(message(name, b"x"))
        listed = client.inner.list_queue_sessions(queue)
        found = [each async for each in listed] if hasattr(listed, "__aiter__") else list(listed)
        assert sorted(found) == sorted(names)
