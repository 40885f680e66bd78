"""What a queue counts after a run that may have been stored was deleted, however often the process dies (I27, I32)."""

from __future__ import annotations

from kits.broker import Hall, answers, batch, payloads, receiver, simulated, turns


@simulated
async def test_a_deleted_run_is_counted_by_no_later_life(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    ill = queue.placement.keyless().broker
    hall.writers[ill.store_id].fail_next = "after"
    made = batch(b"m", b"twelve bytes")
    queue.send(made)
    await turns()
    assert answers(made) == [None]
    # The first life deletes the run and dies before it has written anything else.
    await hall.again()
    await hall.again()
    assert hall.queue().numbers() == ([2, 0, 0, 0, 0], 13)
    _, box = receiver(hall.queue(), 10)
    await turns()
    assert sorted(payloads(box)) == [b"m", b"twelve bytes"]
    assert [event for event in hall.events if event[1] == "lacks messages"] == []
