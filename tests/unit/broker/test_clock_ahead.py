"""A start with a clock ahead expires nothing, delivers nothing early and stores nothing of its time (I15, I58)."""

from __future__ import annotations

import pytest

from kits.broker import Hall, batch, payloads, receiver, turns
from simulation.world.loop import SimulationLoop

HOUR_MS = 3_600_000


async def _start_ahead(hall: Hall, ahead_ms: int) -> None:
    hall.witness = next(iter(hall.unit.brokers.values()))._time.witness()
    hall.clock.jump(ahead_ms)
    await hall.again()


async def _story(loop: SimulationLoop, ahead_ms: int) -> None:
    hall = Hall(loop)
    await hall.start()
    queue = await hall.create(default_message_time_to_live_ms=HOUR_MS)
    began_ms = hall.unit.now_ms()
    queue.send(batch(*(b"%d" % number for number in range(20))))
    queue.send(batch(b"later", scheduled_ms=began_ms + HOUR_MS // 2))
    await turns(50)
    await _start_ahead(hall, ahead_ms)
    hall.queue().send(batch(b"sent while it was ahead"))
    await hall.unit.time_moved()
    assert hall.unit.now_ms() - began_ms < 60_000
    hall.clock.jump(-ahead_ms)
    await hall.again()
    await hall.unit.time_moved()
    _, box = receiver(hall.queue(), 100)
    await turns(50)
    assert payloads(box) == [*(b"%d" % number for number in range(20)), b"sent while it was ahead"]
    assert hall.unit.now_ms() - began_ms < 60_000


@pytest.mark.parametrize("ahead_ms", [2 * HOUR_MS, 400 * 24 * HOUR_MS])
def test_twenty_messages_with_an_hour_to_live_outlive_a_start_with_a_clock_ahead(ahead_ms: int) -> None:
    loop = SimulationLoop()
    try:
        loop.run(_story(loop, ahead_ms), time_limit_s=600)
    finally:
        loop.close()
