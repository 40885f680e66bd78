"""The order of tests that several processes share."""

from __future__ import annotations

import zlib
from typing import Final

#: A test that may take longer than the limit of pyproject.toml says so by a limit of its own, in seconds.
MINUTES_FROM_S: Final = 120.0


def place_of(name: str, limit_s: float) -> tuple[bool, int]:
    """Where a test or a group comes: what may take minutes first, so that nothing long is left at the end.

    The rest is mixed, in the same way in every process. By folder, all workers would wait with the tests of processes
    and then compete for processors with the simulation.
    """
    return limit_s <= MINUTES_FROM_S, zlib.crc32(name.encode())
