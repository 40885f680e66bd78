"""Decide, commit, release: what happens to every command of one messaging store. Read this first.

    submit ──▶ pending ──decide──▶ commit under way ──release──▶ answers, offers
                  ▲  (check, apply in memory)  (the store's thread)      │
                  └────────── what arrives meanwhile waits ──────────────┘

Everything that waits when a commit starts goes into that one commit; what arrives meanwhile joins the next. No
timer and no minimum batch: under load the commits grow by themselves. One commit at most is under way.

A commit of nothing but completions that are not answered (``Command.may_wait``) is decided like any other, and then
held: the store is told to write it with the next command that does not wait, or ``HOLD_S`` later. So a receiver that
settles for itself, as that of the Python SDK up to 7.14 does, shares the commits of what is sent meanwhile.

What goes with a commit beside the decisions of its fragments:

- Changed delivery counts. A connection that is lost, or a lock that ends, gives back messages whose counts have grown.
  Each count is a row to be written anew, eight microseconds of a thread that the clients of other stores share the
  processor with; and whoever connects, takes messages and goes, again and again, changes the same ones each time. A
  crash may forget the deliveries since a fragment's last commit, whenever that was (decision 0019): so changed counts
  are no reason for a commit of their own at once, and wait a while for one that others need.
- Piggyback writes, pieces of a fragment that is moved here from another store (``fragment_moves/move.py``): they share
  the commits of all others, so that they cost no sync of their own and the numbers of commits stay in one hand.
- Tombstones of other stores.

Opening, failing and reopening the store is the task of ``store_lifecycle.py``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from duobus.broker.deadline_timer import DeadlineTimer
from duobus.broker.delivery.session_service import notify_holders_of
from duobus.broker.fair_queue import FairQueue
from duobus.broker.fragment_handle import FragmentHandle
from duobus.concurrency.turn_end import turn_end
from duobus.errors import InternalError, QuotaExceeded, ServiceBusError
from duobus.fragment.commands import Command, Group
from duobus.fragment.send import Run
from duobus.fragment.topics import fanout
from duobus.model.batches import Mailbox
from duobus.storage.interface import CommitBatch, Tombstone
from duobus.storage.writer_pool import ENDLESS_S

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import LateRefusal, StoreWatcher
    from duobus.clock import BrokerTime
    from duobus.fragment.fragment import Fragment
    from duobus.storage.writer_pool import StoreWatchdog

#: Puts rows into a commit.
Fill = Callable[[CommitBatch], None]

#: Beyond this the time of an fsync grows with the data.
COMMIT_BYTES_MAX = 1 << 20
COMMIT_MESSAGES_MAX = 2000
#: Delivery counts that ride in one commit. A receiver that takes thousands of messages and goes, again and again, would
#: make the commits of everybody in this store as long as it likes; what is left goes with the next ones.
COMMIT_TOUCHED_MAX = 500
#: How long delivery counts wait for company.
COUNTS_WAIT_S: Final = 5.0
#: How long a commit of completions that are not answered is held.
HOLD_S: Final = 0.005

#: Commits between two looks at the memory that messages take: a look goes over every fragment.
LOOK_EVERY = 64
#: Upper bounds of the histogram of commit times.
COMMIT_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


def _is_unanswered(command: Command) -> bool:
    return command.reply is None and command.may_wait()


class DeliveryCountTimer:
    """Says when delivery counts are to be written though nothing else is.

    Args:
        loop: For the timer.
        schedule: Called when they have waited long enough.

    Attributes:
        is_set: Some wait, or have waited long enough, since the last ``clear``.
    """

    __slots__ = ("_is_due", "_loop", "_schedule", "_timer", "is_set")

    def __init__(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        self._loop = loop
        self._schedule = schedule
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self.is_set = False

    def may_wait(self) -> bool:
        """Whether the counts that have changed wait on; called when there is nothing else to commit."""
        if not self.is_set:
            self.is_set = True
            self._timer = self._loop.call_later(COUNTS_WAIT_S, self.hurry)
        return not self._is_due

    def hurry(self) -> None:
        """They wait no longer."""
        self._is_due = self.is_set = True
        self._schedule()

    def clear(self) -> None:
        """A commit has taken all that had changed."""
        self._is_due = self.is_set = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class CommitLoop:
    """The commits of one messaging store, one after the other.

    Attributes:
        time: Broker time.
        timers: When which fragment wants to be looked at.
        commits: How many have succeeded, since the start.
        commit_seconds, commit_buckets: Time of all commits, and how many took up to each of COMMIT_BOUNDS_S.
        commit_no: Number of the last commit that the store was told to write.
        started_s: When that was, on the loop's clock.
        watches: Called with each commit when the store is told to write it; those of moves.
        pending: Commands that wait for the next commit.
        lines: Messages that wait behind those, a line for each entity.
        work: The commands of the commit under way, or held; None while there is none.
        changed: By key, the fragments with delivery counts to write.
        committing: By handle, the fragments of the commit under way.
    """

    def __init__(self, broker: MessageBroker, watchdog: StoreWatchdog, time: BrokerTime, watcher: StoreWatcher) -> None:
        """``broker``: whose store it is; it has its life cycle, its fragments and its pager by now."""
        self._broker = broker
        self._lifecycle = broker.lifecycle
        self._host = broker.host
        self._pager = broker.pager
        self._store = broker.store
        self._watchdog = watchdog
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._at_turn_end = turn_end(self._loop)
        self.time = time
        self.timers = DeadlineTimer(self._loop, time.now_ms, self.look)
        self.commits = 0
        self.commit_seconds = 0.0
        self.commit_buckets = [0] * (len(COMMIT_BOUNDS_S) + 1)
        self.commit_no = 0
        self.started_s = -ENDLESS_S
        self.watches: list[Callable[[CommitBatch], None]] = []
        self.pending: deque[Command] = deque()
        self.lines = FairQueue()
        self.work: list[Command] | None = None
        self.changed: dict[int, Fragment] = {}
        self.committing: dict[object, Fragment] = {}
        self._counts = DeliveryCountTimer(self._loop, self.schedule)
        self._is_scheduled = False
        # The commit that is held: decided, and the store was not told. Until when, and whether a timer runs.
        self._held: CommitBatch | None = None
        self._held_until_s = 0.0
        self._is_timed = False
        # Whether the next commit is not to be held.
        self._is_awaited = False
        # Piggyback writes that wait for a commit; then who waits for those of the commit under way.
        self._writes: list[tuple[Fill, asyncio.Future[CommitBatch]]] = []
        self._written: list[asyncio.Future[CommitBatch]] = []
        # Tombstones of other stores, each with the refusal that waits until it is durable; then those in a commit.
        self._tombstones: list[tuple[Tombstone, LateRefusal]] = []
        self._carried: list[tuple[Tombstone, LateRefusal]] = []
        self._forgotten: list[tuple[int, int]] = []
        # Payload bytes taken in since the last look at the memory.
        self._taken_in = 0
        self._idle: asyncio.Future[None] | None = None

    # -- commands in --------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """Take a command into the next commit; its result comes to ``command.reply``.

        A ``Group`` is checked as a whole, applied as a whole and committed at once, over any fragments of this
        message broker.
        """
        if self._lifecycle.state != "open":
            self.refuse(command, self._lifecycle.unavailable(), [])
            return
        if isinstance(command, Run):
            refusal = self.lines.join(command, self.pending)
            if refusal is not None:
                self._answer(command, refusal)
                return
        else:
            self.pending.append(command)
        self.schedule(is_awaited=command.reply is not None or not command.may_wait())

    def add_writes(self, fill: Fill) -> asyncio.Future[CommitBatch]:
        """Have ``fill`` put something into the next commit; the future gets it when it is durable.

        The future may raise StoreUnavailable: the store failed, or was away already.
        """
        future: asyncio.Future[CommitBatch] = self._loop.create_future()
        self._writes.append((fill, future))
        if self._lifecycle.state == "open":
            self.schedule()
        else:
            self._lose_writes(self._lifecycle.unavailable())
        return future

    def keep_tombstone(self, tombstone: Tombstone, refusal: LateRefusal) -> None:
        """Write a tombstone of another store with the next commit, and tell the refusal that waits for it."""
        self._tombstones.append((tombstone, refusal))
        self.schedule()

    def forget_tombstones(self, store_id: int, generation: int) -> None:
        """Delete tombstones that have been acted upon, with the next commit."""
        self._forgotten.append((store_id, generation))
        self.schedule()

    def note_counts(self, fragment: Fragment) -> None:
        """Delivery counts of a fragment have changed: the next commit writes them."""
        self.changed[fragment.fragment_key] = fragment

    def schedule(self, *, is_awaited: bool = True) -> None:
        """Decide at the end of this turn of the loop, so that all that this turn reads joins it.

        ``is_awaited``: the commit begins then, too; otherwise it may be held.
        """
        if is_awaited:
            self._is_awaited = True
        is_free = self.work is None or self._held is not None
        if is_free and not self._is_scheduled and self._lifecycle.state == "open":
            self._is_scheduled = True
            self._at_turn_end(self._start)

    # -- decide -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._is_scheduled = False
        lifecycle = self._lifecycle
        held = self._held
        if (self.work is not None and held is None) or lifecycle.state != "open":
            return
        now_ms = self.time.now_ms()
        if self.timers.earliest_ms <= now_ms:
            self._tick_due(now_ms)
        others = self._tombstones or self._forgotten or self._writes
        if not (held or self.pending or self.lines.number or self.changed or others):
            if self._idle is not None:
                self._note_idle()
            return
        if held is None:
            commit, work = CommitBatch(self.commit_no + 1, now_ms), []
        else:
            commit, work = held, self.work or []
            commit.broker_ms = now_ms
        taken_in = self._taken_in
        work += self._decide_all(now_ms, commit)
        if lifecycle.state != "open":
            return
        touched = self.committing
        others = self._tombstones or self._forgotten or self._writes
        if not (work or touched or others) and (not self.changed or self._counts.may_wait()):
            self._note_idle()
            return
        if work and not (self._is_awaited or others):
            self._hold(commit, work)
            return
        self._held = None
        # What found no room in this commit is decided right behind it.
        self._is_awaited = bool(self.pending)
        self._add_sources(touched, commit)
        if others or self.watches:
            self._add_others(commit)
        self.work = work
        self.commit_no = commit.commit_no
        self.started_s = self._loop.time()
        life = lifecycle.life
        done = partial(self._committed, life, commit)
        # What a move adds may be long.
        size = COMMIT_BYTES_MAX if self._written else self._taken_in - taken_in
        self._watchdog.submit(partial(self._store.commit, commit), done, size=size)

    def _hold(self, commit: CommitBatch, work: list[Command]) -> None:
        """Hold a commit that nobody waits for until there is company, or its time is over."""
        now_s = self._loop.time()
        if self._held is None:
            self._held = commit
            self._held_until_s = now_s + HOLD_S
            self.commit_no = commit.commit_no
        self.work = work
        if not self._is_timed:
            # One timer for all of them: to take one back for each commit would cost as much as the wait saves.
            self._is_timed = True
            self._loop.call_at(self._held_until_s, self._hold_no_longer)

    def write_unanswered(self) -> int:
        """Have completions that are not answered written: somebody is about to look at what they remove.

        Returns:
            After how many calls of the store from now on they have been: none, the commit under way, and the next one.
        """
        is_waiting = any(map(_is_unanswered, self.pending))
        if self._held is None and not is_waiting:
            return int(any(map(_is_unanswered, self.work or ())))
        self._is_awaited = True
        if self._held is None and self.work is not None:
            return 2
        self._start()
        return 1

    def _hold_no_longer(self) -> None:
        self._is_timed = False
        if self._held is None:
            return
        if self._loop.time() < self._held_until_s:
            self._is_timed = True
            self._loop.call_at(self._held_until_s, self._hold_no_longer)
        else:
            self.schedule()

    def _decide_all(self, now_ms: int, commit: CommitBatch) -> list[Command]:
        """Check and apply what waits, up to the size of a good commit."""
        pending, lines = self.pending, self.lines
        work: list[Command] = []
        messages = size = 0
        while (pending or lines.number) and messages < COMMIT_MESSAGES_MAX and size < COMMIT_BYTES_MAX:
            if not pending:
                lines.move_up(pending)
            command = pending.popleft()
            if isinstance(command, Run):
                lines.left(command)
            try:
                decided = self._decide(command, now_ms, commit)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not leave clients without an answer
                # Memory may be half changed: it is thrown away. The command that did it is not tried elsewhere.
                self._answer(command, InternalError(f"The broker failed on this operation: {error!r}."))
                self.work = work
                self._lifecycle.fail(error, was_submitted=False)
                return []
            if decided:
                work.append(command)
                weight = command.weight()
                messages += weight[0]
                size += weight[1]
            else:
                # What was refused is stored nowhere, and may have taken its time: others are served in between.
                messages += command.effort_spent()
        if lines.number:
            lines.move_up(pending)
        self._taken_in += size
        return work

    def _decide(self, command: Command, now_ms: int, commit: CommitBatch) -> bool:
        """Check and apply one command; False when it was refused and answered."""
        if isinstance(command, Group):
            return self._decide_group(command, now_ms, commit)
        handle = command.handle
        fragment = handle.fragment
        if fragment is None or handle.broker is not self._broker:
            # Away, or moved to another store while this waited: a keyless run goes on to where it can.
            self.refuse(command, self._lifecycle.unavailable(), [])
            return False
        error = fragment.check(command, now_ms)
        if error is None and isinstance(command, Run) and command.effort > COMMIT_MESSAGES_MAX:
            error = QuotaExceeded(fanout.EFFORT_TEXT)
        if error is not None:
            self._answer(command, error)
            # A deferred message that has run out of life goes now that it was asked for.
            self.timers.note(fragment)
            return False
        self._apply(command, fragment, now_ms, commit)
        return True

    def _decide_group(self, group: Group, now_ms: int, commit: CommitBatch) -> bool:
        """As ``_decide``: all members or none."""
        fragments: list[Fragment] = []
        effort = 0
        for member in group.members:
            handle = member.handle
            fragment = handle.fragment
            if fragment is None or handle.broker is not self._broker:
                self.refuse(group, self._lifecycle.unavailable(), [])
                return False
            error = fragment.check(member, now_ms)
            if isinstance(member, Run):
                effort += member.effort
                if error is None and effort > COMMIT_MESSAGES_MAX:
                    error = QuotaExceeded(fanout.EFFORT_TEXT)
            if error is not None:
                self._answer(group, error)
                self.timers.note(fragment)
                return False
            fragments.append(fragment)
        for member, fragment in zip(group.members, fragments, strict=True):
            self._apply(member, fragment, now_ms, commit)
        return True

    def _apply(self, command: Command, fragment: Fragment, now_ms: int, commit: CommitBatch) -> None:
        """Apply one command, which was checked, and note what its fragment owes the commit."""
        fragment.apply(command, now_ms, commit)
        self.committing[command.handle.home] = fragment
        if isinstance(command, Run):
            placement = command.placement
            if placement is not None and len(placement.fragments) > 1:
                placement.commit_started(command.handle)
            if command.tombstones:
                commit.tombstones += command.tombstones

    def _add_sources(self, touched: dict[object, Fragment], commit: CommitBatch) -> None:
        """Put in what every fragment of a commit owes it: epoch, counters, changed delivery counts."""
        if self.changed:
            known = self._host.fragments
            touched.update({found.handle: found for key, found in self.changed.items() if key in known})
            self.changed = {}
        room = COMMIT_TOUCHED_MAX
        for fragment in touched.values():
            commit.epochs.append((fragment.fragment_key, fragment.epoch))
            for source in fragment.sources.values() if fragment.topic is None else fanout.to_write(fragment):
                room -= fragment.touch(source, commit, room)
                if source.touched:
                    # What had no room follows in the same way.
                    self.changed[fragment.fragment_key] = fragment
        if self._counts.is_set and not self.changed:
            self._counts.clear()

    def _add_others(self, commit: CommitBatch) -> None:
        """Put in what goes with a commit beside the decisions of its fragments."""
        self._carried, self._tombstones = self._tombstones, []
        commit.tombstones += [tombstone for tombstone, _ in self._carried]
        commit.forgotten += self._forgotten
        self._forgotten = []
        writes, self._writes = self._writes, []
        for fill, future in writes:
            if not future.cancelled():
                fill(commit)
                self._written.append(future)
        for watch in self.watches:
            watch(commit)

    # -- release ------------------------------------------------------------------------------------------------

    def _committed(self, life: int, commit: CommitBatch, _result: None, error: BaseException | None) -> None:
        if life != self._lifecycle.life:
            return
        if error is not None:
            self._lifecycle.fail(error)
            return
        work, fragments = self.work, self.committing
        assert work is not None
        self.work = None
        self.committing = {}
        self.commits += 1
        self._note_time(self._loop.time() - self.started_s)
        notified, unread = self._release(work, fragments)
        if self._written:
            self._tell_written(commit)
        kept, self._carried = self._carried, []
        # What was stored slowly may have run out of life by now: the next commit looks at that first.
        for fragment in fragments.values():
            if fragment.topic is not None:
                fanout.committed(fragment, fragment.topic, commit)
            if fragment.deadline < fragment.armed:
                self.timers.note(fragment)
        # The store works on the next commit while the listeners write the answers of this one.
        self._start()
        for mailbox in notified:
            mailbox.wake()
        for tombstone, refusal in kept:
            refusal.settled(tombstone)
        for command in unread:
            command.finish()
        self._show(fragments.values())

    def _release(self, work: list[Command], fragments: dict[object, Fragment]) -> tuple[list[Mailbox], list[Command]]:
        """Release the commands of a durable commit: the mailboxes to wake, and the commands that are in none."""
        now_ms = self.time.now_ms()
        notified: dict[int, Mailbox] = {}
        unread: list[Command] = []
        for command in work:
            for member in command.members if isinstance(command, Group) else (command,):
                fragments[member.handle.home].release(member, now_ms)
            if command.reply is not None:
                command.reply.ready.append(command)
                notified[id(command.reply)] = command.reply
            else:
                unread.append(command)
        return list(notified.values()), unread

    def _tell_written(self, commit: CommitBatch) -> None:
        """Tell those whose piggyback writes are durable now."""
        written, self._written = self._written, []
        for future in written:
            if not future.cancelled():
                future.set_result(commit)

    def note_kept(self, size: int) -> None:
        """So many bytes of messages stay in memory from now on: what is free is looked at earlier for it."""
        self._taken_in += size

    def _note_time(self, seconds: float) -> None:
        self.commit_seconds += seconds
        self.commit_buckets[bisect_left(COMMIT_BOUNDS_S, seconds)] += 1
        room = self._watcher.memory_room
        if not self.commits % LOOK_EVERY or self._taken_in > room.look_at:
            self._taken_in = 0
            room.share(self._broker.store_id, self._host.fragments.values())

    def _show(self, fragments: Iterable[Fragment]) -> None:
        """Offer what became available, and note what is due when."""
        for fragment in fragments:
            if fragment.fresh or fragment.notified or fragment.ended:
                self._offer(fragment)
            for source in fragment.sources.values():
                if source.tail_count and not source.is_paging:
                    self._pager.prefetch(fragment, source)
            if fragment.deadline < fragment.armed:
                self.timers.note(fragment)

    def _offer(self, fragment: Fragment) -> None:
        """Tell the credit schedulers of messages that became available, and the holders of sessions."""
        if fragment.notified or fragment.ended:
            notify_holders_of(fragment)
        handle: FragmentHandle = fragment.handle
        fresh = sorted(fragment.fresh)
        fragment.fresh.clear()
        for key in fresh:
            part = handle.parts.get(key[0], handle)
            scheduler = part.schedulers.get(key)
            if scheduler is not None:
                scheduler.offer(part)

    def refuse(self, command: Command, error: ServiceBusError, tombstones: list[Tombstone]) -> None:
        """Answer a command that this store cannot do; a run may find a place elsewhere."""
        if isinstance(command, Run):
            self._watcher.run_lost(self._broker, command, tombstones)
        else:
            self._answer(command, error)

    @staticmethod
    def _answer(command: Command, error: ServiceBusError) -> None:
        command.error = error
        command.finish()

    # -- time ---------------------------------------------------------------------------------------------------

    def tick(self, fragment: Fragment, now_ms: int) -> None:
        """Have everything happen in a fragment that is due."""
        if self._host.has(fragment):
            self.pending.extendleft(fragment.tick(now_ms))
            self.settle_down(fragment)

    def settle_down(self, fragment: Fragment) -> None:
        """After locks ended or time passed: see to the commit, the offers and the timer."""
        if any(source.owes_commit for source in fragment.sources.values()):
            self.changed[fragment.fragment_key] = fragment
        if self.pending or self.changed:
            self.schedule()
        self._show((fragment,))

    def follow_up(self, fragment: Fragment, commands: list[Command], *, missing: int = 0) -> None:
        """What was read of a paged tail asks for these commands; ``missing``: the store could not give so many back."""
        if not self._host.has(fragment):
            return
        self.pending.extend(commands)
        if missing:
            self._watcher.messages_missing(self._broker, fragment, missing)
            self.changed[fragment.fragment_key] = fragment
        self.settle_down(fragment)

    def look(self) -> None:
        """Look at what is due, while the store is open."""
        if self._lifecycle.state == "open":
            self._tick_due(self.time.now_ms())

    def _tick_due(self, now_ms: int) -> None:
        for fragment in self.timers.due(now_ms):
            if fragment.deadline <= now_ms:
                self.tick(fragment, now_ms)
            else:
                self.timers.note(fragment)

    # -- the end of a life, and of waiting ----------------------------------------------------------------------

    def drain(self) -> tuple[list[Command], list[Command]]:
        """Take away the commands of the commit under way, and those in waiting; somebody else answers them."""
        work, self.work, self._held = self.work or [], None, None
        waiting, self.pending = [*self.pending, *self.lines.clear()], deque()
        return work, waiting

    def forget(self, error: ServiceBusError) -> None:
        """The memory of all fragments is gone; ``error`` is for those who wait for piggyback writes."""
        self.changed, self.committing = {}, {}
        self._counts.clear()
        self.timers.clear()
        self._lose_writes(error)
        self._note_idle()

    def drain_tombstones(self) -> list[tuple[Tombstone, LateRefusal]]:
        """Take away the tombstones that are not known to be durable; another store is to keep them."""
        unkept, self._tombstones, self._carried = self._carried + self._tombstones, [], []
        return unkept

    def _lose_writes(self, error: ServiceBusError) -> None:
        lost = self._written + [future for _, future in self._writes]
        self._written, self._writes = [], []
        for future in lost:
            if not future.cancelled():
                future.set_exception(error)

    async def finish(self, *, counts: bool = False) -> None:
        """Wait until no commit is under way or in waiting; ``counts``: write what delivery counts there are, too."""
        if counts:
            self._counts.hurry()
        if self._held is not None:
            self.schedule()
        while self._lifecycle.state == "open" and (self.work is not None or self.pending or self._is_scheduled):
            if self._idle is None or self._idle.done():
                self._idle = self._loop.create_future()
            await self._idle

    def _note_idle(self) -> None:
        """Nothing is under way: go on with what is left, or tell a ``finish`` that waits for this."""
        if (self.pending or self.lines.number) and self._lifecycle.state == "open":
            # All that was taken was refused, and took as long as a commit may.
            self.schedule()
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
