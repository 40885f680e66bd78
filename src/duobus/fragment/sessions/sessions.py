"""Message sessions of one source: which session has which messages, who holds it, and its state.

A message of a session stands in its session's heap of counts instead of in the list that all share. Sessions that
have messages and no holder stand in one heap, by their oldest message: accepting the next one costs no search,
however many there are. Nothing here is paged out: whoever accepts a session by name wants to see all of it.

Locks of sessions live in memory and end with the fragment's life; states are rows of the store (I36).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from duobus.errors import MessageNotFound, ServiceBusError, SessionLockLost
from duobus.fragment.message import ACTIVE, DEFERRED, MAIN, QueuedMessage
from duobus.fragment.sessions.lock_owner import LockOwner
from duobus.fragment.sessions.session import Session as Session
from duobus.fragment.sessions.session import SessionLock as SessionLock

if TYPE_CHECKING:
    from duobus.fragment.commands import Command
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.housekeeping import Housekeeping
    from duobus.fragment.source import Source

#: Heaps with more outdated entries than this are made again.
COMPACT_FROM: Final = 1024
#: How long a holder without unsettled messages keeps its link after the end of its lock, unless somebody else accepts
#: the session. Clients that wait for messages with a limit of their own, 5 s in the
#: service's own tests, come to an end within it; a client that has forgotten its link loses it soon.
GRACE_MS: Final = 10_000
_STATE: Final = attrgetter("state")


class Sessions:
    """All sessions of one source.

    Attributes:
        by_id: Those that have messages or a holder.
        locks: Those locks that hold.
        lingering: Session id to (lock, end of its grace) of those that ran out while they protected nothing, ascending.
            The session is free; its former holder keeps its link, and may renew the lock as long as nobody else has it.
        states: Session id to (count of the row, bytes, when it was set) of each durable state.
        state_bytes: Of all of them.
        decided: The same for states whose commit is under way; None: cleared.
        was_held: Somebody has accepted a session since whoever asks last set this to whether one is held.
    """

    __slots__ = ("_ends", "_free", "by_id", "decided", "lingering", "locks", "state_bytes", "states", "was_held")

    def __init__(self) -> None:
        self.by_id: dict[str, Session] = {}
        self.locks: dict[int, SessionLock] = {}
        self.lingering: OrderedDict[str, tuple[SessionLock, int]] = OrderedDict()
        self.states: dict[str, tuple[int, int, int]] = {}
        self.state_bytes = 0
        self.decided: dict[str, tuple[int, int, int] | None] = {}
        self.was_held = False
        # (count of the oldest message, session id): one entry per session is right, others are outdated.
        self._free: list[tuple[int, str]] = []
        # (end, number): renewals leave the entry where it is, it is put back when it comes up.
        self._ends: list[tuple[int, int]] = []

    # -- messages -----------------------------------------------------------------------------------------------

    def add(self, message: QueuedMessage) -> Session:
        """A message is available, or is so again."""
        session_id = id_of(message)
        session = self.by_id.get(session_id)
        if session is None:
            session = self.by_id[session_id] = Session(session_id)
        heappush(session.counts, message.count)
        session.available += 1
        return session

    def withdrawn(self, message: QueuedMessage) -> None:
        """An available message is disposed of; its count stays in the heap until somebody comes across it."""
        session = self.by_id[id_of(message)]
        session.available -= 1
        self.drop_if_idle(session)

    def take(self, source: Source, session: Session, limit: int) -> list[QueuedMessage]:
        """Take up to ``limit`` messages off, lowest count first."""
        messages: list[QueuedMessage] = []
        counts, found = session.counts, source.by_count
        while session.available and len(messages) < limit:
            message = found.get(heappop(counts))
            if message is not None and _is_available(message):
                session.available -= 1
                messages.append(message)
        if not session.available:
            counts.clear()
        return messages

    def drop_if_idle(self, session: Session) -> None:
        """Forget a session of which nothing is left but, perhaps, a state."""
        if not session.available and session.lock is None and not session.returning:
            self.by_id.pop(session.session_id, None)

    # -- who is next --------------------------------------------------------------------------------------------

    def list_free(self, source: Source, session: Session) -> bool:
        """Enter a session that somebody may have into the heap of such; whether it is one."""
        if session.lock is not None or not session.available or session.returning:
            return False
        oldest = self._oldest_of(source, session)
        if not session.listed or oldest < session.listed:
            session.listed = oldest
            heappush(self._free, (oldest, session.session_id))
            self._compact_free()
        return True

    def next_free(self, source: Source) -> tuple[Session, QueuedMessage] | None:
        """The free session with the oldest available message, and that message; it stays where it is."""
        free = self._free
        while free:
            count, session_id = free[0]
            session = self.by_id.get(session_id)
            if session is None or session.listed != count:
                heappop(free)
                continue
            if session.lock is None and session.available and not session.returning:
                oldest = self._oldest_of(source, session)
                if oldest == count:
                    return session, source.by_count[count]
            heappop(free)
            session.listed = 0
            self.list_free(source, session)
        return None

    @staticmethod
    def _oldest_of(source: Source, session: Session) -> int:
        counts = session.counts
        while True:
            message = source.by_count.get(counts[0])
            if message is not None and _is_available(message):
                return counts[0]
            heappop(counts)

    def _compact_free(self) -> None:
        if len(self._free) > 2 * len(self.by_id) + COMPACT_FROM:
            self._free = [(s.listed, s.session_id) for s in self.by_id.values() if s.listed]
            heapify(self._free)

    # -- the ends of locks --------------------------------------------------------------------------------------

    def note_end(self, lock: SessionLock) -> None:
        """A lock ends by itself at its time."""
        heappush(self._ends, (lock.until_ms, lock.number))
        if len(self._ends) > 2 * len(self.locks) + COMPACT_FROM:
            self._ends = [(held.until_ms, number) for number, held in self.locks.items()]
            heapify(self._ends)

    def next_end(self, now_ms: int) -> SessionLock | None:
        """Take a lock that has run out; None when there is none."""
        ends = self._ends
        while ends and ends[0][0] <= now_ms:
            _, number = heappop(ends)
            lock = self.locks.get(number)
            if lock is None:
                continue
            if lock.until_ms <= now_ms:
                return lock
            heappush(ends, (lock.until_ms, number))
        return None

    def linger(self, lock: SessionLock, now_ms: int) -> None:
        """A lock has run out that protected nothing: its holder keeps its link for a while."""
        self.lingering[lock.session_id] = lock, now_ms + GRACE_MS

    def let_go(self, session_id: str, lock: SessionLock | None = None) -> SessionLock | None:
        """End the grace of a session's former holder and return its lock; ``lock``: only if it is this one."""
        found = self.lingering.get(session_id)
        if found is None or (lock is not None and found[0] is not lock):
            return None
        del self.lingering[session_id]
        return found[0]

    def next_gone(self, now_ms: int) -> SessionLock | None:
        """Take a lock whose grace is over; None when there is none."""
        for session_id, (_, end_ms) in self.lingering.items():
            return self.let_go(session_id) if end_ms <= now_ms else None
        return None

    @property
    def earliest_end(self) -> int | None:
        """When the next lock may run out, or the next grace is over."""
        ends = [self._ends[0][0]] if self._ends else []
        if self.lingering:
            ends.append(next(iter(self.lingering.values()))[1])
        return min(ends, default=None)

    @property
    def has_holders(self) -> bool:
        """Whether anybody holds a session, or has a link that did until a short while ago."""
        return bool(self.locks) or bool(self.lingering)

    def forget_holders(self) -> list[LockOwner]:
        """All sessions are lost at once; returns who is to be told."""
        locks = [*self.locks.values(), *[lock for lock, _ in self.lingering.values()]]
        self.locks = {}
        self.lingering.clear()
        for lock in locks:
            lock.is_over = True
        return [lock.owner for lock in locks]

    # -- looking ------------------------------------------------------------------------------------------------

    def with_anything(self, locks: dict[int, QueuedMessage], number: int) -> Iterator[list[str]]:
        """Ids of the sessions that have active messages, locked ones included, or a state; ``locks``: of the source.

        In lists for which ``number`` sessions were looked at: others may have a turn in between. Who comes meanwhile is
        not among them.
        """
        every, stated = list(self.by_id.values()), list(self.states)
        told: set[str] = set()
        for start in range(0, len(every), number):
            part = every[start : start + number]
            found = [s.session_id for s in part if s.available or (s.lock is not None and s.lock.unsettled(locks))]
            if stated:
                told.update(found)
            yield found
        for start in range(0, len(stated), number):
            yield [session_id for session_id in stated[start : start + number] if session_id not in told]

    def set_since(self, instant_ms: int, number: int) -> Iterator[list[str]]:
        """Ids of the sessions whose state was set after an instant, in lists as above."""
        every = list(self.states.items())
        for start in range(0, len(every), number):
            part = every[start : start + number]
            yield [session_id for session_id, (_, _, set_ms) in part if set_ms > instant_ms]


def id_of(message: QueuedMessage) -> str:
    """The session of a message."""
    return message.metadata.session_id or "" if message.metadata is not None else ""


def _is_available(message: QueuedMessage) -> bool:
    return message.state == ACTIVE and not message.lock


def session_lock_lost(session_id: str) -> SessionLockLost:
    """The error of whoever does not hold the session (any more)."""
    return SessionLockLost(
        f"The lock of the session '{session_id}' is not held here: it expired, was given up, or another receiver has "
        "it. Accept the session again."
    )


def sessions_of(source: Source) -> Sessions:
    """The sessions of a source that requires them."""
    assert source.sessions is not None
    return source.sessions


# -- messages come back -----------------------------------------------------------------------------------------


def place(fragment: Fragment, source: Source, message: QueuedMessage) -> None:
    """Make a message available in its session."""
    sessions = sessions_of(source)
    tell_of(fragment, source, sessions.add(message))


def tell_of(fragment: Fragment, source: Source, session: Session) -> None:
    """Whoever holds the session hears of its messages; for a free one, whoever waits for any."""
    lock = session.lock
    if lock is None:
        if sessions_of(source).list_free(source, session):
            fragment.fresh.add((source.source_no, MAIN))
    elif not lock.is_notified and not session.returning:
        lock.is_notified = True
        fragment.notified.append(lock)


def returned(fragment: Fragment, source: Source, expected: list[Session]) -> None:
    """What an abandon brought back is back: the sessions that waited for it go on, one entry per message."""
    for session in expected:
        session.returning -= 1
        if not session.returning:
            if session.available:
                tell_of(fragment, source, session)
            sessions_of(source).drop_if_idle(session)


# -- holding a session ------------------------------------------------------------------------------------------


def accept(fragment: Fragment, source: Source, session_id: str, owner: LockOwner, now_ms: int) -> SessionLock | None:
    """Lock a session, whether it has messages or not; None when somebody has it."""
    sessions = sessions_of(source)
    session = sessions.by_id.get(session_id)
    if session is None:
        session = sessions.by_id[session_id] = Session(session_id)
    elif session.lock is not None:
        return None
    former = sessions.let_go(session_id)
    if former is not None:
        fragment.ended.append(former)
    until_ms = now_ms + source.settings.lock_duration_ms
    number = fragment.next_lock
    fragment.next_lock = number + 1
    lock = session.lock = sessions.locks[number] = SessionLock(session, source.source_no, number, until_ms, owner)
    sessions.was_held = True
    sessions.note_end(lock)
    fragment.due_at(until_ms)
    return lock


def renew(fragment: Fragment, source: Source, lock: SessionLock, now_ms: int) -> int | None:
    """Renew a session's lock: its new end, which its messages share; None when it is over.

    One that ran out a short while ago is held again, where it protected nothing and nobody else has the session.
    """
    sessions = sessions_of(source)
    if lock.is_over and sessions.let_go(lock.session_id, lock) is None:
        return None
    lock.until_ms = now_ms + source.settings.lock_duration_ms
    if lock.is_over:
        session_id = lock.session_id
        session = sessions.by_id.get(session_id)
        if session is None:
            session = sessions.by_id[session_id] = Session(session_id)
        lock.is_over = False
        lock.session = session
        session.lock = sessions.locks[lock.number] = lock
        sessions.was_held = True
        sessions.note_end(lock)
        fragment.due_at(lock.until_ms)
        if session.available:
            tell_of(fragment, source, session)
    return lock.until_ms


def release(fragment: Fragment, lock: SessionLock, now_ms: int, *, counted: bool) -> list[Command]:
    """Give a session back with all its messages, in order; returns what needs a commit.

    ``counted``: the deliveries count, as they do when a client dies and not when it closes its link.
    """
    source = fragment.sources[lock.source_no]
    keeping = fragment.new_housekeeping(lock.source_no)
    end(fragment, source, lock, now_ms, keeping, counted)
    return [keeping] if keeping.expired or keeping.exhausted else []


def end_locks(fragment: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
    """End the locks of sessions that ran out (I37), and the links of those who had nothing for long enough."""
    sessions = sessions_of(source)
    while (lock := sessions.next_end(now_ms)) is not None:
        is_empty = not lock.unsettled(source.locks)
        end(fragment, source, lock, now_ms, keeping, True)
        if is_empty:
            sessions.linger(lock, now_ms)
        else:
            fragment.ended.append(lock)
    while (lock := sessions.next_gone(now_ms)) is not None:
        fragment.ended.append(lock)
    if sessions.earliest_end is not None:
        fragment.due_at(sessions.earliest_end)


def end(
    fragment: Fragment, source: Source, lock: SessionLock, now_ms: int, keeping: Housekeeping, counted: bool
) -> None:
    """End a session's lock; what its messages ask for goes into ``keeping``."""
    if lock.is_over:
        return
    sessions = sessions_of(source)
    session = lock.session
    lock.is_over = True
    session.lock = None
    del sessions.locks[lock.number]
    held, lock.held = sorted(lock.unsettled(source.locks)), []
    for number in held:
        message = source.locks.pop(number, None)
        if message is not None:
            fragment.return_message(source, message, now_ms, counted=counted, keeping=keeping)
    if session.available:
        tell_of(fragment, source, session)
    sessions.drop_if_idle(session)


# -- messages of a holder ---------------------------------------------------------------------------------------


def available(lock: SessionLock) -> int:
    """Messages that a take would find and that are not promised; none while older ones are coming back."""
    session = lock.session
    return 0 if lock.is_over or session.returning else session.available - lock.promised


def take(fragment: Fragment, lock: SessionLock, limit: int) -> tuple[int, list[QueuedMessage]]:
    """Lock up to ``limit`` messages of a session for as long as it is held: (first lock counter, messages)."""
    if available(lock) <= 0:
        return fragment.next_lock, []
    source = fragment.sources[lock.source_no]
    return lock_messages(fragment, source, lock, sessions_of(source).take(source, lock.session, limit))


def take_promised(source: Source, lock: SessionLock, credit: int) -> list[QueuedMessage]:
    """Take what ``credit`` was promised for, off for good; nothing when the session was lost meanwhile."""
    lock.promised -= credit
    if available(lock) <= 0:
        return []
    return sessions_of(source).take(source, lock.session, credit)


def lock_messages(
    fragment: Fragment, source: Source, lock: SessionLock, messages: list[QueuedMessage]
) -> tuple[int, list[QueuedMessage]]:
    """Lock messages under the lock of their session."""
    first = number = fragment.next_lock
    if len(lock.held) >= lock.held_max:
        lock.unsettled(source.locks)
    for message in messages:
        message.lock = number
        source.locks[number] = message
        number += 1
    source.firsts.note(source, messages)
    lock.held += range(first, number)
    fragment.next_lock = number
    return first, messages


def lock_deferred(
    fragment: Fragment, lock: SessionLock, counts: Sequence[int], now_ms: int
) -> tuple[int, list[QueuedMessage], int]:
    """Lock deferred messages of a session by number, all or none.

    Raises:
        SessionLockLost: The session is not held any more.
        MessageNotFound: One of them is not deferred, or belongs to another session.
    """
    source = fragment.sources[lock.source_no]
    error = deferred_fault(fragment, source, lock, counts, now_ms)
    if error is not None:
        raise error
    first, messages = lock_messages(fragment, source, lock, [source.by_count[count] for count in counts])
    return first, messages, lock.until_ms


def deferred_fault(
    fragment: Fragment, source: Source, lock: SessionLock | None, counts: Sequence[int], now_ms: int
) -> ServiceBusError | None:
    """Why the holder of a session cannot have these deferred messages, or None."""
    if lock is None or lock.is_over:
        return session_lock_lost("" if lock is None else lock.session_id)
    error = fragment.find_fault(source, counts, DEFERRED, "deferred", now_ms)
    if error is None and not all(id_of(source.by_count[count]) == lock.session_id for count in counts):
        error = MessageNotFound(f"The session '{lock.session_id}' does not have all of these deferred messages.")
    return error


def forget_locks(fragment: Fragment) -> list[LockOwner]:
    """The fragment's memory is thrown away: end every lock of a session and return their owners."""
    owners: list[LockOwner] = []
    for source in fragment.sources.values():
        if source.sessions is not None:
            owners += source.sessions.forget_holders()
    return owners
