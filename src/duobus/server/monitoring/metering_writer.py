"""Writes what the servers counted into files, at the end of each minute."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from duobus.clock import Clock
from duobus.errors import InternalError
from duobus.model.metering import MeteringRecord
from duobus.telemetry.logs import Log
from duobus.telemetry.metering_journal import MeteringJournal, left_behind, read_journal
from duobus.telemetry.metering_log import MeteringCounts, MeteringLog

PERIOD_S: Final = 60.0
_PERIOD_MS: Final = 60_000
#: Records that are kept while the disk refuses them, some 20 MB; the oldest go, and the log says how many.
UNWRITTEN_MAX: Final = 100_000
#: Journals of minutes that could not be written yet; the oldest go.
JOURNALS_MAX: Final = 60


class MeteringWriter:
    """Takes the counts every minute and writes them; what the disk refuses is written with the next minute's.

    Args:
        counts: What the servers count.
        data: The data folder; without one (``--ephemeral``) nothing is kept.
        clock: The time.
    """

    def __init__(self, counts: MeteringCounts, data: Path | None, clock: Clock) -> None:
        self._counts = counts
        self._folder = None if data is None else data / "metering"
        self._log = None if self._folder is None else MeteringLog(self._folder)
        self._clock = clock
        self._unwritten: list[MeteringRecord] = []
        # What is counted belongs to the minute in which counting began: written when that minute is over, it stays in
        # its hour.
        self._begun_ms = clock.now_ms()
        self._journal: MeteringJournal | None = None
        self._generation = 0
        # Of minutes that are not in the log yet: open journals of this process, and files of another's.
        self._waiting: list[MeteringJournal] = []
        self._left: list[Path] = []

    def begin(self) -> None:
        """Take over what a process that was killed has counted, and count into a journal from now on.

        Only whoever owns the data folder may: another server's journal looks like one that was left behind.
        """
        if self._folder is None:
            return
        log = Log("metering")
        for path in left_behind(self._folder):
            try:
                found = read_journal(path)
            except OSError as error:
                log.error("metering journal not read", path=path.name, error=str(error))
                continue
            log.info("metering of a process that was killed", records=len(found))
            self._unwritten += found
            self._left.append(path)
            self._generation = max(self._generation, int(path.stem.removeprefix("running-")))
        self._begin_journal()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S - self._clock.now_ms() % _PERIOD_MS / 1_000)
            await self.flush()

    async def flush(self) -> None:
        """Write what was counted since the last time."""
        records = self._counts.take(self._begun_ms)
        self._begun_ms = self._clock.now_ms()
        if self._journal is not None:
            self._waiting.append(self._journal)
            self._begin_journal()
        if self._log is None:
            return
        self._unwritten += records
        log = Log("metering")
        lost = len(self._unwritten) - UNWRITTEN_MAX
        if lost > 0:
            del self._unwritten[:lost]
            log.error("metering records given up", records=lost)
        taken, waiting = list(self._unwritten), list(self._waiting)
        if taken:
            # In a thread: the file is synced. A cancelled flush leaves its records, and readers drop repeats by number.
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._log.write, taken)
            except InternalError as error:
                log.error("metering not written", error=str(error), records=len(taken))
                while len(self._waiting) > JOURNALS_MAX:
                    self._waiting.pop(0).drop()
                return
        del self._unwritten[: len(taken)]
        for journal in waiting:
            journal.drop()
        del self._waiting[: len(waiting)]
        self._forget_left()

    async def close(self) -> None:
        """Write what is left, at the end of the server. Nothing is counted any more."""
        await self.flush()
        if self._journal is not None and not self._unwritten:
            self._journal.drop()

    def _begin_journal(self) -> None:
        if self._folder is not None:
            self._generation += 1
            self._journal = MeteringJournal(self._folder, self._generation, self._counts.server, self._begun_ms)
            self._counts.write_to(self._journal)

    def _forget_left(self) -> None:
        for path in self._left:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                # It is read again at the next start, and its records are known by their numbers then.
                Log("metering").error("metering journal not removed", path=path.name, error=str(error))
        self._left.clear()
