"""Waiting for sessions over all fragments of a queue, and what becomes of holders when stores fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duobus.broker import Queue, SessionHolder, SessionReceiver
from duobus.broker.entities.placement import string_key
from duobus.errors import SessionCannotBeLocked, StoreUnavailable
from duobus.fragment.settlement import COMPLETE, SettleBatch
from kits.broker import Hall, answers, batch
from kits.fragment import Box
from simulation.world.loop import SimulationLoop

LOCK_MS = 10_000


class Link(SessionHolder):
    """A holder that counts its losses."""

    __slots__ = ("losses",)

    def __init__(self) -> None:
        super().__init__()
        self.losses = 0

    def wake(self) -> None:
        """See Mailbox."""

    def session_lost(self) -> None:
        """See Holder."""
        self.losses += 1

    def bodies(self) -> list[bytes]:
        """What was handed out so far."""
        return [message.payload for found in self.ready for message in found.messages]


class Client:
    """Somebody who waits for a session, or holds one."""

    def __init__(self, *, removing: bool = False, is_there: bool = True) -> None:
        self.receiver = SessionReceiver(removing=removing)
        self.link = self.receiver.mailbox = Link()
        self.is_there = is_there
        self.session: str | None = None

    def accepted(self) -> bool:
        """See Waiter."""
        self.session = self.receiver.lock.session_id
        return self.is_there

    def close(self) -> None:
        """Close the link."""
        self.receiver.give_back(counted=False)


async def send(queue: Queue, session_id: str, *payloads: bytes) -> None:
    """Send messages of one session and wait until they are stored."""
    made = batch(*payloads, key=string_key(session_id), session_id=session_id)
    queue.send(made)
    await asyncio.sleep(0.01)
    assert answers(made) == [None]


def play(scenario: Any, stores: int = 1, time_limit_s: float = 600) -> None:
    """Run a scenario in virtual time."""
    loop = SimulationLoop(1)

    async def run() -> None:
        hall = Hall(loop, stores)
        await hall.start()
        await scenario(hall)

    try:
        loop.run(run(), time_limit_s=time_limit_s)
    finally:
        loop.close()


async def sessions(hall: Hall, *, parted: bool = False) -> Queue:
    """A queue that requires sessions."""
    return await hall.create(requires_session=True, enable_partitioning=parted, lock_duration_ms=LOCK_MS)


def test_waiters_are_served_in_the_order_in_which_they_came() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall, parted=True)
        waiters = [Client() for _ in range(5)]
        for waiter in waiters:
            queue.wait_for_session(waiter)
        for number in range(5):
            await send(queue, f"s{number}", b"x")
            assert [w.session for w in waiters] == [f"s{n}" if n <= number else None for n in range(5)]

    play(scenario, stores=4)


def test_the_oldest_message_of_all_fragments_decides_who_is_next() -> None:
    """PE2."""

    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall, parted=True)
        names = [f"session {number}" for number in range(40)]
        for name in names:
            await send(queue, name, b"x")
        clients = [Client() for _ in names]
        for client in clients:
            queue.wait_for_session(client)
        assert [client.session for client in clients] == names

    play(scenario, stores=4)


def test_a_waiter_that_left_is_given_nothing_and_holds_nobody_up() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        gone, other = Client(), Client()
        queue.wait_for_session(gone)
        queue.wait_for_session(other)
        assert queue.acceptor is not None
        queue.acceptor.leave(gone)
        await send(queue, "s", b"x")
        assert (gone.session, other.session) == (None, "s")

    play(scenario)


def test_a_waiter_whose_socket_is_dead_leaks_no_lock() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        dead, other = Client(is_there=False), Client()
        queue.wait_for_session(dead)
        queue.wait_for_session(other)
        await send(queue, "s", b"x")
        assert other.session == "s"
        other.close()
        queue.accept_session("s", Client().receiver)

    play(scenario)


def test_a_session_that_is_held_cannot_be_accepted_by_name() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        first = Client()
        queue.accept_session("s", first.receiver)
        with pytest.raises(SessionCannotBeLocked, match="'s' of 'q'"):
            queue.accept_session("s", Client().receiver)
        first.close()
        queue.accept_session("s", Client().receiver)

    play(scenario)


def test_a_holder_is_given_what_comes_as_far_as_its_credit_goes() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        client = Client()
        queue.accept_session("s", client.receiver)
        client.receiver.request(2)
        await send(queue, "other", b"x")
        await send(queue, "s", b"1", b"2", b"3")
        assert client.link.bodies() == [b"1", b"2"]
        client.receiver.request(1)
        assert client.link.bodies() == [b"1", b"2", b"3"]

    play(scenario)


def test_a_removing_holder_is_given_each_message_once() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        await send(queue, "s", b"1", b"2", b"3")
        client = Client(removing=True)
        queue.accept_session("s", client.receiver)
        client.receiver.request(2)
        client.receiver.request(5)
        await asyncio.sleep(0.01)
        assert client.link.bodies() == [b"1", b"2", b"3"]
        assert queue.numbers()[0][0] == 0

    play(scenario)


def test_a_lock_that_runs_out_is_told_and_the_session_goes_to_who_waits() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        await send(queue, "s", b"1", b"2")
        slow, other = Client(), Client()
        queue.wait_for_session(slow)
        slow.receiver.request(5)
        queue.wait_for_session(other)
        assert (slow.session, other.session) == ("s", None)
        await asyncio.sleep(LOCK_MS / 1000 + 0.01)
        assert (slow.link.losses, other.session) == (1, "s")
        other.receiver.request(5)
        assert other.link.bodies() == [b"1", b"2"]
        slow.close()
        with pytest.raises(SessionCannotBeLocked):
            queue.accept_session("s", Client().receiver)

    play(scenario)


def test_a_failed_store_takes_the_locks_of_its_sessions_and_no_message() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        await send(queue, "s", b"1", b"2")
        client = Client()
        queue.accept_session("s", client.receiver)
        client.receiver.request(1)
        hall.writers[1].fail_next = "before"
        made = batch(b"3", key=string_key("s"), session_id="s")
        queue.send(made)
        await asyncio.sleep(0.01)
        assert client.link.losses == 1
        with pytest.raises(StoreUnavailable):
            queue.accept_session("s", Client().receiver)
        waiter = Client()
        with pytest.raises(StoreUnavailable):
            queue.wait_for_session(waiter)
        await asyncio.sleep(1)
        queue.wait_for_session(waiter)
        waiter.receiver.request(5)
        assert waiter.link.bodies() == [b"1", b"2"]

    play(scenario)


def test_who_waits_while_one_store_is_away_is_served_by_the_others_and_by_it_when_it_is_back() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall, parted=True)
        lost = next(name for name in map(str, range(99)) if queue.placement.keyed(string_key(name)).store.store_id == 1)
        kept = next(name for name in map(str, range(99)) if queue.placement.keyed(string_key(name)).store.store_id == 2)
        await send(queue, lost, b"x")
        hall.writers[1].fail_next = "before"
        queue.send(batch(b"y", key=string_key(lost), session_id=lost))
        await asyncio.sleep(0.01)
        first, second = Client(), Client()
        queue.wait_for_session(first)
        queue.wait_for_session(second)
        await send(queue, kept, b"x")
        assert (first.session, second.session) == (kept, None)
        await asyncio.sleep(1)
        assert second.session == lost

    play(scenario, stores=2)


def test_a_settlement_and_then_a_close_frees_the_session_and_keeps_the_settlement() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        await send(queue, "s", b"1", b"2")
        first, second = Client(), Client()
        queue.accept_session("s", first.receiver)
        first.receiver.request(1)
        (found,) = first.link.ready
        reply = Box()
        ranges = [(found.first_lock, 1)]
        queue.settle(SettleBatch(found.fragment, 0, reply, prefix=found.prefix, outcome=COMPLETE, ranges=ranges))
        first.close()
        queue.accept_session("s", second.receiver)
        second.receiver.request(5)
        assert second.link.bodies() == [b"2"]
        await asyncio.sleep(0.01)
        assert (reply.ready[0].error, reply.ready[0].lost) == (None, [])
        assert queue.numbers()[0][0] == 1

    play(scenario)


def test_a_state_is_answered_when_it_is_durable_and_survives_a_crash() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        client, reply = Client(), Box()
        queue.accept_session("s", client.receiver)
        hall.writers[1].is_held = True
        queue.set_session_state(client.receiver.handle, client.receiver.lock, b"kept", reply)
        await asyncio.sleep(0.01)
        assert reply.ready == []
        hall.writers[1].is_held = False
        hall.writers[1].release()
        await asyncio.sleep(0.01)
        assert [found.error for found in reply.ready] == [None]
        await hall.again()
        queue = hall.queue()
        queue.accept_session("s", client.receiver)
        handle, lock = client.receiver.handle, client.receiver.lock
        assert await handle.sessions.state(lock) == b"kept"
        assert list(queue.sessions_set_since(0)) == ["s"]
        assert list(queue.sessions_in_use()) == ["s"]

    play(scenario)


def test_a_state_that_is_replaced_while_it_is_read_is_read_anew() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        client = Client()
        queue.accept_session("s", client.receiver)
        handle, lock = client.receiver.handle, client.receiver.lock
        queue.set_session_state(handle, lock, b"old", Box())
        await asyncio.sleep(0.01)
        hall.writers[1].is_held = True
        queue.set_session_state(handle, lock, b"new", Box())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(handle.sessions.state(lock))
        await asyncio.sleep(0)
        hall.writers[1].is_held = False
        hall.writers[1].release()
        assert await reading == b"new"

    play(scenario)


def test_a_queue_that_is_deleted_takes_its_sessions_from_their_holders() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await sessions(hall)
        client = Client()
        queue.accept_session("s", client.receiver)
        await hall.unit.delete_queue("n", "q")
        assert client.link.losses == 1
        client.close()

    play(scenario)
