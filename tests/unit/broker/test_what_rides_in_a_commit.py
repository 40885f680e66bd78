"""What fills a commit, and what waits for one: parts of a split batch, and delivery counts that nobody asked for."""

from __future__ import annotations

import asyncio

import pytest

from duobus.broker import SOURCE, commit_loop, string_key
from duobus.broker.commit_loop import COUNTS_WAIT_S
from kits.broker import Hall, answers, batch, receiver, simulated, turns


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
