"""The life cycle of one messaging store: open, late, fail, reopen, close; and commits that are in doubt meanwhile.

    closed ──open──▶ opening ──recovered──▶ open ──fail──▶ failed ──reopen──▶ opening ...
                                             └────close────▶ closed

A failed commit throws the memory of all fragments of the store away; they are made again from the store, which is
closed and reopened in the background. Only the fragments of that store suffer. Each opening
begins a new *life*; what an earlier life has asked of the store comes to nothing.

A settlement cannot be undone by a tombstone, and a transaction must never be half believed: when their commit fails,
its client hears "done" or "rolled back" when the store has been opened again and its last commit number says which
(I8, I18). The same holds for the numbers that a transaction is promised: they may be in one commit with its discharge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar, cast

from duobus.broker import recovery
from duobus.broker.delivery.credit_scheduler import CreditScheduler
from duobus.broker.fragment_host import handle_of
from duobus.errors import ServiceBusError, StoreFailed, StoreUnavailable
from duobus.fragment.commands import Command, Group
from duobus.fragment.receive import TakeAndRemove
from duobus.fragment.send import Reserve, Run
from duobus.model.batches import DeliveryBatch
from duobus.storage.interface import CommitBatch, StoreContents, Tombstone
from duobus.storage.writer_pool import CLOSE_S, ENDLESS_S, StoreWatchdog

if TYPE_CHECKING:
    from duobus.broker.entities.placement import Placement
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import StoreWatcher
    from duobus.clock import BrokerTime, Entropy
    from duobus.fragment.fragment import Fragment
    from duobus.storage.writers import Writer

T = TypeVar("T")

REOPEN_FIRST_S, REOPEN_MAX_S = 0.1, 5.0
#: What is answered when the truth is known.
AWAITED: Final = (Group, Reserve)


class InDoubtCommits:
    """The commands of one message broker whose commit failed, so that only their store can tell whether it has them."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Command, int, ServiceBusError]] = []

    def keep(self, command: Command, commit_no: int, error: ServiceBusError) -> None:
        """Remember a command of an ambiguous commit, and its error should that commit turn out not to be there."""
        self._waiting.append((command, commit_no, error))

    def decide(self, last_commit_no: int) -> None:
        """The store is open again: answer everybody. No commit was made since that of the groups."""
        waiting, self._waiting = self._waiting, []
        for command, commit_no, error in waiting:
            command.error = None if last_commit_no >= commit_no else error
            if command.reply is not None:
                command.reply.ready.append(command)
                command.reply.wake()


class StoreLifecycle:
    """Opens one messaging store, gives it up when it fails, and opens it again.

    Attributes:
        state: "closed", "opening", "open" or "failed".
        life: Another number as soon as the store has failed or was closed.
        generation: Of the store, as it was opened last.
        failures: How often it has failed, since the start.
        last_error: Why the store is not open, or None.
        quarantined: (source key, count) to what is wrong, of the messages that this life of the store found damaged.
        in_doubt: Commands whose commit failed.
        watchdog: Runs the calls of the store, and gives them up when they take too long.
    """

    def __init__(
        self,
        broker: MessageBroker,
        writer: Writer,
        timeout_s: float,
        *,
        time: BrokerTime,
        entropy: Entropy,
        watcher: StoreWatcher,
    ) -> None:
        self._broker = broker
        self._store = broker.store
        self._time = time
        self._entropy = entropy
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self.state = "closed"
        self.life = 0
        self.generation = 0
        self.failures = 0
        self.last_error: str | None = None
        self.quarantined: dict[tuple[int, int], str] = {}
        self.in_doubt = InDoubtCommits()
        self.watchdog = StoreWatchdog(self._loop, writer, timeout_s, self.see_late, self.see_prompt)

    # -- opening ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store and recover its fragments.

        Raises:
            StoreFailed: The store cannot be opened; ``reopen_later`` keeps trying.
            StoreTooNew: A newer version wrote it.
        """
        life = self.life
        if self.state != "failed":  # a store that failed stays so until its file can be opened again
            self.state = "opening"
        contents = await self.call(self._store.open)
        if life == self.life:
            self.state = "opening"
        self._watcher.demand_own(self._broker, contents)
        # Broker time never runs behind what a store has recorded.
        self._time.raise_to(contents.broker_ms)
        await self.recover(contents)

    async def recover(self, contents: StoreContents) -> None:
        """Begin a new life of the store that ``open`` found, and bring its fragments back."""
        broker = self._broker
        deletions = [
            tombstone
            for tombstone in self._watcher.tombstones_of(broker.store_id, contents.generation)
            if contents.last_commit_no >= tombstone.commit_no
        ]
        previous = contents.generation
        counters = await recovery.counters_without(broker, contents, deletions)
        self.generation = await self.call(lambda: self._store.begin_generation(deletions, counters))
        broker.commit_loop.commit_no = contents.last_commit_no
        life = self.life
        fragments = await recovery.recover_fragments(broker, contents, self._entropy, counters)
        damaged = await self.call(self._store.quarantined)
        if life != self.life:
            # Closed meanwhile: this life has ended before it began.
            return
        for fragment in fragments:
            broker.host.adopt(fragment)
        self.state = "open"
        self.last_error = None
        self.in_doubt.decide(contents.last_commit_no)
        self._watcher.forget_tombstones(broker.store_id, previous)
        self._watcher.store_opened(broker, contents)
        self.quarantined = {}
        self._note_quarantine(damaged)
        for fragment in fragments:
            missing = sum(source.missing for source in fragment.sources.values())
            broker.commit_loop.follow_up(fragment, [], missing=missing)
        broker.host.see_to_returned()

    # -- calls of the store -------------------------------------------------------------------------------------

    def call(self, call: Callable[[], T], timeout_s: float | None = ENDLESS_S) -> asyncio.Future[T]:
        """Run a blocking call of the store in its thread, in order with the commits.

        ``timeout_s``: how long it may take, by default however long it takes; None for as long as a commit.
        """
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("T", result))

        self.watchdog.submit(call, done, timeout_s)
        return future

    def read(self, call: Callable[[], T], take: Callable[[T], None]) -> None:
        """Run a reading call of the store and hand its result on; nothing comes of it when the store has failed."""
        life = self.life

        def done(found: tuple[T, list[tuple[int, int, str]]] | None, error: BaseException | None) -> None:
            if life != self.life:
                return
            if error is not None:
                self.fail(error)
            elif found is not None:
                self._note_quarantine(found[1])
                take(found[0])

        self.watchdog.submit(lambda: (call(), self._store.quarantined()), done)

    async def use(self, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """Run a call of the open store for somebody who waits; its failure ends this life as that of a commit does.

        ``timeout_s``: how long it may take; None for as long as a commit.

        Raises:
            StoreUnavailable: The store failed on this, or was away already.
        """
        if self.state != "open":
            raise self.unavailable()
        life = self.life
        try:
            result, damaged = await self.call(lambda: (call(), self._store.quarantined()), timeout_s)
        except StoreFailed as error:
            if life == self.life:
                self.fail(error)
            raise self.unavailable() from error
        if life != self.life:
            raise self.unavailable()
        self._note_quarantine(damaged)
        return result

    def unavailable(self) -> StoreUnavailable:
        """The error for whoever needs this store now."""
        if self.state == "open":
            return StoreUnavailable("A fragment of this entity is being moved to another store. Try again in a second.")
        return StoreUnavailable(
            f"Messaging store {self._broker.store_id} is not available ({self.last_error or self.state}). "
            "Try again in a few seconds; it is reopened by itself."
        )

    def _note_quarantine(self, damaged: list[tuple[int, int, str]]) -> None:
        """Report what reading has found damaged, once each (I57)."""
        if len(damaged) == len(self.quarantined):
            return
        found = {(key, count): fault for key, count, fault in damaged}
        fresh = {where: fault for where, fault in found.items() if where not in self.quarantined}
        self.quarantined = found
        homes = {
            source.source_key: fragment
            for fragment in self._broker.host.fragments.values()
            for source in fragment.sources.values()
        }
        rows = [(homes.get(key), count, fresh[key, count]) for key, count in fresh]
        self._watcher.messages_quarantined(self._broker, rows)

    # -- lateness -----------------------------------------------------------------------------------------------

    def see_late(self) -> None:
        """The store is late: what waits to be handed to it, and can be stored elsewhere, waits no longer (PE4).

        Nothing of it has been decided, so there is nothing to be undone. What the store has been told to write stays
        until its timeout is over. A store of the same entity that has nothing to do is made to show how it is: two of
        them may lie on one sick disk, and whoever leaves this one should not have to find that out.
        """
        if self.state != "open":
            return
        loop = self._broker.commit_loop
        loop.pending.extend(loop.lines.clear())
        runs = [run for run in (*loop.pending, *(loop.work or ())) if isinstance(run, Run)]
        placements = {run.placement for run in runs if run.placement is not None}
        better = {placement for placement in placements if _has_better(placement)}
        pending = list(loop.pending)
        loop.pending.clear()
        taken_back: list[TakeAndRemove] = []
        for command in pending:
            if isinstance(command, Run) and command.placement in better:
                loop.lines.left(command)
                self._watcher.run_lost(self._broker, command, [])
            elif isinstance(command, TakeAndRemove) and command.holder is None:
                taken_back.append(command)
            else:
                loop.pending.append(command)
        for broker in {handle.broker for placement in placements for handle in placement.fragments}:
            broker.lifecycle.show_how_it_is()
        self._give_back(taken_back)

    def _give_back(self, takes: list[TakeAndRemove]) -> None:
        """Give credit back that waits here, so that other stores of its entity may use it (I29)."""
        body_keys: dict[tuple[FragmentHandle, int, int], None] = {}
        for take in takes:
            fragment = take.handle.fragment
            if fragment is not None:
                # What it was promised is there for who takes messages with a lock: that needs no store.
                fragment.sources[take.source_no].sub_queues[take.sub_queue].promised -= take.credit
                body_keys[take.handle, take.source_no, take.sub_queue] = None
        for take in takes:
            take.receiver.deliver(DeliveryBatch(take.handle, b"", 0, [], 0), take.credit)
        for handle, source_no, sub_queue in sorted(
            body_keys, key=lambda one: (one[0].entity_id, one[0].number, *one[1:])
        ):
            taker = handle.schedulers.get((source_no, sub_queue))
            if taker is not None:
                taker.offer(handle)

    def see_prompt(self) -> None:
        """The store has answered after it was late: those who passed it over may have what is there."""
        for fragment in list(self._broker.host.fragments.values()):
            handle = handle_of(fragment)
            for part in (handle, *handle.parts.values()):
                for taker in list(part.schedulers.values()):
                    if isinstance(taker, CreditScheduler) and taker.passes_over:
                        taker.offer(part)

    def show_how_it_is(self) -> None:
        """Have the store do something if it has nothing to do, so that it shows when it is sick."""
        loop = self._broker.commit_loop
        if self.state == "open" and loop.work is None and not loop.pending:
            # What becomes of it is seen where everything of this store is.
            loop.add_writes(_nothing).add_done_callback(asyncio.Future.exception)

    def probe(self, idle_s: float) -> asyncio.Future[CommitBatch] | None:
        """Have the store commit nothing, if its last commit began more than ``idle_s`` ago; None when it need not.

        What becomes of it is seen where everything of this store is; the future raises StoreUnavailable then.
        """
        loop = self._broker.commit_loop
        is_at_work = loop.work is not None or bool(loop.pending) or self.watchdog.is_late
        if self.state != "open" or self._time.has_ended or is_at_work or self._loop.time() - loop.started_s < idle_s:
            return None
        return loop.add_writes(_nothing)

    # -- failure ------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException, *, was_submitted: bool = True) -> None:
        """The store failed: discard memory, answer or reroute everything, reopen in the background (I56).

        ``was_submitted``: whether the store was told to write what is under way, so that it may have done so.
        """
        loop = self._broker.commit_loop
        work, waiting = loop.drain()
        commit_no = loop.commit_no
        # Those of the commit under way, too: one that is being moved was taken out, and may come back (I27).
        old = {**loop.committing, **{fragment.handle: fragment for fragment in self._broker.host.fragments.values()}}
        self._lose_memory(error)
        unavailable = self.unavailable()
        for command in work:
            if isinstance(command, AWAITED) and was_submitted:
                self.in_doubt.keep(command, commit_no, unavailable)
            else:
                loop.refuse(command, unavailable, self._tombstones_of(command, commit_no, old))
        for command in waiting:
            if isinstance(command, Run):
                loop.lines.left(command)
            loop.refuse(command, unavailable, [])
        self._watcher.tombstones_lost(loop.drain_tombstones())
        self._watcher.store_failed(self._broker, error)
        self._loop.call_later(REOPEN_FIRST_S, self._reopen, self.life, REOPEN_FIRST_S)

    def fail_for_good(self, error: BaseException) -> None:
        """The store is another server's by now: as ``fail``, but it is not opened again."""
        self.fail(error)
        self.life += 1
        self.state = "closed"

    def _lose_memory(self, error: BaseException) -> None:
        self.life += 1
        self.state = "failed"
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        owners = self._broker.host.forget_all()
        self._broker.commit_loop.forget(self.unavailable())
        for owner in owners:
            owner.lost()

    def _tombstones_of(self, command: Command, commit_no: int, old: dict[object, Fragment]) -> list[Tombstone]:
        """The tombstones of a run whose commit may or may not be on disk; none for what is no run of messages."""
        # The entity may have been deleted while its commit was under way: then nobody brings its messages back.
        fragment = old.get(command.handle)
        ranges = [] if fragment is None else command.written_ranges(fragment)
        return [Tombstone(self._broker.store_id, self.generation, commit_no, *one) for one in ranges]

    def reopen_later(self, error: BaseException) -> None:
        """Keep trying to open a store that could not be opened at the start."""
        self._lose_memory(error)
        self._loop.call_later(REOPEN_FIRST_S, self._reopen, self.life, REOPEN_FIRST_S)

    def _reopen(self, life: int, delay_s: float) -> None:
        if life != self.life or self.state not in ("failed", "opening"):
            return
        task = self._loop.create_task(self._try_reopen(life, delay_s), name=f"reopen-store-{self._broker.store_id}")
        self._reopening = task  # the loop holds tasks only weakly

    async def _try_reopen(self, life: int, delay_s: float) -> None:
        try:
            await self.call(self._store.close)
            if life == self.life:
                await self.open()
        except Exception as error:  # noqa: BLE001 - the top of a task: whatever it was, try again later
            self.last_error = f"{type(error).__name__}: {error}"
            if life == self.life:
                self.state = "failed"
                self._loop.call_later(delay_s, self._reopen, life, min(delay_s * 2, REOPEN_MAX_S))

    # -- closing ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish the commits in waiting, then close the store."""
        await self._broker.commit_loop.finish(counts=True)
        self.life += 1
        self.state = "closed"
        self._broker.commit_loop.timers.clear()
        # What was stored is on disk: a store that stalls now must not keep the process from ending.
        with suppress(StoreFailed):
            await self.call(self._store.close, CLOSE_S)


def _nothing(_commit: CommitBatch) -> None:
    """A piggyback write that writes nothing."""


def _has_better(placement: Placement) -> bool:
    """Whether a fragment of an entity is in a store that is there and not late."""
    return any(handle.online and not handle.store.is_late for handle in placement.fragments)
