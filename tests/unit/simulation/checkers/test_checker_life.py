"""The checker of the life of entities: what a namesake delivers, and when a delivery was."""

from __future__ import annotations

import asyncio
import random

from duobus.model.descriptions import ACTIVE, QueueDescription
from simulation.checkers.entity_life import GONE, OK, Change, LifeHistory, Use, check_life
from simulation.scenarios.entity_life import _Queue
from simulation.world.message import Message
from simulation.world.world import World


def made_anew(arrival_ms: int) -> LifeHistory:
    """A message that was accepted at 100 ms; its entity is deleted at 2,000 ms and made anew at 3,000 ms."""
    history = LifeHistory()
    for status, begin_ms, end_ms in ((GONE, 1_900, 2_000), (ACTIVE, 2_900, 3_000)):
        change = Change(status, begin_ms)
        change.end_ms = end_ms
        history.changes.append(change)
    use = Use("send", 90, "m-1")
    use.end_ms, use.outcome = 100, OK
    history.uses.append(use)
    history.deliveries.append((arrival_ms, "m-1"))
    return history


def test_what_the_entity_delivered_before_its_end_is_right() -> None:
    assert check_life(made_anew(1_000)) == []


def test_what_its_namesake_delivers_is_caught() -> None:
    assert "delivered by its namesake" in check_life(made_anew(5_000))[0]


def test_a_delivery_is_noted_with_the_time_of_its_arrival_however_late_its_receiver_looks() -> None:
    queue = _Queue(World(1, [QueueDescription(name="q")], 1), QueueDescription(name="q"), None)
    world = queue.world
    seen: list[tuple[int, int]] = []

    async def whole() -> None:
        world.start()
        client = await queue.connect("both")
        receiver, sender = await queue.attach(client, sends=False), await queue.attach(client, sends=True)
        assert receiver is not None
        assert sender is not None
        client.grant(receiver, 1)
        client.arrived.clear()
        await client.put(sender, Message("m-1", b"").encode())
        await client.arrived.wait()
        arrival_ms = queue.now_ms()
        await asyncio.sleep(5.0)
        await queue._use(client, random.Random(1), all_of_it=True)
        seen.append((arrival_ms, queue.history.deliveries[0][0]))

    try:
        world.loop.run(whole(), time_limit_s=60.0)
    finally:
        world.loop.close()
    assert seen[0][0] == seen[0][1]
