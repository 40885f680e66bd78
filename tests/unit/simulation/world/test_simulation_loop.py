"""The loop in virtual time: order from the seed, faults found, nodes that die."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from simulation.world.loop import (
    NodeKilled,
    SimulationDeadlock,
    SimulationLivelock,
    SimulationLoop,
    SimulationTimeout,
    UnhandledFailure,
)
from simulation.world.network import SimulatedNetwork


async def _race(loop: SimulationLoop) -> list[int]:
    order: list[int] = []

    async def runner(number: int) -> None:
        for step in range(3):
            await asyncio.sleep(0.001 * step)
            order.append(number)

    await asyncio.gather(*(runner(n) for n in range(6)))
    return order


def _run_race(seed: int, *, shuffle: bool = True) -> tuple[list[int], int]:
    loop = SimulationLoop(seed, shuffle=shuffle, trace=True)
    try:
        return loop.run(_race(loop)), loop.digest()
    finally:
        loop.close()


def test_an_hour_of_sleep_takes_no_real_time() -> None:
    loop = SimulationLoop()
    began = time.monotonic()
    loop.run(asyncio.sleep(3600))
    assert loop.time() == pytest.approx(3600)
    assert time.monotonic() - began < 60
    loop.close()


def test_every_stretch_in_which_nothing_happens_is_told_before_time_moves() -> None:
    loop = SimulationLoop(1)
    told: list[tuple[float, float, float]] = []
    loop.on_rest = lambda now, until: told.append((now, until, loop.time()))

    async def steps() -> None:
        await asyncio.sleep(0.5)
        await asyncio.sleep(2)

    loop.run(steps())
    loop.close()
    assert told == [(0.0, 0.5, 0.0), (0.5, 2.5, 0.5)]


def test_the_same_seed_repeats_order_and_digest() -> None:
    assert _run_race(7) == _run_race(7)


def test_different_seeds_explore_different_orders() -> None:
    assert len({tuple(_run_race(seed)[0]) for seed in range(10)}) > 5
    assert len({_run_race(seed)[1] for seed in range(10)}) == 10


def test_without_shuffling_callbacks_keep_their_order() -> None:
    loop = SimulationLoop(1, shuffle=False)
    order: list[int] = []
    for number in range(20):
        loop.call_soon(order.append, number)
    loop.advance(1)
    assert order == list(range(20))
    loop.close()


def test_waiting_for_nothing_is_reported_as_deadlock() -> None:
    loop = SimulationLoop()

    async def hang() -> None:
        await loop.create_future()

    with pytest.raises(SimulationDeadlock, match="nothing is scheduled"):
        loop.run(hang())
    loop.close()


def test_a_failure_that_nothing_goes_on_after_is_reported_instead_of_the_deadlock() -> None:
    loop = SimulationLoop()

    async def hang() -> None:
        loop.call_soon(lambda: loop.call_exception_handler({"message": "broken", "exception": ValueError("boom")}))
        await loop.create_future()

    with pytest.raises(UnhandledFailure, match="boom"):
        loop.run(hang())
    loop.close()


def test_endless_callbacks_at_one_instant_are_reported_as_livelock() -> None:
    loop = SimulationLoop(instant_limit=1000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - spinning is the point
            await asyncio.sleep(0)

    with pytest.raises(SimulationLivelock):
        loop.run(spin())
    loop.close()


def test_a_run_past_its_time_limit_is_ended() -> None:
    loop = SimulationLoop()

    async def tick() -> None:
        while True:  # noqa: ASYNC110 - never ending is the point
            await asyncio.sleep(1)

    with pytest.raises(SimulationTimeout):
        loop.run(tick(), time_limit_s=60)
    assert loop.time() <= 60
    loop.close()


def test_a_failure_in_a_callback_fails_the_run() -> None:
    loop = SimulationLoop()

    def explode() -> None:
        raise ValueError("boom")

    async def main() -> None:
        loop.call_later(0.5, explode)
        await asyncio.sleep(1)

    with pytest.raises(UnhandledFailure, match="boom"):
        loop.run(main())
    loop.close()


def test_a_cancelled_timer_never_fires_and_does_not_hold_time() -> None:
    loop = SimulationLoop()
    fired: list[float] = []
    handles = [loop.call_later(5, fired.append, 1.0) for _ in range(300)]
    for handle in handles:
        handle.cancel()
    loop.advance(1)
    assert loop.time() == pytest.approx(1)
    loop.advance(10)
    assert fired == []
    loop.close()


def test_executor_calls_run_inline_after_a_virtual_delay() -> None:
    loop = SimulationLoop()
    threads: list[int] = []

    def work() -> int:
        threads.append(threading.get_ident())
        return 42

    async def main() -> int:
        return await loop.run_in_executor(None, work)

    assert loop.run(main()) == 42
    assert threads == [threading.get_ident()]
    assert 0 < loop.time() < 0.01
    loop.close()


def test_executor_failures_reach_the_caller() -> None:
    loop = SimulationLoop()

    def work() -> None:
        raise OSError("disk")

    async def main() -> None:
        await loop.run_in_executor(None, work)

    with pytest.raises(OSError, match="disk"):
        loop.run(main())
    loop.close()


def test_threadsafe_calls_from_another_thread_are_refused() -> None:
    loop = SimulationLoop()
    refused: list[BaseException] = []

    def intrude() -> None:
        try:
            loop.call_soon_threadsafe(print)
        except RuntimeError as error:
            refused.append(error)

    async def main() -> None:
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        called = loop.create_future()
        loop.call_soon_threadsafe(called.set_result, None)
        await called

    loop.run(main())
    assert len(refused) == 1
    loop.close()


def test_a_killed_node_runs_nothing_more_not_even_finally() -> None:
    loop = SimulationLoop()
    node = SimulatedNetwork(loop).node("a")
    node.start()
    steps: list[str] = []

    async def work() -> None:
        try:
            asyncio.get_running_loop().call_later(3, steps.append, "timer")
            steps.append("began")
            await asyncio.sleep(2)
            steps.append("went on")
        finally:
            steps.append("cleaned up")

    node.spawn(work())
    loop.advance(1)
    node.kill()
    loop.advance(10)
    assert steps == ["began"]
    loop.close()


def test_tasks_started_by_a_node_die_with_it() -> None:
    loop = SimulationLoop()
    node = SimulatedNetwork(loop).node("a")
    node.start()
    steps: list[int] = []

    async def child() -> None:
        while True:
            await asyncio.sleep(1)
            steps.append(1)

    async def parent() -> None:
        await asyncio.gather(child(), child())

    node.spawn(parent())
    loop.advance(2.5)
    node.kill()
    loop.advance(10)
    assert len(steps) == 4
    loop.close()


def test_a_new_life_runs_while_the_old_one_stays_dead() -> None:
    loop = SimulationLoop()
    node = SimulatedNetwork(loop).node("a")
    lives: list[int] = []

    async def beat() -> None:
        number = node.life.number
        while True:
            await asyncio.sleep(1)
            lives.append(number)

    assert node.start().number == 1
    node.spawn(beat())
    loop.advance(1.5)
    node.kill()
    assert node.start().number == 2
    node.spawn(beat())
    loop.advance(2.2)
    assert lives == [1, 2, 2]
    with pytest.raises(RuntimeError, match="running already"):
        node.start()
    loop.close()


def test_a_crash_point_leaves_the_code_and_is_no_failure() -> None:
    loop = SimulationLoop()
    node = SimulatedNetwork(loop).node("a")
    node.start()
    steps: list[str] = []

    async def work() -> None:
        steps.append("before")
        node.crash()
        steps.append("after")

    task = node.spawn(work())
    loop.advance(1)
    assert steps == ["before"]
    assert not node.alive
    assert task.done()
    assert isinstance(task.exception(), NodeKilled)
    loop.close()


def test_closing_abandons_what_still_waits_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    loop = SimulationLoop()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)

    task = loop.create_task(stubborn())
    loop.advance(1)
    loop.close()
    loop.close()
    del task
    assert caplog.records == []
