"""MessageBroker: the shell around the fragments of one messaging store. Decide, commit, release.

Everything that waits when a commit starts goes into that one commit; what arrives meanwhile joins the next. No
timer and no minimum batch: under load the commits grow by themselves. A failed commit throws the memory of all
its fragments away; they are made again from the store, which is closed and reopened in the background. Only the
fragments of that store suffer (design decisions 3 and 4).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from duobus.broker import admission, recovery
from duobus.broker.admission import busy
from duobus.broker.counts import DeliveryCountTimer
from duobus.broker.deadline_timer import DeadlineTimer
from duobus.broker.delivery.credit_scheduler import Receiver
from duobus.broker.delivery.session_service import SessionService, notify_holders_of
from duobus.broker.fair_queue import FairQueue, effort_of, weigh
from duobus.broker.fragment_handle import FragmentHandle
from duobus.broker.fragment_host import FragmentHost
from duobus.broker.freight import PiggybackWrites
from duobus.broker.pager import Pager, set_windows
from duobus.broker.protocols import FragmentPlan, LateRefusal, StoreWatcher
from duobus.broker.undecided import AWAITED, InDoubtCommits
from duobus.clock import BrokerTime, Entropy
from duobus.errors import InternalError, MessageNotFound, QuotaExceeded, ServiceBusError, StoreFailed, StoreUnavailable
from duobus.fragment.commands import (
    Command,
    Group,
    Run,
    TakeAndRemove,
)
from duobus.fragment.duplicate_detection import MessageIdBudget
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import NEVER, QueuedMessage
from duobus.fragment.sessions import sessions
from duobus.fragment.topics import fanout
from duobus.model.batches import DeliveryBatch, Mailbox
from duobus.model.quotas import STORE_TIMEOUT_S
from duobus.storage.interface import CommitBatch, MessagingStore, StoreContents, Tombstone
from duobus.storage.writer_pool import CLOSE_S, ENDLESS_S, StoreWatchdog
from duobus.storage.writers import Writer

T = TypeVar("T")

#: Beyond this the time of an fsync grows with the data (reference/performance.md 5.4, rule 10).
COMMIT_BYTES_MAX = 1 << 20
COMMIT_MESSAGES_MAX = 2000
#: Delivery counts that ride in one commit. A receiver that takes thousands of messages and goes, again and again, would
#: make the commits of everybody in this store as long as it likes; what is left goes with the next ones.
COMMIT_TOUCHED_MAX = 500
#: Commands in waiting; a sender's credit keeps it far below, so reaching it means overload.
PENDING_MAX = 100_000

REOPEN_FIRST_S, REOPEN_MAX_S = 0.1, 5.0
#: Commits between two checks of the windows: each goes through all fragments.
WINDOWS_EVERY = 64
#: Upper bounds of the histogram of commit times.
COMMIT_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class MessageBroker(FragmentHost):
    """One message broker with its messaging store.

    Attributes:
        store_id: The store's number in the catalog.
        plans: (entity id, fragment number) to the plan of each fragment that lives here.
        place: Where its store is, for those who look at it; without secrets.
        disk: Equal for stores whose commits share a disk.
        state: "closed", "opening", "open" or "failed".
        commits, failures: How often, since the start.
        last_error: Why the store is not open, or None.
        sessions: What it does for those who hold sessions.
        quarantined: (source key, count) to what is wrong, of the messages that this life of the store found damaged.
        id_room: Message ids that the duplicate detection of all its fragments remembers.
        commit_seconds, commit_buckets: Time of all commits, and how many took up to each of COMMIT_BOUNDS_S.
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
        self.plans: dict[tuple[int, int], FragmentPlan] = {}
        self.place = ""
        self.disk: object = None
        self.state = "closed"
        self.commits = 0
        self.failures = 0
        self.last_error: str | None = None
        self.quarantined: dict[tuple[int, int], str] = {}
        self.generation = 0
        self.id_room = MessageIdBudget()
        self.commit_seconds = 0.0
        self.commit_buckets = [0] * (len(COMMIT_BOUNDS_S) + 1)
        self._started_s = -ENDLESS_S
        self._time = time
        self._entropy = entropy
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._writer = StoreWatchdog(self._loop, writer, timeout_s, self.see_late, self.see_prompt)
        self._fragments: dict[int, Fragment] = {}
        # Fragments with delivery counts to write, and those of the commit under way.
        self._changed: dict[int, Fragment] = {}
        self._counts = DeliveryCountTimer(self._loop, self._schedule)
        self._committing: dict[object, Fragment] = {}
        self._pending: deque[Command] = deque()
        self._lines = FairQueue()
        self._work: list[Command] | None = None
        self._commit_no = 0
        self._start_scheduled = False
        self._alarm = DeadlineTimer(self._loop, time.now_ms, self._ring)
        self._pager = Pager(self, self._writer if reader is None else StoreWatchdog(self._loop, reader, timeout_s))
        self.sessions = SessionService(self)
        self.watches = []
        self._returned = []
        self._piggyback = PiggybackWrites()
        # Tombstones of other stores, each with the refusal that waits until it is durable; then those in a commit.
        self._tombstones: list[tuple[Tombstone, LateRefusal]] = []
        self._carried: list[tuple[Tombstone, LateRefusal]] = []
        self._forgotten: list[tuple[int, int]] = []
        self._in_doubt = InDoubtCommits()
        self._life = 0
        self._idle: asyncio.Future[None] | None = None

    # -- opening ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store and recover its fragments.

        Raises:
            StoreFailed: The store cannot be opened; ``reopen_later`` keeps trying.
            StoreTooNew: A newer version wrote it.
        """
        life = self._life
        if self.state != "failed":  # a store that failed stays so until its file can be opened again
            self.state = "opening"
        contents = await self.call(self.store.open)
        if life == self._life:
            self.state = "opening"
        self._watcher.demand_own(self, contents)
        self.raise_time(contents.broker_ms)
        await self.recover(contents)

    def begin_time(self, recorded_ms: int) -> None:
        """See ``BrokerTime.begin``."""
        self._time.begin(recorded_ms)

    def raise_time(self, committed_ms: int) -> None:
        """Broker time never runs behind what a store has recorded."""
        self._time.raise_to(committed_ms)

    async def recover(self, contents: StoreContents) -> None:
        """Begin a new life of the store that ``open`` found, and bring its fragments back."""
        deletions = [
            tombstone
            for tombstone in self._watcher.tombstones_of(self.store_id, contents.generation)
            if contents.last_commit_no >= tombstone.commit_no
        ]
        previous = contents.generation
        counters = await recovery.counters_without(self, contents, deletions)
        self.generation = await self.call(lambda: self.store.begin_generation(deletions, counters))
        self._commit_no = contents.last_commit_no
        life = self._life
        fragments = await recovery.recover_fragments(self, contents, self._entropy, counters)
        damaged = await self.call(self.store.quarantined)
        if life != self._life:
            # Closed meanwhile: this life has ended before it began.
            return
        for fragment in fragments:
            self._adopt(fragment)
        self.state = "open"
        self.last_error = None
        self._in_doubt.decide(contents.last_commit_no)
        self._watcher.forget_tombstones(self.store_id, previous)
        self._watcher.store_opened(self, contents)
        self.quarantined = {}
        self._note_quarantine(damaged)
        for fragment in fragments:
            self.follow_up(fragment, [], missing=sum(source.missing for source in fragment.sources.values()))
        self._see_to_returned()

    def call(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run a blocking call of the store in its thread, in order with the commits, however long it takes."""
        return self._call(call, ENDLESS_S)

    def _call(self, call: Callable[[], T], timeout_s: float | None) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        self._writer.submit(call, done, timeout_s)
        return future

    def read(self, call: Callable[[], T], take: Callable[[T], None]) -> None:
        """Run a reading call of the store and hand its result on; nothing comes of it when the store has failed."""
        life = self._life

        def done(found: tuple[T, list[tuple[int, int, str]]] | None, error: BaseException | None) -> None:
            if life != self._life:
                return
            if error is not None:
                self._fail(error)
            elif found is not None:
                self._note_quarantine(found[1])
                take(found[0])

        self._writer.submit(lambda: (call(), self.store.quarantined()), done)

    async def use(self, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """Run a call of the open store for somebody who waits; its failure ends this life as that of a commit does.

        ``timeout_s``: how long it may take; None for as long as a commit.

        Raises:
            StoreUnavailable: The store failed on this, or was away already.
        """
        if self.state != "open":
            raise self.unavailable()
        life = self._life
        try:
            result, damaged = await self._call(lambda: (call(), self.store.quarantined()), timeout_s)
        except StoreFailed as error:
            if life == self._life:
                self._fail(error)
            raise self.unavailable() from error
        if life != self._life:
            raise self.unavailable()
        self._note_quarantine(damaged)
        return result

    def unavailable(self) -> StoreUnavailable:
        """The error for whoever needs this store now."""
        if self.state == "open":
            return StoreUnavailable("A fragment of this entity is being moved to another store. Try again in a second.")
        return StoreUnavailable(
            f"Messaging store {self.store_id} is not available ({self.last_error or self.state}). "
            "Try again in a few seconds; it is reopened by itself."
        )

    # -- commands in --------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """Take a command into the next commit; its result comes to ``command.reply``.

        A ``Group`` is checked as a whole, applied as a whole and committed at once, over any fragments of this
        message broker.
        """
        if self.state != "open":
            self._refuse(command, self.unavailable(), [])
            return
        if isinstance(command, Run):
            refusal = admission.admit(command)
            if refusal is None and len(self._pending) + len(self._lines) >= PENDING_MAX:
                admission.note_left(command)
                refusal = busy("too many operations wait for this messaging store")
            if refusal is not None:
                self._answer(command, refusal)
                return
        if not isinstance(command, Run) or self._lines.join(command):
            self._pending.append(command)
        self._schedule()

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
                self._tick(fragment, now_ms)
            first, slots, until_ms = fragment.lock(source_no, sub_queue, credit, now_ms)
            source = fragment.sources[source_no]
            if source.touched:
                self._changed[fragment.fragment_key] = fragment
            if source.cold_number:
                self._pager.warm(fragment)
            receiver.deliver(DeliveryBatch(handle, fragment.prefix, first, slots, until_ms), credit)
            self._alarm.note(fragment)

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
            self._tick(fragment, now_ms)
        held = fragment.sources[source_no].locks
        lost = [lock for first, number in ranges for lock in range(first, first + number) if lock not in held]
        self._pending.extend(fragment.unlock(source_no, ranges, now_ms, counted=counted))
        self._settle_down(fragment)
        return lost

    def renew(self, handle: FragmentHandle, source_no: int, prefix: bytes, locks: Sequence[int]) -> int | None:
        """Renew locks: their new end, or None when one is lost (then none was renewed)."""
        fragment, now_ms = self.present(handle)
        if fragment.prefix != prefix:
            return None
        until_ms = fragment.renew(source_no, locks, now_ms)
        self._alarm.note(fragment)
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
        self._alarm.note(fragment)
        return DeliveryBatch(handle, fragment.prefix, first, slots, until_ms)

    def present(self, handle: FragmentHandle) -> tuple[Fragment, int]:
        """A fragment in which everything has happened that is due, and broker time.

        Raises:
            StoreUnavailable: It is away.
        """
        now_ms = self._time.now_ms()
        if handle.fragment is not None and now_ms >= handle.fragment.deadline:
            self._tick(handle.fragment, now_ms)
        if handle.fragment is None:
            raise self.unavailable()
        return handle.fragment, now_ms

    def note_touched(self, fragment: Fragment) -> None:
        """Delivery counts of a fragment have changed: the next commit writes them."""
        self._changed[fragment.fragment_key] = fragment

    def note_deadline(self, fragment: Fragment) -> None:
        """Something of a fragment is due at a new time."""
        self._alarm.note(fragment)

    def now_ms(self) -> int:
        """Broker time."""
        return self._time.now_ms()

    # -- the commit ---------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        # At the end of this turn of the loop, so that all that this turn reads joins the commit.
        if self._work is None and not self._start_scheduled and self.state == "open":
            self._start_scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._start_scheduled = False
        if self._work is not None or self.state != "open":
            return
        now_ms = self._time.now_ms()
        self._tick_due(now_ms)
        commit = CommitBatch(self._commit_no + 1, now_ms)
        work = self._decide_all(now_ms, commit)
        if self.state != "open":
            return
        touched = self._committing
        others = touched or self._tombstones or self._forgotten or self._piggyback
        if not (work or others) and self._counts.may_wait(self._changed):
            if self._pending or self._lines:
                # All that was taken was refused, and took as long as a commit may.
                self._schedule()
            else:
                self._quiet()
            return
        known = self._fragments
        touched.update({found.handle: found for key, found in self._changed.items() if key in known})
        self._changed = {}
        room = COMMIT_TOUCHED_MAX
        for fragment in touched.values():
            commit.epochs.append((fragment.fragment_key, fragment.epoch))
            for source in fanout.to_write(fragment):
                room -= fragment.touch(source, commit, room)
                if source.touched:
                    self._changed[fragment.fragment_key] = fragment
        self._carried, self._tombstones = self._tombstones, []
        commit.tombstones += [tombstone for tombstone, _ in self._carried]
        commit.forgotten += self._forgotten
        self._forgotten = []
        self._piggyback.load(commit)
        self._counts.taken(self._changed)
        for watch in self.watches:
            watch(commit)
        self._work = work
        self._commit_no = commit.commit_no
        self._started_s = self._loop.time()
        life = self._life
        self._writer.commit(lambda: self.store.commit(commit), lambda _, error: self._committed(life, error, commit))

    def _decide_all(self, now_ms: int, commit: CommitBatch) -> list[Command]:
        """Check and apply what waits, up to the size of a good commit."""
        pending, lines = self._pending, self._lines
        work: list[Command] = []
        messages = size = 0
        while (pending or lines) and messages < COMMIT_MESSAGES_MAX and size < COMMIT_BYTES_MAX:
            if not pending:
                lines.move_up(pending)
            command = pending.popleft()
            if isinstance(command, Run):
                admission.note_left(command)
                lines.left(command)
            try:
                decided = self._decide(command, now_ms, commit, self._committing)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not leave clients without an answer
                # Memory may be half changed: it is thrown away. The command that did it is not tried elsewhere.
                self._answer(command, InternalError(f"The broker failed on this operation: {error!r}."))
                self._work = work
                self._fail(error, was_submitted=False)
                return []
            if decided:
                work.append(command)
                weight = weigh(command)
                messages += weight[0]
                size += weight[1]
            else:
                # What was refused is stored nowhere, and may have taken its time: others are served in between.
                messages += effort_of(command)
        if lines:
            lines.move_up(pending)
        return work

    def _decide(self, command: Command, now_ms: int, commit: CommitBatch, touched: dict[object, Fragment]) -> bool:
        """Check and apply one command; False when it was refused and answered."""
        members = command.members if isinstance(command, Group) else [command]
        fragments: list[Fragment] = []
        effort = 0
        for member in members:
            handle = member.handle
            fragment = handle.fragment
            if fragment is None or handle.broker is not self:
                # Away, or moved to another store while this waited: a keyless run goes on to where it can.
                self._refuse(command, self.unavailable(), [])
                return False
            error = fragment.check(member, now_ms)
            if isinstance(member, Run):
                effort += member.effort
                if error is None and effort > COMMIT_MESSAGES_MAX:
                    error = QuotaExceeded(fanout.EFFORT_TEXT)
            if error is not None:
                self._answer(command, error)
                # A deferred message that has run out of life goes now that it was asked for.
                self._alarm.note(fragment)
                return False
            fragments.append(fragment)
        for member, fragment in zip(members, fragments, strict=True):
            fragment.apply(member, now_ms, commit)
            touched[member.handle.home] = fragment
            if isinstance(member, Run):
                if member.placement is not None:
                    member.placement.commit_started(member.handle)
                commit.tombstones += member.tombstones
        return True

    def _committed(self, life: int, error: BaseException | None, commit: CommitBatch) -> None:
        if life != self._life:
            return
        if error is not None:
            self._fail(error)
            return
        work, fragments = self._work, self._committing
        assert work is not None
        self._work = None
        self._committing = {}
        self.commits += 1
        self._took(self._loop.time() - self._started_s)
        notified, removed = self._release(work, fragments)
        self._piggyback.delivered(commit)
        kept, self._carried = self._carried, []
        # What was stored slowly may have run out of life by now: the next commit looks at that first.
        for fragment in fragments.values():
            fanout.committed(fragment, commit)
            self._alarm.note(fragment)
        # The store works on the next commit while the gateway writes the answers of this one.
        self._start()
        for mailbox in notified:
            mailbox.wake()
        for tombstone, refusal in kept:
            refusal.settled(tombstone)
        for taken in removed:
            taken.receiver.deliver(DeliveryBatch(taken.handle, bytes(8), 0, taken.slots, 0), taken.credit)
        self._show(fragments)

    def _release(
        self, work: list[Command], fragments: dict[object, Fragment]
    ) -> tuple[list[Mailbox], list[TakeAndRemove]]:
        """Release the commands of a durable commit: the mailboxes to wake, and what receivers were waiting for."""
        now_ms = self._time.now_ms()
        notified: dict[int, Mailbox] = {}
        removed: list[TakeAndRemove] = []
        for command in work:
            for member in command.members if isinstance(command, Group) else (command,):
                fragments[member.handle.home].release(member, now_ms)
                if isinstance(member, TakeAndRemove):
                    removed.append(member)
            if command.reply is not None:
                command.reply.ready.append(command)
                notified[id(command.reply)] = command.reply
        return list(notified.values()), removed

    def _took(self, seconds: float) -> None:
        self.commit_seconds += seconds
        self.commit_buckets[bisect_left(COMMIT_BOUNDS_S, seconds)] += 1
        if not self.commits % WINDOWS_EVERY:
            set_windows(self._fragments.values())

    def _show(self, fragments: dict[object, Fragment]) -> None:
        """Offer what a commit made available, and note what is due when."""
        for fragment in fragments.values():
            if fragment.fresh or fragment.notified or fragment.ended:
                self._offer(fragment)
            self._pager.warm(fragment)
            self._alarm.note(fragment)

    def _offer(self, fragment: Fragment) -> None:
        """Notify the credit schedulers of messages that became available, and the holders of sessions."""
        notify_holders_of(fragment)
        handle = fragment.handle
        assert isinstance(handle, FragmentHandle)
        fresh = sorted(fragment.fresh)
        fragment.fresh.clear()
        for key in fresh:
            part = handle.part(key[0])
            scheduler = part.schedulers.get(key)
            if scheduler is not None:
                scheduler.offer(part)

    # -- time ---------------------------------------------------------------------------------------------------

    def _tick(self, fragment: Fragment, now_ms: int) -> None:
        if not self._is_hosted(fragment):
            return
        self._pending.extendleft(fragment.tick(now_ms))
        self._settle_down(fragment)

    def _settle_down(self, fragment: Fragment) -> None:
        """After locks ended or time passed: see to the commit, the offers and the timer."""
        if any(source.owes_commit for source in fragment.sources.values()):
            self._changed[fragment.fragment_key] = fragment
        if self._pending or self._changed:
            self._schedule()
        if fragment.fresh or fragment.notified or fragment.ended:
            self._offer(fragment)
        self._pager.warm(fragment)
        self._alarm.note(fragment)

    def follow_up(self, fragment: Fragment, commands: list[Command], *, missing: int = 0) -> None:
        """What was read of a paged tail asks for these commands; ``missing``: the store could not give so many back."""
        if not self._is_hosted(fragment):
            return
        self._pending.extend(commands)
        if missing:
            self._watcher.messages_missing(self, fragment, missing)
            self._changed[fragment.fragment_key] = fragment
        self._settle_down(fragment)

    def time_moved(self) -> None:
        """Look at once at what is due: broker time has jumped ahead (only tests do that)."""
        self._alarm.time_moved()
        self._ring()

    def _ring(self) -> None:
        if self.state == "open":
            self._tick_due(self._time.now_ms())

    def _tick_due(self, now_ms: int) -> None:
        for fragment in self._alarm.due(now_ms):
            if fragment.deadline <= now_ms:
                self._tick(fragment, now_ms)
            else:
                self._alarm.note(fragment)

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
        return await self._pager.peek(handle, source_no, sub_queue, first_count, limit, size, session_id)

    async def read_ahead(self, fragment: Fragment) -> None:
        """Bring more of a fragment's paged tails into memory, if there is room.

        Raises:
            StoreUnavailable: The store failed on this, or was away already.
        """
        await self._pager.read_ahead(fragment)

    # -- failure ------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException, *, was_submitted: bool = True) -> None:
        """The store failed: discard memory, answer or reroute everything, reopen in the background (I56).

        ``was_submitted``: whether the store was told to write what is under way, so that it may have done so.
        """
        work, self._work = self._work or [], None
        pending, self._pending = [*self._pending, *self._lines.clear()], deque()
        commit_no = self._commit_no
        # Those of the commit under way, too: one that is being moved was taken out, and may come back (I27).
        old = {**self._committing, **{fragment.handle: fragment for fragment in self._fragments.values()}}
        self._lose_memory(error)
        unavailable = self.unavailable()
        for command in work:
            if isinstance(command, AWAITED) and was_submitted:
                self._in_doubt.keep(command, commit_no, unavailable)
            else:
                self._refuse(command, unavailable, self._tombstones_of(command, commit_no, old))
        for command in pending:
            if isinstance(command, Run):
                admission.note_left(command)
            self._refuse(command, unavailable, [])
        unkept, self._tombstones, self._carried = self._carried + self._tombstones, [], []
        self._watcher.tombstones_lost(unkept)
        self._watcher.store_failed(self, error)
        life = self._life
        self._loop.call_later(REOPEN_FIRST_S, self._reopen, life, REOPEN_FIRST_S)

    def _lose_memory(self, error: BaseException) -> None:
        self._life += 1
        self.state = "failed"
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        for fragment in self._fragments.values():
            fragment.handle.become(None)  # type: ignore[attr-defined]
        owners = [owner for fragment in self._fragments.values() for owner in sessions.forget_locks(fragment)]
        self._fragments = {}
        self.id_room = MessageIdBudget(self.id_room.limit)
        self._changed, self._committing = {}, {}
        self._counts.taken(None)
        self._alarm.clear()
        self._piggyback.lost(self.unavailable())
        self._quiet()
        for owner in owners:
            owner.lost()

    def _refuse(self, command: Command, error: ServiceBusError, tombstones: list[Tombstone]) -> None:
        """Answer a command that this store cannot do; a run may find a place elsewhere."""
        if isinstance(command, Run):
            self._watcher.run_lost(self, command, tombstones)
        else:
            self._answer(command, error)

    def _tombstones_of(self, run: Command, commit_no: int, old: dict[object, Fragment]) -> list[Tombstone]:
        """The tombstones of a run whose commit may or may not be on disk; none for what is no run of messages."""
        # The entity may have been deleted while its commit was under way: then nobody brings its messages back.
        fragment = old.get(run.handle)
        ranges = fanout.ranges_of(fragment, run) if isinstance(run, Run) and fragment is not None else []
        return [Tombstone(self.store_id, self.generation, commit_no, *one) for one in ranges]

    @staticmethod
    def _answer(command: Command, error: ServiceBusError) -> None:
        command.error = error
        if isinstance(command, TakeAndRemove):
            command.receiver.deliver(DeliveryBatch(command.handle, b"", 0, [], 0), command.credit)
        elif command.reply is not None:
            command.reply.ready.append(command)
            command.reply.wake()

    def keep_tombstone(self, tombstone: Tombstone, refusal: LateRefusal) -> None:
        """Write a tombstone of another store with the next commit, and tell the refusal that waits for it."""
        self._tombstones.append((tombstone, refusal))
        self._schedule()

    def forget_tombstones(self, store_id: int, generation: int) -> None:
        """Delete tombstones that have been acted upon, with the next commit."""
        self._forgotten.append((store_id, generation))
        self._schedule()

    def reopen_later(self, error: BaseException) -> None:
        """Keep trying to open a store that could not be opened at the start."""
        self._lose_memory(error)
        self._loop.call_later(REOPEN_FIRST_S, self._reopen, self._life, REOPEN_FIRST_S)

    def _reopen(self, life: int, delay_s: float) -> None:
        if life != self._life or self.state not in ("failed", "opening"):
            return
        task = self._loop.create_task(self._try_reopen(life, delay_s), name=f"reopen-store-{self.store_id}")
        self._reopening = task  # the loop holds tasks only weakly

    async def _try_reopen(self, life: int, delay_s: float) -> None:
        try:
            await self.call(self.store.close)
            if life == self._life:
                await self.open()
        except Exception as error:  # noqa: BLE001 - the top of a task: whatever it was, try again later
            self.last_error = f"{type(error).__name__}: {error}"
            if life == self._life:
                self.state = "failed"
                self._loop.call_later(delay_s, self._reopen, life, min(delay_s * 2, REOPEN_MAX_S))

    # -- closing ------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Wait until no commit is under way or in waiting."""
        while self.state == "open" and (self._work is not None or self._pending or self._start_scheduled):
            if self._idle is None or self._idle.done():
                self._idle = self._loop.create_future()
            await self._idle

    async def close(self) -> None:
        """Finish the commits in waiting, then close the store."""
        self._counts.hurry()
        await self.finish()
        self._life += 1
        self.state = "closed"
        self._alarm.clear()
        # What was stored is on disk: a store that stalls now must not keep the process from ending.
        with suppress(StoreFailed):
            await self._call(self.store.close, CLOSE_S)

    def _quiet(self) -> None:
        """Nothing is under way: tell a ``close`` that waits for it."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
