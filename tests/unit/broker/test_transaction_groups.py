"""A transaction as a state machine, and its discharge as one group: all or nothing, whatever the store does."""

from __future__ import annotations

import asyncio

import pytest

from duobus.broker import Group, Queue, Transaction, string_key
from duobus.broker.transaction import DISCHARGED, DOOMED, MESSAGES_MAX, SETTLEMENTS_MAX
from duobus.errors import (
    InternalError,
    MessageLockLost,
    NotAllowed,
    QuotaExceeded,
    StoreUnavailable,
    TransactionRolledBack,
)
from duobus.model.batches import DeliveryBatch
from kits.broker import Hall, batch, settlement, simulated_over, turns
from kits.fragment import Box

simulated = simulated_over(2)


def transaction() -> Transaction:
    return Transaction(b"txn", 1_000)


async def locked(queue: Queue, *payloads: bytes) -> DeliveryBatch:
    """Messages of a queue, sent and locked."""
    queue.send(batch(*payloads))
    box = Box()
    queue.open_receiver(0, box, removing=False).request(len(payloads))
    await turns()
    (delivered,) = [found for found in box.ready if found.messages]
    return delivered


def discharge(found: Transaction, reply: Box) -> Group:
    """Submit the work of a transaction."""
    group = Group(found.take(), reply)
    assert found.handle is not None
    found.handle.submit(group)
    return group


def active(queue: Queue) -> int:
    return queue.numbers()[0][0]


# -- the state machine ------------------------------------------------------------------------------------------


@simulated
async def test_two_shards_of_one_queue_are_fragments_to_a_transaction_and_not_entities(hall: Hall) -> None:
    # PE15: whoever owns both, the client knows one queue only, and reads its name.
    await hall.start()
    one, other = await hall.create("orders/~share/0"), await hall.create("Orders/~share/1")
    found = transaction()
    keyed = batch(b"a")
    keyed.keys = [string_key("k")]
    found.send(one, keyed)
    with pytest.raises(NotAllowed, match=r"different fragments of the partitioned entity 'Orders'"):
        found.send(other, batch(b"b"))
    assert found.state == DOOMED


@simulated
async def test_refused_work_dooms_the_whole_and_the_first_reason_stays(hall: Hall) -> None:
    await hall.start()
    one, other = await hall.create("one"), await hall.create("other")
    found = transaction()
    found.send(one, batch(b"a"))
    with pytest.raises(NotAllowed, match="span"):
        found.send(other, batch(b"b"))
    assert (found.state, found.work) == (DOOMED, [])
    with pytest.raises(TransactionRolledBack, match="span"):
        found.send(one, batch(b"c"))
    with pytest.raises(TransactionRolledBack, match="span"):
        found.settle(one, [])


@simulated
async def test_limits_count_messages_of_batches_and_locks_of_ranges(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    found = transaction()
    found.send(queue, batch(*[b"x"] * MESSAGES_MAX))
    with pytest.raises(QuotaExceeded):
        found.send(queue, batch(b"x"))
    delivered = await locked(queue, b"x")
    found = transaction()
    with pytest.raises(QuotaExceeded):
        found.settle(queue, [settlement(delivered, number=SETTLEMENTS_MAX + 1)])


@simulated
async def test_what_is_taken_is_taken_once_and_a_doom_after_it_changes_nothing(hall: Hall) -> None:
    await hall.start()
    found = transaction()
    found.send(await hall.create(), batch(b"x"))
    work = found.take()
    found.doom(NotAllowed("late"))
    assert (found.state, len(work)) == (DISCHARGED, 1)


@simulated
async def test_a_key_whose_store_is_away_dooms_with_the_reason_to_try_again(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    handle = queue.placement.keyed(string_key("k"))
    hall.writers[handle.store.store_id].is_held = True
    hall.unit.brokers[handle.store.store_id].lifecycle.fail(InternalError("planted"))
    found = transaction()
    with pytest.raises(StoreUnavailable):
        found.send(queue, batch(b"x", key=string_key("k")))
    assert found.state == DOOMED


# -- the discharge ----------------------------------------------------------------------------------------------


@simulated
async def test_a_discharge_is_one_commit_and_is_seen_when_that_is_durable(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    delivered = await locked(queue, b"in")
    broker = queue.fragments[0].broker
    writer, reply, commits = hall.writers[broker.store_id], Box(), broker.commits
    found = transaction()
    for payload in (b"out 1", b"out 2"):
        found.send(queue, batch(payload))
    found.settle(queue, [settlement(delivered)])
    writer.is_held = True
    discharge(found, reply)
    await turns()
    assert (reply.ready, queue.fragments[0].fragment and queue.fragments[0].fragment.available(0, 0)) == ([], 0)
    writer.step()
    await turns()
    assert [group.error for group in reply.ready] == [None]
    assert (active(queue), broker.commits) == (2, commits + 1)


@simulated
async def test_a_lock_that_expires_before_the_discharge_leaves_everything_as_it_was(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(lock_duration_ms=5_000)
    delivered = await locked(queue, b"in")
    reply = Box()
    found = transaction()
    found.settle(queue, [settlement(delivered)])
    found.send(queue, batch(b"out"))
    await asyncio.sleep(6)
    discharge(found, reply)
    await turns()
    assert isinstance(reply.ready[0].error, MessageLockLost)
    assert active(queue) == 1


@simulated
async def test_a_discharge_that_finds_its_store_away_is_refused_at_once(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    found, reply = transaction(), Box()
    found.send(queue, batch(b"x"))
    broker = queue.fragments[0].broker
    broker.lifecycle.fail(InternalError("planted"))
    discharge(found, reply)
    assert isinstance(reply.ready[0].error, StoreUnavailable)


@pytest.mark.parametrize(("how", "is_there"), [("before", False), ("after", True)])
def test_a_commit_that_fails_is_answered_by_what_the_store_holds(how: str, is_there: bool) -> None:
    @simulated
    async def test(hall: Hall) -> None:
        await hall.start()
        queue = await hall.create()
        delivered = await locked(queue, b"in")
        found, reply = transaction(), Box()
        found.send(queue, batch(b"out 1", b"out 2"))
        found.settle(queue, [settlement(delivered)])
        hall.writers[queue.fragments[0].store.store_id].fail_next = how
        discharge(found, reply)
        await turns()
        # Nobody knows yet, so nobody is told.
        assert reply.ready == []
        await asyncio.sleep(1)
        (group,) = reply.ready
        assert (group.error is None) is is_there
        assert active(queue) == (2 if is_there else 1)
        await hall.again()
        assert active(hall.queue()) == (2 if is_there else 1)

    test()


@simulated
async def test_a_group_that_was_never_written_is_not_taken_for_one_that_was(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    await locked(queue, b"in")
    found, reply = transaction(), Box()
    found.send(queue, batch(b"out"))
    fragment = queue.fragments[0].fragment
    assert fragment is not None
    discharge(found, reply)
    # The next command of the same commit runs into a fault of ours: the commit never starts.
    broken = batch(b"broken")
    broken.payloads = None  # type: ignore[assignment]
    queue.send(broken)
    await turns()
    await asyncio.sleep(1)
    assert isinstance(reply.ready[0].error, StoreUnavailable)
    assert active(queue) == 1
