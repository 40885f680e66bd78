"""FragmentHost: how the fragments of a message broker come and go while it is in use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from duobus.broker import recovery
from duobus.broker.fragment_handle import FragmentHandle
from duobus.errors import RowsExist, StoreFailed
from duobus.fragment.commands import Command, Group
from duobus.fragment.duplicate_detection import MessageIdBudget
from duobus.fragment.fragment import Fragment
from duobus.fragment.send import Run
from duobus.fragment.sessions import sessions
from duobus.fragment.topics.topic_state import TopicState
from duobus.storage.catalog_identity import ADVICE
from duobus.storage.interface import COUNTS_LEFT_OUT
from duobus.storage.writer_pool import LONG_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import FragmentPlan
    from duobus.clock import Entropy
    from duobus.fragment.sessions.lock_owner import LockOwner
    from duobus.fragment.source import SourceSettings
    from duobus.storage.interface import FragmentRow, SourceRow


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
        RowsExist: These are somebody else's; they stay as they are.
    """
    for row in sources:
        # A source that was restored from a backup has left out counts.
        if (row.next_count - 1) % COUNTS_LEFT_OUT or row.highest_delivered:
            raise RowsExist(
                f"Messaging store {handle.store.store_id} holds messages under the number {handle.entity_id} of this "
                "entity, which are not its own; they are left as they are. The catalog is not the one of this store. "
                f"{ADVICE}."
            )


async def add_source(handle: FragmentHandle, source_no: int, settings: SourceSettings) -> None:
    """Create (or find) a source of a fragment in its store, and in memory when the fragment is there.

    Raises:
        StoreUnavailable: The store is away, or failed on this and is being reopened.
        RowsExist: It has had messages already.
    """
    broker = handle.broker
    _, rows = await broker.use(lambda: broker.store.add_fragment(handle.entity_id, handle.number, [source_no]))
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
    brokers = {handle.store.store_id: handle.broker for handle in handles}
    await asyncio.gather(*(_drop(broker, entity_id, source_no) for broker in brokers.values()))


async def _drop(broker: MessageBroker, entity_id: int, source_no: int) -> None:
    store = broker.store
    while await broker.use(lambda: store.drop_source(entity_id, source_no, DROP_SLICE)):
        pass


class FragmentHost:
    """The fragments of one message broker: how they are created, deleted, and moved to or from it.

    Attributes:
        plans: (entity id, fragment number) to the plan of each fragment that lives here.
        fragments: By key, those that are in memory.
        id_room: Message ids that the duplicate detection of all of them remembers.
    """

    def __init__(self, broker: MessageBroker, entropy: Entropy) -> None:
        self._broker = broker
        self._store = broker.store
        self._lifecycle = broker.lifecycle
        self._entropy = entropy
        self.plans: dict[tuple[int, int], FragmentPlan] = {}
        self.fragments: dict[int, Fragment] = {}
        self.id_room = MessageIdBudget()
        # Plans of fragments that came back while the store was being recovered.
        self._returned: list[FragmentPlan] = []

    def has(self, fragment: Fragment) -> bool:
        """Whether a fragment is used here; timers and reads may still come for one that was deleted or moved."""
        return self.fragments.get(fragment.fragment_key) is fragment

    def forget_all(self) -> list[LockOwner]:
        """The memory of all fragments is lost; returns those who have lost locks and are to be told."""
        for fragment in self.fragments.values():
            handle_of(fragment).set_fragment(None)
        owners = [owner for fragment in self.fragments.values() for owner in sessions.forget_locks(fragment)]
        self.fragments = {}
        self.id_room = MessageIdBudget(self.id_room.limit)
        return owners

    def adopt(self, fragment: Fragment) -> None:
        """A fragment is in memory from now on."""
        handle = handle_of(fragment)
        self.fragments[fragment.fragment_key] = fragment
        handle.set_fragment(fragment)
        plan = self.plans.get((handle.entity_id, handle.number))
        if plan is not None:
            # They may have changed while it was being recovered.
            apply_settings(fragment, plan.settings)
        for source in fragment.sources.values():
            if source.history is not None:
                source.history.move_to(self.id_room)

    async def create_fragments(self, plans: Sequence[FragmentPlan]) -> None:
        """Create (or find) fragments in the store, all at one go, and open them.

        Raises:
            StoreUnavailable: The store is away, or failed on this and is being reopened.
            RowsExist: Some of them have had messages already; these are another's.
        """
        asked = [(plan.handle.entity_id, plan.handle.number, sorted(plan.settings)) for plan in plans]
        found = await self._lifecycle.use(lambda: self._store.add_fragments(asked))
        for plan, (_, sources) in zip(plans, found, strict=True):
            demand_untouched(plan.handle, sources)
        for plan, (row, sources) in zip(plans, found, strict=True):
            handle = plan.handle
            self.plans[handle.entity_id, handle.number] = plan
            fragment = Fragment(handle, row.fragment_key, row.fragment_no, row.epoch, self._entropy.token(10))
            fragment.topic = None if plan.topic is None else TopicState(plan.topic)
            for source in sources:
                fragment.add_source(source, plan.settings[source.source_no])
            self.adopt(fragment)

    def change_settings(self, handle: FragmentHandle, settings: dict[int, SourceSettings]) -> None:
        """An entity's properties have changed; a fragment whose store is away gets them when it is recovered."""
        plan = self.plans.get((handle.entity_id, handle.number))
        if plan is not None:
            plan.settings = settings
        fragment = handle.fragment
        if fragment is not None:
            apply_settings(fragment, settings)
            self._broker.commit_loop.timers.note(fragment)

    async def drop_entity(self, entity_id: int) -> None:
        """Delete everything of an entity from the store, in slices between which others have their turn.

        Raises:
            StoreUnavailable: The store is away, or failed on this and is being reopened.
        """
        keys = [key for key in self.plans if key[0] == entity_id]
        for key in keys:
            self._forget(self.plans.pop(key).handle)
        for _, number in keys:
            while await self._lifecycle.use(partial(self._store.drop_fragment, entity_id, number, DROP_SLICE)):
                pass
        # What no plan knows of, if there is any.
        await self._lifecycle.use(lambda: self._store.drop_entity(entity_id), LONG_S)

    def _forget(self, handle: FragmentHandle) -> None:
        """A fragment is not here any more, for anybody."""
        fragment = handle.fragment
        if fragment is not None:
            self.fragments.pop(fragment.fragment_key, None)
            # What waits to be written of it would meet a store that knows it no more.
            self._broker.commit_loop.changed.pop(fragment.fragment_key, None)
            self.id_room.used -= sum(len(s.history.known) for s in fragment.sources.values() if s.history)
            handle.set_fragment(None)
            for owner in sessions.forget_locks(fragment):
                owner.lost()

    # -- moves --------------------------------------------------------------------------------------------------

    def export_fragment(self, plan: FragmentPlan) -> list[Run]:
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
                self._broker.commit_loop.refuse(run, self._lifecycle.unavailable(), [])
            else:
                waiting.append(run)
        return waiting

    def _refuse_waiting(self, handle: FragmentHandle) -> list[Run]:
        """Refuse what waits for a fragment, because it speaks of a life of it that is over; but return messages."""
        runs: list[Run] = []
        refused: list[Command] = []
        others: list[Command] = []
        loop = self._broker.commit_loop
        for command in (*loop.pending, *loop.lines.clear()):
            members = command.members if isinstance(command, Group) else (command,)
            if all(member.handle.home is not handle for member in members):
                others.append(command)
            elif isinstance(command, Run):
                loop.lines.left(command)
                runs.append(command)
            else:
                refused.append(command)
        loop.pending = deque(others)
        for command in refused:
            loop.refuse(command, self._lifecycle.unavailable(), [])
        return runs

    async def import_fragment(
        self, plan: FragmentPlan, row: FragmentRow, sources: list[SourceRow], shared: int
    ) -> None:
        """Open a fragment that the open store has, beside all others; what fails here, the next recovery does.

        ``shared``: bytes that the copies of its messages take up, of a topic.
        """
        handle = plan.handle
        self.plans[handle.entity_id, handle.number] = plan
        life = self._lifecycle.life
        try:
            fragment = await recovery.recover_one(self._broker, plan, row, sources, shared, self._entropy.token(10))
        except StoreFailed as error:
            if life == self._lifecycle.life:
                self._lifecycle.fail(error)
            return
        if life == self._lifecycle.life and handle.fragment is None:
            late = self._refuse_waiting(handle)
            self.adopt(fragment)
            for run in late:
                self._broker.submit(run)
            missing = sum(source.missing for source in fragment.sources.values())
            self._broker.commit_loop.follow_up(fragment, [], missing=missing)

    def restore_fragment(self, plan: FragmentPlan) -> None:
        """The next recovery of the store is to open the fragment again; begin one, or wait for that under way."""
        self.plans[plan.handle.entity_id, plan.handle.number] = plan
        self._returned.append(plan)
        self.see_to_returned()

    def see_to_returned(self) -> None:
        """Read the store again when it is open and has fragments that came back while it was being recovered."""
        if self._lifecycle.state != "open":
            return
        returned, self._returned = self._returned, []
        if any(plan in self.plans.values() and plan.handle.fragment is None for plan in returned):
            self._lifecycle.fail(StoreFailed("the store is read again, because a fragment came back to it"))


def handle_of(fragment: Fragment) -> FragmentHandle:
    """The handle of a fragment, which itself does not look at it."""
    handle = fragment.handle
    assert isinstance(handle, FragmentHandle)
    return handle
