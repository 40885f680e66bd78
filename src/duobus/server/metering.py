"""Writes what the doors counted into files, at the end of each minute (design 3.13)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from duobus.clock import Clock
from duobus.errors import InternalError
from duobus.model.metering import MeteringRecord
from duobus.telemetry.logs import Log
from duobus.telemetry.metering_log import MeteringCounts, MeteringLog

PERIOD_S: Final = 60.0
_PERIOD_MS: Final = 60_000
#: Records that are kept while the disk refuses them, some 20 MB; the oldest go, and the log says how many.
UNWRITTEN_MAX: Final = 100_000


class MeteringWriter:
    """Takes the counts every minute and writes them; what the disk refuses is written with the next minute's.

    Args:
        counts: What the doors count.
        data: The data folder; without one (``--ephemeral``) nothing is kept.
        clock: The time.
    """

    def __init__(self, counts: MeteringCounts, data: Path | None, clock: Clock) -> None:
        self._counts = counts
        self._log = None if data is None else MeteringLog(data / "metering")
        self._clock = clock
        self._unwritten: list[MeteringRecord] = []
        # What is counted belongs to the minute in which counting began: written when that minute is over, it stays in
        # its hour.
        self._begun_ms = clock.now_ms()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S - self._clock.now_ms() % _PERIOD_MS / 1_000)
            await self.flush()

    async def flush(self) -> None:
        """Write what was counted since the last time; once more at the end of the server."""
        records = self._counts.take(self._begun_ms)
        self._begun_ms = self._clock.now_ms()
        if self._log is None:
            return
        self._unwritten += records
        if not self._unwritten:
            return
        log = Log("metering")
        lost = len(self._unwritten) - UNWRITTEN_MAX
        if lost > 0:
            del self._unwritten[:lost]
            log.error("metering records given up", records=lost)
        taken = list(self._unwritten)
        # In a thread: the file is synced. A cancelled flush leaves its records, and readers drop repeats by number.
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._log.write, taken)
        except InternalError as error:
            log.error("metering not written", error=str(error), records=len(taken))
        else:
            del self._unwritten[: len(taken)]
