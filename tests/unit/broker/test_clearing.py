"""Batch delete and purge: what they take, in which order, slice by slice, and what is told when a store fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duobus.broker import ABANDON, COMPLETE, DEAD_LETTER_OUTCOME, DEFER, Queue, commit_loop
from duobus.errors import ServerBusy, StoreUnavailable
from duobus.fragment import fragment as fragment_module
from duobus.fragment import purge as slices
from duobus.fragment import source as source_module
from duobus.fragment.message import DEAD_LETTER, MAIN, NEVER, TRANSFER_DEAD_LETTER, QueuedMessage
from duobus.fragment.purge import PurgeAvailable, PurgeCounts
from kits.broker import Hall, answers, batch, payloads, receiver, sets_constants, settlement, simulated, turns
from kits.fragment import START_MS, Box, Driver

ALL = (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER)


def available(**limits: Any) -> PurgeAvailable:
    """A command that takes all that is available, unless told otherwise."""
    members: dict[str, Any] = {"sub_queue": MAIN, "limit": 100, "before_ms": NEVER, "end": NEVER, **limits}
    return PurgeAvailable("handle", 0, Box(), **members)


def cleared(driver: Driver, command: PurgeAvailable | PurgeCounts) -> list[bytes]:
    """What a command takes, in a commit of its own."""
    driver.commit(command)
    assert command.error is None
    return [message.payload for message in command.messages]


def test_before_an_instant_is_not_at_it() -> None:
    message = QueuedMessage(1, b"a", START_MS)
    assert slices.is_available(message, START_MS + 1)
    assert not slices.is_available(message, START_MS)


# -- one fragment -----------------------------------------------------------------------------------------------


def test_the_oldest_available_messages_go_first_and_locked_ones_stay() -> None:
    driver = Driver()
    driver.send(*[b"%d" % index for index in range(6)])
    ((held, _), (lock, _)) = driver.lock(2)
    driver.settle(ABANDON, lock)
    assert cleared(driver, available(limit=3)) == [b"1", b"2", b"3"]
    assert driver.settle(COMPLETE, held).lost == []
    assert sorted(found[2] for found in driver.stored().values()) == [b"4", b"5"]
    assert driver.waiting() == 2
    assert driver.source.numbers[MAIN] == 2


def test_messages_enqueued_at_the_instant_or_later_stay() -> None:
    driver = Driver()
    driver.send(b"old")
    driver.now_ms += 1000
    driver.send(b"new")
    assert cleared(driver, available(before_ms=START_MS)) == []
    assert cleared(driver, available(before_ms=START_MS + 1000)) == [b"old"]
    assert driver.waiting() == 1


def test_what_stays_still_expires_at_its_time() -> None:
    driver = Driver(default_ttl_ms=1000)
    driver.send(b"m")
    assert cleared(driver, available(before_ms=START_MS)) == []
    driver.pass_time(1000)
    assert driver.stored() == {}


def test_what_an_earlier_command_of_the_commit_disposes_of_is_left_and_counted() -> None:
    driver = Driver()
    driver.send(b"completed", b"abandoned", b"free")
    ((one, _), (two, _)) = driver.lock(2)
    command = PurgeCounts("handle", 0, Box(), counts=[1, 2, 3, 99])
    driver.commit(driver.settlement(COMPLETE, one), driver.settlement(ABANDON, two), command)
    assert [message.payload for message in command.messages] == [b"free"]
    assert command.busy == 2
    assert cleared(driver, PurgeCounts("handle", 0, Box(), counts=[1, 2, 3])) == [b"abandoned"]
    assert driver.picture() == driver.stored() == {}
    assert driver.source.numbers == [0] * 5
    assert driver.source.bytes == driver.source.memory_bytes == 0


def test_a_place_that_was_left_in_the_list_is_passed_over_and_counted_no_more() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c", b"d")
    assert cleared(driver, PurgeCounts("handle", 0, Box(), counts=[2])) == [b"b"]
    assert driver.waiting() == 3
    assert cleared(driver, available(limit=2)) == [b"a", b"c"]
    assert driver.waiting() == 1
    assert driver.source.sub_queues[MAIN].stale == 0


def test_what_stands_in_no_list_is_removed_and_the_others_are_counted_as_before() -> None:
    driver = Driver()
    driver.send(b"deferred", b"free")
    ((lock, _),) = driver.lock()
    driver.settle(DEFER, lock)
    driver.send(b"scheduled", scheduled_ms=START_MS + 1_000)
    assert cleared(driver, PurgeCounts("handle", 0, Box(), counts=[1, 3])) == [b"deferred", b"scheduled"]
    assert driver.waiting() == 1
    assert [message.payload for _, message in driver.lock(5)] == [b"free"]


def test_a_lost_lock_of_a_removed_message_cannot_bring_it_back() -> None:
    driver = Driver(lock_duration_ms=1000)
    driver.send(b"m")
    ((lock, _),) = driver.lock()
    driver.pass_time(1000)
    assert cleared(driver, available()) == [b"m"]
    assert driver.settle(ABANDON, lock).lost == [lock]
    assert driver.waiting() == 0


def test_counts_go_on_after_everything_was_removed_and_lost_from_memory() -> None:
    driver = Driver()
    assert driver.send(b"a", b"b") == [1, 2]
    assert len(cleared(driver, available())) == 2
    assert driver.recovered().send(b"c") == [3]


# -- an entity --------------------------------------------------------------------------------------------------


async def sent(queue: Queue, number: int, **metadata: Any) -> None:
    """Store messages, each in a commit of its own so that they spread."""
    for index in range(number):
        made = batch(b"%d" % index, **metadata)
        queue.send(made)
        await turns()
        assert answers(made) == [None]


@simulated
async def test_a_batch_delete_steps_over_all_fragments_up_to_its_number(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    await sent(queue, 40)
    now_ms = queue.fragments[0].broker.now_ms()
    assert await queue.batch_delete(MAIN, 25, now_ms + 1) == 25
    assert queue.numbers()[0][0] == 15
    assert await queue.batch_delete(MAIN, 25, now_ms + 1) == 15
    assert await queue.batch_delete(MAIN, 25, now_ms + 1) == 0


@simulated
async def test_a_batch_delete_is_answered_when_all_of_it_is_durable_and_lets_others_in_between(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "REMOVED_MAX", 10)
        await hall.start()
        queue = await hall.create()
        queue.send(batch(*[b"m"] * 35))
        await turns()
        writer = hall.writers[queue.fragments[0].store.store_id]
        writer.is_held = True
        deleting = asyncio.ensure_future(queue.batch_delete(MAIN, 100, NEVER))
        await turns()
        other = batch(b"other")
        queue.send(other)
        for _ in range(2):
            assert answers(other) == []
            writer.step()
            await turns()
        # The message of somebody else waited for one slice, not for all four.
        assert answers(other) == [None]
        assert not deleting.done()
        while not deleting.done():
            assert writer.waiting
            writer.step()
            await turns()
        assert await deleting == 36
        assert queue.numbers() == ([0] * 5, 0)


@simulated
async def test_many_purges_at_once_make_no_larger_commit_than_sends_do(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_loop, "COMMIT_MESSAGES_MAX", 25)
        patch.setattr(slices, "REMOVED_MAX", 10)
        await hall.start()
        queue = await hall.create()
        queue.send(batch(*[b"m"] * 100))
        await turns()
        writer = hall.writers[queue.fragments[0].store.store_id]
        writer.is_held = True
        purges = [asyncio.ensure_future(queue.purge(ALL, lambda: False)) for _ in range(10)]
        left = []
        while not all(purge.done() for purge in purges):
            await turns()
            left.append(queue.numbers()[0][0])
            writer.step()
        assert left[:4] == [70, 40, 10, 0]
        assert sum(purge.result().removed for purge in purges) == 100


@simulated
async def test_a_store_that_fails_on_a_slice_is_told_with_what_is_certain(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "REMOVED_MAX", 10)
        await hall.start()
        queue = await hall.create()
        queue.send(batch(*[b"m"] * 35))
        await turns()
        writer = hall.writers[queue.fragments[0].store.store_id]
        writer.is_held = True
        deleting = asyncio.ensure_future(queue.batch_delete(MAIN, 100, NEVER))
        await turns()
        writer.step()
        await turns()
        writer.fail_next = "after"
        writer.step()
        writer.release()
        with pytest.raises(ServerBusy, match="10 messages were removed for certain, and up to 10 more may be"):
            await deleting
        await asyncio.sleep(1)
        assert queue.numbers()[0][0] == 15
        writer.fail_next = "before"
        with pytest.raises(StoreUnavailable):
            await queue.fragments[0].broker.use(lambda: None)
        with pytest.raises(StoreUnavailable, match="is not available"):
            await queue.batch_delete(MAIN, 100, NEVER)


@sets_constants
@simulated
async def test_a_deep_queue_is_deleted_beyond_what_is_in_memory(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (fragment_module, source_module):
            patch.setattr(module, "WINDOW_COUNT", 5)
        await hall.start()
        queue = await hall.create()
        await sent(queue, 30)
        fragment = queue.fragments[0].fragment
        assert fragment is not None
        assert fragment.sources[0].tail_count > 10
        assert await queue.batch_delete(MAIN, 20, NEVER) == 20
        _, box = receiver(queue, 2)
        await turns()
        assert payloads(box) == [b"20", b"21"]
        found = await queue.purge(ALL, lambda: False)
        assert (found.removed, found.locked, found.is_complete) == (8, 2, True)
        assert queue.numbers()[0][0] == 2


async def with_every_state(hall: Hall, **properties: Any) -> Queue:
    """A queue with active, locked, scheduled, deferred and dead messages."""
    await hall.start()
    queue = await hall.create(**properties)
    await sent(queue, 4)
    standing, box = receiver(queue, 4)
    await turns()
    delivered = {
        message.payload: (found, index) for found in box.taken() for index, message in enumerate(found.messages)
    }
    for payload, outcome in ((b"0", DEFER), (b"1", DEAD_LETTER_OUTCOME), (b"2", DEAD_LETTER_OUTCOME)):
        found, index = delivered[payload]
        command = settlement(found)
        command.ranges = [(found.first_lock + index, 1)]
        command.outcome = outcome
        queue.settle(command)
    await turns()
    standing.close()
    await sent(queue, 3, scheduled_ms=queue.fragments[0].broker.now_ms() + 3_600_000)
    await sent(queue, 5)
    return queue


@simulated
async def test_a_purge_takes_every_state_and_reports_what_is_locked(hall: Hall) -> None:
    queue = await with_every_state(hall, enable_partitioning=True)
    assert queue.numbers()[0] == [6, 2, 0, 1, 3]
    found = await queue.purge(ALL, lambda: False)
    assert (found.removed, found.locked, found.is_complete) == (11, 1, True)
    assert queue.numbers()[0] == [1, 0, 0, 0, 0]
    # The store agrees, and the lock still holds.
    await hall.again()
    assert hall.queue().numbers()[0] == [1, 0, 0, 0, 0]


@simulated
async def test_a_purge_of_the_dead_letters_leaves_the_rest(hall: Hall) -> None:
    queue = await with_every_state(hall)
    found = await queue.purge((DEAD_LETTER,), lambda: False)
    assert (found.removed, found.locked, found.is_complete) == (2, 0, True)
    assert queue.numbers()[0] == [6, 0, 0, 1, 3]


@simulated
async def test_a_purge_whose_time_is_over_says_that_there_is_more(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "REMOVED_MAX", 10)
        await hall.start()
        queue = await hall.create()
        queue.send(batch(*[b"m"] * 35))
        await turns()
        asked = iter([False, False, False, False] + [True] * 9)
        found = await queue.purge(ALL, lambda: next(asked))
        assert not found.is_complete
        assert 0 < found.removed < 35
        rest = await queue.purge(ALL, lambda: False)
        assert (found.removed + rest.removed, rest.is_complete) == (35, True)


@simulated
async def test_messages_that_come_during_a_purge_stay(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "REMOVED_MAX", 10)
        await hall.start()
        queue = await hall.create()
        queue.send(batch(*[b"m"] * 35))
        await turns()
        purging = asyncio.ensure_future(queue.purge(ALL, lambda: False))
        await turns(3)
        queue.send(batch(b"new"))
        assert (await purging).removed == 35
        _, box = receiver(queue, 5)
        await turns()
        assert payloads(box) == [b"new"]


@simulated
async def test_a_purge_passes_over_a_store_that_is_away_and_is_not_complete(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    await sent(queue, 32)
    broker = queue.fragments[0].broker
    hall.writers[broker.store_id].fail_next = "before"
    with pytest.raises(StoreUnavailable):
        await broker.use(lambda: None)
    found = await queue.purge(ALL, lambda: False)
    assert (found.removed, found.is_complete) == (24, False)
    await asyncio.sleep(1)
    assert (await queue.purge(ALL, lambda: False)).removed == 8


@simulated
async def test_a_receiver_that_waits_gets_nothing_of_what_was_purged(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    await sent(queue, 5)
    assert (await queue.purge(ALL, lambda: False)).removed == 5
    _, box = receiver(queue, 9)
    _, removing = receiver(queue, 9, removing=True)
    await turns()
    assert payloads(box) == payloads(removing) == []
