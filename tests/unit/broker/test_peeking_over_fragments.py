"""Peek over the fragments of an entity: in order, bounded, and honest about stores that are away."""

from __future__ import annotations

import asyncio

import pytest

from duobus.broker import DEAD_LETTER_OUTCOME, Queue
from duobus.broker.entities.queue import COUNT_BITS
from duobus.errors import StoreUnavailable
from duobus.fragment import fragment as fragment_module
from duobus.fragment import peek
from duobus.fragment import source as source_module
from duobus.fragment.message import DEAD_LETTER, MAIN
from duobus.fragment.peek import ENVELOPE_BYTES
from duobus.storage.backup.restore import COUNTS_LEFT_OUT
from kits.broker import Hall, answers, batch, payloads, receiver, sets_constants, settlement, simulated, turns


async def peeked(queue: Queue, first: int = 0, limit: int = 1000, **size: int) -> list[tuple[int, bytes]]:
    """(sequence number, payload) of what a peek finds."""
    found = await queue.peek(MAIN, first, limit, **size)
    return [(handle.number << COUNT_BITS | message.count, message.payload) for handle, message in found]


async def filled(hall: Hall, number: int) -> Queue:
    """A partitioned queue with messages in every fragment."""
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    for index in range(number):
        made = batch(b"%03d" % index)
        queue.send(made)
        await turns()
        assert answers(made) == [None]
    assert len({n >> COUNT_BITS for n, _ in await peeked(queue)}) == 16
    return queue


@simulated
async def test_peek_steps_over_all_fragments_in_order_and_meets_each_message_once(hall: Hall) -> None:
    queue = await filled(hall, 50)
    everything = await peeked(queue)
    numbers = [number for number, _ in everything]
    assert numbers == sorted(set(numbers))
    assert sorted(payload for _, payload in everything) == [b"%03d" % index for index in range(50)]
    stepped: list[tuple[int, bytes]] = []
    while page := await peeked(queue, stepped[-1][0] + 1 if stepped else 0, 7):
        stepped += page
    assert stepped == everything


@simulated
async def test_a_peek_ends_at_its_bytes_and_the_next_goes_on_behind(hall: Hall) -> None:
    """PE20."""
    queue = await filled(hall, 50)
    everything = await peeked(queue)
    size = 10 * (3 + ENVELOPE_BYTES)
    first = await peeked(queue, size=size)
    assert first == everything[:10]
    assert await peeked(queue, first[-1][0] + 1, size=size) == everything[10:20]


@simulated
async def test_a_fragment_whose_store_is_away_is_passed_over(hall: Hall) -> None:
    """PE20."""
    queue = await filled(hall, 50)
    everything = await peeked(queue)
    broker = queue.fragments[0].broker
    lost = {handle.number for handle in queue.fragments if handle.broker is broker}
    hall.writers[broker.store_id].fail_next = "before"
    with pytest.raises(StoreUnavailable):
        await broker.use(lambda: None)
    assert await peeked(queue) == [found for found in everything if found[0] >> COUNT_BITS not in lost]
    # "There is nothing" cannot be said of a dead-letter queue that nobody can look into.
    with pytest.raises(StoreUnavailable, match="is not available"):
        await queue.peek(DEAD_LETTER, 0, 10)


@simulated
async def test_a_peek_shows_nothing_that_is_not_durable_yet(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(b"m"))
    await turns()
    _, box = receiver(queue, 1)
    await turns()
    (delivered,) = box.taken()
    writer = hall.writers[queue.fragments[0].store.store_id]
    writer.is_held = True
    command = settlement(delivered)
    command.outcome = DEAD_LETTER_OUTCOME
    queue.settle(command)
    await turns()
    peeking = asyncio.ensure_future(queue.peek(DEAD_LETTER, 0, 10))
    await turns()
    # The dead letter is decided, and its commit is on its way.
    assert not peeking.done()
    writer.fail_next = "before"
    writer.release()
    with pytest.raises(StoreUnavailable):
        await peeking
    await asyncio.sleep(1)
    assert await queue.peek(DEAD_LETTER, 0, 10) == []
    assert len(await queue.peek(MAIN, 0, 10)) == 1


@sets_constants
@simulated
async def test_a_deep_queue_is_peeked_without_being_read_into_memory(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (fragment_module, source_module):
            patch.setattr(module, "WINDOW_COUNT", 5)
        await hall.start()
        queue = await hall.create()
        for index in range(30):
            queue.send(batch(b"%03d" % index))
            await turns()
        fragment = queue.fragments[0].fragment
        assert fragment is not None
        source = fragment.sources[0]
        assert source.tail_count > 10
        in_memory = len(source.by_count)
        # One of those in memory is locked; peek shows it as well.
        receiver(queue, 1)
        await turns()
        assert [payload for _, payload in await peeked(queue)] == [b"%03d" % index for index in range(30)]
        size = 12 * (3 + ENVELOPE_BYTES)
        assert [payload for _, payload in await peeked(queue, 8, 1000, size=size)] == [
            b"%03d" % index for index in range(7, 19)
        ]
        assert len(source.by_count) == in_memory


@sets_constants
@simulated
@pytest.mark.timeout(60)
async def test_a_peek_passes_over_the_hole_that_a_restored_backup_has_at_once(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    with pytest.MonkeyPatch.context() as patch:
        # As many messages as make it walk from count to count.
        patch.setattr(peek, "SPAN", 4)
        for index in range(8):
            queue.send(batch(b"%03d" % index))
            await turns()
        fragment = queue.fragments[0].fragment
        assert fragment is not None
        fragment.sources[0].next_count += COUNTS_LEFT_OUT
        for index in range(8, 10):
            queue.send(batch(b"%03d" % index))
            await turns()
        found = await peeked(queue)
        assert [payload for _, payload in found] == [b"%03d" % index for index in range(10)]
        assert found[8][0] == found[7][0] + COUNTS_LEFT_OUT + 1
        assert await peeked(queue, found[7][0] + 1) == found[8:]


@sets_constants
@simulated
async def test_what_lies_behind_a_window_full_of_expired_messages_is_received_all_the_same(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (fragment_module, source_module):
            patch.setattr(module, "WINDOW_COUNT", 6)
        await hall.start()
        queue = await hall.create()
        for _ in range(6):
            queue.send(batch(b"short", ttl_ms=1000))
            await turns()
        queue.send(batch(b"long"))
        await turns()
        fragment = queue.fragments[0].fragment
        assert fragment is not None
        assert fragment.sources[0].tail_count == 1
        await asyncio.sleep(2)
        _, box = receiver(queue, 5)
        await asyncio.sleep(1)
        assert payloads(box) == [b"long"]
