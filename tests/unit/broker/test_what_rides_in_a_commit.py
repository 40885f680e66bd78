"""What fills a commit, and what waits for one: parts of a split batch, and what nobody waits for.

That are delivery counts, and completions that are not answered.
"""

from __future__ import annotations

import asyncio

import pytest

from duobus.broker import SOURCE, commit_loop, string_key
from duobus.broker.commit_loop import COUNTS_WAIT_S, HOLD_S
from duobus.broker.message_broker import MessageBroker
from duobus.errors import StoreUnavailable
from duobus.fragment.settlement import ABANDON
from duobus.model.batches import DeliveryBatch
from kits.broker import Hall, answers, batch, payloads, receiver, settlement, simulated, turns
from kits.fragment import Box


@simulated
async def test_a_part_of_a_batch_fills_a_commit_with_its_own_messages_only(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    before = sum(broker.commits for broker in hall.unit.brokers.values())
    made = batch(*[b"%d" % index for index in range(64)])
    made.keys = [string_key(str(index)) for index in range(64)]
    with pytest.MonkeyPatch.context() as patch:
        # As many as there are: a part that counted as the whole batch would fill a commit by itself.
        patch.setattr(commit_loop, "COMMIT_MESSAGES_MAX", 64)
        patch.setattr(commit_loop, "COMMIT_BYTES_MAX", made.bytes_total)
        queue.send(made)
        await turns(40)
    assert set(answers(made)) == {None}
    assert len(answers(made)) == len({handle.number for handle in queue.fragments})
    assert sum(broker.commits for broker in hall.unit.brokers.values()) == before + len(hall.unit.brokers)


async def _given_back(hall: Hall) -> int:
    """A connection has gone with a message in hand; how many commits there were before."""
    queue = await hall.create(max_delivery_count=1000)
    handle = queue.fragments[0]
    made, box = receiver(queue, 1)
    queue.send(batch(b"m"))
    await turns(40)
    made.close()
    (item,) = box.ready
    before = handle.broker.commits
    handle.unlock(SOURCE, item.prefix, [(item.first_lock, 1)], counted=True)
    await turns(20)
    return before


async def _deliveries_after_a_restart(hall: Hall) -> int:
    await hall.again()
    _, box = receiver(hall.queue(), 1)
    await turns(40)
    ((message,),) = [item.messages for item in box.ready]
    return message.deliveries


@simulated
async def test_delivery_counts_alone_wait_for_a_commit_that_others_need(hall: Hall) -> None:
    await hall.start()
    before = await _given_back(hall)
    broker = hall.queue().fragments[0].broker
    assert broker.commits == before
    hall.queue().send(batch(b"another"))
    await turns(20)
    assert broker.commits == before + 1
    await asyncio.sleep(COUNTS_WAIT_S + 1)
    assert broker.commits == before + 1
    assert await _deliveries_after_a_restart(hall) == 1


@simulated
async def test_delivery_counts_that_find_no_company_are_written_in_time(hall: Hall) -> None:
    await hall.start()
    before = await _given_back(hall)
    broker = hall.queue().fragments[0].broker
    await asyncio.sleep(COUNTS_WAIT_S - 0.1)
    assert broker.commits == before
    await asyncio.sleep(0.2)
    assert broker.commits == before + 1


@simulated
async def test_delivery_counts_that_wait_are_written_when_the_store_is_closed(hall: Hall) -> None:
    await hall.start()
    before = await _given_back(hall)
    broker = hall.queue().fragments[0].broker
    await broker.close()
    assert broker.commits == before + 1


async def _held(hall: Hall, *messages: bytes) -> tuple[DeliveryBatch, MessageBroker, int]:
    """What a receiver has, the broker it is from, and how many commits there were before."""
    queue = await hall.create()
    _, box = receiver(queue, len(messages))
    queue.send(batch(*messages))
    await turns(40)
    (item,) = box.ready
    broker = queue.fragments[0].broker
    return item, broker, broker.commits


async def _left_after_a_restart(hall: Hall) -> list[bytes]:
    await hall.again()
    _, box = receiver(hall.queue(), 10)
    await turns(40)
    return payloads(box)


@simulated
async def test_a_completion_that_is_not_answered_shares_the_commit_of_the_next_send(hall: Hall) -> None:
    await hall.start()
    item, broker, before = await _held(hall, b"m")
    queue = hall.queue()
    queue.settle(settlement(item))
    await turns(20)
    assert broker.commits == before
    made = batch(b"next")
    queue.send(made)
    await turns(20)
    assert answers(made) == [None]
    assert broker.commits == before + 1
    await asyncio.sleep(1)
    assert broker.commits == before + 1
    assert await _left_after_a_restart(hall) == [b"next"]


@simulated
async def test_completions_that_find_no_company_are_stored_together_in_time(hall: Hall) -> None:
    await hall.start()
    item, broker, before = await _held(hall, b"1", b"2")
    queue = hall.queue()
    queue.settle(settlement(item))
    await asyncio.sleep(HOLD_S / 2)
    item.first_lock += 1
    queue.settle(settlement(item))
    await turns(20)
    assert broker.commits == before
    await asyncio.sleep(HOLD_S)
    assert broker.commits == before + 1
    assert await _left_after_a_restart(hall) == []


@simulated
async def test_each_wait_has_its_whole_time_though_the_timer_of_an_earlier_one_rings(hall: Hall) -> None:
    await hall.start()
    item, broker, before = await _held(hall, b"1", b"2")
    queue = hall.queue()
    queue.settle(settlement(item))
    await turns(20)
    queue.send(batch(b"company"))
    await asyncio.sleep(HOLD_S / 2)
    assert broker.commits == before + 1
    item.first_lock += 1
    queue.settle(settlement(item))
    await asyncio.sleep(HOLD_S * 0.9)
    assert broker.commits == before + 1
    await asyncio.sleep(HOLD_S * 0.2)
    assert broker.commits == before + 2


@simulated
async def test_a_completion_that_waits_for_company_counts_at_once(hall: Hall) -> None:
    """Whoever completes and then asks for the number of messages, or peeks, must not see the message again."""
    await hall.start()
    item, broker, before = await _held(hall, b"m")
    queue = hall.queue()
    queue.settle(settlement(item))
    await turns(20)
    assert broker.commits == before
    (handle,) = queue.fragments
    assert handle.fragment is not None
    assert handle.fragment.sources[SOURCE].numbers[0] == 0
    assert await handle.peek(SOURCE, 0, 1, 10, 1 << 20, None) == []
    assert broker.commits == before + 1


@simulated
async def test_a_peek_waits_for_completions_that_are_written_or_wait_behind_another_commit(hall: Hall) -> None:
    await hall.start()
    item, broker, before = await _held(hall, b"1", b"2")
    queue = hall.queue()
    (handle,) = queue.fragments
    writer = hall.writers[broker.store_id]
    writer.is_held = True
    queue.settle(settlement(item))
    await asyncio.sleep(2 * HOLD_S)
    # The first is being written, the second waits behind it.
    item.first_lock += 1
    queue.settle(settlement(item))
    await turns(20)
    peeking = asyncio.ensure_future(handle.peek(SOURCE, 0, 1, 10, 1 << 20, None))
    await turns(20)
    writer.release()
    await turns(60)
    assert peeking.done()
    assert await peeking == []
    assert broker.commits == before + 2


@simulated
async def test_a_completion_that_is_answered_and_an_abandon_wait_for_nothing(hall: Hall) -> None:
    await hall.start()
    item, broker, before = await _held(hall, b"1", b"2")
    queue = hall.queue()
    reply = Box()
    queue.settle(settlement(item, reply=reply))
    await turns(20)
    assert len(reply.ready) == 1
    assert broker.commits == before + 1
    item.first_lock += 1
    abandon = settlement(item)
    abandon.outcome = ABANDON
    queue.settle(abandon)
    await turns(20)
    assert broker.commits == before + 2


@simulated
async def test_a_store_that_fails_while_a_completion_waits_brings_the_message_back(hall: Hall) -> None:
    await hall.start()
    item, broker, _ = await _held(hall, b"m")
    queue = hall.queue()
    queue.settle(settlement(item))
    await turns(20)
    hall.writers[broker.store_id].fail_next = "before"
    made = batch(b"next")
    queue.send(made)
    await asyncio.sleep(10)
    (error,) = answers(made)
    assert isinstance(error, StoreUnavailable)
    _, box = receiver(queue, 10)
    await turns(40)
    assert payloads(box) == [b"m"]


@simulated
async def test_closing_a_store_writes_a_completion_that_waits(hall: Hall) -> None:
    await hall.start()
    item, broker, before = await _held(hall, b"m")
    hall.queue().settle(settlement(item))
    await turns(20)
    await broker.close()
    assert broker.commits == before + 1
