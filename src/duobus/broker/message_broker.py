"""MessageBroker: the front of one messaging store and of the fragments that live in it.

What is done stands in its parts: ``commit_loop.py`` (decide, commit, release), ``store_lifecycle.py`` (open, fail,
reopen), ``fragment_host.py`` (fragments that come and go) and ``pager.py`` (what is not in memory).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from duobus.broker.commit_loop import CommitLoop
from duobus.broker.fragment_host import FragmentHost
from duobus.broker.pager import Pager
from duobus.broker.store_lifecycle import StoreLifecycle
from duobus.errors import StoreUnavailable
from duobus.model.quotas import STORE_TIMEOUT_S
from duobus.storage.writer_pool import StoreWatchdog

if TYPE_CHECKING:
    from duobus.broker.protocols import StoreWatcher
    from duobus.clock import BrokerTime, Entropy
    from duobus.fragment.duplicate_detection import MessageIdBudget
    from duobus.storage.interface import MessagingStore, StoreContents
    from duobus.storage.writers import Writer

T = TypeVar("T")


class MessageBroker:
    """One message broker with its messaging store.

    Attributes:
        store_id: The store's number in the catalog.
        place: Where its store is, for those who look at it; without secrets.
        disk: Equal for stores whose commits share a disk.
        lifecycle: Opens the store, gives it up and opens it again.
        host: The fragments that live in it.
        pager: Reads what is not in memory.
        commit_loop: Decides and commits.
        plans: See ``FragmentHost``.
        submit: See ``CommitLoop.submit``.
    """

    def __init__(
        self,
        store_id: int,
        store: MessagingStore,
        writer: Writer,
        *,
        time: BrokerTime,
        entropy: Entropy,
        watcher: StoreWatcher,
        reader: Writer | None = None,
        timeout_s: float = STORE_TIMEOUT_S,
    ) -> None:
        self.store_id = store_id
        self.store = store
        self.place = ""
        self.disk: object = None
        self._time = time
        self.lifecycle = StoreLifecycle(self, writer, timeout_s, time=time, entropy=entropy, watcher=watcher)
        watchdog = self.lifecycle.watchdog
        self.host = FragmentHost(self, entropy)
        self.plans = self.host.plans
        loop = asyncio.get_running_loop()
        self.pager = Pager(self, watchdog if reader is None else StoreWatchdog(loop, reader, timeout_s))
        self.commit_loop = CommitLoop(self, watchdog, time, watcher)
        self.submit = self.commit_loop.submit

    # -- the store ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """See ``StoreLifecycle``."""
        return self.lifecycle.state

    @property
    def generation(self) -> int:
        """See ``StoreLifecycle``."""
        return self.lifecycle.generation

    @property
    def failures(self) -> int:
        """See ``StoreLifecycle``."""
        return self.lifecycle.failures

    @property
    def last_error(self) -> str | None:
        """See ``StoreLifecycle``."""
        return self.lifecycle.last_error

    @property
    def quarantined(self) -> dict[tuple[int, int], str]:
        """See ``StoreLifecycle``."""
        return self.lifecycle.quarantined

    @property
    def is_late(self) -> bool:
        """Whether its store has not answered for so long that nothing should be sent to it that can go elsewhere."""
        return self.lifecycle.watchdog.is_late

    @property
    def is_stalled(self) -> bool:
        """Whether a call of its store was given up, and its thread has not come back since."""
        return self.lifecycle.watchdog.is_stalled

    @property
    def id_room(self) -> MessageIdBudget:
        """See ``FragmentHost``."""
        return self.host.id_room

    @property
    def commits(self) -> int:
        """See ``CommitLoop``."""
        return self.commit_loop.commits

    @property
    def commit_seconds(self) -> float:
        """See ``CommitLoop``."""
        return self.commit_loop.commit_seconds

    @property
    def commit_buckets(self) -> list[int]:
        """See ``CommitLoop``."""
        return self.commit_loop.commit_buckets

    def unavailable(self) -> StoreUnavailable:
        """The error for whoever needs this store now."""
        return self.lifecycle.unavailable()

    async def open(self) -> None:
        """See ``StoreLifecycle.open``."""
        await self.lifecycle.open()

    async def recover(self, contents: StoreContents) -> None:
        """See ``StoreLifecycle.recover``."""
        await self.lifecycle.recover(contents)

    async def finish(self) -> None:
        """Wait until no commit is under way or in waiting."""
        await self.commit_loop.finish()

    async def close(self) -> None:
        """Finish the commits in waiting, then close the store."""
        await self.lifecycle.close()

    def call(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run a blocking call of the store in its thread, in order with the commits, however long it takes."""
        return self.lifecycle.call(call)

    async def use(self, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """See ``StoreLifecycle.use``."""
        return await self.lifecycle.use(call, timeout_s)

    # -- time ---------------------------------------------------------------------------------------------------

    def begin_time(self, recorded_ms: int) -> None:
        """See ``BrokerTime.begin``."""
        self._time.begin(recorded_ms)

    def now_ms(self) -> int:
        """Broker time."""
        return self._time.now_ms()

    def time_moved(self) -> None:
        """Look at once at what is due: broker time has jumped ahead (only tests do that)."""
        self.commit_loop.timers.time_moved()
        self.commit_loop.look()
