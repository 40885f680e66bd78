"""Too much at once: the rate of a namespace, and the bound on what waits for one fragment (PE17)."""

from __future__ import annotations

import asyncio

import pytest

from duobus.broker import Queue, Throttle, fair_queue, slot_of, string_key
from duobus.errors import ServerBusy
from kits.broker import Hall, answers, batch, payloads, receiver, simulated, turns
from kits.fragment import Box


def key_of(number: int) -> bytes:
    """A key whose messages go to this fragment of sixteen."""
    return next(key for i in range(9999) if slot_of(key := string_key(str(i)), 16) == number)


async def partitioned(hall: Hall) -> Queue:
    """A queue of 16 fragments on four stores that do nothing until they are told."""
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    for writer in hall.writers.values():
        writer.is_held = True
    return queue


# -- one fragment -----------------------------------------------------------------------------------------------


@simulated
async def test_the_fragment_of_a_hot_key_is_busy_while_the_others_go_on(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair_queue, "FRAGMENT_MESSAGES_MAX", 100)
        queue = await partitioned(hall)
        hot = [batch(*[b"m"] * 10, key=key_of(0)) for _ in range(12)]
        for made in hot:
            queue.send(made)
        # Fragment 4 lives in the same store, fragment 1 in another.
        assert queue.fragments[4].broker is queue.fragments[0].broker
        others = [batch(b"o", key=key_of(number)) for number in (1, 4)]
        for made in others:
            queue.send(made)
        refused = [made for made in hot if answers(made)]
        assert refused == hot[10:]
        (error,) = answers(refused[0])
        assert isinstance(error, ServerBusy)
        assert "100 messages wait for fragment 0" in str(error)
        assert "Error code: 50009. Please wait 2 seconds" in str(error)
        for writer in hall.writers.values():
            writer.release()
        await turns(20)
        assert all(answers(made) == [None] for made in hot[:10] + others)
        again = batch(b"m", key=key_of(0))
        queue.send(again)
        await turns(20)
        assert answers(again) == [None]


@simulated
async def test_keyless_messages_pass_over_a_fragment_that_is_busy(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair_queue, "FRAGMENT_MESSAGES_MAX", 100)
        queue = await partitioned(hall)
        current = queue.placement.current
        queue.send(batch(*[b"m"] * 100, key=key_of(current.number)))
        keyless = [batch(*[b"m"] * 100) for _ in range(15)]
        for made in keyless:
            queue.send(made)
        assert not any(answers(made) for made in keyless)
        last = batch(b"m")
        queue.send(last)
        assert isinstance(answers(last)[0], ServerBusy)


@simulated
async def test_bytes_that_wait_for_a_fragment_are_bounded_and_the_largest_message_finds_room(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair_queue, "FRAGMENT_BYTES_MAX", 1000)
        await hall.start()
        queue = await hall.create()
        hall.writers[queue.fragments[0].store.store_id].is_held = True
        large, small = batch(bytes(5000)), batch(b"m")
        queue.send(large)
        queue.send(small)
        assert answers(large) == []
        assert isinstance(answers(small)[0], ServerBusy)


@simulated
async def test_nothing_is_counted_as_waiting_after_a_store_has_failed(hall: Hall) -> None:
    queue = await partitioned(hall)
    broker = queue.fragments[0].broker
    writer = hall.writers[broker.store_id]
    queue.send(batch(*[b"m"] * 10, key=key_of(0)))
    await turns()
    waiting = [batch(*[b"m"] * 10, key=key_of(number)) for number in (0, 0, 4)]
    for made in waiting:
        queue.send(made)
    assert queue.fragments[0].waiting == 20
    writer.fail_next = "before"
    writer.release()
    for other in hall.writers.values():
        other.release()
    await asyncio.sleep(1)
    assert [(handle.waiting, handle.waiting_bytes) for handle in queue.fragments] == [(0, 0)] * 16


@simulated
async def test_messages_of_one_batch_that_go_to_several_fragments_count_where_they_go(hall: Hall) -> None:
    queue = await partitioned(hall)
    made = batch(b"12", b"34", b"5678")
    made.keys = [key_of(0), key_of(1), key_of(0)]
    queue.send(made)
    assert [(handle.waiting, handle.waiting_bytes) for handle in queue.fragments[:2]] == [(2, 5), (1, 2)]
    for writer in hall.writers.values():
        writer.release()
    await turns(20)
    assert answers(made) == [None, None]
    assert [(handle.waiting, handle.waiting_bytes) for handle in queue.fragments] == [(0, 0)] * 16


# -- a namespace ------------------------------------------------------------------------------------------------


@simulated
async def test_sends_beyond_the_rate_are_not_admitted_and_a_part_is_left_to_receivers(hall: Hall) -> None:
    throttle = Throttle("n", 100, hall.clock)
    assert throttle.admit(1000) == 70
    assert throttle.admit(1) == 0
    await asyncio.sleep(0.1)
    assert throttle.admit(1000) == 10
    error = throttle.refusal()
    assert str(error) == (
        "The request was terminated because the namespace 'n' has used up its 100 messages a second. "
        "Error code: 50009. Please wait 2 seconds and try again."
    )


@simulated
async def test_a_batch_is_admitted_as_a_whole_and_a_larger_one_when_nothing_else_was(hall: Hall) -> None:
    throttle = Throttle("n", 100, hall.clock)
    assert throttle.admit_whole(50)
    assert not throttle.admit_whole(50)
    await asyncio.sleep(1)
    # More than a second's worth: all others wait until it is paid.
    assert throttle.admit_whole(300)
    await asyncio.sleep(2.2)
    assert not throttle.admit_whole(1)
    await asyncio.sleep(0.2)
    assert throttle.admit_whole(1)


@simulated
async def test_receivers_beyond_the_rate_are_served_later_and_never_refused(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(*[b"%d" % index for index in range(500)]))
    await turns()
    throttle = Throttle("n", 100, hall.clock)
    boxes = []
    for removing in (False, True):
        box = Box()
        standing = queue.open_receiver(0, box, removing=removing)
        standing.gate = throttle
        standing.request(400)
        boxes.append(box)
    began = hall.loop.time()
    while sum(len(payloads(box)) for box in boxes) < 500:
        await asyncio.sleep(0.01)
        # Never more than the rate and one second's worth at the beginning.
        assert sum(len(payloads(box)) for box in boxes) <= 100 + 100 * (hall.loop.time() - began) + 1
    assert 4 <= hall.loop.time() - began < 4.5
    assert all(len(payloads(box)) > 50 for box in boxes)


@simulated
async def test_draining_wins_over_filling(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(*[b"m"] * 500))
    await turns()
    throttle = Throttle("n", 100, hall.clock)
    standing, box = receiver(queue, 0)
    standing.gate = throttle
    standing.request(500)
    sent = 0
    for _ in range(300):
        # Somebody who takes whatever there is for senders, a hundred times a second.
        sent += throttle.admit(1000)
        await asyncio.sleep(0.01)
    assert len(payloads(box)) > 300
    assert sent < 100


@simulated
async def test_what_was_lent_and_found_nothing_is_not_counted(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    throttle = Throttle("n", 100, hall.clock)
    standing, box = receiver(queue, 0, removing=True)
    standing.gate = throttle
    # As if somebody else of the same turn had taken what was there.
    standing.granted = throttle.grant(standing, 60)
    handle = queue.fragments[0]
    handle.take(0, 0, 60, standing)
    assert throttle.admit(1000) == 10
    await turns()
    assert payloads(box) == []
    assert throttle.admit(1000) == 60


@simulated
async def test_a_receiver_that_went_while_it_waited_for_the_rate_is_not_served(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    throttle = Throttle("n", 10, hall.clock)
    assert throttle.admit(7) == 7
    box = Box()
    standing = queue.open_receiver(0, box, removing=False)
    standing.gate = throttle
    standing.request(50)
    queue.send(batch(*[b"m"] * 50))
    await turns()
    assert len(payloads(box)) == 3
    standing.close()
    await asyncio.sleep(2)
    assert len(payloads(box)) == 3
    assert queue.fragments[0].fragment is not None
    assert queue.fragments[0].fragment.available(0, 0) == 47
