"""FragmentHandle: what outlives a fragment's memory, so that queues and links can hold on to it.

Everybody who uses a fragment uses its handle, and reaches for nothing behind it. There are five verbs: ``submit`` (a
command that goes into a commit), ``take`` (messages for a receiver), ``unlock``, ``renew`` and ``peek``; and
``sessions`` for those who hold sessions. ``store`` says how the store is. The other methods are for ``broker`` itself,
and ``broker`` is for those who create fragments and move them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from duobus.broker.delivery.session_service import SessionService
from duobus.errors import MessageNotFound, StoreUnavailable
from duobus.fragment.message import NEVER, QueuedMessage
from duobus.fragment.receive import TakeAndRemove
from duobus.model.batches import DeliveryBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duobus.broker.delivery.credit_scheduler import Receiver
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import FragmentPlan
    from duobus.fragment.commands import Command
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import SourceSettings


class AvailabilityListener(Protocol):
    """Who wants to hear of available messages: a credit scheduler, a session acceptor, or what forwards."""

    def offer(self, handle: FragmentHandle, /) -> None:
        """A fragment has some."""


class StoreView(Protocol):
    """What those who use a fragment may know of its store. Equal for fragments that share one."""

    @property
    def store_id(self) -> int:
        """The store's number in the catalog."""

    @property
    def disk(self) -> object:
        """Equal for stores whose commits share a disk."""

    @property
    def state(self) -> str:
        """See ``StoreLifecycle``."""

    @property
    def is_late(self) -> bool:
        """Whether it has not answered for so long that nothing should be sent to it that can go elsewhere."""

    def unavailable(self) -> StoreUnavailable:
        """The error for whoever needs this store now."""


class FragmentHandle:
    """A fragment of an entity, whether its store is there or not.

    Attributes:
        broker: The message broker that runs it.
        store: How its store is.
        submit: Takes a command into the next commit; see ``CommitLoop.submit``. A ``Group`` goes to the store of its
            members, through the handle of any of them.
        entity_id: The catalog's id of the entity.
        number: The fragment's number in the entity.
        fragment: The engine while the store is open; None while it is away.
        home: The handle of the whole fragment: this one, or the topic's when this is a subscription's.
        parts: Of a topic's fragment: source number to the handle that the subscription has of it.
        schedulers: (source number, sub-queue) to whoever wants to hear of available messages.
        slot, slots: Which keys belong to it: those of this slot, of so many of the entity; see ``placement.py``.
        waiting, waiting_bytes: New messages that wait for a commit of it to start; counted by ``fair_queue.py``.
    """

    __slots__ = (
        "_sessions",
        "broker",
        "entity_id",
        "fragment",
        "home",
        "number",
        "parts",
        "schedulers",
        "slot",
        "slots",
        "store",
        "submit",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, broker: MessageBroker, entity_id: int, number: int, home: FragmentHandle | None = None) -> None:
        self.broker = broker
        self.store: StoreView = broker
        self.submit: Callable[[Command], None] = broker.submit
        self.entity_id = entity_id
        self.number = number
        self.fragment: Fragment | None = None if home is None else home.fragment
        self.home = home or self
        self.parts: dict[int, FragmentHandle] = {}
        self.schedulers: dict[tuple[int, int], AvailabilityListener] = {}
        self.slot = 0
        self.slots = 1
        self.waiting = 0
        self.waiting_bytes = 0
        self._sessions: SessionService | None = None

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def online(self) -> bool:
        """Whether the fragment's store is open."""
        return self.fragment is not None

    @property
    def sessions(self) -> SessionService:
        """What there is for those who hold sessions of the fragment."""
        if self._sessions is None:
            self._sessions = SessionService(self)
        return self._sessions

    def of_source(self, source_no: int) -> FragmentHandle:
        """The handle of those who use this source."""
        return self.parts.get(source_no, self)

    def unavailable(self, store: StoreView | None = None) -> StoreUnavailable:
        """The error for whoever needs this fragment now; it says which one of the entity's that is.

        ``store``: the one that does not have it, if that is not the one that should.
        """
        error = (store or self.store).unavailable()
        if self.slots > 1:
            error.fragments = (self.slot, self.slot, self.slots)
        return error

    # -- verbs --------------------------------------------------------------------------------------------------

    def take(self, source_no: int, sub_queue: int, credit: int, receiver: Receiver) -> None:
        """Hand out up to ``credit`` messages; the answer goes to ``receiver.deliver``, now or later."""
        fragment = self.fragment
        if fragment is None:
            receiver.deliver(DeliveryBatch(self, b"", 0, [], 0), credit)
        elif receiver.removing:
            fragment.sources[source_no].sub_queues[sub_queue].promised += credit
            self.submit(TakeAndRemove(self, source_no, sub_queue, credit, receiver))
        else:
            broker = self.broker
            loop = broker.commit_loop
            now_ms = loop.time.now_ms()
            if now_ms >= fragment.deadline:
                loop.tick(fragment, now_ms)
            first, messages, until_ms = fragment.lock(source_no, sub_queue, credit, now_ms)
            source = fragment.sources[source_no]
            if source.touched:
                loop.changed[fragment.fragment_key] = fragment
            if source.tail_count and not source.is_paging:
                broker.pager.prefetch(fragment, source)
            receiver.deliver(DeliveryBatch(self, fragment.prefix, first, messages, until_ms), credit)
            if fragment.deadline < fragment.armed:
                loop.timers.note(fragment)

    def unlock(self, source_no: int, prefix: bytes, ranges: Sequence[tuple[int, int]], *, counted: bool) -> list[int]:
        """Give locked messages back at once; returns the locks that were not held (any more)."""
        fragment, loop = self.fragment, self.broker.commit_loop
        if fragment is None or fragment.prefix != prefix or loop.time.has_ended:
            return [lock for first, number in ranges for lock in range(first, first + number)]
        now_ms = loop.time.now_ms()
        if now_ms >= fragment.deadline:
            loop.tick(fragment, now_ms)
        held = fragment.sources[source_no].locks
        lost = [lock for first, number in ranges for lock in range(first, first + number) if lock not in held]
        loop.pending.extend(fragment.unlock(source_no, ranges, now_ms, counted=counted))
        loop.settle_down(fragment)
        return lost

    def renew(self, source_no: int, prefix: bytes, locks: Sequence[int]) -> int | None:
        """Renew locks: their new end, or None when one is lost (then none was renewed)."""
        fragment, now_ms = self.present()
        if fragment.prefix != prefix:
            return None
        until_ms = fragment.renew(source_no, locks, now_ms)
        self.note_deadline(fragment)
        return until_ms

    async def peek(
        self,
        source_no: int,
        sub_queue: int,
        first_count: int,
        limit: int,
        size: int = NEVER,
        session_id: str | None = None,
        partition_key: str | None = None,
    ) -> list[QueuedMessage]:
        """Messages of a sub-queue from ``first_count`` on, ascending, whether in memory or not; changes nothing.

        ``size``: bytes at which no further message is looked for; ``session_id`` and ``partition_key``: only messages
        that have them.
        """
        return await self.broker.pager.peek(
            self, source_no, sub_queue, first_count, limit, size, session_id, partition_key
        )

    def holds(self, source_no: int, prefix: bytes, locks: Sequence[int]) -> bool:
        """Whether every one of these locks is held now."""
        fragment, _ = self.present()
        held = fragment.sources[source_no].locks
        return fragment.prefix == prefix and all(lock in held for lock in locks)

    def lock_deferred(self, source_no: int, sub_queue: int, counts: Sequence[int]) -> DeliveryBatch:
        """Lock deferred messages by number: all of them or MessageNotFound."""
        fragment, now_ms = self.present()
        try:
            first, messages, until_ms = fragment.lock_deferred(source_no, sub_queue, counts, now_ms)
        except MessageNotFound:
            # What has run out of life goes now that it was asked for.
            self.present()
            raise
        self.note_deadline(fragment)
        return DeliveryBatch(self, fragment.prefix, first, messages, until_ms)

    # -- for the rooms of the broker ----------------------------------------------------------------------------

    def present(self) -> tuple[Fragment, int]:
        """The fragment, in which everything has happened that is due, and broker time.

        Raises:
            StoreUnavailable: It is away.
        """
        loop = self.broker.commit_loop
        now_ms = loop.time.now_ms()
        if self.fragment is not None and now_ms >= self.fragment.deadline:
            loop.tick(self.fragment, now_ms)
        if self.fragment is None:
            raise self.store.unavailable()
        return self.fragment, now_ms

    def now_ms(self) -> int:
        """Broker time; StoreUnavailable is raised when the lease of the store has ended."""
        return self.broker.commit_loop.time.now_ms()

    def now_ms_if_leased(self) -> int | None:
        """Broker time; None when the lease of the store has ended, so that its memory goes at once."""
        try:
            return self.broker.commit_loop.time.now_ms()
        except StoreUnavailable:
            return None

    def follow_up(self, fragment: Fragment, commands: list[Command]) -> None:
        """Submit commands that follow from what was done to the fragment, and see to everything else that does."""
        self.broker.commit_loop.follow_up(fragment, commands)

    def note_counts(self, fragment: Fragment) -> None:
        """Delivery counts of the fragment have changed: the next commit writes them."""
        self.broker.commit_loop.note_counts(fragment)

    def note_kept(self, size: int) -> None:
        """Messages of so many bytes stay in memory from now on, until they are settled."""
        self.broker.commit_loop.note_kept(size)

    def note_deadline(self, fragment: Fragment) -> None:
        """Something of the fragment is due at a new time."""
        self.broker.commit_loop.timers.note(fragment)

    async def read_ahead(self, fragment: Fragment) -> None:
        """Bring more of the fragment's paged tails into memory, if there is room.

        Raises:
            StoreUnavailable: The store failed on this, or was away already.
        """
        await self.broker.pager.read_ahead(fragment)

    def change_settings(self, settings: dict[int, SourceSettings]) -> None:
        """The entity's properties have changed; a fragment whose store is away gets them when it is recovered."""
        self.broker.host.change_settings(self, settings)

    def plan(self, plan: FragmentPlan) -> None:
        """Have every recovery of the store open the fragment by this plan."""
        self.broker.plans[self.entity_id, self.number] = plan

    def set_fragment(self, fragment: Fragment | None) -> None:
        """The fragment is there, or away; for the subscriptions that it has, too."""
        self.fragment = fragment
        for part in self.parts.values():
            part.fragment = fragment

    def move_to(self, broker: MessageBroker) -> None:
        """Another message broker runs it from now on."""
        for handle in (self, *self.parts.values()):
            handle.broker = broker
            handle.store = broker
            handle.submit = broker.submit
