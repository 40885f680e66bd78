"""Messages under way when every store of their entity fails are answered in time (PE4, I38)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from duobus.broker import Queue
from duobus.broker.entities.placement import string_key
from duobus.errors import OperationTimeout, StoreFailed, StoreUnavailable
from duobus.fragment.message import MAIN
from duobus.model.batches import SendBatch
from duobus.model.descriptions import SubscriptionDescription, TopicDescription
from duobus.storage.writer_pool import RERUN_S
from kits.broker import Hall, answers, batch, simulated, simulated_over, turns

#: What later senders are told at once, a send under way is told within this (PE4).
BOUND_S = 5.0


def fails() -> None:
    """What a store does that is gone."""
    raise StoreFailed("planted")


def lose_all(hall: Hall, how: str = "after") -> None:
    """Let every store fail at its next commit, and not open any more."""
    for number, store in hall.disks.items():
        hall.writers[number].fail_next = how
        store.open = fails  # type: ignore[assignment,method-assign]


def heal_all(hall: Hall) -> None:
    """Let every store open again."""
    for store in hall.disks.values():
        del store.open


def many_ways() -> dict[str, SendBatch]:
    """Messages of all kinds."""
    atomic = batch(b"a", b"b")
    atomic.atomic = True
    mixed = batch(b"one", b"two")
    mixed.keys = [None, string_key("k")]
    return {"keyless": batch(b"keyless"), "keyed": batch(b"keyed", key=string_key("key")), "a": atomic, "mixed": mixed}


def are_answered_once(sent: dict[str, SendBatch]) -> bool:
    """Whether each message has one answer, and no good one."""
    return all(
        sum(made.n if found.indices is None else len(found.indices) for found in made.reply.ready) == made.n
        and all(isinstance(error, (OperationTimeout, StoreUnavailable)) for error in answers(made))
        for made in sent.values()
    )


async def shown(queue: Queue) -> list[bytes]:
    """What is in a queue."""
    return sorted([message.payload for _, message in await queue.peek(MAIN, 1, 200)])


@simulated
async def test_what_is_under_way_when_all_stores_fail_is_answered_in_time_and_does_not_appear_later(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    lose_all(hall)
    sent = many_ways()
    for made in sent.values():
        queue.send(made)
    await asyncio.sleep(BOUND_S)
    assert are_answered_once(sent)
    assert isinstance(answers(sent["keyless"])[0], OperationTimeout)
    await asyncio.sleep(500)
    heal_all(hall)
    await asyncio.sleep(10)
    assert {broker.state for broker in hall.unit.brokers.values()} == {"open"}
    # Everything was stored, somewhere. Who was told to send again finds no second copy.
    assert await shown(queue) == []
    again = batch(b"keyless")
    queue.send(again)
    await turns()
    assert answers(again) == [None]
    assert are_answered_once(sent)
    assert await shown(queue) == [b"keyless"]


@simulated
async def test_what_is_under_way_when_all_stores_stall_is_answered_in_time(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    for writer in hall.writers.values():
        writer.is_held = True
    sent = many_ways()
    for made in sent.values():
        queue.send(made)
    await asyncio.sleep(BOUND_S)
    assert are_answered_once(sent)
    for writer in hall.writers.values():
        writer.release()
    await asyncio.sleep(10)
    assert await shown(queue) == []


@simulated_over(1)
async def test_the_only_store_need_not_come_back_before_a_plain_queue_answers(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    lose_all(hall)
    sent = {"plain": batch(b"plain")}
    queue.send(sent["plain"])
    await asyncio.sleep(BOUND_S)
    assert are_answered_once(sent)
    heal_all(hall)
    await asyncio.sleep(10)
    assert await shown(queue) == []


@simulated_over(2)
async def test_a_store_that_comes_back_at_once_still_tells_for_certain_that_nothing_was_stored(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    for writer in hall.writers.values():
        writer.fail_next = "before"
    made = batch(b"refused")
    queue.send(made)
    await asyncio.sleep(BOUND_S)
    assert [type(error) for error in answers(made)] == [StoreUnavailable]
    assert await shown(queue) == []


@simulated_over(2)
async def test_a_topic_answers_in_time_when_all_stores_fail(hall: Hall) -> None:
    await hall.start()
    await hall.unit.topics.create_topic("n", TopicDescription(name="t", enable_partitioning=True))
    await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="s"))
    lose_all(hall)
    sent = many_ways()
    for made in sent.values():
        hall.unit.namespace("n").topics["t"].send(made)
    await asyncio.sleep(BOUND_S)
    assert are_answered_once(sent)
    heal_all(hall)
    await asyncio.sleep(10)
    assert await shown(hall.unit.namespace("n").topics["t"].subscriptions["s"]) == []


@simulated_over(2)
async def test_messages_do_not_wander_for_ever_between_stores_that_come_back_and_fail_again(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    for number, writer in hall.writers.items():
        writer.submit = partial(fail_slowly, hall, number)  # type: ignore[method-assign]
    made = batch(b"wandering")
    queue.send(made)
    await asyncio.sleep(RERUN_S + BOUND_S)
    assert are_answered_once({"wandering": made})


def fail_slowly(
    hall: Hall, number: int, call: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
) -> None:
    """Each commit fails after a while; then the store is open again before the other one has failed, too."""
    if hall.unit.brokers[number].commit_loop.work is None:
        hall.loop.call_soon(lambda: done(call(), None))
    else:
        hall.disks[number].close()
        hall.loop.call_later(0.4, done, None, StoreFailed("planted"))
