"""An order of the dead-letter service whose store fails under it: answered in time, and never carried out twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duobus.broker import DEAD_LETTER, MAIN, Queue, string_key
from duobus.broker.dead_letters import (
    DeadLetterQuery,
    DeadLetterRestore,
    DeadLetterService,
    MoveResult,
    Selection,
    restore,
    search,
)
from duobus.codec import build_message
from duobus.codec.sections import application_properties
from duobus.errors import ServerBusy, StoreUnavailable
from duobus.gateway.rest.dead_letters.orders import ANSWER_S, KEPT_S, Order, PendingOrders, Result
from duobus.model.json.repair import parse_repair
from duobus.model.metadata import MessageMetadata
from kits.broker import Hall, simulated_over

simulated = simulated_over(2)


def restoration(number: int) -> DeadLetterRestore:
    return DeadLetterRestore(build_message([str(number)], {"n": number}, data=b"x"), MessageMetadata(reason="why"))


async def ids(queue: Queue, sub_queue: int) -> list[int]:
    return sorted(application_properties(one.payload)["n"] for _, one in await queue.peek(sub_queue, 1, 100))


async def answered(orders: PendingOrders, key: bytes, work: Any) -> tuple[float, Result | ServerBusy]:
    """The answer to an order, and after how many seconds it came."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        answer: Result | ServerBusy = await orders.finished(key, work)
    except ServerBusy as busy:
        answer = busy
    return loop.time() - began_s, answer


def restoring(queue: Queue, *numbers: int) -> Any:
    async def work(order: Order) -> Result:
        order.begin_changes()
        done = await restore(queue, [restoration(number) for number in numbers])
        return {"moved": sorted(done.moved)}

    return work


@simulated
async def test_an_order_whose_store_hangs_is_answered_in_time_and_given_again_it_is_done_once(hall: Hall) -> None:
    await hall.start()
    queue, orders = await hall.create(), PendingOrders()
    writer = hall.writers[queue.fragments[0].store.store_id]
    writer.is_held = True
    seconds, busy = await answered(orders, b"k", restoring(queue, 1, 2))
    assert isinstance(busy, ServerBusy)
    assert (busy.http_status, busy.condition) == (503, "com.microsoft:server-busy")
    assert seconds == ANSWER_S
    # While nobody knows, the same order waits for the first one, as long again.
    seconds, busy = await answered(orders, b"k", restoring(queue, 1, 2))
    assert isinstance(busy, ServerBusy)
    assert seconds == ANSWER_S
    assert len(orders) == 1
    # The commit was written after all: the store says so when it is open again.
    writer.release()
    await asyncio.sleep(10)
    assert await answered(orders, b"k", restoring(queue, 1, 2)) == (0.0, {"moved": [0, 1]})
    assert await ids(queue, DEAD_LETTER) == [1, 2]
    assert len(orders) == 0
    # Its result was told; who asks for the same from now on means it once more.
    await answered(orders, b"k", restoring(queue, 1, 2))
    assert await ids(queue, DEAD_LETTER) == [1, 1, 2, 2]


@simulated
async def test_a_client_that_comes_back_while_the_store_opens_gets_the_result_of_its_first_order(hall: Hall) -> None:
    await hall.start()
    queue, orders = await hall.create(), PendingOrders()
    writer = hall.writers[queue.fragments[0].store.store_id]
    writer.is_held = True
    await answered(orders, b"k", restoring(queue, 1))
    again = asyncio.ensure_future(answered(orders, b"k", restoring(queue, 1)))
    await asyncio.sleep(0.1)
    writer.release()
    _, result = await again
    assert result == {"moved": [0]}
    assert await ids(queue, DEAD_LETTER) == [1]
    # The result has been told and is not kept for a second time.
    await answered(orders, b"k", restoring(queue, 1))
    assert await ids(queue, DEAD_LETTER) == [1, 1]


@simulated
async def test_an_order_that_turns_out_not_to_be_done_begins_anew_when_it_is_given_again(hall: Hall) -> None:
    await hall.start()
    queue, orders = await hall.create(), PendingOrders()
    began = 0

    async def refused(order: Order) -> Result:
        nonlocal began
        began += 1
        order.begin_changes()
        await asyncio.sleep(ANSWER_S + 1)
        raise StoreUnavailable("planted")

    await answered(orders, b"k", refused)
    await asyncio.sleep(2)
    assert await answered(orders, b"k", restoring(queue, 1)) == (0.0, {"moved": [0]})
    assert began == 1


@simulated
async def test_looking_for_messages_takes_as_long_as_it_takes_and_an_answer_in_time_is_not_kept(hall: Hall) -> None:
    await hall.start()
    orders = PendingOrders()
    told = 0

    async def slow(order: Order) -> Result:
        nonlocal told
        await asyncio.sleep(5 * ANSWER_S)
        order.begin_changes()
        told += 1
        return {"told": told}

    assert await answered(orders, b"k", slow) == (5 * ANSWER_S, {"told": 1})
    assert await answered(orders, b"k", slow) == (5 * ANSWER_S, {"told": 2})


@simulated
async def test_a_result_is_kept_for_a_while_and_not_for_ever(hall: Hall) -> None:
    await hall.start()
    queue, orders = await hall.create(), PendingOrders()

    async def late(order: Order) -> Result:
        order.begin_changes()
        await asyncio.sleep(ANSWER_S + 1)
        return {"late": True}

    await answered(orders, b"k", late)
    await asyncio.sleep(KEPT_S - 1)
    await answered(orders, b"other", late)
    await asyncio.sleep(3)
    assert (await answered(orders, b"k", restoring(queue, 1)))[1] == {"moved": [0]}
    assert (await answered(orders, b"other", late))[1] == {"late": True}


@simulated
async def test_what_its_failed_store_offers_again_is_not_sent_to_another_store_as_well(hall: Hall) -> None:
    """A chunk goes to two stores: its own fails under the first half, and holds the second half's messages again."""
    await hall.start()
    queue = await hall.create("from")
    near = await hall.create("near", enable_partitioning=True)
    await restore(queue, [restoration(number) for number in range(40)])
    service = DeadLetterService(hall.unit)
    query = DeadLetterQuery(Selection(None), first=0, before_ms=hall.unit.now_ms() + 1, limit=100)
    found = (await search(queue, DEAD_LETTER, query, one_fragment=True)).found
    repair = parse_repair(None)
    for _, message in found:
        # A key for each, so that they belong to fragments of both stores.
        message.metadata = message.metadata or MessageMetadata()
        message.metadata.partition_key = f"k{message.count}"
    here = queue.fragments[0].store.store_id
    hall.writers[here].fail_next = "after"
    result: MoveResult = await service.move(queue, DEAD_LETTER, found, "near", repair, keeps_reason=True)
    await asyncio.sleep(1)
    assert result.moved
    assert set(result.skipped.values()) == {"Its messaging store failed meanwhile. Give the order again."}
    assert sorted(await ids(queue, DEAD_LETTER) + await ids(near, MAIN)) == list(range(40))


@simulated
async def test_of_a_restoration_in_two_stores_what_the_second_one_refuses_is_told_beside_what_is_done(
    hall: Hall,
) -> None:
    await hall.start()
    queue = await hall.create("q", enable_partitioning=True)
    items = [restoration(number) for number in range(20)]
    for number, one in enumerate(items):
        one.metadata.partition_key = f"k{number}"
    first = queue.placement.keyed(string_key("k0")).store.store_id
    hall.writers[2 if first == 1 else 1].fail_next = "before"
    done = await restore(queue, items)
    assert done.moved
    assert done.skipped
    assert sorted([*done.moved, *done.skipped]) == list(range(20))
    assert await ids(queue, DEAD_LETTER) == sorted(done.moved)


@simulated
async def test_a_restoration_of_which_nothing_is_done_is_refused(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    hall.writers[queue.fragments[0].store.store_id].fail_next = "before"
    with pytest.raises(StoreUnavailable):
        await restore(queue, [restoration(1)])
