"""Clock and entropy of simulated nodes."""

from __future__ import annotations

from duobus.clock import BrokerTime
from simulation.world.clock import WALL_START_MS, SeededEntropy, SimulatedClock
from simulation.world.loop import SimulationLoop


def test_both_clocks_follow_virtual_time() -> None:
    loop = SimulationLoop()
    clock = SimulatedClock(loop)
    loop.advance(0.3)
    loop.advance(0.3)
    assert clock.monotonic_ms() == 600
    assert clock.now_ms() == WALL_START_MS + 600
    loop.close()


def test_a_jump_moves_the_wall_clock_alone() -> None:
    loop = SimulationLoop()
    clock = SimulatedClock(loop, 1000)
    clock.jump(-400)
    assert clock.now_ms() == 600
    assert clock.monotonic_ms() == 0
    loop.close()


def test_broker_time_over_the_simulated_clock_never_goes_back() -> None:
    loop = SimulationLoop()
    clock = SimulatedClock(loop)
    broker_time = BrokerTime(clock)
    seen = []
    for jump in (0, 3_600_000, -7_200_000, 0):
        clock.jump(jump)
        loop.advance(10)
        seen.append(broker_time.now_ms())
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] < 31_000
    loop.close()


def test_equal_seeds_give_equal_entropy() -> None:
    one, two, other = SeededEntropy(1), SeededEntropy(1), SeededEntropy(2)
    drawn = [(e.token(16), e.number(12), e.uuid(), e.number(0)) for e in (one, two, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0][1] < 4096
    assert drawn[0][2].version == 4
