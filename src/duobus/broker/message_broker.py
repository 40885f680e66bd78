"""MessageBroker: the front of one messaging store and of the fragments that live in it.

What is done stands in its parts: ``commit_loop.py`` (decide, commit, release), ``store_lifecycle.py`` (open, fail,
reopen), ``fragment_host.py`` (fragments that come and go) and ``pager.py`` (what is not in memory).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from duobus.broker.commit_loop import CommitLoop
from duobus.broker.delivery.session_service import SessionService
from duobus.broker.fragment_host import FragmentHost
from duobus.broker.pager import Pager
from duobus.broker.store_lifecycle import StoreLifecycle
from duobus.errors import MessageNotFound, StoreUnavailable
from duobus.fragment.commands import TakeAndRemove
from duobus.fragment.message import NEVER, QueuedMessage
from duobus.model.batches import DeliveryBatch
from duobus.model.quotas import STORE_TIMEOUT_S
from duobus.storage.writer_pool import StoreWatchdog

if TYPE_CHECKING:
    from duobus.broker.delivery.credit_scheduler import Receiver
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.protocols import StoreWatcher
    from duobus.clock import BrokerTime, Entropy
    from duobus.fragment.duplicate_detection import MessageIdBudget
    from duobus.fragment.fragment import Fragment
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
        sessions: What it does for those who hold sessions.
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
        self.sessions = SessionService(self)

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

    # -- fragments ----------------------------------------------------------------------------------------------

    def take(self, handle: FragmentHandle, source_no: int, sub_queue: int, credit: int, receiver: Receiver) -> None:
        """Hand out up to ``credit`` messages; the answer goes to ``receiver.deliver``, now or later."""
        fragment = handle.fragment
        if fragment is None:
            receiver.deliver(DeliveryBatch(handle, b"", 0, [], 0), credit)
        elif receiver.removing:
            fragment.sources[source_no].sub_queues[sub_queue].promised += credit
            self.submit(TakeAndRemove(handle, source_no, sub_queue, credit, receiver))
        else:
            now_ms = self._time.now_ms()
            if now_ms >= fragment.deadline:
                self.commit_loop.tick(fragment, now_ms)
            first, slots, until_ms = fragment.lock(source_no, sub_queue, credit, now_ms)
            source = fragment.sources[source_no]
            if source.touched:
                self.commit_loop.note_counts(fragment)
            if source.cold_number:
                self.pager.warm(fragment)
            receiver.deliver(DeliveryBatch(handle, fragment.prefix, first, slots, until_ms), credit)
            self.commit_loop.timers.note(fragment)

    def unlock(
        self,
        handle: FragmentHandle,
        source_no: int,
        prefix: bytes,
        ranges: Sequence[tuple[int, int]],
        *,
        counted: bool,
    ) -> list[int]:
        """Give locked messages back at once; returns the locks that were not held (any more)."""
        fragment = handle.fragment
        if fragment is None or fragment.prefix != prefix or self._time.has_ended:
            return [lock for first, number in ranges for lock in range(first, first + number)]
        now_ms = self._time.now_ms()
        if now_ms >= fragment.deadline:
            self.commit_loop.tick(fragment, now_ms)
        held = fragment.sources[source_no].locks
        lost = [lock for first, number in ranges for lock in range(first, first + number) if lock not in held]
        self.commit_loop.pending.extend(fragment.unlock(source_no, ranges, now_ms, counted=counted))
        self.commit_loop.settle_down(fragment)
        return lost

    def renew(self, handle: FragmentHandle, source_no: int, prefix: bytes, locks: Sequence[int]) -> int | None:
        """Renew locks: their new end, or None when one is lost (then none was renewed)."""
        fragment, now_ms = self.present(handle)
        if fragment.prefix != prefix:
            return None
        until_ms = fragment.renew(source_no, locks, now_ms)
        self.commit_loop.timers.note(fragment)
        return until_ms

    def holds(self, handle: FragmentHandle, source_no: int, prefix: bytes, locks: Sequence[int]) -> bool:
        """Whether every one of these locks is held now."""
        fragment, _ = self.present(handle)
        held = fragment.sources[source_no].locks
        return fragment.prefix == prefix and all(lock in held for lock in locks)

    def lock_deferred(
        self, handle: FragmentHandle, source_no: int, sub_queue: int, counts: Sequence[int]
    ) -> DeliveryBatch:
        """Lock deferred messages by number: all of them or MessageNotFound."""
        fragment, now_ms = self.present(handle)
        try:
            first, slots, until_ms = fragment.lock_deferred(source_no, sub_queue, counts, now_ms)
        except MessageNotFound:
            # What has run out of life goes now that it was asked for.
            self.present(handle)
            raise
        self.commit_loop.timers.note(fragment)
        return DeliveryBatch(handle, fragment.prefix, first, slots, until_ms)

    def present(self, handle: FragmentHandle) -> tuple[Fragment, int]:
        """A fragment in which everything has happened that is due, and broker time.

        Raises:
            StoreUnavailable: It is away.
        """
        now_ms = self._time.now_ms()
        if handle.fragment is not None and now_ms >= handle.fragment.deadline:
            self.commit_loop.tick(handle.fragment, now_ms)
        if handle.fragment is None:
            raise self.unavailable()
        return handle.fragment, now_ms

    async def peek(
        self,
        handle: FragmentHandle,
        source_no: int,
        sub_queue: int,
        first_count: int,
        limit: int,
        size: int = NEVER,
        session_id: str | None = None,
    ) -> list[QueuedMessage]:
        """Messages of a sub-queue from ``first_count`` on, ascending, whether in memory or not; changes nothing.

        ``size``: bytes at which no further message is looked for; ``session_id``: only messages of this session.
        """
        return await self.pager.peek(handle, source_no, sub_queue, first_count, limit, size, session_id)

    async def read_ahead(self, fragment: Fragment) -> None:
        """Bring more of a fragment's paged tails into memory, if there is room.

        Raises:
            StoreUnavailable: The store failed on this, or was away already.
        """
        await self.pager.read_ahead(fragment)
