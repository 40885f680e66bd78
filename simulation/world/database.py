"""What several simulated servers share: messaging stores in a database far away, and the way to it.

A call travels to the database, is carried out there, and its answer travels back. So a commit arrives though the server
that sent it was stopped, killed or cut off meanwhile, and may do so long after another server has taken the store over:
that is what generations in the database are for (I55). Sessions of former owners are not ended here, though PostgreSQL
does that; nothing may depend on it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from duobus.errors import StoreFailed, StoreStale
from duobus.storage.interface import CommitBatch, StoreContents, Tombstone
from duobus.storage.writers import StoppableWriter
from simulation.world.disk import Disk, DiskFaults, DiskState
from simulation.world.stores import CrashingStore, result_of

if TYPE_CHECKING:
    from simulation.world.loop import SimulationLoop
    from simulation.world.network import SimulatedNetwork

T = TypeVar("T")
_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]

#: The node of the network where the catalog's database is, with stores; and that of another one, which has stores only.
DATABASE: Final = "database"
OTHER_DATABASE: Final = "database-2"
#: One way of a call takes so long, in seconds; now and then one is stuck, for longer than leases last.
WAY_S: Final = (0.0005, 0.004)
STUCK_S: Final = (0.5, 6.0)
STUCK_CHANCE: Final = 0.01
#: Pause between two that are stuck, in seconds: a store is opened with hundreds of calls.
STUCK_PAUSE_S: Final = 8.0
#: How often a sender looks whether the way is open again, in seconds.
_LOOK_S: Final = 0.02


class SharedDisk(Disk):
    """A store in the database.

    Attributes:
        revision: Grows with everything that is written; whoever writes has to know it.
        is_fenced: Planted bug when false: whoever writes may.
    """

    is_fenced = True

    def __init__(self, seed: int | str = 0, faults: DiskFaults | None = None) -> None:
        super().__init__(seed, faults)
        self.revision = 0


class SharedStore(CrashingStore):
    """The store of one owner; what LeasedStore is over PostgreSQL.

    Args:
        disk: What is shared.
        is_mine: Whether the server may act for the store now.
    """

    _disk: SharedDisk

    def __init__(self, disk: SharedDisk, is_mine: Callable[[], bool]) -> None:
        super().__init__(disk)
        self._is_mine = is_mine
        self._was_mine = False
        self._revision = -1

    def look(self) -> None:
        """Look at the lease: what is begun while it lasts may arrive when it is over."""
        self._was_mine = self._is_mine()

    def _demand(self) -> None:
        if not self._was_mine:
            raise StoreFailed("the lease of this store has ended; another server has it")

    def _require_usable(self) -> None:
        if self._failed:
            raise StoreFailed("planted: failed before, and not reopened yet")
        if not self._usable:
            # A call that stood behind ``close`` in the queue of a store that was dropped.
            raise StoreFailed("the store is not open")

    def _fence(self) -> None:
        if self._disk.is_fenced and self._disk.revision != self._revision:
            self._usable, self._failed = False, True
            raise StoreStale("another owner has written to this store")

    def open(self) -> StoreContents:
        """See MessagingStore; nobody is kept out."""
        self._demand()
        self._disk.owner = None
        contents = super().open()
        self._revision = self._disk.revision
        return contents

    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """See MessagingStore."""
        self._demand()
        return super().begin_generation(deletions, counters)

    def commit(self, batch: CommitBatch) -> None:
        """See MessagingStore."""
        self._demand()
        self._require_usable()
        self._fence()
        if not self._disk.is_fenced:
            known = self._state.fragments
            batch.epochs = [(key, known[key][2]) for key, _ in batch.epochs if key in known]
        super().commit(batch)

    def _perform(self, operation: Callable[[DiskState], None]) -> None:
        self._require_usable()
        self._fence()
        try:
            super()._perform(operation)
        finally:
            self._disk.revision += 1
            self._revision = self._disk.revision


class DatabaseLink(StoppableWriter):
    """The thread of a server that speaks with the database.

    Args:
        loop, network: Where all of it happens.
        host: Node of the server; the way from there to the database may be cut.
        rng: Decides how long the way takes.
        database: Node of the database.
        before: Called in the server's process when a call is sent.
        is_stuck: Whether calls may be stuck for longer than a lease now.
    """

    def __init__(
        self,
        loop: SimulationLoop,
        network: SimulatedNetwork,
        host: str,
        rng: random.Random,
        *,
        database: str = DATABASE,
        before: Callable[[], None] | None = None,
        is_stuck: Callable[[], bool] | None = None,
    ) -> None:
        self._loop = loop
        self._network = network
        self._there, self._back = network.route(host, database), network.route(database, host)
        self._random = rng
        self._before = before
        self._is_stuck = is_stuck
        self._jobs: deque[_Job] = deque()
        self._is_stopped = False
        self._was_stuck_s = loop.time() - STUCK_PAUSE_S / 2
        # What runs in the server's process stops and dies with it.
        self._context = copy_context()

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """See Writer."""
        if self._is_stopped:
            self._loop.call_soon(done, None, StoreFailed("the store's writer has been stopped"))
            return
        self._jobs.append((call, done))
        if len(self._jobs) == 1:
            self._loop.call_soon(self._send, context=self._context)

    def stop(self) -> bool:
        """See Writer; what waits is still done."""
        self._is_stopped = True
        return not self._jobs

    def _send(self) -> None:
        if self._there.cut:
            self._loop.call_later(_LOOK_S, self._send, context=self._context)
            return
        if self._before is not None:
            self._before()
        delay = self._random.uniform(*WAY_S)
        if self._random.random() < STUCK_CHANCE and self._is_stuck is not None and self._is_stuck():
            now_s = self._loop.time()
            if now_s > self._was_stuck_s + STUCK_PAUSE_S:
                self._was_stuck_s = now_s
                delay += self._random.uniform(*STUCK_S)
        self._loop.call_later(delay, self._arrived, self._jobs[0][0], context=self._network.context)

    def _arrived(self, call: Callable[[], Any]) -> None:
        """At the database, whatever has become of the server."""
        self._answer(*result_of(call, self._loop))

    def _answer(self, result: Any, failure: BaseException | None) -> None:
        if self._back.cut:
            self._loop.call_later(_LOOK_S, self._answer, result, failure, context=self._network.context)
            return
        self._loop.call_later(self._random.uniform(*WAY_S), self._done, result, failure, context=self._context)

    def _done(self, result: Any, failure: BaseException | None) -> None:
        _, done = self._jobs.popleft()
        if self._jobs:
            self._loop.call_soon(self._send, context=self._context)
        done(result, failure)
