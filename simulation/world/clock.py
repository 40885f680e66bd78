"""Clock and entropy of a simulated node: virtual time and a seed instead of the operating system's."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from duobus.clock import Clock, Entropy

if TYPE_CHECKING:
    from simulation.world.loop import SimulationLoop

#: Wall clock at virtual time 0: 2024-01-01T00:00:00Z.
WALL_START_MS = 1_704_067_200_000


class SimulatedClock(Clock):
    """Clocks that follow the loop's virtual time; every node has its own wall clock.

    Args:
        loop: The loop whose time it is.
        wall_start_ms: Wall clock at virtual time 0, ms since the Unix epoch.
    """

    def __init__(self, loop: SimulationLoop, wall_start_ms: int = WALL_START_MS) -> None:
        self._loop = loop
        self._wall_ms = wall_start_ms
        #: Which start of the simulated machine this is.
        self.boot_name = "simulated"

    def now_ms(self) -> int:
        """Return wall clock time; moved by ``jump``."""
        return self._wall_ms + self._loop.time_ms()

    def monotonic_ms(self) -> int:
        """Return virtual milliseconds since the simulation began; deaf to ``jump``."""
        return self._loop.time_ms()

    def boot(self) -> tuple[str, int] | None:
        """Return which start of the simulated machine this is, and virtual milliseconds."""
        return self.boot_name, self._loop.time_ms()

    def jump(self, ms: int) -> None:
        """Move the wall clock by ``ms``, backwards when negative (fault class C)."""
        self._wall_ms += ms


class SeededEntropy(Entropy):
    """Randomness that repeats with the seed.

    Args:
        seed: Equal seeds give equal values; give every node and every life of it its own.
    """

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(f"entropy:{seed}")

    def token(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        return self._random.randbytes(size)

    def number(self, bits: int) -> int:
        """Return the next integer of at most ``bits`` bits."""
        return self._random.getrandbits(bits) if bits else 0
