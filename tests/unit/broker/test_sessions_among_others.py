"""Sessions beside other features: duplicate detection, clearing, transactions, idle queues and the rate."""

from __future__ import annotations

import asyncio

import pytest
from test_session_acceptor import LOCK_MS, Client, Link, play, send

from duobus.broker import MAIN, Group, Queue, Throttle, Transaction, string_key
from duobus.codec import build_message
from duobus.errors import SessionLockLost
from duobus.fragment.message import DEAD_LETTER, NEVER, TRANSFER_DEAD_LETTER
from duobus.fragment.settlement import ABANDON, COMPLETE, SettleBatch
from duobus.model.batches import SendBatch
from kits.broker import Hall, answers, batch
from kits.fragment import Box

BOTH = pytest.mark.parametrize("parted", [False, True])
FIVE_MINUTES_MS = 300_000


def held(queue: Queue, session_id: str, *, removing: bool = False) -> Client:
    """Somebody who has a session."""
    client = Client(removing=removing)
    queue.accept_session(session_id, client.receiver)
    return client


def link_of(client: Client) -> Link:
    """Its mailbox."""
    assert isinstance(client.receiver.mailbox, Link)
    return client.receiver.mailbox


async def given(client: Client, number: int) -> list[bytes]:
    """What a holder has been given, once it asks for so many."""
    client.receiver.request(number)
    await asyncio.sleep(0.01)
    return link_of(client).bodies()


def settlement(client: Client, outcome: int = COMPLETE) -> SettleBatch:
    """Settle the first message that a holder was given."""
    (batch_, *_) = link_of(client).ready
    command = SettleBatch(
        batch_.fragment, 0, None, prefix=batch_.prefix, outcome=outcome, ranges=[(batch_.first_lock, 1)]
    )
    command.holder = client.receiver.lock
    return command


async def discharged(transaction: Transaction) -> Group:
    """A transaction's discharge, answered."""
    assert transaction.handle is not None
    group = Group(transaction.take(), Box())
    transaction.handle.submit(group)
    await asyncio.sleep(0.05)
    return group


def numbered(session_id: str, *ids: str) -> SendBatch:
    """Messages with ids."""
    payloads = [build_message([one, *[None] * 9, session_id], None, data=one.encode()) for one in ids]
    return batch(*payloads, key=string_key(session_id), session_id=session_id)


# -- duplicate detection ----------------------------------------------------------------------------------------


@BOTH
def test_a_duplicate_takes_no_place_in_its_session(parted: bool) -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True, requires_duplicate_detection=True, enable_partitioning=parted)
        made = numbered("s", "1", "2", "1", "3", "2")
        queue.send(made)
        await asyncio.sleep(0.01)
        assert answers(made) == [None]
        client = held(queue, "s")
        assert await given(client, 10) == [made.payloads[index] for index in (0, 1, 3)]
        queue.send(numbered("s", "3"))
        await asyncio.sleep(0.01)
        assert len(await given(client, 10)) == 3

    play(scenario)


# -- clearing ---------------------------------------------------------------------------------------------------


@BOTH
def test_a_batch_delete_takes_what_nobody_has_locked_from_every_session(parted: bool) -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True, enable_partitioning=parted)
        for session in ("a", "b", "c"):
            await send(queue, session, *[b"%s%d" % (session.encode(), number) for number in range(3)])
        client = held(queue, "a")
        assert await given(client, 1) == [b"a0"]
        assert await queue.batch_delete(MAIN, 100, NEVER) == 8
        assert list(queue.sessions_in_use()) == ["a"]
        assert await given(client, 10) == [b"a0"]
        await send(queue, "a", b"a3")
        assert await given(client, 10) == [b"a0", b"a3"]

    play(scenario)


@BOTH
def test_a_batch_delete_of_one_session_leaves_the_others_alone(parted: bool) -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True, enable_partitioning=parted)
        await send(queue, "a", b"a0", b"a1", b"a2")
        await send(queue, "b", b"b0")
        assert await queue.batch_delete(MAIN, 2, NEVER, "a") == 2
        assert await given(held(queue, "a"), 10) == [b"a2"]
        assert await given(held(queue, "b"), 10) == [b"b0"]

    play(scenario)


def test_a_batch_delete_leaves_what_is_younger_than_its_instant() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True)
        await send(queue, "a", b"old")
        await asyncio.sleep(1)
        now_ms = hall.clock.now_ms()
        await asyncio.sleep(1)
        await send(queue, "a", b"new")
        assert await queue.batch_delete(MAIN, 10, now_ms) == 1
        assert await given(held(queue, "a"), 10) == [b"new"]

    play(scenario)


@BOTH
def test_a_purge_empties_the_sessions_and_keeps_their_states(parted: bool) -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True, enable_partitioning=parted)
        for session in ("a", "b"):
            await send(queue, session, b"1", b"2")
        client = held(queue, "a")
        queue.set_session_state(client.receiver.handle, client.receiver.lock, b"kept", Box())
        assert await given(client, 1) == [b"1"]
        cleared = await queue.purge((MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER), lambda: False)
        assert (cleared.removed, cleared.locked, cleared.is_complete) == (3, 1, True)
        client.close()
        assert list(queue.sessions_in_use()) == ["a"]
        again = held(queue, "a")
        assert await given(again, 5) == [b"1"]
        assert await again.receiver.handle.sessions.state(again.receiver.lock) == b"kept"

    play(scenario)


# -- transactions -----------------------------------------------------------------------------------------------


@BOTH
def test_a_transaction_sends_to_a_session_and_settles_in_it(parted: bool) -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True, enable_partitioning=parted)
        await send(queue, "a", b"1")
        client = held(queue, "a")
        await given(client, 1)
        transaction = Transaction(b"t", NEVER)
        transaction.send(queue, batch(b"2", key=string_key("a") if parted else None, session_id="a"))
        transaction.settle(queue, [settlement(client)])
        assert (await discharged(transaction)).error is None
        assert await given(client, 5) == [b"1", b"2"]
        client.close()
        assert await given(held(queue, "a"), 5) == [b"2"]

    play(scenario)


def test_an_abandon_in_a_transaction_keeps_the_order_of_its_session() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True)
        await send(queue, "a", b"1", b"2")
        client = held(queue, "a")
        await given(client, 1)
        transaction = Transaction(b"t", NEVER)
        transaction.settle(queue, [settlement(client, ABANDON)])
        assert (await discharged(transaction)).error is None
        assert await given(client, 2) == [b"1", b"1", b"2"]

    play(scenario)


@pytest.mark.parametrize("end", ["expired", "closed"])
def test_a_transaction_fails_as_a_whole_when_its_session_is_lost_before_the_discharge(end: str) -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True, lock_duration_ms=LOCK_MS)
        await send(queue, "a", b"1")
        client = held(queue, "a")
        await given(client, 1)
        transaction = Transaction(b"t", NEVER)
        transaction.settle(queue, [settlement(client)])
        transaction.send(queue, batch(b"2", session_id="a"))
        if end == "closed":
            client.close()
        else:
            await asyncio.sleep(LOCK_MS / 1000 + 1)
        # The next holder has the message; who lost the session settles nothing of it.
        other = held(queue, "a")
        assert await given(other, 5) == [b"1"]
        assert (await discharged(transaction)).error is not None
        assert await given(other, 5) == [b"1"]
        assert queue.numbers()[0][0] == 1

    play(scenario)


def test_a_settlement_in_a_transaction_by_someone_else_than_the_holder_is_refused() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True)
        await send(queue, "a", b"1")
        client, other = held(queue, "a"), held(queue, "b")
        await given(client, 1)
        command = settlement(client)
        command.holder = other.receiver.lock
        transaction = Transaction(b"t", NEVER)
        transaction.settle(queue, [command])
        assert isinstance((await discharged(transaction)).error, SessionLockLost)

    play(scenario)


# -- idle queues, the rate --------------------------------------------------------------------------------------


def test_a_held_session_and_somebody_who_waits_for_one_keep_a_queue() -> None:
    async def scenario(hall: Hall) -> None:
        for name in ("held", "awaited", "left"):
            await hall.create(name, requires_session=True, auto_delete_on_idle_ms=FIVE_MINUTES_MS)
        client, waiter = held(hall.queue("held"), "a"), Client()
        hall.queue("awaited").wait_for_session(waiter)
        for _ in range(20):
            await asyncio.sleep(25)
            receiver = client.receiver
            receiver.handle.sessions.renew(receiver.lock)
        assert sorted(hall.unit.namespace("n").queues) == ["awaited", "held"]
        client.close()
        acceptor = hall.queue("awaited").acceptor
        assert acceptor is not None
        acceptor.leave(waiter)
        await asyncio.sleep(299)
        assert sorted(hall.unit.namespace("n").queues) == ["awaited", "held"]
        await asyncio.sleep(601)
        assert not hall.unit.namespace("n").queues

    play(scenario, time_limit_s=3_000)


def test_the_holder_of_a_session_gets_no_more_than_the_rate_and_all_in_the_end() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True, lock_duration_ms=60_000)
        await send(queue, "a", *[b"%d" % number for number in range(250)])
        client = held(queue, "a")
        client.receiver.gate = Throttle("n", 100, hall.clock)
        assert len(await given(client, 250)) in range(100, 110)
        await asyncio.sleep(0.5)
        assert len(link_of(client).bodies()) in range(140, 165)
        await asyncio.sleep(2)
        assert link_of(client).bodies() == [b"%d" % number for number in range(250)]

    play(scenario)


def test_what_a_session_did_not_have_is_given_back_to_the_rate() -> None:
    async def scenario(hall: Hall) -> None:
        queue = await hall.create(requires_session=True)
        await send(queue, "a", b"1", b"2")
        throttle = Throttle("n", 100, hall.clock)
        client = held(queue, "a", removing=True)
        client.receiver.gate = throttle
        # Lent before the commit that removes; in that commit a batch delete comes first.
        deletion = asyncio.ensure_future(queue.batch_delete(MAIN, 10, NEVER))
        await asyncio.sleep(0)
        client.receiver.request(2)
        await deletion
        await asyncio.sleep(0.05)
        assert throttle.admit(1000) == 70

    play(scenario)
