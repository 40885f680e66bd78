"""What signals ask of a server: the end, the end of the delay before it, and the end at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from duobus.server import process as run
from duobus.telemetry.logs import Log
from simulation.world.loop import SimulationLoop


def in_virtual_time(story: Callable[[SimulationLoop], Coroutine[object, object, None]]) -> None:
    loop = SimulationLoop()
    try:
        loop.run(story(loop), time_limit_s=600)
    finally:
        loop.close()


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(run.os, "_exit", found.append)
    return found


def test_without_a_delay_the_second_signal_ends_the_process(exits: list[int]) -> None:
    async def story(loop: SimulationLoop) -> None:
        stop = run._Stop(0.0, Log("test"))
        stop.on_signal()
        assert stop.asked.is_set()
        await stop.delay()
        assert loop.time() == 0
        assert exits == []
        stop.on_signal()
        assert exits == [1]

    in_virtual_time(story)


def test_the_delay_ends_by_itself_or_by_a_second_signal_and_a_third_ends_the_process(exits: list[int]) -> None:
    async def story(loop: SimulationLoop) -> None:
        patient, hurried = run._Stop(30.0, Log("test")), run._Stop(30.0, Log("test"))
        patient.on_signal()
        await patient.delay()
        assert loop.time() == 30
        hurried.on_signal()
        loop.call_later(5, hurried.on_signal)
        await hurried.delay()
        assert loop.time() == 35
        assert exits == []
        for stop in (patient, hurried):
            stop.on_signal()
        assert exits == [1, 1]

    in_virtual_time(story)


def test_a_second_signal_before_the_delay_has_begun_leaves_it_out(exits: list[int]) -> None:
    async def story(loop: SimulationLoop) -> None:
        stop = run._Stop(30.0, Log("test"))
        stop.on_signal()
        stop.on_signal()
        await asyncio.wait_for(stop.delay(), 1)
        assert loop.time() == 0
        assert exits == []

    in_virtual_time(story)
