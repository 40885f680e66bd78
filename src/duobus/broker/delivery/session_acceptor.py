"""Accepting sessions: by name at once, or the next available one, first come, first served (Azure: message sessions).

Who waits stands at the entity, over all of its fragments; who holds a session stands at its one fragment.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from duobus.broker.delivery.credit_scheduler import QUANTUM
from duobus.errors import StoreUnavailable
from duobus.fragment.sessions import sessions
from duobus.fragment.sessions.lock_owner import LockOwner
from duobus.fragment.sessions.sessions import SessionLock
from duobus.model.batches import DeliveryBatch, Mailbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duobus.broker.admission import Throttle
    from duobus.broker.delivery.session_groups import SessionGroup
    from duobus.broker.fragment_handle import FragmentHandle


class SessionHolder(Mailbox):
    """A mailbox that also wants to know when its session is lost."""

    __slots__ = ()

    def session_lost(self) -> None:
        """The session's lock is gone; no message of it is this one's any more."""
        raise NotImplementedError


class SessionReceiver(LockOwner):
    """The standing request of one link for the messages of the one session that it holds.

    Attributes:
        wanted: Credit that is not granted yet.
        granted: Credit granted to the fragment, not answered yet.
        removing: Receive-and-delete instead of peek-lock.
        mailbox: Gets the DeliveryBatches; set before credit is given.
        gate: The rate that it shares with others, or None.
        group: See LockOwner. Nothing of a group goes through a gate, or is removed at once.
        lock: Of the session.
        is_closed: Nothing is wanted any more, and nothing that came belongs to it.
        handle: The fragment where it lies.
    """

    __slots__ = (
        "_is_offering",
        "gate",
        "granted",
        "group",
        "handle",
        "is_closed",
        "lock",
        "mailbox",
        "removing",
        "wanted",
    )

    mailbox: SessionHolder
    lock: SessionLock
    handle: FragmentHandle

    def __init__(self, *, removing: bool) -> None:
        self.removing = removing
        self.wanted = 0
        self.granted = 0
        self.gate: Throttle | None = None
        self.group: SessionGroup | None = None
        self.is_closed = False
        self._is_offering = False

    def request(self, credit: int) -> None:
        """Set how many more messages are wanted, with those that credit was granted for."""
        self.wanted = max(0, credit - self.granted)
        self.offer()

    def offer(self) -> None:
        """Take what there is, as far as credit goes. See LockOwner."""
        lock = self.lock
        available = sessions.available(lock)
        if available <= 0 or not self.wanted or self._is_offering:
            return
        if self.group is not None:
            self.handle.sessions.hand_out(lock)
            return
        self._is_offering = True
        while available > 0 and self.wanted and not self.is_closed:
            granted = min(self.wanted, available, QUANTUM)
            if self.gate is not None:
                granted = self.gate.grant(self, granted)
                if granted <= 0:
                    break
            self.wanted -= granted
            self.granted += granted
            self.handle.sessions.take(lock, granted, self)
            before, available = available, sessions.available(lock)
            if before == available:
                # Nothing came of it: not again before the next offer.
                break
        self._is_offering = False

    def deliver(self, batch: DeliveryBatch, granted: int) -> None:
        """Called by the message broker.

        It is the answer to a ``take`` of ``granted`` credits, perhaps with fewer messages.
        """
        self.granted -= granted
        if self.gate is not None and len(batch.messages) < granted:
            self.gate.give_back(granted - len(batch.messages))
        if self.is_closed:
            # Locks went with the session's.
            return
        self.mailbox.ready.append(batch)
        self.mailbox.wake()
        if len(batch.messages) < granted:
            self.wanted += granted - len(batch.messages)
            self.offer()

    def rate_allows(self) -> None:
        """See throttle.Waiting."""
        self.offer()

    def lost(self) -> None:
        """See LockOwner."""
        self.wanted = 0
        if not self.is_closed:
            self.mailbox.session_lost()

    def close(self) -> None:
        """Stop asking; ``give_back`` gives the session to others."""
        self.is_closed = True
        self.wanted = 0

    def give_back(self, *, counted: bool) -> None:
        """Free the session with everything that came of it; ``counted``: its deliveries count."""
        self.close()
        self.handle.sessions.release(self.lock, counted=counted)


class SessionWaiter(Protocol):
    """Somebody who waits for the next available session.

    Attributes:
        receiver: Gets the session.
    """

    receiver: SessionReceiver

    def accepted(self) -> bool:
        """The receiver has a session; False when nobody is there any more to use it."""


class SessionAcceptor:
    """Matches those who wait with sessions that are free, over all fragments of an entity.

    Attributes:
        was_used: Somebody has given up waiting since whoever asks last set this to False.
    """

    __slots__ = ("_fragments", "_is_matching", "_source_no", "_waiting", "was_used")

    def __init__(self, source_no: int, fragments: Sequence[FragmentHandle]) -> None:
        self._source_no = source_no
        self._fragments = fragments
        self._waiting: OrderedDict[SessionWaiter, None] = OrderedDict()
        self._is_matching = False
        self.was_used = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def join(self, waiter: SessionWaiter) -> None:
        """Queue up behind those that wait already; ``accepted`` may be called before this returns.

        Raises:
            StoreUnavailable: No fragment of the entity is there.
        """
        if not any(handle.online for handle in self._fragments):
            raise StoreUnavailable("No messaging store of this entity is available. Try again in a few seconds.")
        self._waiting[waiter] = None
        self._match()

    def leave(self, waiter: SessionWaiter) -> None:
        """Wait no longer."""
        self.was_used = True
        self._waiting.pop(waiter, None)

    def offer(self, _handle: FragmentHandle) -> None:
        """A fragment has free sessions with messages."""
        self._match()

    def _match(self) -> None:
        """Give sessions to waiters in order: the one with the oldest message goes first, whichever fragment has it."""
        if self._is_matching:
            return
        self._is_matching = True
        try:
            while self._waiting:
                found = self._oldest()
                if found is None:
                    break
                handle, session_id = found
                # Looking has let time pass in the fragments, so whoever is first now is asked for only now.
                waiter = next(iter(self._waiting))
                if give(handle, self._source_no, session_id, waiter.receiver):
                    self._waiting.pop(waiter, None)
                    if not waiter.accepted():
                        waiter.receiver.give_back(counted=False)
        finally:
            self._is_matching = False

    def _oldest(self) -> tuple[FragmentHandle, str] | None:
        best: tuple[int, int, int] | None = None
        found: tuple[FragmentHandle, str] | None = None
        for handle in self._fragments:
            age = handle.sessions.age_of_next(self._source_no)
            if age is not None and (best is None or (age[0], handle.number, age[1]) < best):
                best = (age[0], handle.number, age[1])
                found = handle, age[2]
        return found if self._waiting else None


def give(handle: FragmentHandle, source_no: int, session_id: str, receiver: SessionReceiver) -> bool:
    """Lock a session for a receiver; False when another has it."""
    lock = handle.sessions.accept(source_no, session_id, receiver)
    if lock is None:
        return False
    receiver.lock, receiver.handle = lock, handle
    return True
