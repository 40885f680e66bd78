"""CreditScheduler: a receiver's credit is held by the entity, which grants it to fragments that have messages.

A fragment that is ill has no messages to offer, so it holds no receiver up, and nothing is locked for a client that did
not ask. A lock needs no store; to take messages for good needs a commit, so a receiver that does this
grants nothing to a store while the store is late (I29). ``take`` at the message broker is not a synchronous return:
what comes of it arrives through ``Receiver.deliver``, so that an owner in another process fits.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from duobus.model.batches import DeliveryBatch, Mailbox

if TYPE_CHECKING:
    from duobus.broker.admission import Throttle
    from duobus.broker.entities.queue import LastUse
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.fragment.fragment import Fragment

#: Most messages granted to one fragment at a time: small enough that receivers share, large enough that the cost
#: of a turn is spread over many messages.
QUANTUM = 100
#: The mailbox of all closed receivers. With its own mailbox a closed receiver and its link would be a reference cycle,
#: which stays in memory until the collector finds it.
_CLOSED: Final = Mailbox()


class Receiver:
    """The standing request of one link (or one waiting call).

    Attributes:
        wanted: Credit that is not granted yet.
        granted: Credit granted to fragments that have not answered yet.
        removing: Receive-and-delete instead of peek-lock.
        mailbox: Gets the DeliveryBatches.
        gate: The rate that it shares with others, or None.
    """

    __slots__ = ("closed", "gate", "granted", "mailbox", "removing", "scheduler", "wanted")

    def __init__(self, scheduler: CreditScheduler, mailbox: Mailbox, *, removing: bool) -> None:
        self.scheduler = scheduler
        self.mailbox = mailbox
        self.removing = removing
        self.wanted = 0
        self.granted = 0
        self.closed = False
        self.gate: Throttle | None = None

    def request(self, credit: int) -> None:
        """Set how many more messages are wanted, with those that credit was granted for; a closed one wants none.

        The answer to a settlement may still come to a link that has ended, and have it ask for more. It would
        give back at once what it got, and the fragment would count as one that has nothing to give (I29).
        """
        if self.closed:
            return
        self.wanted = max(0, credit - self.granted)
        if self.wanted:
            self.scheduler.join(self)

    def deliver(self, batch: DeliveryBatch, granted: int) -> None:
        """Called by the message broker.

        It is the answer to a ``take`` of ``granted`` credits, perhaps with fewer messages.
        """
        self.granted -= granted
        unused = granted - len(batch.messages)
        if unused and self.gate is not None:
            self.gate.give_back(unused)
        if self.closed:
            if batch.messages and not self.removing:
                ranges = [(batch.first_lock, len(batch.messages))]
                batch.fragment.unlock(self.scheduler.source_no, batch.prefix, ranges, counted=False)
            return
        self.mailbox.ready.append(batch)
        self.mailbox.wake()
        if unused:
            self.wanted += unused
            self.scheduler.join(self)

    def rate_allows(self) -> None:
        """See throttle.Waiting."""
        if not self.closed:
            self.scheduler.join(self)

    def close(self) -> None:
        """Stop asking; what a fragment still answers goes back to it."""
        self.closed = True
        self.wanted = 0
        self.mailbox = _CLOSED
        self.scheduler.leave(self)


class AvailabilityWatcher(Protocol):
    """Who wants to know of messages without waiting for them."""

    def offered(self) -> None:
        """There are some; called within a commit's release, so that only a note may be made of it."""


class CreditScheduler:
    """Matches receivers of one (source, sub-queue) of an entity with the fragments that have messages.

    Attributes:
        receivers: Every open receiver, for whoever counts them.
        is_paused: Nothing is lent any more: the entity is about to be another server's.
        clock: Told when a receiver closes, if there is one.
        watchers: Told when there are messages for which nobody waits; in order, for simulations repeat it.
    """

    __slots__ = (
        "_offers",
        "_unserved",
        "_waiting",
        "clock",
        "is_paused",
        "receivers",
        "source_no",
        "sub_queue",
        "watchers",
    )

    def __init__(self, source_no: int, sub_queue: int) -> None:
        self.source_no = source_no
        self.sub_queue = sub_queue
        self.receivers: set[Receiver] = set()
        self.is_paused = False
        self.clock: LastUse | None = None
        self.watchers: dict[AvailabilityWatcher, None] = {}
        # Ordered sets: thousands may wait, and each joins and leaves at constant cost.
        self._waiting: OrderedDict[Receiver, None] = OrderedDict()
        self._offers: OrderedDict[FragmentHandle, None] = OrderedDict()
        # Receivers that take for good, in order, for whom there is something in late stores only.
        self._unserved: OrderedDict[Receiver, None] = OrderedDict()

    def open(self, mailbox: Mailbox, *, removing: bool) -> Receiver:
        """Add a receiver without credit."""
        receiver = Receiver(self, mailbox, removing=removing)
        self.receivers.add(receiver)
        return receiver

    def join(self, receiver: Receiver) -> None:
        """Queue a receiver that wants messages, behind those that wait already."""
        if receiver not in self._unserved:
            self._waiting.setdefault(receiver)
        self.match()

    def leave(self, receiver: Receiver) -> None:
        """Forget a receiver."""
        if self.clock is not None:
            self.clock.note()
        self.receivers.discard(receiver)
        self._waiting.pop(receiver, None)
        self._unserved.pop(receiver, None)

    @property
    def passes_over(self) -> bool:
        """Whether a receiver waits that granted nothing to a store because the store is late."""
        return bool(self._unserved)

    def offer(self, handle: FragmentHandle) -> None:
        """A fragment has available messages."""
        self._offers.setdefault(handle)
        if self._unserved and not handle.store.is_late:
            # They have waited longest. In place: a match may be under way.
            while self._unserved:
                receiver, _ = self._unserved.popitem()
                self._waiting[receiver] = None
                self._waiting.move_to_end(receiver, last=False)
        if self._waiting:
            self.match()
        if self.watchers and self._offers:
            for watcher in self.watchers:
                watcher.offered()

    def match(self) -> None:
        """Lend credit to fragments, in turn on both sides, until one side has nothing left."""
        offers = self._offers
        waiting = self._waiting
        while offers and waiting and not self.is_paused:
            handle = next(iter(offers))
            fragment = handle.fragment
            available = 0 if fragment is None else fragment.available(self.source_no, self.sub_queue)
            if fragment is None or available <= 0:
                del offers[handle]
                continue
            receiver, _ = waiting.popitem(last=False)
            if receiver.removing and handle.store.is_late:
                prompt = self._prompt_offer()
                if prompt is None:
                    self._unserved[receiver] = None
                    continue
                handle, fragment, available = prompt
            granted = min(receiver.wanted, available, QUANTUM)
            if granted > 0 and receiver.gate is not None:
                granted = receiver.gate.grant(receiver, granted)
            if granted <= 0:
                continue
            receiver.wanted -= granted
            receiver.granted += granted
            if receiver.wanted:
                waiting[receiver] = None
            # Offered again only while takes make it fewer: where nothing comes of one, what was there has just expired.
            # A fragment that gets messages back within the take offers itself.
            del offers[handle]
            handle.take(self.source_no, self.sub_queue, granted, receiver)
            if fragment.available(self.source_no, self.sub_queue) != available:
                offers.setdefault(handle)

    def _prompt_offer(self) -> tuple[FragmentHandle, Fragment, int] | None:
        """The first fragment that has messages in a store that is not late."""
        for handle in self._offers:
            fragment = handle.fragment
            if fragment is not None and not handle.store.is_late:
                available = fragment.available(self.source_no, self.sub_queue)
                if available > 0:
                    return handle, fragment, available
        return None
