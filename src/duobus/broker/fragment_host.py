"""FragmentHost: how the fragments of a message broker come and go while it is in use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from duobus.broker import admission, recovery
from duobus.broker.delivery.credit_scheduler import CreditScheduler
from duobus.broker.fragment_handle import FragmentHandle
from duobus.errors import RowsExist, ServiceBusError, StoreFailed, StoreUnavailable
from duobus.fragment.commands import Command, Group, Run, TakeAndRemove
from duobus.fragment.fragment import Fragment
from duobus.fragment.sessions import sessions
from duobus.fragment.topics import fanout
from duobus.model.batches import DeliveryBatch
from duobus.storage.catalog_identity import ADVICE
from duobus.storage.interface import COUNTS_LEFT_OUT
from duobus.storage.writer_pool import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duobus.broker.deadline_timer import DeadlineTimer
    from duobus.broker.entities.placement import Placement
    from duobus.broker.fair_queue import FairQueue
    from duobus.broker.freight import Fill, PiggybackWrites
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import FragmentPlan, StoreWatcher
    from duobus.clock import BrokerTime, Entropy
    from duobus.fragment.duplicate_detection import MessageIdBudget
    from duobus.fragment.source import SourceSettings
    from duobus.storage.interface import CommitBatch, FragmentRow, MessagingStore, SourceRow, Tombstone
    from duobus.storage.writer_pool import StoreWatchdog


# Sources of a topic's fragments that come and go while it is in use: one per subscription.

#: Copies that one transaction deletes: some 30 ms, so that others are not kept from their commits.
DROP_SLICE = 5_000


def apply_settings(fragment: Fragment, settings: dict[int, SourceSettings]) -> None:
    """Give those sources of a fragment new settings whose settings are others."""
    for source_no, source in fragment.sources.items():
        if source.settings is not settings.get(source_no, source.settings):
            fragment.set_settings(settings[source_no], source_no)


def demand_untouched(handle: FragmentHandle, sources: Iterable[SourceRow]) -> None:
    """Refuse to create an entity over what has had messages.

    What a crash has left of the same creation has had none: nobody can send before the entity is live. So this tells
    that from the rows of another entity, which are there when the catalog has forgotten it.

    Raises:
        RowsExist: These belong to another entity; they stay as they are.
    """
    for row in sources:
        # A source that was restored from a backup has left out counts.
        if (row.next_count - 1) % COUNTS_LEFT_OUT or row.highest_delivered:
            raise RowsExist(
                f"Messaging store {handle.broker.store_id} holds messages under the number {handle.entity_id} of this "
                "entity, which are not its own; they are left as they are. The catalog is not the one of this store. "
                f"{ADVICE}."
            )


async def add_source(handle: FragmentHandle, source_no: int, settings: SourceSettings) -> None:
    """Create (or find) a source of a fragment in its store, and in memory when the fragment is there.

    Raises:
        StoreUnavailable: The store is away, or failed on this and is being reopened.
        RowsExist: It has had messages already.
    """
    store = handle.broker.store
    _, rows = await handle.broker.use(lambda: store.add_fragment(handle.entity_id, handle.number, [source_no]))
    demand_untouched(handle, [row for row in rows if row.source_no == source_no])
    fragment = handle.fragment
    if fragment is not None and source_no not in fragment.sources:
        for row in rows:
            if row.source_no == source_no:
                fragment.add_source(row, settings)


def forget_source(part: FragmentHandle, source_no: int) -> None:
    """A source is gone for everybody: what comes back for it later finds nothing."""
    fragment, part.fragment = part.fragment, None
    part.home.parts.pop(source_no, None)
    source = None if fragment is None else fragment.sources.pop(source_no, None)
    if source is not None and source.sessions is not None:
        for owner in source.sessions.forget_holders():
            owner.lost()


async def drop_source(handles: Iterable[FragmentHandle], entity_id: int, source_no: int) -> None:
    """Delete a source with its copies from every store, in slices between which others have their turn.

    Raises:
        StoreUnavailable: A store is away, or failed on this and is being reopened.
    """
    brokers = {handle.broker.store_id: handle.broker for handle in handles}
    await asyncio.gather(*(_drop(broker, entity_id, source_no) for broker in brokers.values()))


async def _drop(broker: MessageBroker, entity_id: int, source_no: int) -> None:
    store = broker.store
    while await broker.use(lambda: store.drop_source(entity_id, source_no, DROP_SLICE)):
        pass


class FragmentHost:
    """What ``MessageBroker`` does for fragments that are created, deleted, or moved to or from it.

    Attributes:
        watches: Called with each commit when the store is told to write it; those of moves.
    """

    store_id: int
    store: MessagingStore
    state: str
    plans: dict[tuple[int, int], FragmentPlan]
    id_room: MessageIdBudget
    generation: int
    quarantined: dict[tuple[int, int], str]
    watches: list[Callable[[CommitBatch], None]]
    _entropy: Entropy
    _watcher: StoreWatcher
    _fragments: dict[int, Fragment]
    _changed: dict[int, Fragment]
    _pending: deque[Command]
    _lines: FairQueue
    _work: list[Command] | None
    _writer: StoreWatchdog
    _piggyback: PiggybackWrites
    _alarm: DeadlineTimer
    _commit_no: int
    _life: int
    _returned: list[FragmentPlan]
    _loop: asyncio.AbstractEventLoop
    _started_s: float
    _time: BrokerTime

    if TYPE_CHECKING:

        async def use(self, call: Callable[[], Any], timeout_s: float | None = None) -> Any: ...  # noqa: D102
        def unavailable(self) -> StoreUnavailable: ...  # noqa: D102
        def now_ms(self) -> int: ...  # noqa: D102
        def follow_up(self, fragment: Fragment, commands: list[Command], *, missing: int = 0) -> None: ...  # noqa: D102
        def _refuse(self, command: Command, error: ServiceBusError, tombstones: list[Tombstone]) -> None: ...
        def _fail(self, error: BaseException, *, was_submitted: bool = True) -> None: ...
        def _schedule(self) -> None: ...
        def submit(self, command: Command) -> None: ...  # noqa: D102

    @property
    def life(self) -> int:
        """Another number as soon as the store has failed or was closed."""
        return self._life

    @property
    def is_late(self) -> bool:
        """Whether its store has not answered for so long that nothing should be sent to it that can go elsewhere."""
        return self._writer.is_late

    @property
    def is_stalled(self) -> bool:
        """Whether a call of its store was given up, and its thread has not come back since."""
        return self._writer.is_stalled

    def see_late(self) -> None:
        """The store is late: what waits to be handed to it, and can be stored elsewhere, waits no longer (PE4).

        Nothing of it has been decided, so there is nothing to be undone. What the store has been told to write stays
        until its timeout is over. A store of the same entity that has nothing to do is made to show how it is: two of
        them may lie on one sick disk, and whoever leaves this one should not have to find that out.
        """
        if self.state != "open":
            return
        self._pending.extend(self._lines.clear())
        runs = [run for run in (*self._pending, *(self._work or ())) if isinstance(run, Run)]
        placements = {run.placement for run in runs if run.placement is not None}
        better = {placement for placement in placements if _has_better(placement)}
        pending, self._pending = self._pending, deque()
        taken_back: list[TakeAndRemove] = []
        for command in pending:
            if isinstance(command, Run) and command.placement in better:
                admission.note_left(command)
                self._watcher.run_lost(self, command, [])  # type: ignore[arg-type]  # a message broker
            elif isinstance(command, TakeAndRemove) and command.holder is None:
                taken_back.append(command)
            else:
                self._pending.append(command)
        for broker in {handle.broker for placement in placements for handle in placement.fragments}:
            broker.show_how_it_is()
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
        for fragment in list(self._fragments.values()):
            handle = fragment.handle
            assert isinstance(handle, FragmentHandle)
            for part in (handle, *handle.parts.values()):
                for taker in list(part.schedulers.values()):
                    if isinstance(taker, CreditScheduler) and taker.passes_over:
                        taker.offer(part)

    def show_how_it_is(self) -> None:
        """Have the store do something if it has nothing to do, so that it shows when it is sick."""
        if self.state == "open" and self._work is None and not self._pending:
            # What becomes of it is seen where everything of this store is.
            self.carry(_nothing).add_done_callback(asyncio.Future.exception)

    def probe(self, idle_s: float) -> asyncio.Future[CommitBatch] | None:
        """Have the store commit nothing, if its last commit began more than ``idle_s`` ago; None when it need not.

        What becomes of it is seen where everything of this store is; the future raises StoreUnavailable then.
        """
        is_at_work = self._work is not None or bool(self._pending) or self.is_late
        if self.state != "open" or self._time.has_ended or is_at_work or self._loop.time() - self._started_s < idle_s:
            return None
        return self.carry(_nothing)

    def _adopt(self, fragment: Fragment) -> None:
        handle = fragment.handle
        assert isinstance(handle, FragmentHandle)
        self._fragments[fragment.fragment_key] = fragment
        handle.become(fragment)
        plan = self.plans.get((handle.entity_id, handle.number))
        if plan is not None:
            # They may have changed while it was being recovered.
            apply_settings(fragment, plan.settings)
        for source in fragment.sources.values():
            if source.history is not None:
                source.history.move_to(self.id_room)

    def _note_quarantine(self, damaged: list[tuple[int, int, str]]) -> None:
        """Report what reading has found damaged, once each (I57)."""
        if len(damaged) == len(self.quarantined):
            return
        found = {(key, count): fault for key, count, fault in damaged}
        fresh = {where: fault for where, fault in found.items() if where not in self.quarantined}
        self.quarantined = found
        homes = {
            source.source_key: fragment for fragment in self._fragments.values() for source in fragment.sources.values()
        }
        rows = [(homes.get(key), count, fresh[key, count]) for key, count in fresh]
        self._watcher.messages_quarantined(self, rows)  # type: ignore[arg-type]

    async def create_fragments(self, plans: Sequence[FragmentPlan]) -> None:
        """Create (or find) fragments in the store, all at one go, and open them.

        Raises:
            StoreUnavailable: The store is away, or failed on this and is being reopened.
            RowsExist: Some of them have had messages already; these are another's.
        """
        asked = [(plan.handle.entity_id, plan.handle.number, sorted(plan.settings)) for plan in plans]
        found = await self.use(lambda: self.store.add_fragments(asked))
        for plan, (_, sources) in zip(plans, found, strict=True):
            demand_untouched(plan.handle, sources)
        for plan, (row, sources) in zip(plans, found, strict=True):
            handle = plan.handle
            self.plans[handle.entity_id, handle.number] = plan
            fragment = Fragment(handle, row.fragment_key, row.fragment_no, row.epoch, self._entropy.token(10))
            fragment.topic = None if plan.topic is None else fanout.TopicState(plan.topic)
            for source in sources:
                fragment.add_source(source, plan.settings[source.source_no])
            self._adopt(fragment)

    def change_settings(self, handle: FragmentHandle, settings: dict[int, SourceSettings]) -> None:
        """An entity's properties have changed; a fragment whose store is away gets them when it is recovered."""
        plan = self.plans.get((handle.entity_id, handle.number))
        if plan is not None:
            plan.settings = settings
        fragment = handle.fragment
        if fragment is not None:
            apply_settings(fragment, settings)
            self._alarm.note(fragment)

    async def drop_entity(self, entity_id: int) -> None:
        """Delete everything of an entity from the store, in slices between which others have their turn.

        Raises:
            StoreUnavailable: The store is away, or failed on this and is being reopened.
        """
        keys = [key for key in self.plans if key[0] == entity_id]
        for key in keys:
            self._forget(self.plans.pop(key).handle)
        for _, number in keys:
            while await self.use(partial(self.store.drop_fragment, entity_id, number, DROP_SLICE)):
                pass
        # What no plan knows of, if there is any.
        await self.use(lambda: self.store.drop_entity(entity_id), LONG_S)

    def _forget(self, handle: FragmentHandle) -> None:
        """A fragment is not here any more, for anybody."""
        fragment = handle.fragment
        if fragment is not None:
            self._fragments.pop(fragment.fragment_key, None)
            # What waits to be written of it would meet a store that knows it no more.
            self._changed.pop(fragment.fragment_key, None)
            self.id_room.used -= sum(len(s.history.known) for s in fragment.sources.values() if s.history)
            handle.become(None)
            for owner in sessions.forget_locks(fragment):
                owner.lost()

    # -- moves --------------------------------------------------------------------------------------------------

    def carry(self, fill: Fill) -> asyncio.Future[CommitBatch]:
        """Have ``fill`` put something into the next commit; the future gets it when it is durable.

        The future may raise StoreUnavailable: the store failed, or was away already.
        """
        future = self._piggyback.add(fill)
        if self.state == "open":
            self._schedule()
        else:
            self._piggyback.lost(self.unavailable())
        return future

    def take_out(self, plan: FragmentPlan) -> list[Run]:
        """A fragment is about to be somewhere else: nothing is decided in it here any more, not even after a recovery.

        Returns:
            Messages that wait for it, because they belong to no other fragment. Everything else that waits is refused,
            and locks are lost.
        """
        handle = plan.handle
        self.plans.pop((handle.entity_id, handle.number), None)
        self._forget(handle)
        waiting: list[Run] = []
        for run in self._refuse_waiting(handle):
            if run.placement is not None and len(run.placement.fragments) > 1:
                self._refuse(run, self.unavailable(), [])
            else:
                waiting.append(run)
        return waiting

    def _refuse_waiting(self, handle: FragmentHandle) -> list[Run]:
        """Refuse what waits for a fragment, because it speaks of a life of it that is over; but return messages."""
        runs: list[Run] = []
        refused: list[Command] = []
        others: list[Command] = []
        for command in (*self._pending, *self._lines.clear()):
            members = command.members if isinstance(command, Group) else (command,)
            if all(member.handle.home is not handle for member in members):
                others.append(command)
            elif isinstance(command, Run):
                admission.note_left(command)
                runs.append(command)
            else:
                refused.append(command)
        self._pending = deque(others)
        for command in refused:
            self._refuse(command, self.unavailable(), [])
        return runs

    def _is_hosted(self, fragment: Fragment) -> bool:
        """Whether a fragment is used here; timers and reads may still come for one that was deleted or moved."""
        return self._fragments.get(fragment.fragment_key) is fragment

    async def take_in(self, plan: FragmentPlan, row: FragmentRow, sources: list[SourceRow], shared: int) -> None:
        """Open a fragment that the open store has, beside all others; what fails here, the next recovery does.

        ``shared``: bytes that the copies of its messages take up, of a topic.
        """
        handle = plan.handle
        self.plans[handle.entity_id, handle.number] = plan
        life = self._life
        try:
            fragment = await recovery.recover_one(self, plan, row, sources, shared, self._entropy.token(10))  # type: ignore[arg-type]
        except StoreFailed as error:
            if life == self._life:
                self._fail(error)
            return
        if life == self._life and handle.fragment is None:
            late = self._refuse_waiting(handle)
            self._adopt(fragment)
            for run in late:
                self.submit(run)
            missing = sum(source.missing for source in fragment.sources.values())
            self.follow_up(fragment, [], missing=missing)

    def put_back(self, plan: FragmentPlan) -> None:
        """The next recovery of the store is to open the fragment again; begin one, or wait for that under way."""
        self.plans[plan.handle.entity_id, plan.handle.number] = plan
        self._returned.append(plan)
        self._see_to_returned()

    def _see_to_returned(self) -> None:
        """Read the store again when it is open and has fragments that came back while it was being recovered."""
        if self.state != "open":
            return
        returned, self._returned = self._returned, []
        if any(plan in self.plans.values() and plan.handle.fragment is None for plan in returned):
            self._fail(StoreFailed("the store is read again, because a fragment came back to it"))


def _nothing(_commit: CommitBatch) -> None:
    """Freight that weighs nothing."""


def _has_better(placement: Placement) -> bool:
    """Whether a fragment of an entity is in a store that is there and not late."""
    return any(handle.online and not handle.broker.is_late for handle in placement.fragments)
