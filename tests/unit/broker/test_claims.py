"""Claims of an entity: the same id tells the same, nothing is told before it is durable, and stores that are away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duobus.broker import Claimed, ClaimWatcher, Queue, commit_loop, pager
from duobus.broker.entities import claims
from duobus.broker.pager import MESSAGE_BYTES
from duobus.errors import MessageNotFound, ServiceBusError, StoreUnavailable
from duobus.fragment import fragment as fragment_module
from duobus.fragment import source as source_module
from duobus.fragment.claims import commands
from duobus.fragment.message import MAIN
from duobus.model.descriptions import SubscriptionDescription, TopicDescription
from kits.broker import Hall, answers, batch, payloads, receiver, sets_constants, simulated, turns

ALL = 1 << 30


async def sent(queue: Queue, number: int, key: bytes | None = None) -> None:
    """Store messages, each in a commit of its own so that they spread."""
    for index in range(number):
        made = batch(b"%d" % index, key=key)
        queue.send(made)
        await turns()
        assert answers(made) == [None]


def numbers(claimed: Claimed) -> list[tuple[int, int]]:
    """Fragment and count of each message of a claim."""
    return [(part.fragment, count) for part in claimed.parts for count in part.counts]


async def claimed(queue: Queue, messages: int, claim_id: str = "c", size: int = ALL) -> Claimed:
    """Claim messages."""
    return await queue.claim(MAIN, claim_id, messages, size)


@simulated
async def test_the_same_id_tells_the_same_messages_also_after_a_crash(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    await sent(queue, 40)
    first = await claimed(queue, 25)
    assert len(numbers(first)) == 25
    assert first.away == []
    assert await claimed(queue, 40) == first
    await hall.again()
    assert await claimed(hall.queue(), 5) == first
    _, box = receiver(hall.queue(), 40)
    await turns(40)
    assert len(payloads(box)) == 15


@simulated
async def test_a_claim_takes_its_share_of_each_fragment(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    for slot in range(len(queue.fragments)):
        await sent(queue, 5, b"key %d" % slot)
    parts = (await claimed(queue, 8)).parts
    assert max(len(part.counts) for part in parts) == 1
    rest = (await claimed(queue, 80, "d")).parts
    assert sum(len(part.counts) for part in rest) == 72


@simulated
async def test_sizes_and_delivery_counts_are_told(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(b"four", b"seventh"))
    await turns()
    (part,) = (await claimed(queue, 5)).parts
    assert (part.counts, part.sizes, part.deliveries) == ([1, 2], [4, 7], [0, 0])
    assert part.oldest_ms == queue.fragments[0].broker.now_ms()


@simulated
async def test_nothing_is_told_before_it_is_durable(hall: Hall) -> None:
    """The commit of the claim is held back: an answer before it would name messages that a crash gives to others."""
    await hall.start()
    queue = await hall.create()
    await sent(queue, 3)
    writer = hall.writers[queue.fragments[0].store.store_id]
    writer.is_held = True
    claiming = asyncio.ensure_future(claimed(queue, 2))
    await turns(30)
    assert not claiming.done()
    writer.release()
    await turns(30)
    assert numbers(await claiming) == [(queue.fragments[0].number, 1), (queue.fragments[0].number, 2)]


@simulated
async def test_whoever_asks_again_while_the_commit_is_under_way_waits_for_it(hall: Hall) -> None:
    """The connection of the first one is gone, so that only the commit tells."""
    await hall.start()
    queue = await hall.create()
    await sent(queue, 3)
    writer = hall.writers[queue.fragments[0].store.store_id]
    writer.is_held = True
    first = asyncio.ensure_future(claimed(queue, 2))
    await turns(30)
    first.cancel()
    await turns(5)
    second = asyncio.ensure_future(claimed(queue, 3))
    await turns(30)
    assert not second.done()
    writer.release()
    await turns(30)
    assert [count for _, count in numbers(await second)] == [1, 2]


@simulated
async def test_two_that_ask_for_one_id_at_once_are_told_the_same(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    await sent(queue, 20)
    one, two = await asyncio.gather(claimed(queue, 7), claimed(queue, 12))
    assert one == two
    assert len(numbers(one)) in (7, 12)


@simulated
async def test_a_crash_before_the_commit_leaves_nothing_claimed(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    await sent(queue, 3)
    hall.writers[queue.fragments[0].store.store_id].is_held = True
    lost = asyncio.ensure_future(claimed(queue, 2))
    await turns(30)
    lost.cancel()
    await hall.again()
    assert hall.queue().claims(MAIN, "") == ([], [])
    assert hall.queue().numbers()[0] == [3, 0, 0, 0, 0]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_fails_with_the_commit_of_a_claim_tells_the_same_when_it_is_back(when: str) -> None:
    """What was claimed by the commit whose end nobody knows is what the id tells, and nothing is claimed twice."""

    @simulated
    async def whole(hall: Hall) -> None:
        await hall.start()
        queue = await hall.create()
        await sent(queue, 3)
        hall.writers[queue.fragments[0].store.store_id].fail_next = when
        with pytest.raises(ServiceBusError):
            await claimed(queue, 2)
        await asyncio.sleep(60)
        assert [count for _, count in numbers(await claimed(queue, 0))] == ([1, 2] if when == "after" else [])
        assert [count for _, count in numbers(await claimed(queue, 3))] == ([1, 2] if when == "after" else [1, 2, 3])

    whole()


@simulated
async def test_a_claim_is_settled_as_a_whole_and_once(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    await sent(queue, 20)
    await claimed(queue, 12)
    assert await queue.settle_claim(MAIN, "c") == (12, 0, 0)
    assert await queue.settle_claim(MAIN, "c") == (0, 0, 0)
    assert queue.numbers()[0] == [8, 0, 0, 0, 0]
    assert queue.claims(MAIN, "") == ([], [])
    assert numbers(await claimed(queue, 0)) == []
    await hall.again()
    assert hall.queue().numbers()[0] == [8, 0, 0, 0, 0]


@simulated
async def test_a_released_claim_is_there_for_all_with_a_delivery_more(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    await sent(queue, 3)
    await claimed(queue, 2)
    assert await queue.release_claim(MAIN, "c", is_counted=True) == (2, 0, 0)
    (part,) = (await claimed(queue, 5, "d")).parts
    assert part.deliveries == [1, 1, 0]


@simulated
async def test_a_fragment_that_is_away_is_named_and_what_it_had_is_given_back_when_the_claim_is_settled(
    hall: Hall,
) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    await sent(queue, 40)
    everything = await claimed(queue, 40)
    assert len(everything.parts) == 16
    gone = queue.fragments[0]
    gone.broker.lifecycle.fail(OSError("gone"), was_submitted=False)
    told = await claimed(queue, 40)
    away = [handle.number for handle in queue.fragments if handle.broker is gone.broker]
    assert told.away == away
    assert [part.fragment for part in told.parts] == [
        handle.number for handle in queue.fragments if handle.number not in away
    ]
    fragments = {part.fragment for part in told.parts}
    with pytest.raises(StoreUnavailable):
        await queue.settle_claim(MAIN, "c", fragments)
    await asyncio.sleep(60)
    assert gone.online
    freed = await queue.settle_claim(MAIN, "c", fragments)
    missing = sum(len(part.counts) for part in everything.parts if part.fragment in away)
    assert (freed.done, freed.returned) == (0, missing)
    assert queue.numbers()[0] == [missing, 0, 0, 0, 0]


@simulated
async def test_a_claim_of_an_entity_whose_stores_are_all_away_is_refused(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.fragments[0].broker.lifecycle.fail(OSError("gone"), was_submitted=False)
    with pytest.raises(StoreUnavailable):
        await claimed(queue, 1)


@simulated
async def test_a_claim_reaches_into_the_tail_that_is_in_the_store_only(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment_module, "WINDOW_COUNT", 5)
        await hall.start()
        queue = await hall.create()
        await sent(queue, 20)
        assert queue.waiting(MAIN) == 20
        assert len(numbers(await claimed(queue, 18))) == 18


test_a_claim_reaches_into_the_tail_that_is_in_the_store_only = sets_constants(
    test_a_claim_reaches_into_the_tail_that_is_in_the_store_only
)


@simulated
async def test_a_claim_ends_where_memory_has_no_room_and_every_claim_has_something(hall: Hall) -> None:
    """What is claimed stays in memory, so that claims would take more of it than the server may have."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (claims, commands):
            patch.setattr(module, "CLAIMED_MAX", 3)
        patch.setattr(commit_loop, "LOOK_EVERY", 1)
        patch.setattr(source_module, "WINDOW_COUNT", 4)
        for module in (pager, claims):
            patch.setattr(module, "WINDOW_BYTES_SHORT", 10)
        for module in (fragment_module, pager):
            patch.setattr(module, "WINDOW_COUNT", 4)
        await hall.start()
        queue = await hall.create()
        room = hall.unit.memory_room
        room.limit, room.look_at = 20 * MESSAGE_BYTES, 1
        for _ in range(60):
            queue.send(batch(bytes(100)))
            await turns()
        assert 6 <= len(numbers(await claimed(queue, 60))) <= 30
        for number in range(3):
            assert 1 <= len(numbers(await claimed(queue, 60, f"d{number}"))) <= 2 * 3
        room.limit = 1 << 30
        await queue.settle_claim(MAIN, "c")
        assert len(numbers(await claimed(queue, 60, "e"))) > 6


@simulated
async def test_without_room_a_claim_still_takes_what_is_in_memory(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (claims, commands):
            patch.setattr(module, "CLAIMED_MAX", 3)
        patch.setattr(commit_loop, "LOOK_EVERY", 1)
        await hall.start()
        queue = await hall.create()
        await sent(queue, 40)
        hall.unit.memory_room.limit = 1
        assert len(numbers(await claimed(queue, 40))) == 40


test_a_claim_ends_where_memory_has_no_room_and_every_claim_has_something = sets_constants(
    test_a_claim_ends_where_memory_has_no_room_and_every_claim_has_something
)


test_without_room_a_claim_still_takes_what_is_in_memory = sets_constants(
    test_without_room_a_claim_still_takes_what_is_in_memory
)


@simulated
async def test_what_a_claim_has_is_freed_in_all_fragments_at_once(hall: Hall) -> None:
    """Fragment after fragment, a settlement would wait for as many syncs as there are fragments."""
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    for slot in range(len(queue.fragments)):
        await sent(queue, 2, b"key %d" % slot)
    for claim_id in ("settled", "released"):
        parts = (await claimed(queue, len(queue.fragments), claim_id)).parts
        assert len(parts) > 4
        commits = {handle.broker: handle.broker.commit_loop.commits for handle in queue.fragments}
        if claim_id == "settled":
            await queue.settle_claim(MAIN, claim_id)
        else:
            await queue.release_claim(MAIN, claim_id, is_counted=False)
        assert all(broker.commit_loop.commits - before <= 2 for broker, before in commits.items())


@simulated
async def test_open_claims_are_listed_by_the_beginning_of_their_ids(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    await sent(queue, 20)
    for claim_id in ("b/1", "a/2", "a/1"):
        await claimed(queue, 4, claim_id)
    listed: list[Any] = [(one.claim_id, one.messages) for one in queue.claims(MAIN, "a/")[0]]
    assert listed == [("a/1", 4), ("a/2", 4)]


@simulated
async def test_a_watcher_wakes_when_there_are_enough_messages(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    watcher = ClaimWatcher(lambda: queue.waiting(MAIN))
    queue.schedulers[MAIN].watchers[watcher] = None
    waiting = asyncio.ensure_future(watcher.until(2))
    await sent(queue, 1)
    await turns()
    assert not waiting.done()
    await sent(queue, 1)
    await turns()
    assert waiting.done()


@simulated
async def test_a_subscription_has_claims_of_its_own_and_one_that_is_deleted_is_told_as_gone(hall: Hall) -> None:
    await hall.start()
    both = (SubscriptionDescription(name="a"), SubscriptionDescription(name="b"))
    topic = await hall.unit.topics.create_topic("n", TopicDescription(name="t", subscriptions=both))
    topic.send(batch(b"m"))
    await turns(40)
    first, second = (hall.unit.topics.subscription("n", "t", name) for name in ("a", "b"))
    assert len(numbers(await claimed(first, 5))) == 1
    assert (first.numbers()[0], second.numbers()[0]) == ([0, 0, 0, 1, 0], [1, 0, 0, 0, 0])
    await hall.unit.topics.delete_subscription("n", "t", "a")
    with pytest.raises((MessageNotFound, StoreUnavailable)):
        await claimed(first, 5)
    assert len(numbers(await claimed(second, 5))) == 1


@simulated
async def test_those_with_one_key_have_turns_and_leave_nothing_behind(hall: Hall) -> None:
    turn = claims.Turns()
    order: list[int] = []

    async def work(number: int) -> None:
        async with turn.turn("k"):
            order.append(number)
            await asyncio.sleep(1)
            order.append(number)

    await asyncio.gather(work(1), work(2))
    assert order == [1, 1, 2, 2]
    assert not turn._locks
