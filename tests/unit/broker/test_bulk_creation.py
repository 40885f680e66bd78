"""What a configuration asks for is created with few commits, and one that cannot be does not keep the others."""

from __future__ import annotations

import asyncio

import pytest

from duobus.broker import create_queues
from duobus.broker.entities.bulk_creation import BATCH_ENTITIES
from duobus.errors import ServiceBusError
from duobus.model.descriptions import QueueDescription
from duobus.model.quotas import Quotas
from duobus.storage.catalog_rows import LIVE
from kits.broker import Hall, answers, batch, simulated, turns


def plain(number: int) -> list[QueueDescription]:
    return [QueueDescription(name=f"q{index}") for index in range(number)]


async def created(hall: Hall, wanted: list[QueueDescription]) -> list[tuple[str, ServiceBusError]]:
    """Create them; return those that were refused."""
    refused: list[tuple[str, ServiceBusError]] = []
    home = hall.unit.namespace("n")
    await create_queues(hall.unit, home, wanted, lambda about, error: refused.append((about.name, error)))
    return refused


def stores_of(hall: Hall, name: str) -> list[int]:
    return [handle.store.store_id for handle in hall.queue(name).fragments]


@simulated
async def test_queues_of_several_batches_are_live_spread_and_usable(hall: Hall) -> None:
    await hall.start()
    number = 2 * BATCH_ENTITIES + 3
    wanted = [*plain(number), QueueDescription(name="parted", enable_partitioning=True)]
    assert await created(hall, wanted) == []
    assert [stores_of(hall, f"q{index}") for index in range(5)] == [[1], [2], [3], [4], [1]]
    assert sorted(stores_of(hall, "parted")) == sorted([1, 2, 3, 4] * 4)
    assert {row.state for row in hall.catalog.read().entities} == {LIVE}
    made = batch(b"m")
    hall.queue(f"q{number - 1}").send(made)
    await turns()
    assert answers(made) == [None]
    await hall.again()
    assert hall.queue(f"q{number - 1}").numbers()[0][0] == 1


@simulated
async def test_a_store_takes_all_of_a_batch_with_one_call(hall: Hall) -> None:
    await hall.start()
    calls: list[int] = []
    store = hall.unit.brokers[1].store
    add = store.add_fragments
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "add_fragments", lambda asked: calls.append(len(asked)) or add(asked))  # type: ignore[func-returns-value]
        assert await created(hall, plain(40)) == []
        assert calls == [10]
        await hall.create("parted", enable_partitioning=True)
        assert calls == [10, 4]


@simulated
async def test_entities_that_forward_nothing_are_not_looked_at_for_each_that_is_created(hall: Hall) -> None:
    await hall.start()
    assert await created(hall, plain(5)) == []
    assert hall.unit.forwarding._forwarders == {}


@simulated
async def test_a_name_that_comes_twice_is_refused_once(hall: Hall) -> None:
    await hall.start()
    refused = await created(hall, [*plain(2), QueueDescription(name="Q1")])
    assert [name for name, _ in refused] == ["Q1"]
    assert "exists already" in str(refused[0][1])
    assert hall.queue("q0").fragments[0].online


@simulated
async def test_what_is_beyond_the_quota_is_refused_and_the_rest_is_there(hall: Hall) -> None:
    await hall.start()
    hall.unit.quotas = Quotas(entities=3)
    assert [name for name, _ in await created(hall, plain(5))] == ["q3", "q4"]
    assert sorted(hall.unit.namespace("n").queues) == ["q0", "q1", "q2"]


@simulated
async def test_queues_whose_store_fails_on_them_are_created_elsewhere(hall: Hall) -> None:
    await hall.start()
    hall.writers[2].fail_next = "before"
    assert await created(hall, plain(8)) == []
    assert all(hall.queue(f"q{index}").fragments[0].online for index in range(8))
    assert not {2}.intersection(stores_of(hall, "q1") + stores_of(hall, "q5"))
    # What the store may have of the first try is forgotten when it is back.
    await asyncio.sleep(5)
    assert {(row.path, row.state) for row in hall.catalog.read().entities} == {
        (f"q{index}", LIVE) for index in range(8)
    }


@simulated
async def test_a_batch_that_no_store_can_take_is_refused(hall: Hall) -> None:
    await hall.start()
    for writer in hall.writers.values():
        writer.fail_next = "before"
    refused = await created(hall, plain(8))
    assert [name for name, _ in refused] == [f"q{index}" for index in range(8)]
    assert hall.unit.namespace("n").queues == {}


@simulated
async def test_a_batch_that_a_crash_cut_short_is_finished_at_the_start(hall: Hall) -> None:
    await hall.start()

    def crash(_entity_id: int) -> None:
        raise RuntimeError("the process dies here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hall.catalog, "mark_live", crash)
        with pytest.raises(RuntimeError):
            await created(hall, plain(6))
    await hall.again()
    assert {row.state for row in hall.catalog.read().entities} == {LIVE}
    assert all(hall.queue(f"q{index}").fragments[0].online for index in range(6))
