"""Metered operations over HTTP, by entity and hour."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Final

from duobus.clock import Clock
from duobus.errors import ArgumentInvalid, NotAllowed
from duobus.telemetry.metering_hours import read_metered_hours

#: Days that an answer spans by default, and at most.
_DAY_MS: Final = 86_400_000
DAYS_MAX: Final = 31


class MeteringReader:
    """Reads the metering files in a thread, for one who asks at a time."""

    def __init__(self, data: Path | None, clock: Clock) -> None:
        """``data``: the data folder, or None where everything is in memory."""
        self._folder = None if data is None else data / "metering"
        self._clock = clock
        self._turn = asyncio.Lock()

    async def hours(self, namespace: str, from_ms: int | None, to_ms: int | None) -> dict[str, Any]:
        """Return what was metered in a namespace between two instants, by default in the last day.

        Raises:
            NotAllowed: This server keeps no metering files.
            ArgumentInvalid: The instants are in the wrong order, or too far apart.
        """
        if self._folder is None:
            raise NotAllowed("This server keeps everything in memory (--ephemeral), and so no metering files.")
        end = self._clock.now_ms() + 1 if to_ms is None else to_ms
        begin = end - _DAY_MS if from_ms is None else from_ms
        if not 0 <= end - begin <= DAYS_MAX * _DAY_MS:
            raise ArgumentInvalid(f"from and to are instants in ms since 1970, {DAYS_MAX} days apart at most.")
        async with self._turn:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(None, partial(read_metered_hours, self._folder, namespace, begin, end))
        return {"fromMs": begin, "toMs": end, "completeSinceMs": found.since_ms, "rows": found.rows}
