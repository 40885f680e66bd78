"""Backups of a running server: one instant of all stores and the catalog, copied while traffic goes on.

The threads of all stores are stopped between two commits for the moment that it takes to begin a read transaction in
each, and the catalog is read in that moment, too. What is copied is therefore what a power cut at that instant would
have left, and recovery knows what to do with it: a message under way from one store to another is in one of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import gmtime, strftime
from typing import Final

from duobus.broker import MessageBroker
from duobus.clock import Clock
from duobus.errors import ConfigurationError, NotAllowed, ServerBusy, StoreFailed, StoreTooNew
from duobus.storage.backup.copy import ELSEWHERE, Contents, make_folder, snapshots_of, write_backup
from duobus.storage.backup.snapshot import Snapshot
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import StoreRow, store_path
from duobus.storage.interface import MessagingStore
from duobus.storage.sqlite.checkpoint import CheckpointThread
from duobus.telemetry.logs import Log

#: How long a store's thread waits for those of the others, in seconds: one may be in the middle of something long, as
#: the deletion of an entity, and commits must not wait for that.
HOLD_S_MAX: Final = 0.25
#: How often it is tried to stop all of them, and the pause in between, in seconds.
HOLDS_MAX: Final = 20
_PAUSE_S: Final = 0.5
#: How long an attempt waits for a store that is in the middle of something, or stalls, in seconds. A server that is
#: told to stop waits for it, too (I63).
_ANSWER_S: Final = 4.0


class Hold:
    """Stops the threads of several stores between two commits.

    Args:
        number: How many stores there are.
        arrived: Called in the loop when all of them stand.
    """

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop, arrived: Callable[[], None]) -> None:
        self._missing = number
        self._loop = loop
        self._arrived = arrived
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def enter(self, store: MessagingStore, snapshot: Snapshot) -> bool:
        """Pin a snapshot and stand still; runs in the store's thread. False: it went on before all had arrived."""
        if self._is_over.is_set():
            return False
        store.bring_over()
        snapshot.pin()
        with self._lock:
            self._missing -= 1
            is_last = not self._missing
        if is_last:
            self._loop.call_soon_threadsafe(self._arrived)
        return self._is_over.wait(HOLD_S_MAX)

    def end(self) -> None:
        """Let all go on."""
        self._is_over.set()


class Backups:
    """Makes backups of one server, one at a time.

    Args:
        brokers: All of the server's.
        data: Its data folder.
        folder: Where it puts backups, each in a folder of its own; None: its operator wants none.
        catalog: Its catalog.
        checkpoints: What keeps the logs of the stores short; they rest meanwhile, because nothing can be cut then.

    Attributes:
        has_postgres: Some stores are in PostgreSQL, where this copies nothing.
    """

    def __init__(
        self,
        brokers: Mapping[int, MessageBroker],
        data: Path,
        folder: Path | None,
        catalog: SqliteCatalog,
        checkpoints: Sequence[CheckpointThread],
        clock: Clock,
    ) -> None:
        self._brokers = brokers
        self._data = data
        self._folder = folder
        self._catalog = catalog
        self._checkpoints = checkpoints
        self._clock = clock
        self.has_postgres = False
        self._log = Log("backup")
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._status: dict[str, object] = {"state": "none"}

    def status(self) -> dict[str, object]:
        """What became of the latest backup: ``state`` is none, running, done or failed."""
        return dict(self._status)

    def start(self) -> dict[str, object]:
        """Begin a backup and return its status.

        Raises:
            NotAllowed: The server was not started with a folder for backups.
            ServerBusy: There is one under way, or a store is away.
        """
        if self._folder is None:
            raise NotAllowed("This server was not told where to put backups. Start it with --backup-to DIR.")
        if self.has_postgres:
            raise NotAllowed(ELSEWHERE)
        if self._task is not None and not self._task.done():
            raise ServerBusy("A backup is under way. Wait until it is done: GET /$duobus/backup.")
        self._demand_open()
        begun_ms = self._clock.now_ms()
        name = strftime("%Y%m%dT%H%M%S", gmtime(begun_ms // 1000)) + f"{begun_ms % 1000:03d}Z"
        self._status = {
            "backup": name,
            "state": "running",
            "reason": None,
            "bytes": 0,
            "copied": 0,
            "begunMs": begun_ms,
            "endedMs": None,
        }
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(self._folder / name, begun_ms), name="backup")
        return self.status()

    async def stop(self) -> None:
        """Give up what is under way, before the stores are closed."""
        self._is_stopped = True
        if self._task is not None:
            await self._task

    async def _run(self, folder: Path, begun_ms: int) -> None:
        self._log.info("backup begun", folder=folder.name)
        try:
            await asyncio.to_thread(make_folder, folder)
            try:
                await self._back_up(folder, begun_ms)
            except BaseException:
                # What was copied is gone already; the empty folder would look like a backup.
                with suppress(OSError):
                    await asyncio.to_thread(folder.rmdir)
                raise
        except (StoreFailed, StoreTooNew, ConfigurationError, ServerBusy) as error:
            self._status |= {"state": "failed", "reason": str(error)}
            self._log.error("backup failed", folder=folder.name, reason=str(error))
        except Exception as error:  # noqa: BLE001 - whoever asks has to learn that it has ended
            self._status |= {"state": "failed", "reason": "a fault of the server; see its log"}
            self._log.error("backup failed", folder=folder.name, reason=repr(error))
        else:
            self._status |= {"state": "done"}
            self._log.info("backup done", folder=folder.name, bytes=self._status["bytes"])
        self._status["endedMs"] = self._clock.now_ms()

    async def _back_up(self, folder: Path, begun_ms: int) -> None:
        rows = tuple(StoreRow(number, store_path(number)) for number in self._brokers)
        snapshots = await asyncio.to_thread(partial(snapshots_of, self._data, rows, has_journals=True))
        lives = {number: broker.failures for number, broker in self._brokers.items()}
        for checkpoint in self._checkpoints:
            checkpoint.is_resting = True
        try:
            catalog = await self._one_instant(list(snapshots.values()))
            contents = Contents(catalog, snapshots, begun_ms, is_online=True)
            progress = partial(self._copied, lives)
            await asyncio.to_thread(write_backup, self._data, folder, contents, self._clock, progress)
        finally:
            for snapshot in snapshots.values():
                snapshot.close()
            for checkpoint in self._checkpoints:
                checkpoint.is_resting = False

    async def _one_instant(self, snapshots: list[Snapshot]) -> bytes:
        """Pin all snapshots between the same commits; returns the catalog of that moment."""
        for _ in range(HOLDS_MAX):
            self._demand_open()
            self._demand_running()
            catalog = await self._snapshots(snapshots)
            if catalog is not None:
                return catalog
            await asyncio.sleep(_PAUSE_S)
        raise StoreFailed(
            "The stores were never free at the same moment, because something long is done in one of them. Try later."
        )

    async def _snapshots(self, snapshots: list[Snapshot]) -> bytes | None:
        loop = asyncio.get_running_loop()
        catalog: list[bytes] = []

        def arrived() -> None:
            # In the loop, and so between two changes of the catalog, while no store does anything.
            try:
                catalog.append(self._catalog.serialized())
            except StoreFailed as error:
                self._log.error("catalog not read", reason=str(error))
            hold.end()

        hold = Hold(len(snapshots), loop, arrived)
        brokers = self._brokers.values()
        calls = [
            broker.call(partial(hold.enter, broker.store, pinned))
            for broker, pinned in zip(brokers, snapshots, strict=True)
        ]
        try:
            stood = await asyncio.wait_for(asyncio.gather(*calls), _ANSWER_S)
        except TimeoutError:
            # What is still in line does nothing when its turn comes.
            return None
        finally:
            hold.end()
        return catalog[0] if all(stood) and catalog else None

    def _copied(self, lives: dict[int, int], copied: int, total: int) -> None:
        """Called by the copying thread after each step."""
        self._status |= {"bytes": total, "copied": copied}
        self._demand_running()
        for number, broker in self._brokers.items():
            # It has to be let go, or it could not be opened again.
            if broker.failures != lives[number]:
                raise StoreFailed(f"Messaging store {number} failed meanwhile: {broker.last_error}")

    def _demand_running(self) -> None:
        if self._is_stopped:
            raise StoreFailed("The server was stopped. Take another backup when it runs again.")

    def _demand_open(self) -> None:
        for broker in self._brokers.values():
            if broker.state != "open":
                raise broker.unavailable()
