"""Calls of a store outside of commits that fail, and messages that the store finds damaged (I56, I57)."""

from __future__ import annotations

import asyncio

import pytest

from duobus.errors import StoreUnavailable
from duobus.fragment.message import MAIN
from duobus.model.descriptions import QueueDescription
from kits.broker import Hall, answers, batch, simulated, turns


@simulated
async def test_a_peek_that_the_store_fails_is_busy_and_the_store_is_reopened(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    made = batch(b"a")
    queue.send(made)
    await turns()
    assert answers(made) == [None]
    source = queue.fragments[0].fragment.sources[0]  # type: ignore[union-attr]
    # As if the message lay in the paged tail, so that a peek has to read it.
    source.tail_first = source.tail_count = 1
    broker = queue.fragments[0].broker
    hall.writers[broker.store_id].fail_next = "before"
    with pytest.raises(StoreUnavailable):
        await queue.peek(MAIN, 1, 10)
    assert broker.state == "failed"
    assert broker.failures == 1
    await asyncio.sleep(1)
    assert broker.state == "open"
    assert [message.payload for _, message in await queue.peek(MAIN, 1, 10)] == [b"a"]


@simulated
async def test_a_creation_that_a_store_fails_ends_its_life_at_once_and_succeeds_elsewhere(hall: Hall) -> None:
    await hall.start()
    hall.writers[1].fail_next = "before"
    queue = await hall.unit.create_queue("n", QueueDescription(name="q"))
    assert hall.unit.brokers[1].failures == 1
    assert all(handle.broker is not hall.unit.brokers[1] for handle in queue.fragments)
