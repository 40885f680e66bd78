"""Keyless messages over several stores of one disk make the commits that they would make in one store."""

from __future__ import annotations

from kits.broker import Hall, answers, batch, simulated, turns


@simulated
async def test_what_arrives_during_a_commit_joins_the_next_one_of_the_same_store(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    before = {number: broker.commits for number, broker in hall.unit.brokers.items()}
    store = queue.placement.current.store.store_id
    writer = hall.writers[store]
    writer.is_held = True
    first = batch(b"m")
    queue.send(first)
    await turns()
    assert len(writer.waiting) == 1
    later = [batch(b"m") for _ in range(3)]
    for made in later:
        queue.send(made)
        await turns()
    # Nobody else is busy, and the three wait together.
    assert [len(other.waiting) for other in hall.writers.values() if other is not writer] == [0, 0, 0]
    writer.release()
    await turns()
    assert [answers(made) for made in (first, *later)] == [[None]] * 4
    after = {number: broker.commits - before[number] for number, broker in hall.unit.brokers.items()}
    assert after == {number: 2 if number == store else 0 for number in before}


@simulated
async def test_a_round_of_turns_goes_through_every_store(hall: Hall) -> None:
    await hall.start()
    queue = await hall.create(enable_partitioning=True)
    seen = []
    for _ in range(32):
        seen.append(queue.placement.current)
        queue.send(batch(b"m"))
        await turns()
    assert seen[:16] == seen[16:]
    assert len({handle.number for handle in seen}) == 16
    stores = [handle.store.store_id for handle in seen[:16]]
    assert stores == sorted(stores, key=stores.index)
    assert len(set(stores)) == 4
