"""Creating and deleting entities over crashes and stores that are away."""

from __future__ import annotations

import asyncio

import pytest

from duobus.errors import EntityAlreadyExists, StoreFailed, StoreUnavailable
from duobus.model.descriptions import QueueDescription, from_json
from duobus.storage.catalog_rows import LIVE
from kits.broker import Hall, answers, batch, simulated, turns
from kits.fragment import Box


def states(hall: Hall) -> dict[str, str]:
    """Path to state of every entity in the catalog."""
    return {row.path: row.state for row in hall.catalog.read().entities}


@simulated
async def test_a_partitioned_queue_has_16_fragments_over_all_stores(hall: Hall) -> None:
    """PE1."""
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    assert len(queue.fragments) == 16
    assert [handle.store.store_id for handle in queue.fragments].count(1) == 4
    assert len((await hall.create("plain")).fragments) == 1


@simulated
async def test_a_name_is_taken_whatever_its_case(hall: Hall) -> None:
    await hall.start()
    await hall.create("Orders")
    with pytest.raises(EntityAlreadyExists, match="orders"):
        await hall.create("orders")


@simulated
async def test_every_property_of_a_queue_is_there_after_a_restart(hall: Hall) -> None:
    await hall.start()
    properties = {"lock_duration_ms": 7000, "max_delivery_count": 4, "default_message_time_to_live_ms": 60_000}
    await hall.create("Orders", enable_partitioning=True, user_metadata="u", **properties)
    await hall.again()
    queue = hall.queue("orders")
    wanted = QueueDescription(name="Orders", enable_partitioning=True, user_metadata="u", **properties)  # type: ignore[arg-type]
    assert queue.description == wanted
    assert queue.settings()[0].lock_duration_ms == 7000


@simulated
async def test_a_creation_that_a_crash_cut_short_is_finished_at_the_start(hall: Hall) -> None:
    await hall.start()

    def crash(entity_id: int) -> None:
        raise StoreFailed("the process dies here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hall.catalog, "mark_live", crash)
        with pytest.raises(StoreFailed):
            await hall.create(enable_partitioning=True)
    assert states(hall) == {"q": "intent"}
    await hall.again()
    assert states(hall) == {"q": LIVE}
    made = batch(b"m")
    hall.queue().send(made)
    await turns()
    assert answers(made) == [None]
    # Once more: the finished creation is found as it is.
    await hall.again()
    assert hall.queue().numbers()[0][0] == 1


@simulated
async def test_a_creation_that_a_store_refused_is_undone(hall: Hall) -> None:
    await hall.start()
    for writer in hall.writers.values():
        writer.fail_next = "before"
    with pytest.raises(StoreUnavailable, match="not available"):
        await hall.create(enable_partitioning=True)
    assert "q" not in hall.unit.namespace("n").queues
    await hall.again()
    assert states(hall) == {}
    assert all(disk.usage().rows == 0 for disk in hall.disks.values())
    await hall.create(enable_partitioning=True)


@simulated
async def test_a_deleted_queue_is_gone_with_all_that_was_in_it(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    queue.send(batch(b"m"))
    await turns()
    await hall.unit.delete_queue("n", "Q")
    assert states(hall) == {}
    assert sum(disk.usage().rows for disk in hall.disks.values()) == 0
    assert (await hall.create()).numbers()[0][0] == 0


@simulated
async def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_start(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    queue.send(batch(b"m"))
    await turns()
    hall.catalog.begin_delete(queue.entity_id)
    await hall.again()
    assert states(hall) == {}
    assert sum(disk.usage().rows for disk in hall.disks.values()) == 0
    assert "q" not in hall.unit.namespace("n").queues


@simulated
async def test_an_entity_of_an_unknown_kind_keeps_its_description(hall: Hall) -> None:
    hall.catalog.mark_live(hall.catalog.begin_create("n", "notificationhub", "T", b'{"name":"T"}', ()))
    await hall.start()
    with pytest.raises(EntityAlreadyExists):
        await hall.create("t")
    await hall.again()
    assert hall.unit.namespace("n").unbuilt == {"t": "notificationhub"}
    (row,) = hall.catalog.read().entities
    assert from_json(row.description, QueueDescription).name == "T"


@simulated
async def test_a_store_that_does_not_open_at_the_start_is_opened_later(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create()
    queue.send(batch(b"m"))
    await turns()
    number = queue.fragments[0].store.store_id
    hall.build()
    hall.writers[number].fail_next = "before"
    await hall.start()
    assert hall.unit.brokers[number].state == "failed"
    box = Box()
    hall.queue().open_receiver(0, box, removing=False).request(5)

    await asyncio.sleep(3)
    assert hall.unit.brokers[number].state == "open"
    assert [message.payload for found in box.ready for message in found.messages] == [b"m"]
