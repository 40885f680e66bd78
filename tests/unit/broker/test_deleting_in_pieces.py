"""A large entity that is deleted keeps nobody from the store that it is in (PE4, I9)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from duobus.broker import fragment_host as residents
from duobus.errors import StoreUnavailable
from kits.broker import Hall, answers, batch, simulated_over, turns

MESSAGES = 200
SLICE = 10


async def filled(hall: Hall) -> None:
    """Two queues on one store; in the first is much."""
    await hall.start()
    await hall.create("large")
    await hall.create("other")
    hall.queue("large").send(batch(*[b"m"] * MESSAGES))
    await turns()
    assert hall.disks[1].usage().rows == MESSAGES


@simulated_over(1)
async def test_others_have_their_turn_between_the_slices_of_a_deletion(hall: Hall) -> None:
    await filled(hall)
    writer = hall.writers[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residents, "DROP_SLICE", SLICE)
        writer.is_held = True
        deletion = asyncio.ensure_future(hall.unit.delete_queue("n", "large"))
        await turns()
        made = batch(b"n")
        hall.queue("other").send(made)
        await turns()
        # The slice under way, and the commit that stood behind it.
        for _ in range(2):
            writer.step()
            await turns()
        assert answers(made) == [None]
        assert not deletion.done()
        assert hall.disks[1].usage().rows > MESSAGES // 2
        # Each answer brings the next slice.
        while not deletion.done():
            writer.release()
            await turns()
    assert await deletion is None
    assert hall.disks[1].usage().rows == 1


@simulated_over(1)
async def test_a_deletion_whose_store_fails_between_two_slices_is_finished_when_it_is_back(hall: Hall) -> None:
    await filled(hall)
    writer = hall.writers[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residents, "DROP_SLICE", SLICE)
        writer.is_held = True
        deletion = asyncio.ensure_future(hall.unit.delete_queue("n", "large"))
        await turns()
        writer.step()
        await turns()
        writer.fail_next = "before"
        writer.step()
        with suppress(StoreUnavailable):
            await deletion
        writer.release()
        await asyncio.sleep(10)
    assert hall.disks[1].usage().rows == 0
    assert "large" not in hall.unit.namespace("n").queues
